"""DP-Powerflow: loads from the private model, power flow on the true network, nothing added.

Two variants. `paper_variant`: truncated loads at a fixed power factor. `full_support_variant`: untruncated
loads with reactive power of their own, the only one whose neighbours include a change of a line.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.law import NodeLaw
from dp_powerflow.evidence.margins import draw_days, with_margins
from dp_powerflow.evidence.theorem import NetworkFacts
from dp_powerflow.paper.mechanisms.interface import ON_LINES, SAME_MANIFOLD, Cost, Guarantee, Setting
from dp_powerflow.paper.mechanisms.restored_mean import with_restored_mean
from dp_powerflow.paper.mechanisms.step_formula import NOT_PROVED, smallest_floor, step_formula
from dp_powerflow.units import ComplexArray, FloatArray

SHARE_OF_P = 0.5
"""Of ψ̄² for the active loads in the full-support variant; the rest is for the reactive ones."""


@dataclass(frozen=True, eq=False)
class DpPowerflow:
    """Power flow of loads drawn from a released model.

    Attributes
    ----------
    law : of the synthetic loads; truncated, or with random q.
    network, loads : what is claimed.
    floor : variance added to the log loads.
    """

    setting: Setting
    law: NodeLaw
    network: Guarantee
    loads: Guarantee
    floor: float
    name: str = "DP-Powerflow"
    protects: str = "network and loads"

    def cost(self) -> Cost:
        """The claims it was built with."""
        return Cost(network=self.network, loads=self.loads)

    def release(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Voltages of synthetic days."""
        return self.setting.solve(draw_days(self.law, days, generator))


def paper_variant(
    setting: Setting,
    facts: NetworkFacts,
    law: NodeLaw,
    margins: tuple[float, float],
    epsilon: float,
    delta: float,
    loads: Guarantee,
    generator: np.random.Generator,
) -> DpPowerflow:
    """The paper's mechanism with the smallest floor at which its formula for one step meets ε.

    Parameters
    ----------
    law : fitted under differential privacy, untruncated, fixed power factor.
    margins : p_min, p_max of p over the scale of its node.
    delta : of the tail; the calibration's δ is added to the claim.
    generator : for what the floor does to the mean, found by simulation from the law alone.
    """
    if law.q_sigma is not None:
        raise PrivacyError("the paper's variant is for a fixed power factor; give a law without random q")
    formula = step_formula(setting, facts, law, margins[0], delta)
    classes = np.unique(law.class_of)
    variance = law.std[classes] ** 2
    floor = smallest_floor(formula, variance, formula.psi_at(epsilon))
    reached = formula.epsilon(1.0 / (variance + floor))
    wide = with_restored_mean(law, floor, margins, generator)
    bounds = (np.full(len(law.mean), margins[0]), np.full(len(law.mean), margins[1]))
    return DpPowerflow(
        setting,
        with_margins(wide, *bounds, generator),
        Guarantee(reached, delta + setting.operating.delta, "step", SAME_MANIFOLD, False, NOT_PROVED),
        loads,
        floor,
    )


def full_support_variant(
    setting: Setting,
    facts: NetworkFacts,
    law: NodeLaw,
    p_min: float,
    epsilon: float,
    delta: float,
    loads: Guarantee,
    q_covariance: FloatArray,
) -> DpPowerflow:
    """The full-support mechanism at the paper's formula carried over to 2n dimensions.

    ψ̄² = (κr)²·Σ_ℓ(d_ℓ²/(σ²_ℓt + φ) + e_ℓ²), e_ℓ = V_max²√d_max/min_k(ς_k·cosθ_k): half of it sets φ, half the
    size ς of the random q. p_min only enters d_ℓ, the loads are not truncated at it.

    Parameters
    ----------
    q_covariance : (step, step) of ζ with unit variance at every step.
    """
    formula = step_formula(setting, facts, law, p_min, delta, random_q=True)
    psi_squared = formula.psi_at(epsilon) ** 2
    classes = np.unique(law.class_of)
    variance = law.std[classes] ** 2
    floor = smallest_floor(formula, variance, np.sqrt(SHARE_OF_P * psi_squared))
    # e_ℓ/d_ℓ = scale_min·p_min/min(ς·cosθ), so in every class ς = spread·scale with the same weight.
    weight = (1.0 - SHARE_OF_P) * psi_squared / (formula.kappa_r**2 * float(np.sum(formula.d**2)))
    cosine = 1.0 / np.sqrt(1.0 + law.tan_theta**2)
    q_sigma = np.empty(law.n)
    for ell in classes:
        nodes = law.class_of == ell
        least = float((law.scale[nodes] * cosine[nodes]).min())
        spread = law.scale[nodes].min() * p_min / (np.sqrt(weight) * least)
        q_sigma[nodes] = spread * law.scale[nodes]
    reached = formula.epsilon(1.0 / (variance + floor) + weight)
    return DpPowerflow(
        setting,
        replace(law.with_floor(floor), q_sigma=q_sigma, q_covariance=q_covariance),
        Guarantee(
            reached,
            delta + setting.operating.delta,
            "step",
            ON_LINES,
            False,
            f"carried over to random reactive load: {NOT_PROVED}",
        ),
        loads,
        floor,
        name="DP-Powerflow, full support",
    )
