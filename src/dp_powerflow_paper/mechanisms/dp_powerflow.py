"""DP-Powerflow: loads from the private model through power flow, nothing added to the voltages.

On the true network there are three variants. `literal_variant` is the paper's, as written: truncated loads at
a fixed power factor, and whatever ε its formula gives for the fit. `paper_variant` is ours: the same with a
covariance floor that meets a target ε. `full_support_variant`: untruncated loads with reactive power of
their own, the only one whose neighbours include a change of a line. `on_twin` solves on a twin instead.

Their ε is the paper's formula for one step (`step_formula`); the last two of the three take the smallest
covariance floor at which it meets a target.

Widening Σ and then truncating to the margins moves the mean load (paper correction 14). The log mean is free
post-processing and no term of the formula depends on it, but its tail term takes the whitened draw z to be no
longer than a standard normal. So the log mean of a step is moved only while E[z²] ≤ 1 there.

The paper's formula for one step, as a function of the spread of the loads.

Theorem 1 with T = 1, the exact κ and a calibrated operating set, as the paper evaluates it. On a real feeder
it is *not* a bound (docs/results/network.md): it is the number the paper's comparison is made at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from dp_powerflow import TwinDesign
from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence import symbols
from dp_powerflow.lowlevel import GaussianComponent, LoadLaw, NetworkFacts, truncate
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.mechanisms import FittedLoads, Setting, Target
from dp_powerflow_paper.sources import ON_LINES, SAME_MANIFOLD, Guarantee, LoadMechanism
from dp_powerflow_paper.sources.composition import Composition
from dp_powerflow_paper.sources.loads import LawLoads, true_loads
from dp_powerflow_paper.sources.networks import Twin, true_network


@dataclass(frozen=True)
class StepFormula:
    """B + ψ̄·τ(δ) of one step, as a function of the spread of the loads.

    Attributes
    ----------
    kappa_r : κ·r with the exact κ [p.u.].
    d : (class,) d_ℓ [1/p.u.].
    sizes : (class,) number of nodes.
    tau : tail factor of the whitened draw.
    jacobian : Λ̄_II of one step.
    """

    kappa_r: float
    d: FloatArray
    sizes: FloatArray
    tau: float
    jacobian: float

    @property
    def least(self) -> float:
        """What no spread of the loads can cross: the Jacobian and the mean term."""
        # For one step γ·1ᵀΣ1 = 1, so the mean term does not depend on Σ.
        return self.jacobian + self.kappa_r * float(np.sum(self.d * np.sqrt(self.sizes)))

    def per_step(self, precision: FloatArray) -> FloatArray:
        """ε of every step by itself: (step,).

        Parameters
        ----------
        precision : (class, step) 1/variance of the log loads, weights of q added where q is random.
        """
        psi = self.kappa_r * np.sqrt(self.d**2 @ precision)
        return np.asarray(self.least + psi * self.tau + psi**2 / 2.0)

    def epsilon(self, precision: FloatArray) -> float:
        """The worst step."""
        return float(self.per_step(precision).max())

    def psi_at(self, epsilon: float) -> float:
        """ψ̄ at which the formula equals ε."""
        room = epsilon - self.least
        if not room > 0.0:
            raise PrivacyError(
                f"the formula of one step is at least {self.least:.4g} at this r, whatever the loads; "
                "lower r or raise ε"
            )
        return math.sqrt(self.tau**2 + 2.0 * room) - self.tau


def step_formula(
    setting: Setting, facts: NetworkFacts, law: LoadLaw, p_min: float, delta: float, *, random_q: bool = False
) -> StepFormula:
    """The formula for the classes of a law.

    Parameters
    ----------
    p_min : smallest active load over the scale of its node.
    delta : of the χ² tail.
    random_q : carry the formula over to 2n dimensions.
    """
    inside = setting.operating
    kappa_r = facts.amplification.exact * setting.radius
    classes = np.unique(law.class_of)
    smallest = np.array([law.scale[law.class_of == ell].min() for ell in classes]) * p_min
    c = symbols.c_star_printed(facts.n, inside.v_min, inside.v_max)
    a = symbols.alpha(inside.mu, c, kappa_r)
    term_ii = symbols.lambda_ii_full if random_q else symbols.lambda_ii
    jacobian = term_ii(1, facts.n, a)
    if not math.isfinite(jacobian):
        raise PrivacyError(f"α = {a:.3g} is too large at this r for the formula to be evaluated; lower r")
    return StepFormula(
        kappa_r=kappa_r,
        d=np.array([symbols.d_ell(inside.v_max, facts.d_max, p) for p in smallest]),
        sizes=np.array([np.count_nonzero(law.class_of == ell) for ell in classes], dtype=np.float64),
        tau=symbols.tau((2 if random_q else 1) * facts.n, math.log(1.0 / delta)),
        jacobian=jacobian,
    )


def smallest_floor(formula: StepFormula, variance: FloatArray, psi: float) -> float:
    """Smallest φ ≥ 0 with κr·√(Σ_ℓ d_ℓ²/(σ²_ℓt + φ)) ≤ ψ at every step.

    Parameters
    ----------
    variance : (class, step) of the log loads.
    """
    target = (psi / formula.kappa_r) ** 2

    def excess(floor: float) -> float:
        return float(np.max(formula.d**2 @ (1.0 / (variance + floor)))) - target

    if np.all(variance > 0.0) and excess(0.0) <= 0.0:
        return 0.0
    low, high = 0.0, float(np.sum(formula.d**2)) / target
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (middle, high) if excess(middle) > 0.0 else (low, middle)
    return high


NOT_PROVED = (
    "the paper's formula for one step with the exact κ and a Monte Carlo calibration; not a proved bound on "
    "this feeder (docs/results/network.md)"
)


_ROUNDS = 4
_DRAWS = 400
_DAMPING = 0.7
_SMALLEST_VARIANCE = 1e-12


def with_restored_mean(
    law: LoadLaw, floor: float, margins: tuple[float, float], generator: np.random.Generator
) -> LoadLaw:
    """The law with Σ + floor·I and log means moved so that truncation to the margins keeps the mean load.

    Every component of a mixture is moved by itself, as it is truncated by itself.
    """

    def moved(part: GaussianComponent) -> GaussianComponent:
        variance = np.diag(part.covariance)
        covariance = part.covariance + floor * np.eye(law.steps)
        target = np.clip(np.exp(part.mean + variance / 2.0), *margins)
        mean = _moved(part.mean - floor / 2.0, covariance, target, margins, generator)
        return replace(part, mean=mean, covariance=covariance)

    return replace(law, classes=tuple(part.changed(moved) for part in law.classes), truncated=False)


def _moved(
    mean: FloatArray,
    covariance: FloatArray,
    target: FloatArray,
    margins: tuple[float, float],
    generator: np.random.Generator,
) -> FloatArray:
    """Log mean (step,) at which truncated draws have the mean `target`, or as near as E[z²] ≤ 1 lets it."""
    steps = len(mean)
    low, high = np.full(steps, np.log(margins[0])), np.full(steps, np.log(margins[1]))
    variance = np.diag(covariance)
    for _ in range(_ROUNDS):
        draws = truncate(mean, covariance, low, high).draw(generator, _DRAWS, rejection=False)
        centre = draws.mean(axis=0)
        left = np.maximum(draws.var(axis=0), _SMALLEST_VARIANCE)
        # Newton on an exponential family: moving μ by δ moves the truncated mean by δ·(variance left)/σ².
        wanted = mean + _DAMPING * np.log(target / np.exp(draws).mean(axis=0)) * variance / left
        room = np.sqrt(np.maximum(variance - left, 0.0))
        mean = np.clip(wanted, centre - room, centre + room)
    return np.asarray(mean)


SHARE_OF_P = 0.5
"""Of ψ̄² for the active loads in the full-support variant; the rest is for the reactive ones."""


@dataclass(frozen=True, eq=False)
class DpPowerflow(Composition):
    """Power flow of loads drawn from a released model, on the true network, which their randomness hides.

    Attributes
    ----------
    floor : variance added to the log loads.
    step_epsilon : (step,) the formula at every step of the day; the claim is the worst of them.
    """

    floor: float = 0.0
    step_epsilon: FloatArray = field(default_factory=lambda: np.zeros(0))

    @property
    def law(self) -> LoadLaw:
        """Of the synthetic loads; truncated, or with random q."""
        assert isinstance(self.loads, LawLoads)
        return self.loads.law


def _on_true_network(
    setting: Setting, loads: LawLoads, claim: Guarantee, floor: float, per_step: FloatArray, title: str
) -> DpPowerflow:
    network = true_network(setting, claim)
    return DpPowerflow(setting, loads, network, title=title, floor=floor, step_epsilon=per_step)


def _step_claim(setting: Setting, epsilon: float, delta: float, adjacency: str, remark: str) -> Guarantee:
    """The formula of one step as a claim; the calibration's δ is added."""
    return Guarantee(
        epsilon,
        delta + setting.operating.delta,
        "step",
        adjacency,
        proved=False,
        remark=remark,
        composes="per snapshot",
        metric=setting.radius,
    )


def literal_variant(
    setting: Setting, facts: NetworkFacts, loads: FittedLoads, margins: tuple[float, float], delta: float
) -> DpPowerflow:
    """The mechanism exactly as the paper writes it: the fitted law truncated to the margins, nothing else.

    ε is what the formula gives for this fit; a target is met by another ε_load, never by a floor.

    Parameters
    ----------
    loads : of an untruncated law with a fixed power factor.
    margins : p_min, p_max of p over the scale of its node.
    delta : of the tail; the calibration's δ is added to the claim.
    """
    law = _fixed_power_factor(loads.law)
    formula = step_formula(setting, facts, law, margins[0], delta)
    per_step = formula.per_step(1.0 / law.std[np.unique(law.class_of)] ** 2)
    claim = _step_claim(setting, float(per_step.max()), delta, SAME_MANIFOLD, NOT_PROVED)
    drawn = LawLoads(law.within(margins), loads.claim)
    return _on_true_network(setting, drawn, claim, 0.0, per_step, "DP-Powerflow, literal")


def _fixed_power_factor(law: LoadLaw) -> LoadLaw:
    if law.q_sigma is not None:
        raise PrivacyError("the paper's variant is for a fixed power factor; give a law without random q")
    return law


def paper_variant(
    setting: Setting,
    facts: NetworkFacts,
    loads: FittedLoads,
    margins: tuple[float, float],
    target: Target,
    generator: np.random.Generator,
) -> DpPowerflow:
    """Ours: the paper's mechanism with the smallest floor at which its formula for one step meets ε.

    Parameters
    ----------
    loads : of an untruncated law with a fixed power factor.
    margins : p_min, p_max of p over the scale of its node.
    target : ε of one step and δ of the tail; the calibration's δ is added to the claim.
    generator : for what the floor does to the mean, found by simulation from the law alone.
    """
    law = _fixed_power_factor(loads.law)
    formula = step_formula(setting, facts, law, margins[0], target.delta)
    classes = np.unique(law.class_of)
    variance = law.std[classes] ** 2
    floor = smallest_floor(formula, variance, formula.psi_at(target.epsilon))
    per_step = formula.per_step(1.0 / (variance + floor))
    claim = _step_claim(setting, float(per_step.max()), target.delta, SAME_MANIFOLD, NOT_PROVED)
    wide = with_restored_mean(law, floor, margins, generator)
    drawn = LawLoads(wide.within(margins), loads.claim)
    return _on_true_network(setting, drawn, claim, floor, per_step, "DP-Powerflow")


def full_support_variant(
    setting: Setting,
    facts: NetworkFacts,
    loads: FittedLoads,
    p_min: float,
    target: Target,
    q_covariance: FloatArray,
) -> DpPowerflow:
    """The full-support mechanism at the paper's formula carried over to 2n dimensions.

    ψ̄² = (κr)²·Σ_ℓ(d_ℓ²/(σ²_ℓt + φ) + e_ℓ²), e_ℓ = V_max²√d_max/min_k(ς_k·cosθ_k): half of it sets φ, half the
    size ς of the random q. p_min only enters d_ℓ, the loads are not truncated at it.

    Parameters
    ----------
    q_covariance : (step, step) of ζ with unit variance at every step.
    """
    law = loads.law
    formula = step_formula(setting, facts, law, p_min, target.delta, random_q=True)
    psi_squared = formula.psi_at(target.epsilon) ** 2
    classes = np.unique(law.class_of)
    variance = law.std[classes] ** 2
    floor = smallest_floor(formula, variance, np.sqrt(SHARE_OF_P * psi_squared))
    # e_ℓ/d_ℓ = scale_min·p_min/min(ς·cosθ), so in every class ς = spread·scale with the same weight.
    weight = (1.0 - SHARE_OF_P) * psi_squared / (formula.kappa_r**2 * float(np.sum(formula.d**2)))
    cosine = 1.0 / np.sqrt(1.0 + law.tan_theta**2)
    q_size = np.empty(law.n)
    for ell in classes:
        nodes = law.class_of == ell
        least = float((law.scale[nodes] * cosine[nodes]).min())
        q_size[nodes] = law.scale[nodes].min() * p_min / (np.sqrt(weight) * least)
    per_step = formula.per_step(1.0 / (variance + floor) + weight)
    remark = f"carried over to random reactive load: {NOT_PROVED}"
    claim = _step_claim(setting, float(per_step.max()), target.delta, ON_LINES, remark)
    drawn = LawLoads(law.with_floor(floor).with_random_q(q_size, q_covariance), loads.claim)
    return _on_true_network(setting, drawn, claim, floor, per_step, "DP-Powerflow, full support")


def on_twin(setting: Setting, design: TwinDesign, loads: LoadMechanism | None = None) -> Composition:
    """Loads of a released model, or the true ones, unprotected, on a twin drawn once for any number of days.

    The noise is on the lines' own parameters, so sparsity, symmetry and signs stay and power flow has a
    solution.
    """
    network = Twin(setting.network.feeder, design)
    return Composition(setting, loads or true_loads(setting), network, title="twin network")
