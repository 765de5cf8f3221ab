"""Noise on voltages, loads or entries of Y: sensitivities and mechanisms, those of the paper's table."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from dp_powerflow.errors import FeederError, PowerFlowError, PrivacyError
from dp_powerflow.evidence import symbols
from dp_powerflow.evidence.collect import network_facts
from dp_powerflow.evidence.theorem import NetworkFacts, over_neighbours
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.model.law import LoadLaw
from dp_powerflow.paper.mechanisms import BY_RADIUS, Cost, Guarantee, Setting, solve_loads
from dp_powerflow.paper.mechanisms.noise import STEP, GaussianNoise, NoiseUnit
from dp_powerflow.powerflow.reference import ReferenceSolver
from dp_powerflow.units import ComplexArray


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
class NoiseFree:
    """AC power flow with the true loads."""

    setting: Setting
    name: str = "noise-free"
    protects: str = "nothing"

    @property
    def noise_std(self) -> dict[str, float]:
        """Nothing is added."""
        return {}

    def cost(self) -> Cost:
        """Nothing is claimed."""
        return Cost(network=None, loads=None)

    def release(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """The true voltages; the generator is not asked."""
        return self.setting.solve(self.setting.first_days(days))


class VoltageNoise(ABC):
    """A mechanism whose last step is noise on voltages; one set of clean ones serves every amount of it."""

    setting: Setting
    sensitivities: Sensitivities
    unit: NoiseUnit

    @property
    @abstractmethod
    def voltage_noise(self) -> GaussianNoise:
        """What is added to real and imaginary part of every voltage [p.u.]."""

    def clean(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Voltages before the noise: those of the true loads, unless the mechanism has others."""
        return self.setting.solve(self.setting.first_days(days))

    @property
    def _noises(self) -> dict[str, GaussianNoise]:
        return {"noise": self.voltage_noise}

    @property
    def noise_std(self) -> dict[str, float]:
        """By what it is on [p.u.]."""
        return {name: noise.sigma for name, noise in self._noises.items()}

    @property
    def true_delta(self) -> dict[str, float]:
        """δ that every noise really gives at its ε, by what it is on."""
        return {name: noise.true_delta for name, noise in self._noises.items()}

    def release(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Noisy voltages."""
        clean = self.clean(generator, days)
        return self.voltage_noise.on_complex(clean, generator)

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
        )


@dataclass(frozen=True, eq=False)
class GaussianVoltages(VoltageNoise):
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
    protects: str = "network"

    @property
    def voltage_noise(self) -> GaussianNoise:
        """What is added to every voltage vector."""
        return self._noise_for(self.sensitivities.network, self.epsilon, self.delta)

    def cost(self) -> Cost:
        """Noise for the network; the voltages still tell the true loads."""
        return Cost(network=self._network_claim(), loads=None)


@dataclass(frozen=True, eq=False)
class JointVoltageNoise(VoltageNoise):
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
    protects: str = "network and loads"

    @property
    def voltage_noise(self) -> GaussianNoise:
        """What is added to every voltage vector."""
        larger = max(self.sensitivities.network, self.sensitivities.load)
        return self._noise_for(larger, min(self.epsilon, self.epsilon_load), self.delta)

    def cost(self) -> Cost:
        """The same claim for both secrets; they change one at a time."""
        covered = self.unit.covered(self.setting.steps)
        span = "at one step" if covered == 1 else f"at {covered} steps"
        loads = f"histories in which one node has another load within its range {span}"
        network = self._network_claim()
        return Cost(network=network, loads=replace(network, adjacency=loads))


@dataclass(frozen=True, eq=False)
class GmmVoltageNoise(VoltageNoise):
    """Power flow of loads drawn from a released model, with noise for Δ₂^(Y).

    Attributes
    ----------
    law : of the synthetic loads, fitted under differential privacy.
    loads : what the fit claims.
    unit : what the noise covers.
    """

    setting: Setting
    law: LoadLaw
    loads: Guarantee
    sensitivities: Sensitivities
    epsilon: float
    delta: float
    unit: NoiseUnit = STEP
    name: str = "DP-GMM + voltage noise"
    protects: str = "network and loads"

    @property
    def voltage_noise(self) -> GaussianNoise:
        """What is added to every voltage vector."""
        return self._noise_for(self.sensitivities.network, self.epsilon, self.delta)

    def cost(self) -> Cost:
        """Noise for the network; the loads are post-processing of the fit."""
        return Cost(network=self._network_claim(), loads=self.loads)

    def clean(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Voltages of synthetic days."""
        return self.setting.solve_law(self.law, days, generator)


ONE_NODE_DAY = "histories in which one node has other loads on one day"
WHOLE_DAY = "histories that differ in all loads of one day"


@dataclass(frozen=True, eq=False)
class NoisyLoads(VoltageNoise):
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
    protects: str = "network and loads"

    @property
    def load_noise(self) -> GaussianNoise:
        """What is added to every active load [p.u.]."""
        covered = self.unit.covered_loads(self.setting.steps, self.setting.n_loads)
        reach = math.sqrt(covered) * self.setting.load_range
        return self.unit.noise(reach, self.epsilon_load, self.delta_load)

    @property
    def voltage_noise(self) -> GaussianNoise:
        """What is added to every voltage vector."""
        return self._noise_for(self.sensitivities.network, self.epsilon, self.delta)

    @property
    def _noises(self) -> dict[str, GaussianNoise]:
        return {"load_noise": self.load_noise, "voltage_noise": self.voltage_noise}

    def cost(self) -> Cost:
        """Noise for each secret; the loads' is proved by the range they are clipped to."""
        loads = self.load_noise.claim(WHOLE_DAY if self.unit.whole_day else ONE_NODE_DAY)
        return Cost(network=self._network_claim(), loads=loads)

    def clean(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Voltages of noisy loads."""
        return self.setting.solve(self.noisy_load(generator, days))

    def noisy_load(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Complex (day, step, node) noisy loads [p.u.]; q follows p at the node's public power factor."""
        p_max = self.p_min + self.setting.load_range
        true = np.clip(self.setting.first_days(days).real, self.p_min, p_max)
        active = np.clip(self.load_noise.on_real(true, generator), self.p_min, p_max)
        return np.asarray(active * (1.0 + 1j * self.setting.tangents))


_MAX_ITERATIONS = 100
"""Of the fixed point on the noisy, dense matrix; what has not converged by then has failed."""


@dataclass(frozen=True, eq=False)
class AdmittanceNoise:
    """True loads on one network with noise on every matrix entry, for any number of days.

    No structure is restored: sparsity and symmetry are lost, and failures stay visible. Of the unit only the
    calibration matters: one matrix serves every step.
    """

    setting: Setting
    epsilon: float
    delta: float
    unit: NoiseUnit = STEP
    name: str = "noise on entries of Y"
    protects: str = "network"

    @property
    def noise(self) -> GaussianNoise:
        """What is added to every entry of Y_full [p.u.]; its sensitivity is r by definition."""
        return self.unit.noise(self.setting.radius, self.epsilon, self.delta)

    @property
    def noise_std(self) -> dict[str, float]:
        """Of every entry of Y_full [p.u.]."""
        return {"noise": self.noise.sigma}

    @property
    def true_delta(self) -> dict[str, float]:
        """δ that the noise really gives at ε."""
        return {"noise": self.noise.true_delta}

    def cost(self) -> Cost:
        """One noisy matrix, any number of days; the loads are not protected."""
        return Cost(network=self.noise.claim(BY_RADIUS), loads=None)

    def release(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Voltages on one noisy network; NaN where power flow fails, everywhere if it cannot be set up."""
        load = self.setting.first_days(days)
        try:
            solver = ReferenceSolver(
                self.noisy_feeder(generator), max_iterations=_MAX_ITERATIONS, voltvar=self.setting.voltvar
            )
        except (FeederError, PowerFlowError):
            return np.full(load.shape, np.nan + 1j * np.nan)
        return solve_loads(solver, load, self.setting.generation)

    def noisy_feeder(self, generator: np.random.Generator) -> Feeder:
        """The feeder with one draw of the noise on every entry."""
        feeder = self.setting.network.feeder
        noisy = self.noise.on_complex(feeder.y.toarray(), generator)
        return replace(feeder, y=sp.csc_array(noisy), origin=None)
