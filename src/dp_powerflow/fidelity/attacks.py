"""INTERNAL. Membership inference: was this customer among those whom the model was fitted to?

The design of the release is fitted to half of the customers. The attacker sees customers drawn from the
model, knows every real customer, and scores each of them: by its distance to the drawn customers nearest to
it, and by how much likelier it is under the drawn customers than under the real ones. A threshold is learnt
on one half of the customers, members and others, and tried on the other half.

Customers of one fit share its noise, so the intervals are narrower than the truth where there are few fits.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from dp_powerflow.errors import PrivacyError
from dp_powerflow.fidelity.metrics import area_under_curve, distances, traits_of
from dp_powerflow.fidelity.verdicts import Effort
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.derive import derive
from dp_powerflow.model.fit import ONE_CLASS, MeterSource, WeakBudgetWarning, fit, history_facts
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.options import DayFacts, FitOptions
from dp_powerflow.model.partition import PrivateClasses
from dp_powerflow.pipeline.customers import draw_customers
from dp_powerflow.privacy.budget import Budget, PrivacyUnit, QueryCost
from dp_powerflow.privacy.queries import Blocks, Query, QuerySession, Session, exact_sum
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import BoolArray, FloatArray, IntArray

CONFIDENCE = 0.95


def most_success(epsilon: float, delta: float) -> float:
    """The highest rate of right guesses that (ε, δ) allows."""
    epsilon = min(epsilon, 700.0)
    return (1 + min(1.0, (math.expm1(epsilon) + 2 * delta) / (math.exp(epsilon) + 1))) / 2


def gaussian_success(rho: float) -> float:
    """The highest rate of right guesses that Gaussian noise of a total ρ (zCDP) allows: Φ(√(2ρ)/2)."""
    return float(stats.norm.cdf(math.sqrt(2 * rho) / 2))


def least_epsilon(success: float, delta: float) -> float:
    """The smallest ε that allows a rate of right guesses; infinite for 1."""
    apart = max(0.0, 2 * success - 1)
    if apart >= 1.0:
        return math.inf
    return max(0.0, math.log(max((1 + apart - 2 * delta) / (1 - apart), 1e-300)))


@dataclass(frozen=True)
class Guesses:
    """INTERNAL. How often an attacker was right.

    Attributes
    ----------
    right, tried : numbers of guesses.
    """

    right: int
    tried: int

    @property
    def rate(self) -> float:
        """Share of right guesses."""
        return self.right / self.tried

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Clopper-Pearson interval of the rate, two-sided."""
        found = stats.binomtest(self.right, self.tried).proportion_ci(confidence, "exact")
        return float(found.low), float(found.high)

    def lower(self, confidence: float = CONFIDENCE) -> float:
        """Lower limit of the rate, one-sided."""
        test = stats.binomtest(self.right, self.tried, alternative="greater")
        return float(test.proportion_ci(confidence, "exact").low)

    def __add__(self, other: Guesses) -> Guesses:
        """Both games together."""
        return Guesses(self.right + other.right, self.tried + other.tried)


@dataclass(frozen=True)
class Allowed:
    """PUBLIC. What a release states of its customers' privacy.

    Attributes
    ----------
    epsilon, delta : of the release.
    rho : zCDP of all its queries.
    """

    epsilon: float
    delta: float
    rho: float

    @property
    def success(self) -> float:
        """The highest rate of right guesses that the statement allows."""
        return most_success(self.epsilon, self.delta)

    @property
    def by_noise(self) -> float:
        """The highest rate that the noise itself allows, which is lower."""
        return min(self.success, gaussian_success(self.rho))

    def exceeded_by(self, guesses: Guesses) -> bool:
        """Whether more is certain than the statement allows."""
        return least_epsilon(guesses.lower(), self.delta) > self.epsilon

    def of_group(self, records: int) -> Allowed:
        """What the statement allows where `records` records change together."""
        grow = sum(math.exp(min(k * self.epsilon, 700.0)) for k in range(records))
        return Allowed(records * self.epsilon, min(1.0, grow * self.delta), records**2 * self.rho)

    def visible(self, tried: int) -> float:
        """The largest ε that `tried` guesses could contradict: all of them right."""
        return least_epsilon(Guesses(tried, tried).lower(), self.delta)


HOUR = 60
"""Longest step of an attacked fit [min]."""


@dataclass(frozen=True, eq=False, repr=False)
class Design:
    """PRIVATE. Budget, options and meters of a fit.

    Attributes
    ----------
    history : PRIVATE. Some customers and days, in steps of an hour.
    options, budget : the release's, but for the facts of fewer days.
    allowed : what the release states.
    """

    history: LoadHistory
    options: FitOptions
    budget: Budget
    allowed: Allowed

    @property
    def allowed_of_customer(self) -> Allowed:
        """What the release states of a whole customer: all its days together, where a record is one day."""
        by_day = self.budget.unit is PrivacyUnit.LOAD_POINT_DAY
        return self.allowed.of_group(self.history.n_days) if by_day else self.allowed

    def bounds_kw(self, customer: int) -> tuple[float, float]:
        """Lowest and highest load [kW] that the model knows of a customer."""
        options, history = self.options, self.history
        private = options.classes
        names = (history.class_label[customer] or ONE_CLASS,)
        low, high = options.widest(private.names if isinstance(private, PrivateClasses) else names)
        scale = history.scale_kw if options.use_scale else None
        own = 1.0 if scale is None else float(scale[customer])
        return low * own, high * own

    def fitted(self, members: np.ndarray, key: StreamKey) -> LoadModel:
        """INTERNAL. The model of some customers, with the noise that is due; never released."""
        part = self.history.select([self.history.load_points[k] for k in members])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WeakBudgetWarning)
            return fit(part, budget=self.budget, options=self.options, key=key)


def design_of(
    model: LoadModel,
    history: LoadHistory,
    most: tuple[int, int],
    rng: np.random.Generator,
    *,
    one_class: bool,
) -> Design:
    """PRIVATE. The design of a release on some customers and days, in steps of an hour.

    Parameters
    ----------
    most : customers and days, at most.
    one_class : only customers of the class that has most of them.

    Raises
    ------
    PrivacyError
        The model does not say how it was fitted.
    """
    if model.origin is None:
        raise PrivacyError(
            "the load model of the release does not say how it was fitted, so its design cannot be attacked; "
            "make the release with this version"
        )
    labels = np.array([label or "" for label in history.class_label])
    chosen = np.arange(history.n_load_points)
    if one_class:
        names, counts = np.unique(labels, return_counts=True)
        chosen = np.flatnonzero(labels == names[np.argmax(counts)])
    chosen = rng.permutation(chosen)[: most[0]]
    part = history.select([history.load_points[k] for k in chosen], history.days[: most[1]])
    if part.step_minutes < HOUR and HOUR % part.step_minutes == 0:
        part = part.coarsen(HOUR)
    own = model.origin.options
    options = replace(own, days=None if own.days is None else _first(own.days, part.n_days))
    budget = Budget(model.epsilon, model.delta, model.unit)
    return Design(part, options, budget, Allowed(model.epsilon, model.delta, model.rho))


def _first(facts: DayFacts, days: int) -> DayFacts:
    """The facts of the first days; a covariate that does not vary on them is left out."""
    kept = tuple((name, values[:days]) for name, values in facts.covariates if np.ptp(values[:days]) > 0.0)
    return DayFacts(facts.dates[:days], facts.off[:days], kept)


NEAREST = 3
_SHRUNK = 0.1  # of every variance, added to the diagonal


@dataclass(frozen=True, eq=False)
class MembershipAttack:
    """INTERNAL. What the attacker got out of draws.

    Attributes
    ----------
    area, area_error : area under the curve of the better score, mean over fits, and its standard error.
    guesses : on customers that the threshold was not learnt on.
    score : which score it was.
    false_rate, true_rate : (point,) of the curve of all fits together.
    allowed : what the release states of a whole customer.
    """

    area: float
    area_error: float
    guesses: Guesses
    score: str
    false_rate: FloatArray
    true_rate: FloatArray
    allowed: Allowed


def by_distance(real: FloatArray, drawn: FloatArray) -> FloatArray:
    """(customer,) minus the mean distance to the nearest drawn customers, in standard deviations."""
    return np.asarray(-np.sort(distances(real, drawn, real.std(axis=0)), axis=1)[:, :NEAREST].mean(axis=1))


SCORES: dict[str, Callable[[FloatArray, FloatArray], FloatArray]] = {
    "distance to drawn customers": by_distance,
    "likelihood under drawn customers": lambda real, drawn: (
        _log_density(real, drawn) - _log_density(real, real)
    ),
}


def attack_membership(
    design: Design,
    effort: Effort,
    key: StreamKey,
    on_fit: Callable[[int, int], None] = lambda done, total: None,
) -> MembershipAttack:
    """INTERNAL. Fit on halves, draw, score and guess.

    Parameters
    ----------
    design : of the release, with many customers.
    key : secret of the noise; every fit has its own streams.
    """
    count, lowest = design.history.n_load_points, float(min(design.bounds_kw(0)[0], 1e-3))
    features = traits_of(np.maximum(design.history.load_kw, lowest))
    scores: dict[str, list[FloatArray]] = {name: [] for name in SCORES}
    members: list[BoolArray] = []
    for index in range(effort.membership_fits):
        own = key.bind("membership", str(index))
        chosen = own.stream("members").generator.permutation(count)[: count // 2]
        drawn = draw_customers(
            design.fitted(chosen, own),
            design.history.select([design.history.load_points[k] for k in chosen]),
            own,
        )
        inside = np.zeros(count, dtype=np.bool_)
        inside[chosen] = True
        members.append(inside)
        for name, score in SCORES.items():
            scores[name].append(score(features, traits_of(np.maximum(drawn, lowest))))
        on_fit(index + 1, effort.membership_fits)
    found = [
        _judged((name, design.allowed_of_customer), per_fit, members) for name, per_fit in scores.items()
    ]
    return max(found, key=lambda attack: attack.area)


def _judged(of: tuple[str, Allowed], scores: list[FloatArray], members: list[BoolArray]) -> MembershipAttack:
    """From the name of a score and what is allowed; scores and members fit by fit."""
    name, allowed = of
    areas = np.array([area_under_curve(*pair) for pair in zip(scores, members, strict=True)])
    error = float(areas.std(ddof=1) / np.sqrt(len(areas))) if len(areas) > 1 else 0.0
    guesses = Guesses(0, 0)
    for score, inside in zip(scores, members, strict=True):
        for learnt in (0, 1):
            known, tried = (np.arange(score.size) % 2 == side for side in (learnt, 1 - learnt))
            guess = score[tried] > _threshold(score[known], inside[known])
            guesses += Guesses(int(np.sum(guess == inside[tried])), int(tried.sum()))
    pooled = np.concatenate([(score - score.mean()) / max(score.std(), 1e-12) for score in scores])
    false_rate, true_rate = curve(pooled, np.concatenate(members))
    return MembershipAttack(float(areas.mean()), error, guesses, name, false_rate, true_rate, allowed)


def curve(score: FloatArray, positive: BoolArray, points: int = 101) -> tuple[FloatArray, FloatArray]:
    """False and true positive rates (point,) at falling thresholds."""
    limits = np.quantile(score, np.linspace(1, 0, points))
    rates = [(score[None, own] >= limits[:, None]).mean(axis=1) for own in (~positive, positive)]
    return np.concatenate([[0.0], rates[0]]), np.concatenate([[0.0], rates[1]])


def _threshold(score: FloatArray, inside: BoolArray) -> float:
    """The threshold with most right guesses."""
    order = np.argsort(score)
    right = np.cumsum(np.where(inside[order], -1, 1))
    return float(score[order[int(np.argmax(right))]])


def _log_density(at: FloatArray, sample: FloatArray) -> FloatArray:
    """(row,) log density of a Gaussian fitted to a sample."""
    covariance = np.cov(sample.T)
    covariance = covariance + _SHRUNK * np.diag(np.diag(covariance)) + 1e-9 * np.eye(len(covariance))
    return np.asarray(stats.multivariate_normal(sample.mean(axis=0), covariance).logpdf(at))


Plant = Callable[[tuple[int, int], tuple[float, float]], FloatArray]
"""(days, steps), bounds [kW] → loads (day, step) [kW]."""


KINDS: dict[str, Plant] = {
    "constant at the highest load": lambda shape, bounds: np.full(shape, bounds[1]),
    "highest until noon, lowest after": lambda shape, bounds: np.tile(
        np.where(np.arange(shape[1]) < shape[1] // 2, bounds[1], bounds[0]), (shape[0], 1)
    ),
    "highest and lowest in turns": lambda shape, bounds: np.where(
        np.arange(math.prod(shape)) % 2, bounds[1], bounds[0]
    ).reshape(shape),
}


@dataclass(frozen=True)
class PlantedAttack:
    """INTERNAL. What the attacker got out of fits with and without planted customers.

    Attributes
    ----------
    guesses : kind of planted customer → guesses, one for each fit.
    partly : whether only the first of the queries could be attacked, since classes are private.
    """

    guesses: dict[str, Guesses]
    partly: bool

    @property
    def together(self) -> Guesses:
        """All kinds as one game."""
        return sum(self.guesses.values(), Guesses(0, 0))


def attack_planted(
    design: Design,
    effort: Effort,
    key: StreamKey,
    on_fit: Callable[[int, int], None] = lambda done, total: None,
) -> PlantedAttack:
    """INTERNAL. Fit with and without every kind of planted customer, and guess.

    Parameters
    ----------
    design : of the release, with few customers.
    key : secret of the noise; every fit has its own streams.
    """
    found, done, partly = {}, 0, False
    for kind, plant in KINDS.items():
        right, meters = 0, _both(design, plant)
        for index in range(effort.fits_per_kind):
            trial = _attempt(design, meters, index % 2, key.bind("planted", kind).bind("fit", str(index)))
            right += trial.guess == trial.world
            partly = partly or trial.partly
            done += 1
            on_fit(done, len(KINDS) * effort.fits_per_kind)
        found[kind] = Guesses(right, effort.fits_per_kind)
    return PlantedAttack(found, partly)


@dataclass
class _Trial:
    """One fit: which customer was in it, and what the integers say of it."""

    world: int
    log_ratio: float = 0.0
    partly: bool = False

    @property
    def guess(self) -> int:
        """1 for the planted customer."""
        return int(self.log_ratio > 0)


class _NoMoreError(Exception):
    """The queries that follow cannot be attacked."""


class _TriedSession(QuerySession):
    """Answers for one of two neighbours, and adds up the log likelihood ratio of the planted one.

    The last customer of the records is the planted one, the one before it the real one.
    """

    def __init__(self, key: StreamKey, unit: PrivacyUnit, cohort: str | None, rho: float, of: _Tried) -> None:
        super().__init__(key, unit, cohort, rho)
        self._of = of

    def _answer(self, query: Query, cost: QueryCost, blocks: Blocks) -> IntArray:
        if len(blocks) != 1:
            raise _NoMoreError  # which block a customer is in is private
        rows = np.concatenate(list(blocks[0]))
        each = len(rows) // self._of.history.n_load_points
        others, real, planted = rows[: -2 * each], rows[-2 * each : -each], rows[-each:]
        worlds = [np.concatenate([others, own]) for own in (real, planted)]
        trial = self._of.trial
        answer = super()._answer(query, cost, [[worlds[trial.world]]])
        away = [((answer[0] - exact_sum([rows], query)) / cost.sigma).astype(np.float64) for rows in worlds]
        trial.log_ratio += float(np.sum(away[0] ** 2) - np.sum(away[1] ** 2)) / 2
        return answer


@dataclass(frozen=True, eq=False, repr=False)
class _Tried(MeterSource):
    """PRIVATE. Meters of two neighbours."""

    trial: _Trial

    def session(self, stage: tuple[str, str], cohort: str | None, rho: float) -> Session:
        return _TriedSession(self.key.bind(*stage), self.unit, cohort, rho, self)


def _both(design: Design, plant: Plant) -> LoadHistory:
    """The customers of the design with the planted one after the last; it stands in for that one."""
    history = design.history
    planted = np.array(history.load_kw[-1:])
    days = 1 if design.budget.unit is PrivacyUnit.LOAD_POINT_DAY else history.n_days
    planted[0, :days] = plant((days, history.n_steps), design.bounds_kw(history.n_load_points - 1))
    kvar, scale = history.load_kvar, history.scale_kw
    return replace(
        history,
        load_kw=np.concatenate([history.load_kw, planted]),
        load_kvar=None if kvar is None else np.concatenate([kvar, kvar[-1:]]),
        load_points=(*history.load_points, "planted"),
        node_of=(*history.node_of, history.node_of[-1]),
        class_label=(*history.class_label, history.class_label[-1]),
        scale_kw=None if scale is None else np.concatenate([scale, scale[-1:]]),
    )


def _attempt(design: Design, meters: LoadHistory, world: int, key: StreamKey) -> _Trial:
    """One fit of one of the two."""
    trial, options, unit = _Trial(world), design.options, design.budget.unit
    both = history_facts(meters, options, unit)
    classes = tuple((name, count - 1) for name, count in both.load_points_of_class)
    facts = replace(both, load_points_of_class=classes)
    try:
        derive(_Tried(facts, meters, options, unit, key, trial), options, design.budget)
    except _NoMoreError:
        trial.partly = True
    return trial
