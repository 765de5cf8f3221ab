"""Noise on voltages, loads or entries of Y: sensitivities and mechanisms, those of the paper's table."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence import symbols
from dp_powerflow.evidence.theorem import over_neighbours
from dp_powerflow.lowlevel import NetworkFacts, network_facts
from dp_powerflow.units import ComplexArray
from dp_powerflow_paper.mechanisms import Setting
from dp_powerflow_paper.mechanisms.noise import STEP, GaussianNoise, NoiseUnit
from dp_powerflow_paper.sources import BY_RADIUS, Guarantee, LoadMechanism
from dp_powerflow_paper.sources.composition import Composed, Composition, GaussianOnVoltages
from dp_powerflow_paper.sources.loads import GaussianLoads, PublicLoads, true_loads
from dp_powerflow_paper.sources.networks import EntriesOfY, true_network


@dataclass(frozen=True)
class Sensitivities:
    """Δ₂ of the voltages of one step [p.u.], real and imaginary parts together.

    Attributes
    ----------
    network : Δ₂^(Y), over networks within r.
    load : Δ₂^(load→v), over one load point's load within its range.
    proved : whether both are bounds; if not, `source` says where they come from.
    """

    network: float
    load: float
    proved: bool
    source: str


def printed_sensitivities(setting: Setting, facts: NetworkFacts | None = None) -> Sensitivities:
    """Eq. sens_voltage_Y, sens_voltage_load with the exact κ; the printed κ is 1e29 on IEEE 123.

    Their V_min, V_max and ‖M̃⁻¹‖ are those of the setting, in the paper a Monte Carlo calibration on draws of
    the load model: no bound for true loads, which need not look like draws.
    """
    facts = facts or network_facts(setting.network)
    inside = setting.operating
    kappa_r = facts.amplification.exact * setting.radius
    return Sensitivities(
        symbols.sensitivity_to_network(inside.v_min, inside.v_max, setting.network.n, kappa_r, inside.mu),
        symbols.sensitivity_to_load(inside.v_min, setting.load_range, inside.mu),
        proved=False,
        source=f"the paper's formulae with the exact κ; {inside.source}",
    )


def proved_sensitivities(
    setting: Setting, tan_theta: float, facts: NetworkFacts | None = None
) -> Sensitivities:
    """Bounds over every load in the box and every network within r on existing lines.

    With M̃·(dv, d̄v) = −(conj(ΔY_K v_K), ΔY_K v_K), ‖dv‖ ≤ μ⋆·κr·‖v_K‖ with the slack columns in v_K; with
    M̃·(dv, d̄v) = (ds/v, conj(ds/v)), ‖dv‖ ≤ μ·|ds|/V_min and |ds| = Δ_load·√(1 + tan²θ).

    Parameters
    ----------
    tan_theta : largest tangent of a power-factor angle, in modulus.
    """
    facts = facts or network_facts(setting.network)
    if setting.operating.delta > 0.0:
        raise PrivacyError(
            "a proved sensitivity needs an operating set that every load in the box stays in, such as "
            "calibration.load_box_set without a measured range"
        )
    kappa_r = facts.amplification.bound(setting.radius) * setting.radius
    reached = over_neighbours(facts, setting.operating, kappa_r)
    if not math.isfinite(reached.mu):
        raise PrivacyError("r is too large for a bound on ‖M̃⁻¹‖ over the neighbours; lower the radius")
    power = setting.load_range * math.hypot(1.0, tan_theta)
    return Sensitivities(
        reached.mu * kappa_r * facts.v_kept(reached.v_max),
        setting.operating.mu * power / setting.operating.v_min,
        proved=True,
        source="proved over the load box",
    )


@dataclass(frozen=True, eq=False)
class NoiseFree(Composed):
    """AC power flow with the true loads."""

    setting: Setting
    name: str = "noise-free"

    @property
    def composition(self) -> Composition:
        """Nothing but the truth."""
        return Composition(self.setting, true_loads(self.setting), true_network(self.setting))


class NoisyVoltages(Composed):
    """A mechanism whose last step is noise on voltages; one set of clean ones serves every amount of it."""

    sensitivities: Sensitivities
    epsilon: float
    delta: float
    unit: NoiseUnit

    @property
    def voltage_noise(self) -> GaussianNoise:
        """What is added to real and imaginary part of every voltage [p.u.]: Δ₂^(Y) at ε, unless said."""
        return self._noise_for(self.sensitivities.network, self.epsilon, self.delta)

    @property
    def loads(self) -> LoadMechanism:
        """The true ones, unless the mechanism has others."""
        return true_loads(self.setting)

    @property
    def last_step(self) -> GaussianOnVoltages:
        """The noise and its claims."""
        return GaussianOnVoltages(self.voltage_noise, self._network_claim())

    @property
    def composition(self) -> Composition:
        """Loads on the true network, then the noise."""
        return Composition(self.setting, self.loads, true_network(self.setting), self.last_step)

    @property
    def true_delta(self) -> dict[str, float]:
        """δ that every noise really gives at its ε, by what it is on."""
        return {self.last_step.on: self.voltage_noise.true_delta}

    def clean(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Voltages before the noise."""
        return self.composition.clean(generator, days)

    def _noise_for(self, sensitivity: float, epsilon: float, delta: float) -> GaussianNoise:
        """For Δ₂ of one voltage vector."""
        covered = self.unit.covered(self.setting.steps)
        return self.unit.noise(math.sqrt(covered) * sensitivity, epsilon, delta)

    def _network_claim(self) -> Guarantee:
        """What the noise on the voltages of the steps covered together claims for the network."""
        noise, covered = self.voltage_noise, self.unit.covered(self.setting.steps)
        return Guarantee(
            noise.epsilon,
            noise.delta,
            "step" if covered == 1 else f"{covered} steps",
            BY_RADIUS,
            self.sensitivities.proved and noise.holds,
            f"{noise.remark}; sensitivity: {self.sensitivities.source}",
            composes="per snapshot" if covered == 1 else "per day",
            metric=self.setting.radius,
        )


@dataclass(frozen=True, eq=False)
class GaussianVoltages(NoisyVoltages):
    """True voltages with noise for Δ₂^(Y), as in the paper's table; the loads are not protected.

    Attributes
    ----------
    epsilon, delta : target for the network.
    unit : what the noise covers.
    """

    setting: Setting
    sensitivities: Sensitivities
    epsilon: float
    delta: float
    unit: NoiseUnit = STEP
    name: str = "Gaussian on voltages"


@dataclass(frozen=True, eq=False)
class JointVoltageNoise(NoisyVoltages):
    """True voltages with noise for the larger of the two sensitivities, at the smaller of the two budgets.

    Attributes
    ----------
    epsilon, epsilon_load : targets for network and loads; the noise is calibrated to the smaller.
    unit : what the noise covers.
    """

    setting: Setting
    sensitivities: Sensitivities
    epsilon: float
    epsilon_load: float
    delta: float
    unit: NoiseUnit = STEP
    name: str = "joint voltage noise"

    @property
    def voltage_noise(self) -> GaussianNoise:
        """What is added to every voltage vector."""
        larger = max(self.sensitivities.network, self.sensitivities.load)
        return self._noise_for(larger, min(self.epsilon, self.epsilon_load), self.delta)

    @property
    def last_step(self) -> GaussianOnVoltages:
        """The same claim for both secrets; they change one at a time."""
        covered = self.unit.covered(self.setting.steps)
        span = "at one step" if covered == 1 else f"at {covered} steps"
        loads = f"histories in which one node has another load within its range {span}"
        network = self._network_claim()
        return GaussianOnVoltages(
            self.voltage_noise, network, for_loads=replace(network, adjacency=loads, metric=None)
        )


@dataclass(frozen=True, eq=False)
class GmmVoltageNoise(NoisyVoltages):
    """Power flow of loads drawn from a released model, with noise for Δ₂^(Y).

    Attributes
    ----------
    model : the synthetic loads, fitted under differential privacy.
    unit : what the noise covers.
    """

    setting: Setting
    model: LoadMechanism
    sensitivities: Sensitivities
    epsilon: float
    delta: float
    unit: NoiseUnit = STEP
    name: str = "DP-GMM + voltage noise"

    @property
    def loads(self) -> LoadMechanism:
        """Post-processing of the fit."""
        return self.model


ONE_NODE_DAY = "histories in which one node has other loads on one day"
WHOLE_DAY = "histories that differ in all loads of one day"


@dataclass(frozen=True, eq=False)
class NoisyLoads(NoisyVoltages):
    """True active loads with noise, clipped to the public range, through power flow; noise on the voltages.

    Attributes
    ----------
    p_min : smallest load of the public range [p.u.]; the largest is p_min + `setting.load_range`.
    unit : what both noises cover.
    """

    setting: Setting
    sensitivities: Sensitivities
    p_min: float
    epsilon: float
    epsilon_load: float
    delta: float
    delta_load: float
    unit: NoiseUnit = STEP
    name: str = "noisy loads + voltage noise"

    @property
    def load_noise(self) -> GaussianNoise:
        """What is added to every active load [p.u.]."""
        covered = self.unit.covered_loads(self.setting.steps, self.setting.n_loads)
        reach = math.sqrt(covered) * self.setting.load_range
        return self.unit.noise(reach, self.epsilon_load, self.delta_load)

    @property
    def loads(self) -> GaussianLoads:
        """Noisy ones; their claim is proved by the range they are clipped to."""
        public = PublicLoads.of(self.setting, self.p_min, self.p_min + self.setting.load_range)
        adjacency = WHOLE_DAY if self.unit.whole_day else ONE_NODE_DAY
        return GaussianLoads(self.setting.true_load, public, self.load_noise, adjacency)

    @property
    def last_step(self) -> GaussianOnVoltages:
        """Noise for the network alone."""
        return GaussianOnVoltages(self.voltage_noise, self._network_claim(), on="voltage_noise")

    @property
    def true_delta(self) -> dict[str, float]:
        """δ that every noise really gives at its ε, by what it is on."""
        return {"load_noise": self.load_noise.true_delta, "voltage_noise": self.voltage_noise.true_delta}


@dataclass(frozen=True, eq=False)
class AdmittanceNoise(Composed):
    """True loads on one network with noise on every matrix entry, for any number of days.

    No structure is restored: sparsity and symmetry are lost, and failures stay visible. Of the unit only the
    calibration matters: one matrix serves every step.
    """

    setting: Setting
    epsilon: float
    delta: float
    unit: NoiseUnit = STEP
    name: str = "noise on entries of Y"

    @property
    def noise(self) -> GaussianNoise:
        """What is added to every entry of Y_full [p.u.]; its sensitivity is r by definition."""
        return self.unit.noise(self.setting.radius, self.epsilon, self.delta)

    @property
    def network(self) -> EntriesOfY:
        """The noisy network."""
        return EntriesOfY(self.setting.network.feeder, self.noise)

    @property
    def true_delta(self) -> dict[str, float]:
        """δ that the noise really gives at ε."""
        return {"noise": self.noise.true_delta}

    @property
    def composition(self) -> Composition:
        """One noisy matrix, any number of days; the loads are not protected."""
        return Composition(self.setting, true_loads(self.setting), self.network)
