"""Whether customers are in the unit that is declared, told by medians.

The **level** of a customer is the median over its days of the mean load of a day: one wild reading, or a
month away from home, does not move it. The **shape** is the median over its days of standard deviation over
mean: it has no unit, so it tells a large customer from a household in watts.

Three comparisons, each with a declared, PUBLIC reference or within the file:

- the median level of all load points against the public scale, or against a plausible range in kW;
- the median level of all customers against the public load of a typical one, where it is declared: the only
  comparison that can see a factor of 4 in the whole file;
- a second group of levels a factor of 1,000 from the largest one, with its shape; relative to a public scale
  also one a factor of 4 away, where the scale is good enough to leave a valley between the two.

Readings a factor of 1,000 beyond any customer (**wild** ones) are counted first and judge nothing: huge
values of either sign cancel in the mean of a day, and what is left would tell no level at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.declared import IngestRules
from dp_powerflow.loads.scanning import levels_and_shapes, on_all_cores
from dp_powerflow.units import BoolArray, FloatArray, IntArray

THOUSAND, FOUR = 1000.0, 4.0
TYPICAL_WITHIN = 2.5
"""How far the median customer may be from the typical load declared; √4 would be the middle to a factor 4."""
_SAME_SHAPE = 0.4  # in the log of the median shapes of two groups
_LEAST_MEMBERS = 3
_LEAST_SHARE = 0.01
_FAR = 0.5  # width of a window [decades]
_WILD_SHARE = 0.001
_SURE = 3.0  # standard deviations of the difference of two counts


@dataclass(frozen=True, eq=False, repr=False)
class Levels:
    """PRIVATE. Level [kW] and shape of some customers or load points; NaN where there is no load to judge."""

    level: FloatArray
    shape: FloatArray

    @classmethod
    def of(cls, values: FloatArray) -> Levels:
        """From readings (customer, day, step) [kW], NaN where there is none."""
        found = np.empty((len(values), 2))
        on_all_cores(lambda part: levels_and_shapes(values[part], found[part]), len(values))
        return cls(found[:, 0], found[:, 1])

    def relative_to(self, scale_kw: FloatArray) -> Levels:
        return Levels(self.level / scale_kw, self.shape)

    def where(self, chosen: BoolArray) -> Levels:
        return Levels(self.level[chosen], self.shape[chosen])


@dataclass(frozen=True)
class UnitFindings:
    """INTERNAL. How many levels look as if they were in another unit.

    Parameters
    ----------
    judged
        Load points with a load to judge.
    below, above
        Load points outside the plausible range.
    wild
        Readings a factor of 1,000 beyond what any customer draws.
    off_by_1000, off_by_4
        Customers (load points, where these have public scales) in a second group that far from the largest
        one, with its shape.
    """

    judged: int = 0
    below: int = 0
    above: int = 0
    off_by_1000: int = 0
    off_by_4: int = 0
    wild: int = 0


def wild_limit_kw(scale_kw: FloatArray | None, rules: IngestRules) -> float:
    """Beyond it, on either side, no reading of a customer can be [kW or kvar]."""
    largest = rules.plausible_kw[1]
    if scale_kw is not None and len(scale_kw):
        largest = max(largest, rules.plausible_share[1] * float(scale_kw.max()))
    return THOUSAND * largest


def count_wild(values: FloatArray, limit_kw: float) -> IntArray:
    """(customer,) readings beyond the limit."""
    found = np.zeros(len(values), dtype=np.int64)

    def count(part: slice) -> None:
        own = values[part]
        found[part] = np.count_nonzero((own > limit_kw) | (own < -limit_kw), axis=(1, 2))

    on_all_cores(count, len(values))
    return found


def without_wild(values: FloatArray, limit_kw: float, wild: IntArray) -> FloatArray:
    """The readings, or a copy with gaps where they are beyond the limit."""
    if not wild.any():
        return values
    tame: FloatArray = np.where(np.abs(values) > limit_kw, np.nan, values)
    return tame


def refuse_wild(wild: IntArray, read: IntArray, days: int) -> None:
    """Refuse a file with too many wild readings, or with one a day of a customer.

    Parameters
    ----------
    wild, read
        (customer,) wild readings, and all.
    """
    customers = int(np.count_nonzero(wild >= days))
    if customers or wild.sum() > _WILD_SHARE * read.sum():
        raise LoadDataError(
            f"{int(wild.sum())} readings are 1000 times or more what any customer draws, and {customers} "
            "customers have one or more a day; correct them or the unit, list them as missing, or set "
            "on_suspect_unit to 'keep', which leaves them to the bounds of the model",
            code="meters-unit",
        )


def refuse_wrong_median(points: Levels, scaled: bool, rules: IngestRules) -> None:
    """Refuse a file whose median load point lies outside the plausible range."""
    levels = points.level[~np.isnan(points.level)]
    low, high = rules.plausible_share if scaled else rules.plausible_kw
    against = "its public scale" if scaled else "the plausible range of a customer"
    if not levels.size or low <= (middle := float(np.median(levels))) <= high:
        return
    side = "above" if middle > high else "below"
    raise LoadDataError(
        f"the load of the median load point is far {side} {against}, as if the unit were off by a factor of "
        "1000; correct the declared unit or the public scales, or set on_suspect_unit to 'keep'",
        code="meters-unit",
    )


def refuse_untypical_median(customers: Levels, typical_kw: float | None) -> None:
    """Refuse a file whose median customer is far from the public load of a typical one."""
    levels = customers.level[~np.isnan(customers.level)]
    if typical_kw is None or not levels.size:
        return
    ratio = float(np.median(levels)) / typical_kw
    if 1 / TYPICAL_WITHIN <= ratio <= TYPICAL_WITHIN:
        return
    side = "above" if ratio > 1 else "below"
    raise LoadDataError(
        f"the load of the median customer is more than {TYPICAL_WITHIN:g} times {side} the declared typical "
        "load, as if it were in another unit (kW for kWh of a quarter of an hour is a factor of 4); correct "
        "the unit or typical_kw, or set on_suspect_unit to 'keep'",
        code="meters-unit",
    )


def second_group(found: Levels, factor: float) -> BoolArray:
    """Which levels form a second group, a factor above or below the largest group, and of its shape.

    On a logarithmic scale a window of a third of the distance is laid over the largest group, over the second
    one, and over the valley between them. The second group must have some members and clearly more than the
    valley; groups that differ in shape are customers of another kind, not of another unit.
    """
    members = np.zeros(found.level.size, dtype=bool)
    known = ~np.isnan(found.level)
    if np.count_nonzero(known) < 2 * _LEAST_MEMBERS:
        return members
    log_level = np.log10(np.where(known, found.level, 1.0))
    window = _Window(np.sort(log_level[known]), math.log10(factor) / 3)
    first = window.densest(window.levels)
    for side in (1.0, -1.0):
        aim = first + side * 3 * window.width
        near = window.levels[np.abs(window.levels - aim) <= window.width / 2]
        if not near.size:
            continue
        second = window.densest(near)
        if not window.is_apart(first, second):
            continue
        valley = (first + second) / 2
        there = known & (side * (log_level - valley) > 0)
        if _same_shape(found.shape[there], found.shape[known & ~there]):
            members |= there
    return members


@dataclass(frozen=True, eq=False, repr=False)
class _Window:
    """PRIVATE. A window of a fixed width over sorted log levels."""

    levels: FloatArray
    width: float

    def count(self, centre: float) -> int:
        low, high = np.searchsorted(self.levels, [centre - self.width / 2, centre + self.width / 2])
        return int(high - low)

    def densest(self, centres: FloatArray) -> float:
        """Median of the fullest window around one of some levels."""
        best = max(centres, key=self.count)
        inside = np.abs(self.levels - best) <= self.width / 2
        return float(np.median(self.levels[inside]))

    def is_apart(self, first: float, second: float) -> bool:
        """Whether there is a group at `second`, with a valley before it."""
        there, between = self.count(second), self.count((first + second) / 2)
        if there < max(_LEAST_MEMBERS, _LEAST_SHARE * self.levels.size):
            return False
        # Three decades apart, three levels and an empty valley are evidence; nearer, chance must be excluded.
        far = self.width > _FAR
        return 2 * between <= there if far else there - between > _SURE * math.sqrt(there + between)


def _same_shape(one: FloatArray, other: FloatArray) -> bool:
    one, other = one[one > 0], other[other > 0]
    if not one.size or not other.size:
        return False
    return abs(math.log(float(np.median(one)) / float(np.median(other)))) < _SAME_SHAPE
