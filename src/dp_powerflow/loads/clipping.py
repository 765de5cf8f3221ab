"""Loads outside the bounds that the model declares: the fit cuts them, so many of them are a mistake."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.loads.scanning import count_outside, on_all_cores
from dp_powerflow.units import BoolArray, FloatArray


@dataclass(frozen=True)
class ClippedCounts:
    """INTERNAL. How many loads the fit will cut to its bounds.

    Parameters
    ----------
    loads
        Load points × days × steps looked at; placeholders are not.
    below, above
        Loads below the lower and above the upper bound.
    load_points
        Load points looked at.
    mostly_below, mostly_above
        Load points more than half of whose loads are outside, by the side that more of them are on.
    """

    loads: int
    below: int
    above: int
    load_points: int
    mostly_below: int
    mostly_above: int

    @property
    def mostly(self) -> int:
        """Load points more than half of whose loads are outside."""
        return self.mostly_below + self.mostly_above

    def sentence(self) -> str:
        """For the producer, totals only."""
        return (
            f"{self.below} loads below and {self.above} above the bounds of the model, which cuts them; more "
            f"than half of those of {self.mostly} load points"
        )


def count_clipped(
    history: LoadHistory, bounds_kw: tuple[FloatArray, FloatArray], placeholder: BoolArray
) -> ClippedCounts:
    """Count the loads of a history outside some bounds, one load point at a time.

    Parameters
    ----------
    bounds_kw
        (load point,) lower and upper bound [kW].
    placeholder
        (load point,) true for what no meter read.
    """
    low, high = bounds_kw
    outside = np.empty((history.n_load_points, 2), dtype=np.int64)
    on_all_cores(
        lambda part: count_outside(history.load_kw[part], low[part], high[part], outside[part]), len(outside)
    )
    counts = outside[~placeholder]
    size = history.n_days * history.n_steps
    below, above = counts.T
    mostly = below + above > size / 2
    return ClippedCounts(
        loads=len(counts) * size,
        below=int(below.sum()),
        above=int(above.sum()),
        load_points=len(counts),
        mostly_below=int(np.count_nonzero(mostly & (below >= above))),
        mostly_above=int(np.count_nonzero(mostly & (below < above))),
    )


def refuse_many_clipped(found: ClippedCounts, most: float) -> None:
    """Refuse a history of which the model would see little but its bounds.

    Parameters
    ----------
    most
        Share of load points that may have more than half of their loads outside.
    """
    if found.mostly > most * found.load_points:
        raise LoadDataError(
            f"{found.mostly} of {found.load_points} load points have more than half of their loads outside "
            f"the bounds of the model ({found.mostly_below} below, {found.mostly_above} above), but "
            f"loads.most_clipped allows a share of {most:g}; check the unit, the public scales and "
            "model.bounds, or raise loads.most_clipped",
            code="loads-clipped",
        )
