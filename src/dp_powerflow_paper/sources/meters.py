"""Meters that noise is put on: their readings, what is public of them, and the way to the nodes.

A meter is one load of the feeder. Its reading is relative to its nominal load, so one public range serves
all. The noise of an experiment is floating-point and comes from a seed: it is for measurements, not releases.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from dp_powerflow.errors import PrivacyError
from dp_powerflow.units import ComplexArray, FloatArray, IntArray
from dp_powerflow_paper.datasets import Dataset
from dp_powerflow_paper.sources import ONE_CUSTOMER_DAY, ONE_CUSTOMER_STEP, Composes, Guarantee


@dataclass(frozen=True)
class ReadingUnit:
    """What one ε of noise on readings covers.

    Attributes
    ----------
    key : in names.
    covers : unit of the guarantee.
    adjacency, composes : of the guarantee.
    whole_day : whether all readings of a meter's day change together.
    """

    key: str
    covers: str
    adjacency: str
    composes: Composes
    whole_day: bool

    def readings(self, steps: int) -> int:
        """Readings of a meter that share one ε, of a day of so many steps."""
        return steps if self.whole_day else 1

    def guarantee(self, epsilon: float, *, proved: bool, remark: str) -> Guarantee:
        """Pure ε for the unit."""
        return Guarantee(
            epsilon, 0.0, self.covers, self.adjacency, proved, remark=remark, composes=self.composes
        )


SLOT = ReadingUnit("slot", "step", ONE_CUSTOMER_STEP, "per snapshot", whole_day=False)
DAY = ReadingUnit("day", "day", ONE_CUSTOMER_DAY, "per day", whole_day=True)


@dataclass(frozen=True, eq=False)
class Meters:
    """Readings, their public range at every step, and what they are to the nodes.

    Attributes
    ----------
    relative : (meter, day, step) active load over nominal load.
    shares : sparse complex (loaded node, meter), nodal load per unit of relative load [p.u.].
    low, high : (step,) public range of the relative load; readings outside are cut to it.
    """

    relative: FloatArray
    shares: sp.csr_array
    low: FloatArray
    high: FloatArray

    def __post_init__(self) -> None:
        steps = self.relative.shape[2]
        if self.low.shape != (steps,) or self.high.shape != (steps,):
            raise PrivacyError("the public range of meters needs one low and one high figure per step")
        if not (np.all(np.isfinite(self.width)) and np.all(self.width > 0.0)):
            raise PrivacyError("the public range of meters must be finite, low below high at every step")

    @classmethod
    def of(cls, data: Dataset, days: IntArray) -> Meters:
        """Those of a data set on some days, with its public margins; reactive load is at nominal factors."""
        low, high = (np.full(data.n_steps, edge) for edge in data.margins)
        return cls(np.asarray(data.relative[:, days].real), data.shares, low, high)

    def within(self, low: FloatArray, high: FloatArray) -> Meters:
        """The same with another public range: an envelope (step,)."""
        return replace(self, low=low, high=high)

    @property
    def n(self) -> int:
        """Number of meters."""
        return int(self.relative.shape[0])

    @property
    def steps(self) -> int:
        """T."""
        return int(self.relative.shape[2])

    @property
    def width(self) -> FloatArray:
        """(step,) by how much a relative reading may change."""
        return np.asarray(self.high - self.low)

    @cached_property
    def nominal(self) -> FloatArray:
        """(meter,) nominal active load [p.u.]."""
        return np.asarray(self.shares.sum(axis=0)).real.reshape(-1)

    def cut(self, relative: FloatArray) -> FloatArray:
        """Relative loads (..., step) within the public range."""
        return np.clip(relative, self.low, self.high)

    def first_days(self, days: int) -> FloatArray:
        """(meter, day, step) true readings of the first days, cut to the public range."""
        available = self.relative.shape[1]
        if not 1 <= days <= available:
            raise PrivacyError(f"{days} days were asked of a setting that has {available}")
        return self.cut(self.relative[:, :days])

    def nodal(self, relative: FloatArray) -> ComplexArray:
        """Complex (day, step, loaded node) [p.u.] of (meter, day, step) relative loads."""
        _, days, steps = relative.shape
        flat = self.shares @ relative.reshape(self.n, -1)
        return np.ascontiguousarray(flat.T).reshape(days, steps, -1)
