"""What Theorem 1 says of one network under one load law: every mode, every calibration, every margin.

INTERNAL: per-instance evidence computed from the secret network (paper correction 5).

A practitioner's levers come first: r for a target ε, and the number of days. No lever refits the load model:
every refit spends the customers' budget.

**As printed** Theorem 1 is a number with every term, whether or not it is a bound on this feeder. The paper
evaluates its formula per sample (T = 1) and for a day, with ‖M̃⁻¹‖⋆ replaced by a Monte Carlo
threshold μ₀ (Remark mc_calibration). On a real feeder its conditions fail (docs/results/network.md), so what
is here is never called a bound; the rows that are bounds stand next to it.

**Before the fit** `why_no_number` says what Theorem 1 cannot give on a network, whatever the load model turns
out to be: a policy that is bound to be refused is refused before the customers pay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.special import betaincinv

from dp_powerflow.errors import FeederError, PrivacyError
from dp_powerflow.evidence import symbols
from dp_powerflow.evidence.calibration import (
    ANSI_RANGE,
    Assumption,
    DaySolver,
    MonteCarlo,
    PrintedClosedForm,
    Progress,
    check_assumptions,
    implied_load_range,
    load_box_set,
    monte_carlo,
    nonsingular_on_box,
    printed_closed_form,
    volt_var_constant,
)
from dp_powerflow.evidence.theorem import (
    CONFIDENCE,
    Bound,
    Mode,
    NetworkFacts,
    OperatingSet,
    Terms,
    corrected_bound,
    full_support_bound,
    hidden_nodes,
    paper_bound,
)
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.reduction import Amplification, Network, kron_amplification
from dp_powerflow.model.law import LoadLaw
from dp_powerflow.model.sample import LoadSampler
from dp_powerflow.powerflow.devices import VoltVar
from dp_powerflow.powerflow.sun import Generation
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import FloatArray, IntArray

Evaluate = Callable[[NetworkFacts, LoadLaw, OperatingSet, float, float], Bound]
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
    exceeding, days : days above μ₀′, and all days.
    delta : δ_M, upper end of the Clopper–Pearson interval at `CONFIDENCE`.
    """

    mu_0: float
    mu_prime: float
    exceeding: int
    days: int
    delta: float


def remark_calibration(worst_mu: FloatArray, c_star: float, kappa_r: float) -> RemarkCalibration:
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
    exceeding, days = int(np.count_nonzero(worst_mu[pilot:] > mu_prime)), len(worst_mu[pilot:])
    delta = 1.0 if exceeding == days else float(betaincinv(exceeding + 1, days - exceeding, CONFIDENCE))
    return RemarkCalibration(mu_0, mu_prime, exceeding, days, delta)


@dataclass(frozen=True)
class PrintedFormula:
    """Theorem 1 as printed, but with the exact κ: three samples of a day, and the day.

    Attributes
    ----------
    least, median, most : of the steps, each with T = 1.
    day : all steps.
    tail_delta : δ of τ; δ_M of the calibration is added to it.
    label : what it is.
    """

    calibration: RemarkCalibration
    least: Terms
    median: Terms
    most: Terms
    day: Terms
    tail_delta: float
    label: str = "formula as printed, not a bound here"

    @property
    def delta(self) -> float:
        """δ + δ_M, at most 1."""
        return min(1.0, self.tail_delta + self.calibration.delta)


def printed_formula(
    facts: NetworkFacts,
    law: LoadLaw,
    operating: OperatingSet,
    worst_mu: FloatArray,
    radius: float,
    delta: float,
) -> PrintedFormula:
    """Evaluate Theorem 1 as the paper does.

    Parameters
    ----------
    law : truncated to the margins.
    operating : source of the measured V_min and V_max; its ‖M̃⁻¹‖ is not used.
    worst_mu : (day,) as of `remark_calibration`.
    delta : of the tail.
    """
    facts = with_exact_kappa(facts)
    at, found = _calibrated(facts, operating, radius, worst_mu)
    ordered = sorted(
        (paper_bound(facts, law.at_step(t), at, radius, delta).terms for t in range(law.steps)),
        key=lambda terms: terms.formula,
    )
    day = paper_bound(facts, law, at, radius, delta).terms
    return PrintedFormula(found, ordered[0], ordered[len(ordered) // 2], ordered[-1], day, delta)


def confirmed_paper_bound(worst_mu: FloatArray, failed: tuple[str, ...]) -> Evaluate:
    """The printed formula with the exact κ as a bound: a number only where nothing speaks against it.

    That is where Assumption 1 holds in every part and the repaired theorem has a number that is no larger.

    Parameters
    ----------
    worst_mu : as of `remark_calibration`.
    failed : conditions of Assumption 1 that fail.
    """

    def evaluate(
        facts: NetworkFacts, law: LoadLaw, operating: OperatingSet, radius: float, delta: float
    ) -> Bound:
        at, _ = _calibrated(with_exact_kappa(facts), operating, radius, worst_mu)
        found = paper_bound(with_exact_kappa(facts), law, at, radius, delta, failed)
        repaired = corrected_bound(facts, law, operating, radius, delta)
        if repaired.epsilon is None:
            told = "the repaired theorem has no number here"
        elif repaired.epsilon > found.terms.formula or repaired.delta > found.delta:
            told = f"the repaired theorem gives more, ε = {repaired.epsilon:.4g} at δ = {repaired.delta:.2g}"
        else:
            return found
        return replace(found, violations=(*found.violations, told))

    return evaluate


def _calibrated(
    facts: NetworkFacts, operating: OperatingSet, radius: float, worst_mu: FloatArray
) -> tuple[OperatingSet, RemarkCalibration]:
    """The measured voltage range with μ₀ and δ_M of the remark at r."""
    c = symbols.c_star_printed(facts.n, operating.v_min, operating.v_max)
    found = remark_calibration(worst_mu, c, facts.amplification.paper * radius)
    return replace(operating, mu=found.mu_0, delta=found.delta, source="Remark mc_calibration"), found


def with_exact_kappa(facts: NetworkFacts) -> NetworkFacts:
    """Facts whose printed κ is replaced by the exact one."""
    exact = facts.amplification.exact
    return replace(facts, amplification=replace(facts.amplification, paper=exact))


_DERIVED = ("epsilon", "delta", "formula", "bias", "tail", "quadratic", "mu", "denominator", "largest_radius")
_SMALLEST_RADIUS = 1e-15
_BISECTIONS = 60

THIS_RELEASE: Literal["this release"] = "this release"
NOT_THIS_RELEASE: Literal["not this release"] = "not this release"
DrawnFrom = Literal["this release", "not this release"]
"""Whether a bound is about the law that the release draws from, or about another law at the same nodes."""


@dataclass(frozen=True, eq=False)
class BoundCase:
    """One mode's bound on one network under one load law, as a function of r and δ.

    Attributes
    ----------
    evaluate : the mode's bound, such as `full_support_bound`.
    """

    evaluate: Evaluate
    facts: NetworkFacts
    law: LoadLaw
    operating: OperatingSet

    def bound(self, radius: float, delta: float) -> Bound:
        """Of one day at r; δ is the share of the tail."""
        return self.evaluate(self.facts, self.law, self.operating, radius, delta)

    def largest_radius(self, epsilon: float, delta: float, total_delta: float = 1.0) -> float | None:
        """Largest r with a bound of at most ε, None if not even the smallest has one; ε and δ grow with r.

        Parameters
        ----------
        delta : share of the tail, as in the bound.
        total_delta : the most that all parts of δ may add up to.
        """

        def within(radius: float) -> bool:
            bound = self.bound(radius, delta)
            return bound.epsilon is not None and bound.epsilon <= epsilon and bound.delta <= total_delta

        low, high = math.log(_SMALLEST_RADIUS), math.log(min(1.0, self.facts.amplification.largest_radius))
        if not within(math.exp(low)):
            return None
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2.0
            low, high = (middle, high) if within(math.exp(middle)) else (low, middle)
        return math.exp(low)

    def per_step(self, radius: float, delta: float) -> Bound | None:
        """The bound for one released step by itself, of the worst step of the day.

        None for loads that are truncated as whole days: a single step of them has no truncated Gaussian, so
        only the bound of the day covers it, as post-processing of the day.
        """
        if self.law.truncated:
            return None
        steps = range(self.law.steps)
        bounds = [replace(self, law=self.law.at_step(t)).bound(radius, delta) for t in steps]
        refused = [bound for bound in bounds if bound.epsilon is None]
        return refused[0] if refused else max(bounds, key=lambda bound: bound.terms.formula)


@dataclass(frozen=True)
class Composed:
    """A bound for D days by basic composition: D·ε and D·δ."""

    days: int
    epsilon: float | None
    delta: float


def over_days(bound: Bound, days: int) -> Composed:
    """The bound of a day for D of them; no number once δ reaches 1."""
    delta = bound.delta * days
    epsilon = None if bound.epsilon is None or delta >= 1.0 else bound.epsilon * days
    return Composed(days, epsilon, min(delta, 1.0))


@dataclass(frozen=True)
class RadiusInLines:
    """r as a change of one line: a share of its admittance, and metres of its length.

    Shares and metres are None where the feeder has no line, or no line with a length.
    """

    weakest: float | None
    median: float | None
    strongest: float | None
    median_metres: float | None


def radius_in_lines(feeder: Feeder, radius: float) -> RadiusInLines:
    """What r means for the lines of the feeder, switches left out."""
    lines = [line for line in feeder.lines if not line.is_switch]
    if not lines:
        return RadiusInLines(None, None, None, None)
    norms = np.array([np.linalg.norm(line.primitive) for line in lines])
    pairs = zip(norms, lines, strict=True)
    metres = [radius / norm * line.length_m for norm, line in pairs if line.length_m is not None]
    return RadiusInLines(
        weakest=radius / float(norms.min()),
        median=radius / float(np.median(norms)),
        strongest=radius / float(norms.max()),
        median_metres=float(np.median(metres)) if metres else None,
    )


@dataclass(frozen=True)
class Policy:
    """What the evidence is asked about; public constants.

    Attributes
    ----------
    radius : r [p.u.]
    epsilon, delta : target for the whole corpus.
    days : days of the corpus.
    calibration_days : N_cal.
    """

    radius: float
    epsilon: float
    delta: float
    days: int
    calibration_days: int = 1000


@dataclass(frozen=True, eq=False)
class Instance:
    """The network and the loads that the evidence is about; PRIVATE, it holds the network.

    Attributes
    ----------
    law : untruncated law of the loads of every retained node, with margins for the modes whose loads are
        truncated; with random q the full-support mode is evaluated too.
    generation : public, before volt-var.
    """

    network: Network
    law: LoadLaw
    generation: Generation | None = None
    voltvar: VoltVar | None = None

    def __post_init__(self) -> None:
        if self.law.positions is None and self.law.n != self.network.n:
            raise PrivacyError(
                f"the load law is of {self.law.n} nodes, but the network has {self.network.n} with load or "
                "generation; say which of them the law is for"
            )

    def __repr__(self) -> str:
        return "Instance(PRIVATE)"


@dataclass(frozen=True)
class BoundRow:
    """One mode at the policy's r: a step, a day, and the whole corpus.

    `step` is None where only the bound of the day covers a step. `largest_r` is the largest r whose corpus
    stays within the policy's ε, None if there is none. A row whose `law` is not that of this release says
    nothing about it.
    """

    mode: Mode
    law: DrawnFrom
    step: Bound | None
    day: Bound
    corpus: Composed
    largest_r: float | None


@dataclass(frozen=True)
class Evidence:
    """Everything; `load_box` is None where the closed form has no bound.

    `monte_carlo` is of the law that the release draws from, `monte_carlo_truncated` of days within margins.
    `n` nodes have a random load; `hidden` more carry public generation alone. Where days have
    different generation (`days_of_generation` above 1), every δ of a day is the mean over the days.
    """

    policy: Policy
    n: int
    hidden: int
    days_of_generation: int
    steps: int
    amplification: Amplification
    norm_b: float
    printed: PrintedClosedForm
    load_box: OperatingSet | None
    monte_carlo: MonteCarlo
    monte_carlo_truncated: MonteCarlo
    assumptions: tuple[Assumption, ...]
    lines: RadiusInLines
    printed_formula: PrintedFormula
    rows: tuple[BoundRow, ...]


def network_facts(
    network: Network,
    *,
    volt_var: bool = False,
    released: IntArray | None = None,
    generation: Generation | None = None,
) -> NetworkFacts:
    """What the theorem needs of the network.

    Parameters
    ----------
    released : positions among the retained nodes of those with a random load; None for all.
    """
    peak = None if generation is None else generation.peak
    hidden = None if released is None else hidden_nodes(network, released, peak)
    return NetworkFacts(
        n=network.n - (0 if hidden is None else hidden.count),
        slack_norm=float(np.linalg.norm(network.feeder.v_slack)),
        d_max=network.rows.d_max,
        amplification=kron_amplification(network),
        volt_var=volt_var,
        hidden=hidden,
    )


def collect_evidence(
    instance: Instance,
    policy: Policy,
    key: StreamKey,
    *,
    progress: Progress | None = None,
    any_day: bool = False,
) -> Evidence:
    """Evaluate the theorem in every mode that the load law allows.

    Parameters
    ----------
    key : streams of the calibration, which no release uses.
    any_day : a day of the corpus has the generation of any day of the horizon, drawn at random; otherwise
        day d has its own.
    """
    network, law, generation = instance.network, instance.law, instance.generation
    voltvar, released = instance.voltvar, instance.law.positions
    facts = network_facts(network, volt_var=voltvar is not None, released=released, generation=generation)
    truncated = law.within()
    solver = DaySolver(network, voltvar)

    def calibrate(of: LoadLaw, days: int, purpose: str, report: Progress | None = None) -> MonteCarlo:
        own = key.bind("law", purpose)
        sunny = _sunny_days(generation, own, None if any_day else policy.days, days)
        return monte_carlo(solver, LoadSampler(of, own, days), sunny, progress=report)

    cut = calibrate(truncated, policy.calibration_days, "truncated", progress)
    # Days beyond the margins, which may have no power flow, concern the mode that draws them.
    random = law.q_sigma is not None
    found = calibrate(law, policy.calibration_days, "untruncated", progress) if random else cut
    high = np.zeros(network.n)
    positions = slice(None) if law.positions is None else law.positions
    high[positions] = law.scale * law.p_max[law.class_of] * np.sqrt(1.0 + law.tan_theta**2)
    if generation is not None:
        high = high + generation.peak
    kappa_r = facts.amplification.paper * policy.radius
    c_vv = volt_var_constant(voltvar, generation, ANSI_RANGE[0])
    printed = printed_closed_form(network, *ANSI_RANGE, kappa_r, c_vv)
    assumptions = check_assumptions(network, truncated, cut.operating, voltvar=voltvar, generation=generation)
    failed = tuple(f"Assumption 1 fails: {item.name}" for item in assumptions if not item.holds)
    failure = facts.amplification.failure
    confirmed = confirmed_paper_bound(cut.worst_mu, failed)
    cases: dict[Mode, BoundCase] = {
        "paper": BoundCase(confirmed, facts, truncated, _charged(cut, failure)),
        "corrected": BoundCase(corrected_bound, facts, truncated, _charged(cut, failure)),
    }
    if law.q_sigma is not None:
        cases["full-support"] = BoundCase(full_support_bound, facts, law, _charged(found, failure))
    tail = _tail_share(policy, cut.operating)
    return Evidence(
        policy=policy,
        n=facts.n,
        hidden=network.n - facts.n,
        days_of_generation=1 if generation is None else generation.n_days,
        steps=law.steps,
        amplification=facts.amplification,
        norm_b=float(np.linalg.norm(network.b)),
        printed=printed,
        load_box=load_box_set(network, high, measured=cut.operating, voltvar=voltvar, generation=generation),
        monte_carlo=found,
        monte_carlo_truncated=cut,
        assumptions=assumptions,
        lines=radius_in_lines(network.feeder, policy.radius),
        printed_formula=printed_formula(facts, truncated, cut.operating, cut.worst_mu, policy.radius, tail),
        rows=tuple(_row(mode, case, policy, drawn_from(mode, law)) for mode, case in cases.items()),
    )


def _sunny_days(
    generation: Generation | None, key: StreamKey, corpus: int | None, days: int
) -> Generation | None:
    """Generation of the calibration: days of the corpus drawn at random, so that all days count alike.

    δ of the calibration is then the mean over the days of the corpus, which is what D·δ adds up.
    """
    if generation is None or generation.n_days == 1:
        return generation
    of_corpus = generation if corpus is None else generation.select(np.arange(corpus))
    return of_corpus.drawn(key.stream("days of generation").generator, days)


def _charged(calibration: MonteCarlo, failure: float) -> OperatingSet:
    """The operating set with κ's probability of failure in its δ, so that every bound pays for it."""
    return replace(calibration.operating, delta=calibration.operating.delta + failure)


def drawn_from(mode: Mode, law: LoadLaw) -> DrawnFrom:
    """With random reactive load a release draws untruncated days, otherwise truncated ones."""
    of_release = (mode == "full-support") == (law.q_sigma is not None)
    return THIS_RELEASE if of_release else NOT_THIS_RELEASE


def _row(mode: Mode, case: BoundCase, policy: Policy, drawn: DrawnFrom) -> BoundRow:
    delta = _tail_share(policy, case.operating)
    day = case.bound(policy.radius, delta)
    return BoundRow(
        mode=mode,
        law=drawn,
        step=case.per_step(policy.radius, delta),
        day=day,
        corpus=over_days(day, policy.days),
        largest_r=case.largest_radius(policy.epsilon / policy.days, delta, policy.delta / policy.days),
    )


def _tail_share(policy: Policy, operating: OperatingSet) -> float:
    """δ of one day's tail: half of what the operating set leaves of the policy's δ per day.

    The other half is for loads that leave the margins. Where the operating set leaves nothing, the bound is
    evaluated all the same, and its total says by how much it passes the policy.
    """
    per_day = policy.delta / policy.days
    return (per_day - operating.delta if per_day > operating.delta else per_day) / 2.0


def plain(value: Any) -> Any:
    """A frozen result, with the figures derived from it, for JSON; what is not finite becomes None."""
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        derived = [name for name in _DERIVED if name not in names and hasattr(type(value), name)]
        return {name: plain(getattr(value, name)) for name in (*names, *derived)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (np.integer, np.bool_)):
        return value.item()
    return value


def why_no_number(
    network: Network,
    bound: Mode,
    radius: float,
    margins: tuple[IntArray, FloatArray, FloatArray],
    *,
    volt_var: bool = False,
) -> str | None:
    """Why a mode will have no ε at r, in words; None where it may have one.

    Parameters
    ----------
    margins : positions among the retained nodes of those with a load, and their smallest and largest declared
        load [p.u.].
    """
    if volt_var:
        return "no bound of Theorem 1 covers volt-var control"
    try:
        kron_amplification(network).bound(radius)
    except FeederError:
        return f"r = {radius:g} is too large for a bound on κ of this network"
    if bound != "paper":
        return None
    if not nonsingular_on_box(network).holds:
        return "Assumption 1 (i) of the paper fails on this network"
    nodes, low, high = margins
    least, most = implied_load_range(network)
    if np.any(least[nodes] < low) or np.any(most[nodes] > high):
        return "Assumption 1 (ii) of the paper fails on this network"
    return None
