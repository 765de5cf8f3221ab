"""Capacities of every candidate on the days of one block.

Snapshot by snapshot (fixed frame, or taps as drawn) a search looks at the few steps of a day that a linear
forecast calls tightest. What it finds is then solved at every step with sun; a step that breaks a limit joins
the search, which goes on below. So every capacity is feasible at every step by power flow, and the next one
of the grid is infeasible at one of them. Where controls act, every look is a whole day.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow.derived.hosting.limits import Conductors, bounds_of
from dp_powerflow.derived.hosting.search import Brackets
from dp_powerflow.derived.hosting.snapshots import MOST_PHASORS, ActingHosts, Hosts, Prepared, Rows, margins
from dp_powerflow.derived.study import Study
from dp_powerflow.model.sample import SolvedDays, solve_days
from dp_powerflow.powerflow.operated import OperatedSolution
from dp_powerflow.units import BoolArray, FloatArray, IntArray

_FIRST_STEPS = 3
"""Steps of a day that a search looks at before the others have their say."""
_PROBE = 32
"""The forecast is made with this part of the largest capacity."""
_MOST_FORECASTS = 1 << 22
_SMALL = 1e-30
_MOST_PAIRS = 1 << 14


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked of every day.

    Attributes
    ----------
    solvers : of the study.
    candidates : number of places for a PV system.
    per_step : complex power injected by one step of the grid of capacities at peak irradiance [p.u.].
    top : largest capacity, in steps of the grid.
    limits : smallest and largest voltage, and how much worse what is broken may get.
    conductors : with an ampacity; None without any.
    """

    solvers: Prepared
    candidates: int
    per_step: complex
    top: int
    limits: tuple[float, float, float]
    conductors: Conductors | None


@dataclass(frozen=True, eq=False)
class Capacities:
    """Capacities of some days.

    Attributes
    ----------
    steps : integer (day, candidate) capacity, in steps of the grid.
    code : integer (day, candidate) 2 × `Binds`, plus 1 where a limit is broken without new PV at that step.
    at : integer (day, candidate) step of the day that binds; −1 where nothing does.
    broken : (day,) whether a limit is broken without new PV at any step.
    mended : snapshots whose powers were lowered, as in the release.
    looks : integer, snapshots that were solved.
    """

    steps: IntArray
    code: IntArray
    at: IntArray
    broken: BoolArray
    mended: int
    looks: int


def capacities(study: Study, question: Question, block: int) -> Capacities:
    """Capacities on the days of one block; a function of nothing else."""
    solved = solve_days(
        question.solvers.base, study.source, block, generation=study.generation, nodes="all", mend=study.mends
    )
    solved.solution.raise_if_failed()
    return _Block(study, question, solved).found()


class _Block:
    """One block of days."""

    def __init__(self, study: Study, question: Question, solved: SolvedDays) -> None:
        assert study.irradiance is not None
        self._q, self._steps = question, solved.steps
        self._days, self._mended = solved.days, int(np.count_nonzero(solved.mended))
        days = np.arange(solved.first_day, solved.first_day + solved.days)
        sun = study.irradiance[days % len(study.irradiance)].reshape(-1)
        bounds = bounds_of(study.feeder, solved.solution.v, question.limits, question.conductors)
        self._whole = Rows(solved.load, solved.generation, sun, _states(solved), bounds)
        self._v = solved.solution.v
        self._looks = 0

    def found(self) -> Capacities:
        """Search, then verify."""
        brackets = self._snapshots()
        acting = self._q.solvers.acting
        if acting is not None:
            brackets = self._acting(acting, brackets)
        shape = (self._days, self._q.candidates)
        return Capacities(
            steps=brackets.low.reshape(shape),
            code=brackets.code.reshape(shape),
            at=np.where(brackets.row < 0, -1, brackets.row % self._steps).reshape(shape),
            broken=np.asarray(self._whole.bounds.broken.reshape(self._days, -1).any(axis=1)),
            mended=self._mended,
            looks=self._looks,
        )

    # ------------------------------------------------------------------ snapshot by snapshot

    def _snapshots(self) -> Brackets:
        """Every (day, candidate), with its own steps to look at."""
        q, hosts = self._q, self._q.solvers.held
        sunny = _sorted_by_state(self._whole)
        rows = _chosen(self._whole, sunny)
        margin = rows.bounds.margins(self._v[sunny], np.arange(len(sunny)))[0]
        n = self._days * q.candidates
        brackets = Brackets.new(np.full(n, np.inf), q.top)
        if not len(sunny):
            brackets.low[:] = q.top
            return brackets
        active, guess = self._forecast(hosts, rows, sunny // self._steps)
        pairs = np.arange(n)
        while len(pairs):
            brackets.low_margin[pairs] = np.where(active[pairs] < 0, np.inf, margin[active[pairs]]).min(
                axis=1, initial=np.inf
            )
            self._narrow(hosts, rows, brackets, (pairs, guess), active)
            pairs, worst = self._refuted(hosts, rows, brackets, pairs, sunny // self._steps)
            active = np.concatenate([active, np.full((n, 1), -1)], axis=1)
            active[pairs, -1] = worst
            brackets.high[pairs], guess = brackets.low[pairs], brackets.low[pairs] - 1
            brackets.low[pairs] = 0
            brackets.row[pairs] = worst
        brackets.row = np.where(brackets.row < 0, -1, sunny[brackets.row])
        return brackets

    def _narrow(
        self,
        hosts: Hosts,
        rows: Rows,
        brackets: Brackets,
        begin: tuple[IntArray, IntArray],
        active: IntArray,
    ) -> None:
        """Search on the active steps of every pair."""

        def look(pairs: IntArray, capacity: IntArray) -> tuple[FloatArray, IntArray, IntArray]:
            at = active[pairs]
            used = at >= 0
            of, column = np.nonzero(used)
            chosen = at[of, column]
            margin = np.full(at.shape, np.inf)
            code = np.zeros(at.shape, dtype=np.int64)
            margin[of, column], code[of, column] = self._margins(
                hosts, rows, chosen, pairs[of] % self._q.candidates, capacity[of]
            )
            worst = margin.argmin(axis=1)
            each = np.arange(len(pairs))
            return margin[each, worst], code[each, worst], at[each, worst]

        brackets.run(*begin, look)

    def _refuted(
        self, hosts: Hosts, rows: Rows, brackets: Brackets, pairs: IntArray, day_of: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Pairs whose capacity breaks a limit at some step with sun, and the worst step of each."""
        pairs = pairs[brackets.low[pairs] > 0]
        worst_margin = np.zeros(len(pairs))
        worst = np.full(len(pairs), -1, dtype=np.int64)
        of_day = [np.flatnonzero(day_of == day) for day in range(self._days)]
        for first in range(0, len(pairs), _MOST_PAIRS):
            some = pairs[first : first + _MOST_PAIRS]
            counts = np.array([len(of_day[pair // self._q.candidates]) for pair in some])
            at = np.concatenate([of_day[pair // self._q.candidates] for pair in some])
            of = np.repeat(np.arange(len(some)), counts)
            capacity, candidate = brackets.low[some][of], some[of] % self._q.candidates
            margin, code = self._margins(hosts, rows, at, candidate, capacity)
            bad = np.flatnonzero(margin < 0.0)
            for k in bad[np.lexsort((at[bad], -margin[bad]))].tolist():  # the worst of a pair comes last
                worst_margin[first + of[k]], worst[first + of[k]] = margin[k], at[k]
                brackets.code[some[of[k]]] = code[k]
        refuted = worst >= 0
        brackets.high_margin[pairs[refuted]] = worst_margin[refuted]
        return pairs[refuted], worst[refuted]

    def _margins(
        self, hosts: Hosts, rows: Rows, at: IntArray, candidate: IntArray, capacity: IntArray
    ) -> tuple[FloatArray, IntArray]:
        self._looks += len(at)
        power = np.asarray((capacity * rows.sun[at]) * self._q.per_step, dtype=np.complex128)
        return margins(hosts, rows, at, candidate, power)

    def _forecast(self, hosts: Hosts, rows: Rows, day_of: IntArray) -> tuple[IntArray, IntArray]:
        """Tightest steps of every pair, and where to look first, by what a probe does to |v|² at peak sun."""
        q, probe = self._q, max(1, self._q.top // _PROBE)
        size = self._v.real**2 + self._v.imag**2
        active = np.full((self._days * q.candidates, _FIRST_STEPS), -1, dtype=np.int64)
        guess = np.ones(len(active), dtype=np.int64)
        sunny = _sorted_by_state(self._whole)
        together = max(1, MOST_PHASORS // hosts.width)
        for day in range(self._days):
            own = np.flatnonzero(day_of == day)
            for first in range(0, q.candidates if len(own) else 0, together):
                some = np.arange(first, min(first + together, q.candidates))
                peak = own[np.argmax(rows.sun[own])]
                amount = probe * float(rows.sun[peak])
                self._looks += len(some)
                v = hosts.voltages(
                    rows, np.full(len(some), peak), some, np.full(len(some), amount * q.per_step)
                )
                slope = (v.real**2 + v.imag**2 - size[sunny[peak]]) / amount
                slope = np.where(np.isfinite(slope), slope, 0.0)
                reach = _reach(slope, rows, own, size[sunny[own]])
                order = np.argsort(reach, axis=1, kind="stable")[:, :_FIRST_STEPS]
                mine = day * q.candidates + some
                active[mine, : order.shape[1]] = own[order]
                least = np.minimum(reach.min(axis=1), q.top)
                guess[mine] = np.maximum(least, 1.0).astype(np.int64)
        return active, guess

    # -------------------------------------------------------------------------- acting controls

    def _acting(self, hosts: ActingHosts, held: Brackets) -> Brackets:
        """Search with whole days, from what taps as drawn allow."""
        q, rows = self._q, self._whole
        margin = rows.bounds.margins(self._v, np.arange(len(rows)))[0].reshape(self._days, -1).min(axis=1)
        brackets = Brackets.new(np.repeat(margin, q.candidates), q.top)

        def look(pairs: IntArray, capacity: IntArray) -> tuple[FloatArray, IntArray, IntArray]:
            margin = np.empty(len(pairs))
            code, row = (np.empty(len(pairs), dtype=np.int64) for _ in range(2))
            size = max(1, MOST_PHASORS // (hosts.width * self._steps))
            for first in range(0, len(pairs), size):
                part = slice(first, first + size)
                margin[part], code[part], row[part] = self._whole_days(hosts, pairs[part], capacity[part])
            return margin, code, row

        brackets.run(np.arange(len(held.low)), np.maximum(held.low, 1), look)
        return brackets

    def _whole_days(
        self, hosts: ActingHosts, pairs: IntArray, capacity: IntArray
    ) -> tuple[FloatArray, IntArray, IntArray]:
        q, rows, steps = self._q, self._whole, self._steps
        first = (pairs // q.candidates) * steps
        at = (first[:, None] + np.arange(steps)).reshape(-1)
        power = (np.repeat(capacity, steps) * rows.sun[at]) * q.per_step
        self._looks += len(at)
        v = hosts.voltages(rows, at, np.repeat(pairs % q.candidates, steps), power)
        margin, code = (each.reshape(-1, steps) for each in rows.bounds.margins(v, at))
        worst, each = margin.argmin(axis=1), np.arange(len(pairs))
        return margin[each, worst], code[each, worst], first + worst


def _states(solved: SolvedDays) -> IntArray:
    found = solved.solution
    if isinstance(found, OperatedSolution):
        return np.concatenate([found.taps, found.capacitors], axis=1)
    return np.zeros((len(solved.load), 0), dtype=np.int64)


def _sorted_by_state(rows: Rows) -> IntArray:
    """Snapshots with sun, those with equal taps beside each other."""
    sunny = np.flatnonzero(rows.sun > 0.0)
    keys = rows.states[sunny].T[::-1]
    return sunny[np.lexsort((sunny, *keys))] if len(keys) else sunny


def _chosen(rows: Rows, some: IntArray) -> Rows:
    generation = None if rows.generation is None else rows.generation[some]
    return Rows(rows.load[some], generation, rows.sun[some], rows.states[some], rows.bounds.of(some))


def _reach(slope: FloatArray, rows: Rows, own: IntArray, size: FloatArray) -> FloatArray:
    """(candidate, step) capacity at which a limit of voltage is met, were |v|² linear in it."""
    room_up, room_down = rows.bounds.high[own] - size, size - rows.bounds.low[own]
    reach = np.full((len(slope), len(own)), np.inf)
    some = max(1, _MOST_FORECASTS // max(room_up.size, 1))
    for first in range(0, len(slope), some):
        part = slope[first : first + some, None, :]
        pace = np.maximum(part / np.maximum(room_up, _SMALL), -part / np.maximum(room_down, _SMALL))
        fastest = pace.max(axis=2, initial=0.0) * rows.sun[own]
        reach[first : first + some] = 1.0 / np.maximum(fastest, _SMALL)
    return reach
