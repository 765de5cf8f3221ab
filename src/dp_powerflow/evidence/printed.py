"""Theorem 1 as printed: a number with every term, whether or not it is a bound on this feeder.

The paper evaluates its formula per sample (T = 1) and for a day, with ‖M̃⁻¹‖⋆ replaced by a Monte Carlo
threshold μ₀ (Remark mc_calibration). On a real feeder its conditions fail (docs/results/theorem.md), so what
is here is never called a bound; the rows that are bounds stand beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import betaincinv

from dp_powerflow.evidence import symbols
from dp_powerflow.evidence.theorem import (
    Bound,
    NetworkFacts,
    OperatingSet,
    Terms,
    corrected_bound,
    paper_bound,
)
from dp_powerflow.model.law import LoadLaw
from dp_powerflow.units import FloatArray

NOT_A_BOUND = "formula as printed, not a bound here"
_PILOT_SHARE = 0.1
_FEWEST_PILOTS = 10
_HEADROOM = 2.0
"""μ₀′ lies this many times as far above the pilot's median as the pilot's largest value does."""


@dataclass(frozen=True)
class RemarkCalibration:
    """Remark mc_calibration: a threshold μ₀ for the formula, and δ_M counted on days of the load law.

    Attributes
    ----------
    mu_0 : what stands in the formula in place of ‖M̃⁻¹‖⋆; infinite where κr leaves no such μ₀.
    mu_prime : μ₀′ = μ₀/(1 + μ₀·C⋆·κr), the threshold that days on the true network are counted against.
    exceeding, days : days above μ₀′, of so many.
    delta : δ_M, upper end of the Clopper–Pearson interval at `confidence`.
    """

    mu_0: float
    mu_prime: float
    exceeding: int
    days: int
    confidence: float
    delta: float


def remark_calibration(
    worst_mu: FloatArray, c_star: float, kappa_r: float, confidence: float
) -> RemarkCalibration:
    """Set μ₀′ by a pilot, a tenth of the days, and count the other days above it.

    The remark leaves the choice of μ₀ open. Here μ₀′ is the pilot's median plus twice the distance from there
    to its largest value, so that few of the other days exceed it; they had no part in the choice.

    Parameters
    ----------
    worst_mu : (day,) largest ‖M̃⁻¹‖ of independent days on the true network.
    """
    pilot = max(_FEWEST_PILOTS, int(_PILOT_SHARE * len(worst_mu)))
    centre = float(np.median(worst_mu[:pilot]))
    mu_prime = centre + _HEADROOM * (float(worst_mu[:pilot].max()) - centre)
    spread = mu_prime * c_star * kappa_r
    mu_0 = mu_prime / (1.0 - spread) if spread < 1.0 else math.inf
    return counted(worst_mu[pilot:], mu_0, mu_prime, confidence)


def exceedance(
    worst_mu: FloatArray, mu_0: float, c_star: float, kappa_r: float, confidence: float
) -> RemarkCalibration:
    """δ_M of a threshold μ₀ that was chosen beforehand."""
    return counted(worst_mu, mu_0, mu_0 / (1.0 + mu_0 * c_star * kappa_r), confidence)


def counted(worst_mu: FloatArray, mu_0: float, mu_prime: float, confidence: float) -> RemarkCalibration:
    """Days above μ₀′, with the upper Clopper–Pearson bound of their probability."""
    exceeding, days = int(np.count_nonzero(worst_mu > mu_prime)), len(worst_mu)
    delta = 1.0 if exceeding == days else float(betaincinv(exceeding + 1, days - exceeding, confidence))
    return RemarkCalibration(mu_0, mu_prime, exceeding, days, confidence, delta)


@dataclass(frozen=True)
class PrintedSamples:
    """The printed formula with one κ: the smallest, median and largest sample of a day, and the day.

    Attributes
    ----------
    kappa : "exact" or "as printed".
    least, median, most : one step, T = 1.
    day : all steps.
    tail_delta : δ of τ; δ_M of the calibration is added to it.
    """

    kappa: str
    calibration: RemarkCalibration
    least: Terms
    median: Terms
    most: Terms
    day: Terms
    tail_delta: float

    @property
    def delta(self) -> float:
        """δ + δ_M, at most 1."""
        return min(1.0, self.tail_delta + self.calibration.delta)


@dataclass(frozen=True)
class PrintedFormula:
    """Theorem 1 as printed, with the exact κ and with the printed one; `label` says what it is."""

    exact: PrintedSamples
    as_printed: PrintedSamples
    label: str = NOT_A_BOUND


def printed_formula(
    facts: NetworkFacts,
    law: LoadLaw,
    operating: OperatingSet,
    worst_mu: FloatArray,
    asked: tuple[float, float, float],
) -> PrintedFormula:
    """Evaluate Theorem 1 as the paper does.

    Parameters
    ----------
    law : truncated to the margins.
    operating : source of the measured V_min and V_max; its ‖M̃⁻¹‖ is not used.
    worst_mu : (day,) as of `remark_calibration`.
    asked : r, δ of the tail, confidence of the calibration.
    """
    radius, delta, confidence = asked
    steps = [law.at_step(t) for t in range(law.steps)]

    def samples(name: str, of: NetworkFacts) -> PrintedSamples:
        at, found = _calibrated(of, operating, radius, worst_mu, confidence)
        ordered = sorted(
            (paper_bound(of, step, at, radius, delta).terms for step in steps),
            key=lambda terms: terms.formula,
        )
        day = paper_bound(of, law, at, radius, delta).terms
        return PrintedSamples(name, found, ordered[0], _middle(ordered), ordered[-1], day, delta)

    return PrintedFormula(samples("exact", with_exact_kappa(facts)), samples("as printed", facts))


@dataclass(frozen=True, eq=False)
class ConfirmedPaperBound:
    """The printed formula with the exact κ as a bound: a number only where nothing speaks against it.

    That is where Assumption 1 holds in every part and the repaired theorem has a number that is no larger.

    Attributes
    ----------
    worst_mu, confidence : as of `remark_calibration`.
    failed : conditions of Assumption 1 that fail.
    """

    worst_mu: FloatArray
    confidence: float
    failed: tuple[str, ...]

    def __call__(
        self, facts: NetworkFacts, law: LoadLaw, operating: OperatingSet, radius: float, delta: float
    ) -> Bound:
        """Of one day at r."""
        at, _ = _calibrated(with_exact_kappa(facts), operating, radius, self.worst_mu, self.confidence)
        found = paper_bound(with_exact_kappa(facts), law, at, radius, delta, self.failed)
        repaired = corrected_bound(facts, law, operating, radius, delta)
        if repaired.epsilon is None:
            told = "the repaired theorem has no number here"
        elif repaired.epsilon > found.terms.formula or repaired.delta > found.delta:
            told = f"the repaired theorem gives more, ε = {repaired.epsilon:.4g} at δ = {repaired.delta:.2g}"
        else:
            return found
        return replace(found, violations=(*found.violations, told))


def _calibrated(
    facts: NetworkFacts, operating: OperatingSet, radius: float, worst_mu: FloatArray, confidence: float
) -> tuple[OperatingSet, RemarkCalibration]:
    """The measured voltage range with μ₀ and δ_M of the remark at r."""
    c = symbols.c_star_printed(facts.n, operating.v_min, operating.v_max)
    found = remark_calibration(worst_mu, c, facts.amplification.paper * radius, confidence)
    return replace(operating, mu=found.mu_0, delta=found.delta, source="Remark mc_calibration"), found


def with_exact_kappa(facts: NetworkFacts) -> NetworkFacts:
    """Facts whose printed κ is replaced by the exact one."""
    exact = facts.amplification.exact
    return replace(facts, amplification=replace(facts.amplification, paper=exact))


def _middle(ordered: Sequence[Terms]) -> Terms:
    return ordered[len(ordered) // 2]
