"""The largest feasible integer of many searches at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dp_powerflow.units import BoolArray, FloatArray, IntArray

_HALVE_EVERY = 4
"""Every so many looks the interval is halved, whatever the secant says."""

Look = Callable[[IntArray, IntArray], tuple[FloatArray, IntArray, IntArray]]
"""Searches and an integer for each → margin (negative if infeasible), what is broken, and where."""


@dataclass(eq=False)
class Brackets:
    """Where the searches stand.

    Attributes
    ----------
    low, high : (search,) a feasible integer and an infeasible one above it; `top` + 1 where nothing
        infeasible is known.
    low_margin, high_margin : their margins; infinite where unknown.
    code, row : (search,) what is broken at `high`, and where.
    """

    top: int
    low: IntArray
    high: IntArray
    low_margin: FloatArray
    high_margin: FloatArray
    code: IntArray
    row: IntArray

    @classmethod
    def new(cls, margin: FloatArray, top: int) -> Brackets:
        """Nothing is known but that 0 is feasible, with this margin."""
        n = len(margin)
        return cls(
            top,
            np.zeros(n, dtype=np.int64),
            np.full(n, top + 1, dtype=np.int64),
            margin.copy(),
            np.full(n, -np.inf),
            np.zeros(n, dtype=np.int64),
            np.full(n, -1, dtype=np.int64),
        )

    def run(self, chosen: IntArray, guess: IntArray, look: Look) -> None:
        """Narrow the chosen searches until `high` is `low` + 1.

        Every look moves `low` or `high` of every search, so it ends; an answer below `top` is an integer that
        was looked at and found feasible, next to one that was found infeasible.

        Parameters
        ----------
        guess : (search chosen,) where to look first.
        look : computes margins.
        """
        at, looks = np.clip(guess, self.low[chosen] + 1, self.high[chosen] - 1), 0
        while True:
            open_ = self.high[chosen] - self.low[chosen] > 1
            chosen, at = chosen[open_], at[open_]
            if not len(chosen):
                return
            self._move(chosen, at, *look(chosen, at))
            looks += 1
            at = self._next(chosen, halve=looks % _HALVE_EVERY == 0)

    def _move(
        self, chosen: IntArray, at: IntArray, margin: FloatArray, code: IntArray, row: IntArray
    ) -> None:
        good: BoolArray = margin >= 0.0
        up, down = chosen[good], chosen[~good]
        self.low[up], self.low_margin[up] = at[good], margin[good]
        self.high[down], self.high_margin[down] = at[~good], margin[~good]
        self.code[down], self.row[down] = code[~good], row[~good]

    def _next(self, chosen: IntArray, *, halve: bool) -> IntArray:
        """By the secant where both margins are known, else twice as far or half way."""
        low, high = self.low[chosen], self.high[chosen]
        unknown = high > self.top
        middle = (low + high) // 2
        above, below = self.low_margin[chosen], self.high_margin[chosen]
        known = np.isfinite(below) & np.isfinite(above) & ~unknown
        share = np.where(known, above, 0.5) / np.where(known, above - below, 1.0)
        secant = (low + np.floor(share * (high - low))).astype(np.int64)
        at = np.where(known & (not halve), secant, middle)
        at = np.where(unknown, np.minimum(2 * low, self.top), at)
        return np.asarray(np.clip(at, low + 1, high - 1), dtype=np.int64)
