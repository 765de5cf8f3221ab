"""The paper's formula for one step, as a function of the spread of the loads.

Theorem 1 with T = 1, the exact κ and a calibrated operating set, as the paper evaluates it. On a real feeder
it is *not* a bound (docs/results/theorem.md): it is the number the paper's comparison is made at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence import symbols
from dp_powerflow.lowlevel import LoadLaw, NetworkFacts
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.mechanisms import Setting


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
