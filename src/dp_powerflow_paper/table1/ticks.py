"""Ticks that follow from numbers: one rule per column of the paper's table.

- load DP ✓: a claim for the loads, finite, proved, for all that is released together, no audit above it
- topology DP ✓: the same for the network, and a change of one line is among its neighbours
- distribution fidelity ✓: pooled W1 of |v| at most 0.002 p.u., lag-1 correlation within 0.2 of the true one
- unlimited load samples ✓: ten times the days could be drawn, all different, and ε stays
- true Y in power flow ✓: a changed line changes the voltages, and they were solved on the true network

A release of something else than voltages has no mark for fidelity; one of loads alone has none for true Y.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dp_powerflow_paper.sources import SAME_MANIFOLD
from dp_powerflow_paper.table1.printed import Column, Mark
from dp_powerflow_paper.table1.results import Claim, Measured, Probe

MOST_W1 = 0.002
"""Largest pooled W1 of |v| that counts as faithful [p.u.]."""
MOST_LAG1 = 0.2
"""Largest distance of the lag-1 correlation from the true one."""


@dataclass(frozen=True)
class Tick:
    """A mark and the numbers that it follows from.

    Attributes
    ----------
    because : one clause, without a full stop.
    """

    mark: Mark
    because: str


Rule = Callable[[Measured], Tick]


def tick(column: Column, found: Measured) -> Tick:
    """The mark of a row in a column."""
    if found.absent is not None:
        return Tick(Mark.UNKNOWN, found.absent)
    return RULES[column](found)


def load_dp(found: Measured) -> Tick:
    """Whether the customers are protected."""
    return _claimed(found.loads, "the loads")


def topology_dp(found: Measured) -> Tick:
    """Whether the network is protected."""
    claim = found.network
    if claim is not None and claim.guarantee.adjacency == SAME_MANIFOLD:
        return Tick(Mark.NO, "its neighbours share one manifold of voltages, which no change of a line keeps")
    return _claimed(claim, "the network")


def _claimed(claim: Claim | None, secret: str) -> Tick:
    if claim is None:
        return Tick(Mark.NO, f"nothing is claimed for {secret}")
    stated, audited = claim.guarantee, claim.audited
    if not math.isfinite(stated.epsilon):
        return Tick(Mark.NO, f"ε for {secret} is not finite")
    if audited is not None and audited > stated.epsilon:
        return Tick(Mark.NO, f"an audit found ε ≥ {audited:.3g} where {stated.epsilon:.3g} is claimed")
    if not stated.proved:
        return Tick(Mark.NO, f"ε = {stated.epsilon:.3g} for {secret} is not proved")
    if not stated.jointly:
        return Tick(Mark.NO, f"ε = {stated.epsilon:.3g} holds for single numbers, not for the whole release")
    return Tick(Mark.YES, f"ε = {stated.epsilon:.3g} for {secret} is proved")


def fidelity(found: Measured) -> Tick:
    """Whether voltages are distributed like the true ones, step by step."""
    w1 = found.mean("w1_pooled")
    if found.other:
        return Tick(Mark.NOT_APPLICABLE, "not a voltage release")
    if w1 is None:
        return Tick(Mark.NO, "no snapshot has a power-flow solution")
    if w1 > MOST_W1:
        return Tick(Mark.NO, f"W1 of |v| is {w1:.2g}, above {MOST_W1:g}")
    own, true = found.lag1
    if own is None or true is None:
        return Tick(Mark.NO, "it has no lag-1 correlation")
    if abs(own - true) > MOST_LAG1:
        return Tick(Mark.NO, f"lag-1 correlation is {own:.2f} where the true one is {true:.2f}")
    return Tick(Mark.YES, f"W1 of |v| is {w1:.2g} and lag-1 {own:.2f} beside {true:.2f}")


def unlimited(found: Measured) -> Tick:
    """Whether any number of days costs the same."""
    return _probed(found.unlimited)


def true_y(found: Measured) -> Tick:
    """Whether power flow was solved on the true network."""
    return _probed(found.true_y)


def _probed(probe: Probe) -> Tick:
    if probe.passed is None:
        return Tick(Mark.NOT_APPLICABLE, probe.words)
    return Tick(Mark.YES if probe.passed else Mark.NO, probe.words)


RULES: Mapping[Column, Rule] = MappingProxyType(
    {
        Column.LOAD_DP: load_dp,
        Column.TOPOLOGY_DP: topology_dp,
        Column.FIDELITY: fidelity,
        Column.UNLIMITED: unlimited,
        Column.TRUE_Y: true_y,
    }
)


def together(ticks: Mapping[str, Tick]) -> Tick:
    """One mark of several data sets: ✓ only if it is one on all of them where the row was measured."""
    known = {data: own for data, own in ticks.items() if own.mark is not Mark.UNKNOWN}
    if not known:
        return next(iter(ticks.values()))
    marks = {own.mark for own in known.values()}
    if len(marks) == 1:
        words = dict.fromkeys(own.because for own in known.values())
        one = next(iter(known.values()))
        return one if len(words) == 1 else Tick(one.mark, _by_data(known))
    failing = {data: own for data, own in known.items() if own.mark is not Mark.YES}
    return Tick(Mark.NO, _by_data(failing))


def _by_data(ticks: Mapping[str, Tick]) -> str:
    return "; ".join(f"{data}: {own.because}" for data, own in ticks.items())
