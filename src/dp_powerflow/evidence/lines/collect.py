"""Everything about the lines of one network: losses, evidence, protected x, audit and attack. INTERNAL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.law import NodeLaw
from dp_powerflow.evidence.lines.attack import regress_line
from dp_powerflow.evidence.lines.audit import Audit, audit_lines, release_days
from dp_powerflow.evidence.lines.evidence import CONFIDENCE, HORIZONS, LineEvidence, LineRow, judge
from dp_powerflow.evidence.lines.losses import LineLoss, LineLosses, Progress
from dp_powerflow.evidence.lines.neighbours import scaled_both_ways
from dp_powerflow.evidence.lines.protected import protected_sizes, supported_delta
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.reduction import Network
from dp_powerflow.units import ComplexArray, IntArray

Streams = Callable[[str], np.random.Generator]
"""Purpose → generator, from a key that no release uses; different purposes are independent."""

_TYPICAL = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Quantiles of the lines' mean loss that the picture over days shows."""


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
    feeder: Feeder,
    law: NodeLaw,
    request: LineRequest,
    streams: Streams,
    *,
    released: IntArray | None = None,
    generation: ComplexArray | None = None,
    progress: Progress | None = None,
    threads: int | None = None,
) -> LineReport:
    """All lines of a feeder, each scaled both ways, both directions.

    Parameters
    ----------
    released : positions of the nodes with a load law among the retained ones, None for all.
    generation : complex (step, retained) [p.u.], public.
    """
    if not feeder.lines:
        raise PrivacyError("the feeder has no line records, so there is nothing to say line by line")
    engine = LineLoss(feeder, law, released=released, generation=generation, threads=threads)
    neighbours = scaled_both_ways(feeder.lines, request.x)
    generator = streams("losses of lines")
    losses = engine.losses(neighbours, lambda days: law.draw(days, generator), request.draws, progress)
    evidence = judge(losses, request.x, law.steps, request.delta, confidence=request.confidence)
    protected, over_days, protected_delta = _protected(engine, losses, request, evidence, streams, progress)
    audit = _audit(engine, request, losses, evidence.delta, streams, progress)
    lower = {} if audit is None else audit.by_line(neighbours)
    errors = _attack(engine, request, streams)
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
    streams: Streams,
    progress: Progress | None,
) -> tuple[dict[str, float | None], tuple[OverDays, ...], float | None]:
    if request.protected_draws == 0:
        return {}, (), None
    generator = streams("protected size of lines")

    def test(pilot: LineLosses, horizon: int, delta: float) -> tuple[dict[str, float | None], float]:
        return protected_sizes(
            engine,
            pilot,
            lambda days: engine.law.draw(days, generator),
            max(request.protected_draws, horizon),
            request.epsilon,
            delta,
            horizon=horizon,
            confidence=request.confidence,
            progress=progress,
        )

    every, delta = test(losses, 1, request.delta)
    few = _some(losses, _typical_lines(evidence))
    longest = max(HORIZONS)
    # One δ for all days, so that the days can be compared.
    common = max(
        request.delta,
        supported_delta(len(_names(few)), max(request.protected_draws, longest), longest, request.confidence),
    )
    over = []
    for horizon in (1, *HORIZONS):
        found, used = test(few, horizon, common)
        over.append(OverDays(horizon, used, found))
    return every, tuple(over), delta


def _typical_lines(evidence: LineEvidence) -> set[str]:
    rows = sorted((row for row in evidence.rows if not row.is_switch), key=lambda row: row.mean)
    rows = rows or sorted(evidence.rows, key=lambda row: row.mean)
    return {rows[round(q * (len(rows) - 1))].line for q in _TYPICAL}


def _some(losses: LineLosses, names: set[str]) -> LineLosses:
    own = [k for k, item in enumerate(losses.neighbours) if item.line.name in names]
    return LineLosses(tuple(losses.neighbours[k] for k in own), losses.forward[own], losses.reverse[own])


def _names(losses: LineLosses) -> list[str]:
    return list(dict.fromkeys(item.line.name for item in losses.neighbours))


def _audit(
    engine: LineLoss,
    request: LineRequest,
    losses: LineLosses,
    delta: float,
    streams: Streams,
    progress: Progress | None,
) -> Audit | None:
    if request.audit_days == 0:
        return None
    generator = streams("audit of lines")
    release = release_days(
        lambda days: engine.law.draw(days, generator),
        released=engine.released,
        generation=engine.generation,
    )
    return audit_lines(
        engine.feeder,
        engine.law,
        losses.neighbours,
        release,
        request.audit_days,
        delta,
        released=engine.released,
        generation=engine.generation,
        confidence=request.confidence,
        progress=progress,
    )


def _attack(engine: LineLoss, request: LineRequest, streams: Streams) -> dict[str, tuple[float, float]]:
    """Line → error of the regression, and with paired loads; only where every retained node is released."""
    if request.attack_days == 0 or len(engine.true.hidden) or engine.generation.any():
        return {}
    load = engine.law.draw(request.attack_days, streams("attack on lines"))
    v = release_days(lambda _: load)(engine.feeder, len(load))
    network = Network(engine.feeder)
    found = {}
    for line in engine.feeder.lines:
        attack = regress_line(network, engine.law, line, v, load, request.regressed_days)
        found[line.name] = (attack.error, attack.error_with_loads)
    return found
