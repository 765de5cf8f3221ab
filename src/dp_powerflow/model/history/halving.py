"""What so many halvings of an interval find, from fewer values of a rising function: the same bits.

A bisection ends between two neighbours of an even grid of 2ⁿ cells: the function is below its target at the
lower one and not below at the upper one. Whoever knows these two values knows the end of the bisection, if
the function rises. Computed values rise but for rounding, so both must differ from the target by more than
that; whoever finds them nearer halves in earnest (`Search.sure`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dp_powerflow._bits.elementary import kernel

HALVINGS = 28
CELLS = 1 << HALVINGS
MOST_LOOKS = 14
"""After so many values in vain the interval is halved."""


class Search(NamedTuple):
    """Where a search is: places are numbers of grid points, values are above (or below) the target.

    Attributes
    ----------
    low, high : the target lies between; 0 and `CELLS` until values were seen.
    under, over : values there.
    place, slope : what to look at next; change of the value from one place to the next.
    """

    low: int
    high: int
    under: float
    over: float
    place: int
    slope: float


@kernel
def begun(share: float, slope: float) -> Search:
    """Look first at a share of the interval; `slope` is a guess."""
    inside = min(max(1.0, share * CELLS), CELLS - 1.0)  # nan: 1
    return Search(0, CELLS, -np.inf, np.inf, int(inside), slope)


@kernel
def looked(search: Search, value: float, before: Search, value_before: float) -> Search:
    """The search after a value was seen at its place; `before` is the search before that, or itself."""
    low, high, under, over = search.low, search.high, search.under, search.over
    if value < 0.0:
        low, under = search.place, value
    else:
        high, over = search.place, value
    apart = search.place - before.place
    slope = search.slope if apart == 0 else (value - value_before) / apart
    to = search.place - value / slope
    if not low < to < high:  # nan too
        to = (low + high) / 2
    place = min(max(low + 1, int(to)), high - 1)
    return Search(low, high, under, over, place, slope)


@kernel
def sure(search: Search, rounding: float) -> bool:
    """Whether a bisection ends between `low` and `high`, where values are off by so much at most."""
    below = search.low == 0 or search.under < -rounding
    return search.high - search.low == 1 and below and (search.high == CELLS or search.over > rounding)
