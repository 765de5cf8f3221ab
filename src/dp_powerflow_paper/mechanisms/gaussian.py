"""Noise on voltages, loads or entries of Y: sensitivities and mechanisms, those of the paper's table."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.theorem import over_neighbours
from dp_powerflow.lowlevel import NetworkFacts, network_facts
from dp_powerflow_paper.losses import sensitivity_to_load, sensitivity_to_network
from dp_powerflow_paper.mechanisms import Setting
from dp_powerflow_paper.mechanisms.noise import STEP, GaussianNoise, NoiseUnit
from dp_powerflow_paper.sources import BY_RADIUS, Guarantee, LoadMechanism
from dp_powerflow_paper.sources.composition import Composition, GaussianOnVoltages
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
        sensitivity_to_network(inside.v_min, inside.v_max, setting.network.n, kappa_r, inside.mu),
        sensitivity_to_load(inside.v_min, setting.load_range, inside.mu),
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


def noise_free(setting: Setting) -> Composition:
    """AC power flow with the true loads."""
    return Composition(setting, true_loads(setting), true_network(setting), title="noise-free")


@dataclass(frozen=True)
class NetworkTarget:
    """What noise on voltages is made for.

    Attributes
    ----------
    epsilon, delta : target for the network.
    unit : what the noise covers.
    """

    sensitivities: Sensitivities
    epsilon: float
    delta: float
    unit: NoiseUnit = STEP

    def noise(self, setting: Setting, sensitivity: float | None = None) -> GaussianNoise:
        """On real and imaginary part of every voltage [p.u.], for Δ₂ of one voltage vector: Δ₂^(Y)."""
        reach = math.sqrt(self.unit.covered(setting.steps)) * (sensitivity or self.sensitivities.network)
        return self.unit.noise(reach, self.epsilon, self.delta)

    def claim(self, setting: Setting, noise: GaussianNoise) -> Guarantee:
        """What noise on the voltages of the steps covered together claims for the network."""
        covered = self.unit.covered(setting.steps)
        return Guarantee(
            noise.epsilon,
            noise.delta,
            "step" if covered == 1 else f"{covered} steps",
            BY_RADIUS,
            self.sensitivities.proved and noise.holds,
            f"{noise.remark}; sensitivity: {self.sensitivities.source}",
            composes="per snapshot" if covered == 1 else "per day",
            metric=setting.radius,
        )


def voltage_noise(
    setting: Setting,
    target: NetworkTarget,
    loads: LoadMechanism | None = None,
    title: str = "Gaussian on voltages",
    on: str = "noise",
) -> Composition:
    """Voltages with noise for Δ₂^(Y), as in the paper's table.

    Parameters
    ----------
    loads : None for the true ones, which are not protected then.
    on : key of the noise's standard deviation.
    """
    noise = target.noise(setting)
    last = GaussianOnVoltages(noise, target.claim(setting, noise), on=on)
    return Composition(setting, loads or true_loads(setting), true_network(setting), last, title)


def joint_voltage_noise(setting: Setting, target: NetworkTarget, epsilon_load: float) -> Composition:
    """True voltages with noise for the larger of the two sensitivities, at the smaller of the two budgets.

    The claim is the same for both secrets; they change one at a time.
    """
    larger = max(target.sensitivities.network, target.sensitivities.load)
    noise = replace(target, epsilon=min(target.epsilon, epsilon_load)).noise(setting, larger)
    covered, network = target.unit.covered(setting.steps), target.claim(setting, noise)
    span = "at one step" if covered == 1 else f"at {covered} steps"
    of_loads = f"histories in which one node has another load within its range {span}"
    last = GaussianOnVoltages(noise, network, for_loads=replace(network, adjacency=of_loads, metric=None))
    return Composition(setting, true_loads(setting), true_network(setting), last, "joint voltage noise")


ONE_NODE_DAY = "histories in which one node has other loads on one day"
WHOLE_DAY = "histories that differ in all loads of one day"


def noisy_loads(
    setting: Setting, target: NetworkTarget, p_min: float, epsilon_load: float, delta_load: float
) -> Composition:
    """True active loads with noise, clipped to the public range, through power flow; noise on the voltages.

    Parameters
    ----------
    p_min : smallest load of the public range [p.u.]; the largest is p_min + `setting.load_range`.
    """
    unit = target.unit
    covered = unit.covered_loads(setting.steps, setting.n_loads)
    noise = unit.noise(math.sqrt(covered) * setting.load_range, epsilon_load, delta_load)
    public = PublicLoads.of(setting, p_min, p_min + setting.load_range)
    loads = GaussianLoads(setting.true_load, public, noise, WHOLE_DAY if unit.whole_day else ONE_NODE_DAY)
    return voltage_noise(setting, target, loads, "noisy loads + voltage noise", on="voltage_noise")


def admittance_noise(setting: Setting, epsilon: float, delta: float, unit: NoiseUnit = STEP) -> Composition:
    """True loads on one network with noise on every matrix entry, for any number of days.

    No structure is restored: sparsity and symmetry are lost, and failures stay visible. Of the unit only the
    calibration matters: one matrix serves every step, and its sensitivity is r by definition.
    """
    network = EntriesOfY(setting.network.feeder, unit.noise(setting.radius, epsilon, delta))
    return Composition(setting, true_loads(setting), network, title="noise on entries of Y")
