"""Everything about the lines of one network: losses, evidence, protected x, audit and attack. INTERNAL.

The protected x is the inverse question: per line, the largest x that the policy protects. A pilot (losses at
one x, on draws of their own) guesses a candidate per line; fresh draws then test it. The guess needs no
proof, the test is a confidence bound, and a line that fails is tested at smaller x again.

**Audit.** An audit from below: what a threshold test on released days proves about ε.

If days on Y and on Y′ are (ε, δ)-indistinguishable then P_Y(A) ≤ e^ε·P_Y′(A) + δ for every event A, so error
rates of *any* test bound ε from below. The score here is no part of the loss of `lines.evidence`: dense
networks reduced one by one, a few nodes, no determinant. A poor score only makes the bound weaker. INTERNAL.

Beside it a practical attack that knows less than the guarantee allows for: regression of one line's
admittance. The attacker has the released voltages, the published load model's mean loads and every line but
one, whose admittance he believes to be off by a factor 1 + x. Loads implied by the voltages are linear in x
to first order, so he fits x by weighted least squares against the mean loads: no density, no covariance over
time, no determinant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri

from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.lines.evidence import (
    CONFIDENCE,
    HORIZONS,
    SOLVER_TOLERANCE,
    LineEvidence,
    LineLoss,
    LineLosses,
    LineRow,
    Neighbour,
    Progress,
    judge,
    lower_share,
    scaled_both_ways,
    smallest_share,
    upper_mean,
    upper_share,
    with_change,
)
from dp_powerflow.grid.feeder import Feeder, Line
from dp_powerflow.grid.reduction import Network
from dp_powerflow.model.law import LoadLaw
from dp_powerflow.model.sample import LoadSampler, LoadSource, solve_days
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.powerflow.sun import Generation
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

Release = Callable[[Feeder, int], ComplexArray]
"""Voltages of fresh days on a feeder, which has a number: complex (day, step, node)."""

_PILOT_SHARE = 0.3
_MOST_NODES = 24
_THRESHOLDS = 41
_FLOOR_OF_LOAD = 1e-9
_PROBE = 1e-4


@dataclass(frozen=True, eq=False)
class Audit:
    """Lower confidence bounds on ε, all true together with the stated confidence.

    Attributes
    ----------
    lower : (neighbour, direction), 0 where the test shows nothing.
    days : under each network; `tested` of them after the thresholds were chosen.
    """

    lower: FloatArray
    delta: float
    days: int
    tested: int
    confidence: float

    def by_line(self, neighbours: Sequence[Neighbour]) -> dict[str, float]:
        """The largest lower bound of every line's changes and directions."""
        found: dict[str, float] = {}
        for item, row in zip(neighbours, self.lower, strict=True):
            found[item.line.name] = max(found.get(item.line.name, 0.0), float(row.max()))
        return found


def fresh_days(law: LoadLaw, key: StreamKey, days: int, generation: ComplexArray | None = None) -> Release:
    """The mechanism: draw days of a law anew for every network, solve, give away the voltages of its nodes.

    Parameters
    ----------
    key : which neither a release nor the losses use.
    generation : complex (step, retained) [p.u.], the same every day.
    """
    daily = None if generation is None else Generation.every_day(generation)

    def release(feeder: Feeder, number: int) -> ComplexArray:
        sampler = LoadSampler(law, key.bind("network", str(number)), days, block_days=days)
        solver = BatchSolver(feeder, tolerance=SOLVER_TOLERANCE)
        made = solve_days(solver, sampler, generation=daily)
        return np.asarray(made.v[..., made.positions])

    return release


@dataclass(frozen=True)
class AuditRequest:
    """Size of an audit: days under each network, δ of the claim, confidence of all bounds together."""

    days: int
    delta: float
    confidence: float = CONFIDENCE


def audit_lines(
    engine: LineLoss,
    neighbours: Sequence[Neighbour],
    release: Release,
    request: AuditRequest,
    progress: Progress | None = None,
) -> Audit:
    """Test Y against every neighbour on days drawn anew under both.

    Parameters
    ----------
    engine : network, published load law and generation; its losses are not used.
    release : the mechanism under audit; number 0 is the true network, k + 1 neighbour k.
    """
    days, delta, law = request.days, request.delta, engine.law
    pilot = int(_PILOT_SHARE * days)
    if pilot < 5:
        raise PrivacyError("an audit needs at least 20 days under each network")
    true, on_true = _Rough.of(engine.feeder, engine), release(engine.feeder, 0)
    each = (1.0 - request.confidence) / (len(neighbours) * 4)

    def score_both(item: tuple[_Rough, ComplexArray]) -> FloatArray:
        other, on_other = item
        score = _Score(law, true, other)
        return np.stack([_bound(*scores, pilot, delta, each) for scores in score.pairs(on_true, on_other)])

    lower = np.empty((len(neighbours), 2))
    for start in range(0, len(neighbours), engine.threads):
        batch = []
        for number in range(start, min(start + engine.threads, len(neighbours))):
            changed = with_change(engine.feeder, neighbours[number])
            batch.append((_Rough.of(changed, engine), release(changed, number + 1)))
        with ThreadPoolExecutor(engine.threads) as pool:
            lower[start : start + len(batch)] = list(pool.map(score_both, batch))
        if progress is not None:
            progress(start + len(batch), len(neighbours))
    return Audit(lower, delta, days, days - pilot, request.confidence)


@dataclass(frozen=True, eq=False)
class _Rough:
    """A network as the score sees it: nodes that are not released are constant currents, eliminated.

    Attributes
    ----------
    y : complex (released, released) [p.u.].
    b, generation : complex (step, released) [p.u.].
    """

    y: ComplexArray
    b: ComplexArray
    generation: ComplexArray

    @classmethod
    def of(cls, feeder: Feeder, engine: LineLoss) -> _Rough:
        network = Network(feeder)
        keep, injected = engine.released, engine.generation
        out = np.setdiff1d(np.arange(network.n), keep)
        idle = np.linalg.solve(network.y, -network.b)
        back = np.linalg.solve(network.y[np.ix_(out, out)].T, network.y[np.ix_(keep, out)].T).T
        current = network.b[out] - np.conj(injected[:, out] / idle[out])
        return cls(
            network.y[np.ix_(keep, keep)] - back @ network.y[np.ix_(out, keep)],
            network.b[keep] - current @ back.T,
            injected[:, keep],
        )


class _Score:
    """Likelihood ratio of the implied loads at the nodes that the change moves most."""

    def __init__(self, law: LoadLaw, true: _Rough, other: _Rough) -> None:
        if law.q_sigma is None or law.q_covariance is None:
            raise PrivacyError("the audit needs random reactive load (network.bound = 'full-support')")
        moved = np.linalg.norm(other.y - true.y, axis=1) + np.abs(other.b - true.b).max(axis=0)
        order: IntArray = np.argsort(moved)[::-1][:_MOST_NODES]
        self._nodes = order[moved[order] > 1e-3 * moved.max(initial=0.0)]
        self._law, self._networks = law, (true, other)
        self._precision = [np.linalg.inv(covariance) for covariance in law.covariance]
        self._precision_q = np.linalg.inv(law.q_covariance)
        self._q_sigma = law.q_sigma[self._nodes]

    def pairs(
        self, on_true: ComplexArray, on_other: ComplexArray
    ) -> tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:
        """Scores (day,) of days under (own, other) network, high where the own network is likelier."""
        first, second = self._ratio(on_true), self._ratio(on_other)
        return (first, second), (-second, -first)

    def _ratio(self, v: ComplexArray) -> FloatArray:
        true, other = (self._log_density(network, v) for network in self._networks)
        return np.asarray(true - other)

    def _log_density(self, network: _Rough, v: ComplexArray) -> FloatArray:
        law, nodes = self._law, self._nodes
        current = v @ network.y[nodes].T + network.b[:, nodes]
        load = network.generation[:, nodes] - v[..., nodes] * np.conj(current)
        p = np.maximum(load.real, _FLOOR_OF_LOAD)
        xi = np.log(p / law.scale[nodes])
        total = -xi.sum(axis=(1, 2))
        for column, node in enumerate(nodes):
            ell = law.class_of[node]
            away = xi[:, :, column] - law.mean[ell]
            total -= 0.5 * ((away @ self._precision[ell]) * away).sum(axis=1)
            zeta = load.imag[:, :, column] - law.tan_theta[node] * load.real[:, :, column]
            zeta = zeta / self._q_sigma[column]
            total -= 0.5 * ((zeta @ self._precision_q) * zeta).sum(axis=1)
        return np.asarray(total)


def _bound(own: FloatArray, other: FloatArray, pilot: int, delta: float, alpha: float) -> float:
    """log((P_own − δ)/P_other) of the event score > t, t chosen on the pilot, by Clopper–Pearson."""
    usable = np.concatenate([own[:pilot], other[:pilot]])
    candidates = np.quantile(usable[np.isfinite(usable)], np.linspace(0.02, 0.98, _THRESHOLDS))
    guesses = [_ratio(own[:pilot], other[:pilot], t, delta, 0.2) for t in candidates]
    threshold = float(candidates[int(np.argmax(guesses))])
    return max(0.0, _ratio(own[pilot:], other[pilot:], threshold, delta, alpha))


def _ratio(own: FloatArray, other: FloatArray, threshold: float, delta: float, alpha: float) -> float:
    hit = lower_share(np.count_nonzero(own > threshold), len(own), alpha)
    false = upper_share(np.count_nonzero(other > threshold), len(other), alpha)
    return float(np.log(max(float(hit) - delta, 1e-300) / float(false)))


@dataclass(frozen=True, eq=False)
class Attack:
    """Estimates of x of one line, which is 0 in truth.

    Attributes
    ----------
    estimates : (trial,) from `days` released days each.
    with_loads : the same when the loads behind the voltages are published: (trial,).
    """

    days: int
    estimates: FloatArray
    with_loads: FloatArray

    @property
    def error(self) -> float:
        """Root mean square error of x."""
        return float(np.sqrt(np.mean(self.estimates**2)))

    @property
    def error_with_loads(self) -> float:
        """The same when paired loads are published."""
        return float(np.sqrt(np.mean(self.with_loads**2)))


def regress_line(
    network: Network, law: LoadLaw, line: Line, v: ComplexArray, load: ComplexArray, days: int
) -> Attack:
    """Attack one line with voltages, complex (day, step, node), in groups of so many days.

    Parameters
    ----------
    load : the loads behind the voltages, used only for the variant where they are published.
    """
    if law.q_sigma is None:
        raise PrivacyError("the attack's weights need random reactive load")
    trials = len(v) // days
    if trials < 1:
        raise PrivacyError("the attack needs at least as many released days as it regresses on")
    change = network.line_change(line, _PROBE * line.primitive)
    through = v @ change.right[:, : network.n].T + change.right[:, network.n :] @ network.feeder.v_slack
    current = through @ (change.left @ change.core).T / _PROBE
    slope = v * np.conj(current)  # implied load falls by x·slope
    implied = -v * np.conj(v @ network.y.T + network.b)
    expected = law.mean_load
    variance = np.diagonal(law.covariance, axis1=1, axis2=2)
    weight_p = 1.0 / (expected.real**2 * np.expm1(variance)[law.class_of].T)
    weight_q = np.broadcast_to(1.0 / law.q_sigma**2, weight_p.shape)

    def fit(target: ComplexArray) -> FloatArray:
        away = implied - target
        top = (weight_p * slope.real * away.real + weight_q * slope.imag * away.imag).sum(axis=(1, 2))
        bottom = (weight_p * slope.real**2 + weight_q * slope.imag**2).sum(axis=(1, 2))
        groups = trials * days
        numerator = top[:groups].reshape(trials, days).sum(axis=1)
        denominator = bottom[:groups].reshape(trials, days).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(denominator > 0.0, numerator / denominator, np.inf)

    return Attack(days, fit(expected), fit(load))


_TYPICAL = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Quantiles of the lines' mean loss that the picture over days shows."""
SIZES = tuple(float(f"{m}e{k}") for k in range(-6, 0) for m in (1, 2, 5))
"""x that may be tested."""
_STEPS_DOWN = (0, 1, 3)
"""How far below its candidate a line is tested, attempt by attempt."""
_SLACK = 1.3
"""δ tested over the smallest supported one: leaves room for a few losses just above ε."""
_SAFETY = 0.5
"""Expected number of exceedances in all draws that a candidate may have where none is allowed for."""
Draw = Callable[[int, int], LoadSource]
"""Fresh days of the law: attempt and number of days → source."""


@dataclass(frozen=True)
class LineRequest:
    """What is asked about the lines; public constants.

    Attributes
    ----------
    x : neighbours scale one line's admittance by 1 ± x.
    epsilon : of one day, for the protected x.
    delta : of one day.
    draws : days drawn under each network; the smallest δ that can be stated follows from it.
    protected_draws, audit_days, attack_days : 0 leaves that part out.
    regressed_days : released days the attack regresses on.
    """

    x: float = 0.01
    epsilon: float = 1.0
    delta: float = 1e-5
    draws: int = 500
    protected_draws: int = 250
    audit_days: int = 200
    attack_days: int = 300
    regressed_days: int = 30
    confidence: float = CONFIDENCE


@dataclass(frozen=True)
class OverDays:
    """Protected x of a few lines against days; ε is that of the request, for all days together."""

    days: int
    delta: float
    protected: dict[str, float | None]


@dataclass(frozen=True)
class LineReport:
    """The evidence, and what surrounds it.

    Attributes
    ----------
    protected_delta : δ at which the protected x was tested, None if it was not asked for.
    audit_delta, audit_days : of the audit, None and 0 if it was not asked for.
    contradicted : lines whose lower bound passes their upper one: there is a bug if there is any.
    """

    request: LineRequest
    evidence: LineEvidence
    over_days: tuple[OverDays, ...]
    protected_delta: float | None
    audit_delta: float | None
    audit_days: int
    contradicted: tuple[str, ...]


def collect_lines(
    engine: LineLoss, request: LineRequest, key: StreamKey, progress: Progress | None = None
) -> LineReport:
    """All lines of a feeder, each scaled both ways, both directions.

    Parameters
    ----------
    engine : the network, the load law of the released nodes and the public generation.
    key : which no release uses; every part of the report has streams of its own.
    """
    if not engine.feeder.lines:
        raise PrivacyError("the feeder has no line records, so there is nothing to say line by line")
    neighbours = scaled_both_ways(engine.feeder.lines, request.x)
    days = engine.draws(key.bind("purpose", "losses of lines"), request.draws)
    losses = engine.losses(neighbours, days, progress)
    evidence = judge(losses, request.x, engine.law.steps, request.delta, confidence=request.confidence)
    protected, over_days, protected_delta = _protected(engine, losses, request, evidence, key, progress)
    audit = None
    if request.audit_days:
        asked = AuditRequest(request.audit_days, evidence.delta, request.confidence)
        audit_key = key.bind("purpose", "audit of lines")
        release = fresh_days(engine.law, audit_key, request.audit_days, engine.generation)
        audit = audit_lines(engine, neighbours, release, asked, progress)
    lower = {} if audit is None else audit.by_line(neighbours)
    errors = _attack(engine, request, key)
    rows = tuple(
        replace(
            row,
            lower=lower.get(row.line),
            protected=protected.get(row.line),
            attack_error=errors.get(row.line, (None, None))[0],
            attack_error_with_loads=errors.get(row.line, (None, None))[1],
        )
        for row in evidence.rows
    )
    return LineReport(
        request=request,
        evidence=replace(evidence, rows=rows),
        over_days=over_days,
        protected_delta=protected_delta,
        audit_delta=None if audit is None else audit.delta,
        audit_days=request.audit_days,
        contradicted=tuple(row.line for row in rows if contradicted(row)),
    )


def contradicted(row: LineRow) -> bool:
    """Whether the audit's lower bound passes the evidence's upper one."""
    return row.lower is not None and row.epsilon is not None and row.lower > row.epsilon


def _protected(
    engine: LineLoss,
    losses: LineLosses,
    request: LineRequest,
    evidence: LineEvidence,
    key: StreamKey,
    progress: Progress | None,
) -> tuple[dict[str, float | None], tuple[OverDays, ...], float | None]:
    if request.protected_draws == 0:
        return {}, (), None

    def test(name: str, pilot: LineLosses, horizon: int, delta: float) -> Protected:
        own = key.bind("purpose", f"protected size of lines, {name}, {horizon}")
        target = Target(
            max(request.protected_draws, horizon), request.epsilon, delta, horizon, request.confidence
        )
        return protected_sizes(
            engine,
            pilot,
            lambda attempt, days: engine.draws(own.bind("attempt", str(attempt)), days),
            target,
            progress,
        )

    every, delta = test("all lines", losses, 1, request.delta)
    few = _some(losses, _typical_lines(evidence))
    longest = max(HORIZONS)
    # One δ for all days, so that the days can be compared.
    common = max(
        request.delta,
        supported_delta(len(few.by_line), max(request.protected_draws, longest), longest, request.confidence),
    )
    over = []
    for horizon in (1, *HORIZONS):
        found, used = test("typical lines", few, horizon, common)
        over.append(OverDays(horizon, used, found))
    return every, tuple(over), delta


def _typical_lines(evidence: LineEvidence) -> set[str]:
    rows = sorted((row for row in evidence.rows if not row.is_switch), key=lambda row: row.mean)
    rows = rows or sorted(evidence.rows, key=lambda row: row.mean)
    return {rows[round(q * (len(rows) - 1))].line for q in _TYPICAL}


def _some(losses: LineLosses, names: set[str]) -> LineLosses:
    own = [k for name, rows in losses.by_line.items() if name in names for k in rows]
    return LineLosses(tuple(losses.neighbours[k] for k in own), losses.forward[own], losses.reverse[own])


def _attack(engine: LineLoss, request: LineRequest, key: StreamKey) -> dict[str, tuple[float, float]]:
    """Line → error of the regression, and with paired loads; only where every retained node is released."""
    days = request.attack_days
    if days == 0 or len(engine.true.hidden) or engine.generation.any():
        return {}
    sampler = LoadSampler(engine.law, key.bind("purpose", "attack on lines"), days, block_days=days)
    made = solve_days(BatchSolver(engine.feeder, tolerance=SOLVER_TOLERANCE), sampler)
    network = Network(engine.feeder)
    found = {}
    for line in engine.feeder.lines:
        attack = regress_line(network, engine.law, line, made.v, made.drawn, request.regressed_days)
        found[line.name] = (attack.error, attack.error_with_loads)
    return found


Protected = tuple[dict[str, float | None], float]
"""Per line the largest x tested that is protected, and the δ used."""


@dataclass(frozen=True)
class Target:
    """What a protected x must meet.

    Attributes
    ----------
    days : drawn per attempt.
    epsilon, delta : for the released days together.
    horizon : released days that ε and δ are for; losses add up over disjoint groups of the drawn days.
    """

    days: int
    epsilon: float
    delta: float
    horizon: int = 1
    confidence: float = CONFIDENCE


def protected_sizes(
    engine: LineLoss, pilot: LineLosses, draw: Draw, target: Target, progress: Progress | None = None
) -> Protected:
    """Per line of the pilot the largest x tested that is (ε, δ)-indistinguishable, and the δ used.

    Parameters
    ----------
    pilot : losses of lines scaled both ways, on draws that `draw` does not repeat.
    """
    horizon, epsilon = target.horizon, target.epsilon
    groups = target.days // horizon
    if groups < 1:
        raise PrivacyError("the protected x needs at least as many drawn days as are released")
    lines = tuple(pilot.neighbours[own[0]].line for own in pilot.by_line.values())
    each = (1.0 - target.confidence) / (4 * len(lines) * len(_STEPS_DOWN))
    supported = supported_delta(len(lines), target.days, horizon, target.confidence)
    used = max(target.delta, supported)
    tail = _SAFETY / groups / 4.0 if used == supported else used / 4.0
    candidate = _candidates(pilot, epsilon, tail, horizon)
    found: dict[str, float | None] = dict.fromkeys(candidate)
    open_lines: Sequence[Line] = lines
    for attempt, down in enumerate(_STEPS_DOWN):
        position = [max(0, candidate[line.name] - down) for line in open_lines]
        neighbours = [
            item
            for line, at in zip(open_lines, position, strict=True)
            for item in scaled_both_ways([line], SIZES[at])
        ]
        losses = engine.losses(neighbours, draw(attempt, groups * horizon), progress).by_direction
        sums = losses.reshape(*losses.shape[:2], groups, horizon).sum(axis=-1)
        excess = -np.expm1(np.minimum(epsilon - sums, 0.0)).mean(axis=-1)
        worst = upper_mean(excess, groups, each).reshape(len(open_lines), 4).max(axis=1)
        failed = []
        for line, at, bound in zip(open_lines, position, worst, strict=True):
            if bound <= used * (1.0 + 1e-12):
                found[line.name] = SIZES[at]
            elif at > 0:
                failed.append(line)
        open_lines = failed
        if not open_lines:
            break
    return found, used


def supported_delta(lines: int, days: int, horizon: int, confidence: float = CONFIDENCE) -> float:
    """Smallest δ at which a protected x can be tested with so many days."""
    each = (1.0 - confidence) / (4 * lines * len(_STEPS_DOWN))
    return min(1.0, _SLACK * smallest_share(max(1, days // horizon), each))


def _candidates(pilot: LineLosses, epsilon: float, tail: float, horizon: int) -> dict[str, int]:
    """Index into SIZES per line: Λ of a day taken as N(s²/2, s²) with s in proportion to x."""
    z = -float(ndtri(tail))
    wanted = (-z + np.sqrt(z**2 + 2.0 * epsilon)) / np.sqrt(horizon)
    spread = _spread(pilot.by_direction)
    chosen = {}
    for name, own in pilot.by_line.items():
        size = max(abs(pilot.neighbours[k].size or 0.0) for k in own)
        x = size * wanted / max(float(spread[own].max()), 1e-12)
        chosen[name] = max(0, int(np.searchsorted(SIZES, x, side="right")) - 1)
    return chosen


def _spread(losses: FloatArray) -> FloatArray:
    """(neighbour,) s such that the finite losses look like N(s²/2, s²), the larger of two ways to say it."""
    finite = np.isfinite(losses)
    values, count = np.where(finite, losses, 0.0), np.maximum(1, finite.sum(axis=-1))
    mean = values.sum(axis=-1) / count
    deviation = np.where(finite, values - mean[..., None], 0.0)
    by_std = np.sqrt((deviation**2).sum(axis=-1) / count)
    spread = np.fmax(by_std, np.sqrt(2.0 * np.clip(mean, 0.0, None))).max(axis=1)
    # A line whose day is impossible under the neighbour needs a far smaller change.
    return np.asarray(np.where(finite.all(axis=(1, 2)), spread, 10.0 * np.fmax(spread, 1.0)))
