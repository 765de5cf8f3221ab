"""`IngestReport`: what reading the meters found, INTERNAL. Counts, never a reading and never an id."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Collection
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

import numpy as np

from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.declared import GapRule, IngestRules, ServiceMap
from dp_powerflow.loads.history import (
    MINUTES_PER_DAY,
    SATURDAY,
    LoadHistory,
    count_readings,
    find_export,
    levels_and_shapes,
    on_all_cores,
    raise_to_floor,
    refuse_alike,
    refuse_export,
)
from dp_powerflow.loads.timegrid import ReadingCounts
from dp_powerflow.page import environment
from dp_powerflow.units import BoolArray, FloatArray, IntArray

# ----------------------------------------------------------------------------------------------------------
# Loads outside the bounds that the model declares: the fit cuts them, so many of them are a mistake.


@dataclass(frozen=True)
class ClippedCounts:
    """INTERNAL. How many loads the fit will cut to its bounds.

    Parameters
    ----------
    loads
        Load points × days × steps checked, without placeholders.
    below, above
        Loads below the lower and above the upper bound.
    load_points
        Load points checked.
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
    low, high = (bound[:, None, None] for bound in bounds_kw)
    outside = np.empty((2, history.n_load_points), dtype=np.int64)

    def count(part: slice) -> None:
        load = history.load_kw[part]
        outside[0, part] = np.count_nonzero(load < low[part], axis=(1, 2))
        outside[1, part] = np.count_nonzero(load > high[part], axis=(1, 2))

    on_all_cores(count, history.n_load_points)
    below, above = outside[:, ~placeholder]
    size = history.n_days * history.n_steps
    mostly = below + above > size / 2
    return ClippedCounts(
        loads=below.size * size,
        below=int(below.sum()),
        above=int(above.sum()),
        load_points=below.size,
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


# ----------------------------------------------------------------------------------------------------------
# How gaps within one customer are filled, and how many entries each part of the rule filled.
#
# No other customer's readings are ever used: replacing a customer must change one record, its own.


@dataclass(frozen=True)
class GapCounts:
    """Readings filled, by part of the rule; `clock_change` counts the skipped hours of 23-hour days."""

    linear_short: int = 0
    similar_day: int = 0
    linear_long: int = 0
    clock_change: int = 0
    across_days: int = field(default=0, compare=False)

    def __add__(self, other: GapCounts) -> GapCounts:
        return GapCounts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def fill_gaps(values: FloatArray, days: tuple[dt.date, ...], skipped: IntArray, rule: GapRule) -> GapCounts:
    """Fill the NaN entries of one customer in place.

    Parameters
    ----------
    values
        (day, step) consecutive days, at least one entry that is not NaN.
    days
        The days.
    skipped
        Flat positions that the clock jumped over; filled like any gap, counted apart.
    rule
        The rule.

    Returns
    -------
    GapCounts
        How many entries each part of the rule filled.
    """
    flat = values.reshape(-1)
    missing = np.isnan(flat)
    if not missing.any():
        return GapCounts()
    by_clock = np.zeros(flat.size, dtype=bool)
    by_clock[skipped] = missing[skipped]
    short = _short_gaps(missing, rule.short_gap_minutes * values.shape[1] // MINUTES_PER_DAY)
    present = np.flatnonzero(~missing)
    readings = flat[present]
    todo = np.flatnonzero(short)
    flat[todo] = np.interp(todo, present, readings)
    long = missing & ~short
    if long.any():
        _fill_from_similar_days(values, ~missing.reshape(values.shape), days, rule.similar_day_limit)
    rest = np.isnan(flat)
    todo = np.flatnonzero(rest)
    flat[todo] = np.interp(todo, present, readings)
    counted = ~by_clock
    return GapCounts(
        linear_short=int(np.count_nonzero(short & counted)),
        similar_day=int(np.count_nonzero(long & ~rest & counted)),
        linear_long=int(np.count_nonzero(rest & counted)),
        clock_change=int(np.count_nonzero(by_clock)),
        across_days=int(np.count_nonzero(missing & ~_within_a_day(short, values.shape[1]))),
    )


def _short_gaps(missing: BoolArray, longest: int) -> BoolArray:
    """Entries of gaps of at most `longest` steps with a reading on both sides."""
    short = np.zeros(missing.size, dtype=bool)
    for start, end in _runs(missing):
        if end - start <= longest and start > 0 and end < missing.size:
            short[start:end] = True
    return short


def _within_a_day(short: BoolArray, steps: int) -> BoolArray:
    """Entries of short gaps whose neighbours on both sides are readings of the same day."""
    within = np.zeros(short.size, dtype=bool)
    for start, end in _runs(short):
        within[start:end] = (start - 1) // steps == end // steps
    return within


def _runs(flags: BoolArray) -> IntArray:
    """(run, 2) first position of each run of true entries, and the position after its last."""
    padded = np.concatenate([[False], flags, [False]]).astype(np.int8)
    return np.flatnonzero(np.diff(padded)).reshape(-1, 2)


def _fill_from_similar_days(
    values: FloatArray, read: BoolArray, days: tuple[dt.date, ...], limit: int
) -> None:
    """Fill NaN entries from readings (never from filled entries) of similar days, in place."""
    weekend = np.array([day.weekday() >= SATURDAY for day in days])
    for kind in (weekend, ~weekend):
        position = np.flatnonzero(kind)  # days are consecutive, so positions measure distance in days
        if position.size == 0:
            continue
        block, have = values[position], read[position]
        rows = np.arange(position.size)[:, None]
        before = np.maximum.accumulate(np.where(have, rows, -1), axis=0)
        after = np.minimum.accumulate(np.where(have, rows, position.size)[::-1], axis=0)[::-1]
        day, step = np.nonzero(np.isnan(block))
        total, found = np.zeros(day.size), np.zeros(day.size)
        for nearest in (before[day, step], after[day, step]):
            inside = (nearest >= 0) & (nearest < position.size)
            donor = np.where(inside, nearest, 0)
            near = inside & (np.abs(position[donor] - position[day]) <= limit)
            total += np.where(near, block[donor, step], 0.0)
            found += near
        filled = found > 0
        block[day[filled], step[filled]] = total[filled] / found[filled]
        values[position] = block


# ----------------------------------------------------------------------------------------------------------
# Whether customers are in the unit that is declared, told by medians.
#
# The **level** of a customer is the median over its days of the mean load of a day: one wild reading, or a
# month away from home, does not move it. The **shape** is the median over its days of standard deviation
# over mean: it has no unit, so it tells a large customer from a household in watts.
#
# Three comparisons, each with a declared, PUBLIC reference or within the file:
#
# - the median level of all load points against the public scale, or against a plausible range in kW;
# - the median level of all customers against the public load of a typical one, where it is declared: the
#   only comparison that can see a factor of 4 in the whole file;
# - a second group of levels a factor of 1,000 from the largest one, with its shape; relative to a public
#   scale also one a factor of 4 away, where the scale is good enough to leave a valley between the two.
#
# Readings a factor of 1,000 beyond any customer (**wild** ones) are counted first and judge nothing: huge
# values of either sign cancel in the mean of a day, and what is left would tell no level at all.


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
        return cls(*levels_and_shapes(values).T)

    def relative_to(self, scale_kw: FloatArray) -> Levels:
        return Levels(self.level / scale_kw, self.shape)

    def where(self, chosen: BoolArray) -> Levels:
        return Levels(self.level[chosen], self.shape[chosen])

    @property
    def median(self) -> float:
        """Level of the median one; nan where no level is known."""
        known = self.level[~np.isnan(self.level)]
        return float(np.median(known)) if known.size else math.nan


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
    levels, width = np.sort(log_level[known]), math.log10(factor) / 3

    def count(centre: float) -> int:
        low, high = np.searchsorted(levels, [centre - width / 2, centre + width / 2])
        return int(high - low)

    def densest(centres: FloatArray) -> float:
        """Median of the fullest window around one of some levels."""
        best = max(centres, key=count)
        return float(np.median(levels[np.abs(levels - best) <= width / 2]))

    first = densest(levels)
    for side in (1.0, -1.0):
        near = levels[np.abs(levels - (first + side * 3 * width)) <= width / 2]
        if not near.size:
            continue
        second = densest(near)
        valley = (first + second) / 2
        there, between = count(second), count(valley)
        # Three decades apart, three levels and an empty valley are evidence; nearer, chance must be excluded.
        far = width > _FAR
        apart = 2 * between <= there if far else there - between > _SURE * math.sqrt(there + between)
        beyond = known & (side * (log_level - valley) > 0)
        if (
            apart
            and there >= max(_LEAST_MEMBERS, _LEAST_SHARE * levels.size)
            and _same_shape(found.shape[beyond], found.shape[known & ~beyond])
        ):
            members |= beyond
    return members


def _same_shape(one: FloatArray, other: FloatArray) -> bool:
    one, other = one[one > 0], other[other > 0]
    if not one.size or not other.size:
        return False
    return abs(math.log(float(np.median(one)) / float(np.median(other)))) < _SAME_SHAPE


# ----------------------------------------------------------------------------------------------------------
# Customers of a meter file against the service map: who is missing.


@dataclass(frozen=True)
class IdFindings:
    """INTERNAL. Customers of the file and of the service map, as counts.

    Parameters
    ----------
    in_file, listed
        Customers of the file, and of the service map.
    unlisted
        Customers of the file that the service map does not list; they are left out.
    absent
        Customers of the service map that the file does not have.
    with_blanks
        Ids of the file with blanks around them, which mean nothing.
    """

    in_file: int = 0
    listed: int = 0
    unlisted: int = 0
    absent: int = 0
    with_blanks: int = 0

    @property
    def hint(self) -> str:
        """What to do where ids on both sides have no partner, as a clause; empty otherwise."""
        alike = "write each id alike in meter file and service map: zeros, decimals and prefixes count"
        return alike if self.unlisted and self.absent else ""


def compare_ids(in_file: Collection[str], listed: Collection[str], with_blanks: int = 0) -> IdFindings:
    """Compare the customers of a file with the service map.

    Raises
    ------
    LoadDataError
        Ids differ only in blanks, case or invisible characters: one service would be two records.
    """
    strangers, absent = set(in_file) - set(listed), set(listed) - set(in_file)
    refuse_alike({*in_file, *listed}, "customers of the meter file and the service map")
    return IdFindings(len(in_file), len(listed), len(strangers), len(absent), with_blanks)


MARKING = "INTERNAL: computed from the meter readings; not for publication"


@dataclass(frozen=True)
class ColumnReport:
    """Counts of one quantity, over all customers.

    Parameters
    ----------
    quantity
        "active" or "reactive".
    readings
        What was read and where it went.
    expected
        Customers × steps of the days that exist on the clock.
    missing
        Of these, steps without a reading.
    filled
        Steps filled, by part of the gap rule, of customers that were not rejected.
    negative, zero
        Readings (of any customer) below or at zero.
    floored
        Steps of load points raised to the floor (active only).
    """

    quantity: str
    readings: ReadingCounts
    expected: int
    missing: int
    filled: GapCounts
    negative: int
    zero: int
    floored: int


@dataclass(frozen=True)
class IngestReport:
    """INTERNAL. What the checks found: counts, never a reading and never an id.

    Parameters
    ----------
    rows
        Rows of the file.
    ids
        Its customers against the service map.
    columns
        One report per quantity.
    n_customers, n_load_points, n_days
        Size of the history.
    n_rejected
        Load points with a customer that lacks too many readings, or all of them.
    placeholders
        Whether these stand there as a declared constant; otherwise they are left out.
    units
        Levels that look as if they were in another unit.
    floor_kw
        Declared floor [kW].
    mostly_floored
        Load points more than half of whose loads were raised to the floor.
    exporting
        Load points that feed in more than the declared share of what they draw.
    clipped
        Loads outside the declared bounds of the model; None where no model is asked for.
    """

    rows: int
    ids: IdFindings
    columns: tuple[ColumnReport, ...]
    n_customers: int
    n_load_points: int
    n_days: int
    n_rejected: int
    placeholders: bool
    units: UnitFindings
    floor_kw: float
    mostly_floored: int
    exporting: int = 0
    clipped: ClippedCounts | None = None
    marking: str = field(default=MARKING, init=False)

    def summary(self) -> tuple[str, ...]:
        """Sentences for the producer, totals only."""
        words = environment(__package__, "templates", html=False, filters={}).get_template("ingest.txt")
        return tuple(line for line in words.render(report=self).splitlines() if line)

    def to_json(self) -> dict[str, Any]:
        """Plain values: every count by its name."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class IngestResult:
    """A checked history (PRIVATE), what the checks found (INTERNAL), and whom they rejected (PRIVATE)."""

    history: LoadHistory
    report: IngestReport
    rejected: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True, eq=False)
class Quantity:
    """PRIVATE. Readings of one quantity on the grid, before the checks.

    Parameters
    ----------
    name
        "active" or "reactive".
    values
        (customer, day, step) [kW or kvar], NaN where there is no reading; the checks work in place.
    counts
        What was read.
    """

    name: str
    values: FloatArray = field(repr=False)
    counts: ReadingCounts


@dataclass(frozen=True, eq=False)
class RawHistory:
    """PRIVATE. What a reader hands to the checks.

    Parameters
    ----------
    quantities
        Active and, optionally, reactive readings; the checks overwrite the arrays.
    customers
        The customers of their first axis.
    services
        Load point and public facts of every customer.
    days, step_minutes
        The days (consecutive) and the step [min].
    skipped
        Flat positions (day · n_steps + step) that the clock jumped over.
    rows
        Rows of the file.
    ids
        Customers of the file against the service map.
    """

    quantities: tuple[Quantity, ...]
    customers: tuple[str, ...] = field(repr=False)
    services: ServiceMap
    days: tuple[dt.date, ...]
    step_minutes: int
    skipped: IntArray
    rows: int = 0
    ids: IdFindings = field(default_factory=IdFindings)


def check_history(raw: RawHistory, rules: IngestRules) -> IngestResult:
    """Fill gaps, sum customers to load points, check sign and unit, raise to the floor."""
    exists = np.ones(raw.quantities[0].values[0].size, dtype=bool)
    exists[raw.skipped] = False
    counts = [count_readings(quantity.values, exists) for quantity in raw.quantities]
    if counts[0].negative.sum() > counts[0].read.sum() / 2:
        raise LoadDataError(
            "more than half of the active readings are negative; "
            "declare positive='generation' if the meters count feed-in as positive"
        )
    largest_kw = wild_limit_kw(raw.services.scale_kw(raw.services.load_points), rules)
    wild = [count_wild(quantity.values, largest_kw) for quantity in raw.quantities]
    if rules.on_suspect_unit == "error":
        for of_customers, found in zip(wild, counts, strict=True):
            refuse_wild(of_customers, found.read, len(raw.days))
    limit = rules.gaps.max_missing_share * np.count_nonzero(exists)
    rejected: BoolArray = np.any([found.missing > limit for found in counts], axis=0)
    bad = _rejected_points(raw, rejected, rules)
    kept = tuple(p for p in raw.services.load_points if p not in bad or rules.on_rejected == "placeholder")
    tame = without_wild(raw.quantities[0].values, largest_kw, wild[0])
    customers = Levels.of(tame).where(~rejected)
    filled = []
    for quantity in raw.quantities:
        parts = (
            fill_gaps(quantity.values[customer], raw.days, raw.skipped, rules.gaps)
            for customer in np.flatnonzero(~rejected)
        )
        filled.append(sum(parts, GapCounts()))
    position = {point: i for i, point in enumerate(kept)}
    rows = np.array([position.get(raw.services.load_point_of[customer], -1) for customer in raw.customers])
    loads = [_sum_to_points(quantity.values, rows, len(kept)) for quantity in raw.quantities]
    for point in bad & position.keys():
        for load, constant in zip(loads, (rules.placeholder_kw, 0.0), strict=False):
            load[position[point]] = constant
    judged = np.array([point not in bad for point in kept])
    tame = without_wild(loads[0], largest_kw, wild[0])
    units = _check_units(customers, tame, judged, raw.services.scale_kw(kept), rules)
    export = find_export(loads[0], rules.floor_kw, rules.most_export, judged)
    if rules.on_export == "error":
        refuse_export(export, rules.most_export, "; or set on_export to 'floor', which drops what is fed in")
    floored = raise_to_floor(loads[0], rules.floor_kw)
    columns = tuple(
        ColumnReport(
            quantity=quantity.name,
            readings=quantity.counts,
            expected=len(raw.customers) * int(np.count_nonzero(exists)),
            missing=int(found.missing.sum()),
            filled=gaps,
            negative=int(found.negative.sum()),
            zero=int(found.zero.sum()),
            floored=int(floored.sum()) if quantity is raw.quantities[0] else 0,
        )
        for quantity, found, gaps in zip(raw.quantities, counts, filled, strict=True)
    )
    report = IngestReport(
        rows=raw.rows,
        ids=raw.ids,
        columns=columns,
        n_customers=len(raw.customers),
        n_load_points=len(kept),
        n_days=len(raw.days),
        n_rejected=len(bad),
        placeholders=rules.on_rejected == "placeholder",
        units=replace(units, wild=sum(int(own.sum()) for own in wild)),
        floor_kw=rules.floor_kw,
        mostly_floored=int(np.count_nonzero(floored > loads[0][0].size / 2)),
        exporting=export.load_points,
    )
    history = LoadHistory(
        load_kw=loads[0],
        load_kvar=loads[1] if len(loads) > 1 else None,
        load_points=kept,
        days=raw.days,
        step_minutes=raw.step_minutes,
        node_of=tuple(raw.services.node_of.get(point) for point in kept),
        class_label=tuple(raw.services.class_of.get(point) for point in kept),
        scale_kw=raw.services.scale_kw(kept),
        days_mixed=bool(bad) or any(gaps.across_days for gaps in filled),
    )
    return IngestResult(history, report, tuple(p for p in raw.services.load_points if p in bad))


def _rejected_points(raw: RawHistory, rejected: BoolArray, rules: IngestRules) -> set[str]:
    """Load points with a rejected customer."""
    points, load_point_of = raw.services.load_points, raw.services.load_point_of
    out = {load_point_of[raw.customers[i]] for i in np.flatnonzero(rejected)}
    share, hint = rules.gaps.max_missing_share, f"; {raw.ids.hint}" * bool(raw.ids.hint)
    if len(out) == len(points):
        raise LoadDataError(
            f"every load point has a customer with more than {share:.0%} of its readings missing; "
            f"check the declared step, days and time zone{hint}",
            code="meters-gaps",
        )
    if rules.on_rejected == "placeholder" and len(out) > rules.most_placeholders * len(points):
        raise LoadDataError(
            f"{len(out)} of {len(points)} load points have a customer with more than {share:.0%} of its "
            f"readings missing and would be placeholders ({raw.ids.absent} listed customers are not in the "
            f"file), but most_placeholders allows a share of {rules.most_placeholders:g}{hint}"
            + ("" if hint else "; repair or unlist them, check step, days and time zone, or raise the share"),
            code="meters-gaps",
        )
    return out


def _sum_to_points(values: FloatArray, rows: IntArray, n: int) -> FloatArray:
    if np.array_equal(rows, np.arange(n)):
        return values  # one customer per load point and none rejected: no copy of a large array
    total = np.zeros((n, *values.shape[1:]))
    with np.errstate(over="ignore"):  # of wild readings; a history refuses what is not finite
        for own, row in zip(values, rows, strict=True):
            if row >= 0:
                total[row] += own
    return total


def _check_units(
    customers: Levels, load_kw: FloatArray, judged: BoolArray, scale_kw: FloatArray | None, rules: IngestRules
) -> UnitFindings:
    """What looks like another unit.

    Parameters
    ----------
    customers
        Levels of the customers that are not rejected.
    load_kw
        Loads of load points, filled and not raised to the floor.
    judged
        (load point,) false for placeholders.
    scale_kw
        (load point,) public scale, or None.
    """
    points, scaled = Levels.of(load_kw), scale_kw is not None
    if scale_kw is not None:
        points = points.relative_to(scale_kw)
    low, high = rules.plausible_share if scaled else rules.plausible_kw
    level = np.nan_to_num(points.level)  # a load point without any load is below the range
    below, above = judged & (level < low), judged & (level > high)
    among = points.where(judged) if scaled else customers
    found = UnitFindings(
        judged=int(np.count_nonzero(judged)),
        below=int(np.count_nonzero(below)),
        above=int(np.count_nonzero(above)),
        off_by_1000=int(np.count_nonzero(second_group(among, THOUSAND))),
        off_by_4=int(np.count_nonzero(second_group(among, FOUR))) if scaled else 0,
    )
    if rules.on_suspect_unit == "error":
        middle, whose = points.where(judged).median, "load points" if scaled else "customers"
        ratio = customers.median / (rules.typical_kw or math.nan)
        _refuse_units(found, whose, (middle, low, high), ratio)
    return found


def _refuse_units(
    found: UnitFindings, whose: str, median: tuple[float, float, float], typical: float
) -> None:
    """Refuse readings in another unit; an empty service, or a large one without a scale, is no evidence.

    Parameters
    ----------
    whose
        "load points" where these have public scales, else "customers".
    median
        Level of the median load point, and the plausible range of it; nan where there is none.
    typical
        Level of the median customer over the declared typical one; nan where there is none.
    """
    scaled, (middle, low, high) = whose == "load points", median
    against = "its public scale" if scaled else "the plausible range of a customer"
    differ = (
        f"{whose} differ from the others by a factor of about {{}} and have the same shape of load, as if "
        "they were in another unit; write all readings in the declared unit, or set on_suspect_unit to 'keep'"
    )
    for wrong, sentence in (
        (
            middle < low or middle > high,
            f"the load of the median load point is far {'above' if middle > high else 'below'} {against}, "
            "as if the unit were off by a factor of 1000; correct the declared unit or the public scales, or "
            "set on_suspect_unit to 'keep'",
        ),
        (found.off_by_1000, f"{found.off_by_1000} {differ.format(1000)}"),
        (found.off_by_4, f"{found.off_by_4} {differ.format(4)}"),
        (
            scaled and found.above,
            f"{found.above} of {found.judged} load points have a load far above their public scale, as if it "
            "were in another unit; correct the unit or the scale, or set on_suspect_unit to 'keep'",
        ),
        (
            typical < 1 / TYPICAL_WITHIN or typical > TYPICAL_WITHIN,
            f"the load of the median customer is more than {TYPICAL_WITHIN:g} times "
            f"{'above' if typical > 1 else 'below'} the declared typical load, as if it were in another unit "
            "(kW for kWh of a quarter of an hour is a factor of 4); correct the unit or typical_kw, or set "
            "on_suspect_unit to 'keep'",
        ),
    ):
        if wrong:
            raise LoadDataError(sentence, code="meters-unit")
