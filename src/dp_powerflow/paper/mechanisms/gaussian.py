"""Gaussian noise on voltages, loads or entries of Y: calibration, sensitivities and mechanisms.

`analytic` is the exact calibration (Balle and Wang, arXiv 1805.06530v2): μ = Δ/σ is the largest whose curve
δ(ε; μ) passes through (ε, δ). `classical` is σ = Δ√(2 ln(1.25/δ))/ε, which the paper uses and which is only
proved for ε ≤ 1; `true_delta` says what it really gives (paper correction 10).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import scipy.sparse as sp

from dp_powerflow.errors import FeederError, PowerFlowError, PrivacyError
from dp_powerflow.evidence import symbols
from dp_powerflow.evidence.collect import network_facts
from dp_powerflow.evidence.theorem import NetworkFacts, over_neighbours
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.model.law import LoadLaw
from dp_powerflow.paper.mechanisms import BY_RADIUS, Cost, Guarantee, Setting, solve_loads
from dp_powerflow.powerflow.reference import ReferenceSolver
from dp_powerflow.privacy.budget import gdp_delta, gdp_mu
from dp_powerflow.units import ComplexArray, FloatArray

Calibration = Literal["analytic", "classical"]


@dataclass(frozen=True)
class GaussianNoise:
    """Independent N(0, σ²) on every real number of a vector.

    Attributes
    ----------
    sensitivity : Δ₂ of the whole vector that one (ε, δ) covers.
    epsilon, delta : what the noise is calibrated to.
    """

    sensitivity: float
    epsilon: float
    delta: float
    calibration: Calibration = "analytic"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sensitivity) and self.sensitivity > 0.0):
            raise PrivacyError("Gaussian noise needs a finite, positive sensitivity")
        if self.calibration not in ("analytic", "classical"):
            raise PrivacyError(f"calibration must be analytic or classical, not {self.calibration!r}")
        if not (self.epsilon > 0.0 and 0.0 < self.delta < 1.0):
            raise PrivacyError("Gaussian noise needs a positive ε and a δ between 0 and 1")

    @property
    def sigma(self) -> float:
        """Standard deviation of every real number."""
        if self.calibration == "classical":
            return self.sensitivity * math.sqrt(2.0 * math.log(1.25 / self.delta)) / self.epsilon
        return self.sensitivity / gdp_mu(self.epsilon, self.delta)

    @property
    def true_delta(self) -> float:
        """δ that σ really gives at ε."""
        return gdp_delta(self.epsilon, self.sensitivity / self.sigma)

    @property
    def holds(self) -> bool:
        """Whether (ε, δ) is what σ gives."""
        return self.true_delta <= self.delta * (1.0 + 1e-9)

    @property
    def remark(self) -> str:
        """How σ was found, with its true δ where that is another."""
        if self.holds:
            return f"{self.calibration} Gaussian mechanism, σ = {self.sigma:.4g}"
        return (
            f"classical formula, σ = {self.sigma:.4g}: its δ at this ε is {self.true_delta:.3g}, "
            f"not {self.delta:.3g}"
        )

    def claim(self, adjacency: str) -> Guarantee:
        """What noise that is drawn once claims; all that follows is post-processing."""
        return Guarantee(self.epsilon, self.delta, "any number of days", adjacency, self.holds, self.remark)

    def on_real(self, values: FloatArray, generator: np.random.Generator) -> FloatArray:
        """Noisy copy of real values."""
        return np.asarray(values + self.sigma * generator.standard_normal(values.shape))

    def on_complex(self, values: ComplexArray, generator: np.random.Generator) -> ComplexArray:
        """Noisy copy of complex values; real and imaginary parts are separate real numbers."""
        pair = generator.standard_normal((*values.shape, 2))
        return np.asarray(values + self.sigma * (pair[..., 0] + 1j * pair[..., 1]))


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
        symbols.sensitivity_to_network(inside.v_min, inside.v_max, facts.n, kappa_r, inside.mu),
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


def _voltage_claim(noise: GaussianNoise, sensitivities: Sensitivities, covered: int) -> Guarantee:
    """What noise on the voltages of `covered` steps together claims for the network."""
    return Guarantee(
        noise.epsilon,
        noise.delta,
        "step" if covered == 1 else f"{covered} steps",
        BY_RADIUS,
        sensitivities.proved and noise.holds,
        f"{noise.remark}; sensitivity: {sensitivities.source}",
    )


@dataclass(frozen=True, eq=False)
class JointVoltageNoise:
    """True voltages with noise for the larger of the two sensitivities, at the smaller of the two budgets.

    Attributes
    ----------
    epsilon, epsilon_load : targets for network and loads; the noise is calibrated to the smaller.
    covered : steps that one (ε, δ) covers together: 1, or T for the paper's table (√T).
    """

    setting: Setting
    sensitivities: Sensitivities
    epsilon: float
    epsilon_load: float
    delta: float
    covered: int = 1
    calibration: Calibration = "analytic"
    name: str = "joint voltage noise"
    protects: str = "network and loads"

    @property
    def noise(self) -> GaussianNoise:
        """What is added to every voltage vector."""
        larger = max(self.sensitivities.network, self.sensitivities.load)
        budget = min(self.epsilon, self.epsilon_load)
        return GaussianNoise(math.sqrt(self.covered) * larger, budget, self.delta, self.calibration)

    @property
    def noise_std(self) -> dict[str, float]:
        """Of every voltage [p.u.]."""
        return {"noise": self.noise.sigma}

    def cost(self) -> Cost:
        """The same claim for both secrets; they change one at a time."""
        span = "at one step" if self.covered == 1 else f"at {self.covered} steps"
        loads = f"histories in which one node has another load within its range {span}"
        network = _voltage_claim(self.noise, self.sensitivities, self.covered)
        return Cost(network=network, loads=replace(network, adjacency=loads))

    def release(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Noisy true voltages."""
        return self.noise.on_complex(self.setting.solve(self.setting.first_days(days)), generator)


@dataclass(frozen=True, eq=False)
class GmmVoltageNoise:
    """Power flow of loads drawn from a released model, with noise for Δ₂^(Y).

    Attributes
    ----------
    law : of the synthetic loads, fitted under differential privacy.
    loads : what the fit claims.
    covered : steps that one (ε, δ) covers together: 1, or T for the paper's table (√T).
    """

    setting: Setting
    law: LoadLaw
    loads: Guarantee
    sensitivities: Sensitivities
    epsilon: float
    delta: float
    covered: int = 1
    calibration: Calibration = "analytic"
    name: str = "DP-GMM + voltage noise"
    protects: str = "network and loads"

    @property
    def noise(self) -> GaussianNoise:
        """What is added to every voltage vector."""
        reach = math.sqrt(self.covered) * self.sensitivities.network
        return GaussianNoise(reach, self.epsilon, self.delta, self.calibration)

    @property
    def noise_std(self) -> dict[str, float]:
        """Of every voltage [p.u.]."""
        return {"noise": self.noise.sigma}

    def cost(self) -> Cost:
        """Noise for the network; the loads are post-processing of the fit."""
        network = _voltage_claim(self.noise, self.sensitivities, self.covered)
        return Cost(network=network, loads=self.loads)

    def release(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Noisy voltages of synthetic days."""
        clean = self.setting.solve_law(self.law, days, generator)
        return self.noise.on_complex(clean, generator)


ONE_NODE_DAY = "histories in which one node has other loads on one day"
WHOLE_DAY = "histories that differ in all loads of one day"


@dataclass(frozen=True, eq=False)
class NoisyLoads:
    """True active loads with noise, clipped to the public range, through power flow; noise on the voltages.

    Attributes
    ----------
    p_min : smallest load of the public range [p.u.]; the largest is p_min + `setting.load_range`.
    all_loads : True for the paper's √(n_L·T)·Δ_load, which hides all loads of a day at once; False for
        √T·Δ_load, one node's day, nearly the unit the load model is fitted for.
    covered : steps that the network's (ε, δ) covers together: 1, or T for the paper's table (√T).
    """

    setting: Setting
    sensitivities: Sensitivities
    p_min: float
    epsilon: float
    epsilon_load: float
    delta: float
    delta_load: float
    all_loads: bool = False
    covered: int = 1
    calibration: Calibration = "analytic"
    name: str = "noisy loads + voltage noise"
    protects: str = "network and loads"

    @property
    def load_noise(self) -> GaussianNoise:
        """What is added to every active load [p.u.]."""
        count = self.setting.steps * (self.setting.n_loads if self.all_loads else 1)
        reach = math.sqrt(count) * self.setting.load_range
        return GaussianNoise(reach, self.epsilon_load, self.delta_load, self.calibration)

    @property
    def voltage_noise(self) -> GaussianNoise:
        """What is added to every voltage vector."""
        reach = math.sqrt(self.covered) * self.sensitivities.network
        return GaussianNoise(reach, self.epsilon, self.delta, self.calibration)

    @property
    def noise_std(self) -> dict[str, float]:
        """Of every active load and of every voltage [p.u.]."""
        return {"load_noise": self.load_noise.sigma, "voltage_noise": self.voltage_noise.sigma}

    def cost(self) -> Cost:
        """Noise for each secret; the loads' is proved by the range they are clipped to."""
        network = _voltage_claim(self.voltage_noise, self.sensitivities, self.covered)
        loads = self.load_noise.claim(WHOLE_DAY if self.all_loads else ONE_NODE_DAY)
        return Cost(network=network, loads=loads)

    def release(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Noisy voltages of noisy loads."""
        clean = self.setting.solve(self.noisy_load(generator, days))
        return self.voltage_noise.on_complex(clean, generator)

    def noisy_load(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Complex (day, step, node) noisy loads [p.u.]; q follows p at the node's nominal power factor."""
        p_max = self.p_min + self.setting.load_range
        true = np.clip(self.setting.first_days(days).real, self.p_min, p_max)
        active = np.clip(self.load_noise.on_real(true, generator), self.p_min, p_max)
        feeder = self.setting.network.feeder
        nominal = -feeder.nominal_injection[feeder.retained[self.setting.loaded]]
        return np.asarray(active * (1.0 + 1j * nominal.imag / nominal.real))


_MAX_ITERATIONS = 100
"""Of the fixed point on the noisy, dense matrix; what has not converged by then has failed."""


@dataclass(frozen=True, eq=False)
class AdmittanceNoise:
    """True loads on one network with noise on every matrix entry, for any number of days.

    No structure is restored: sparsity and symmetry are lost, and failures stay visible.
    """

    setting: Setting
    epsilon: float
    delta: float
    calibration: Calibration = "analytic"
    name: str = "noise on entries of Y"
    protects: str = "network"

    @property
    def noise(self) -> GaussianNoise:
        """What is added to every entry of Y_full [p.u.]; its sensitivity is r by definition."""
        return GaussianNoise(self.setting.radius, self.epsilon, self.delta, self.calibration)

    @property
    def noise_std(self) -> dict[str, float]:
        """Of every entry of Y_full [p.u.]."""
        return {"noise": self.noise.sigma}

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
