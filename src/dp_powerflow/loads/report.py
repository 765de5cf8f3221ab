"""`IngestReport`: what reading the meters found, INTERNAL. Counts, never a reading and never an id."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Collection
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

import numpy as np

from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.declared import PLACEHOLDER_KW, IngestRules, ServiceMap
from dp_powerflow.loads.history import (
    MINUTES_PER_DAY,
    SATURDAY,
    LoadHistory,
    count_readings,
    find_export,
    levels,
    per_customer,
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
    each = zip(history.load_kw, *bounds_kw, strict=True)
    outside = np.array([(np.sum(load < low), np.sum(load > high)) for load, low, high in each]).T
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
# 1. A gap of at most `SHORT_GAP_MINUTES` with a reading on both sides: linear in time.
# 2. A longer one, step by step: the mean of the same step on the nearest earlier and the nearest later day
#    of the same kind (working day or weekend) within `SIMILAR_DAYS`, or the one of them there is.
# 3. What is left: linear in time between the nearest readings, constant beyond the first and last.
#
# No other customer's readings are ever used: replacing a customer must change one record, its own.


SHORT_GAP_MINUTES = 60
SIMILAR_DAYS = 28
MOST_MISSING = 0.1
"""A customer with a larger share of missing readings is rejected, and its load point with it."""


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


def fill_gaps(values: FloatArray, days: tuple[dt.date, ...], skipped: IntArray) -> GapCounts:
    """Fill the NaN entries of one customer in place.

    Parameters
    ----------
    values
        (day, step) consecutive days, at least one entry that is not NaN.
    days
        The days.
    skipped
        Flat positions that the clock jumped over; filled like any gap, counted apart.

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
    short = _short_gaps(missing, SHORT_GAP_MINUTES * values.shape[1] // MINUTES_PER_DAY)
    present = np.flatnonzero(~missing)
    readings = flat[present]
    todo = np.flatnonzero(short)
    flat[todo] = np.interp(todo, present, readings)
    long = missing & ~short
    if long.any():
        _fill_from_similar_days(values, ~missing.reshape(values.shape), days)
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


def _fill_from_similar_days(values: FloatArray, read: BoolArray, days: tuple[dt.date, ...]) -> None:
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
            near = inside & (np.abs(position[donor] - position[day]) <= SIMILAR_DAYS)
            total += np.where(near, block[donor, step], 0.0)
            found += near
        filled = found > 0
        block[day[filled], step[filled]] = total[filled] / found[filled]
        values[position] = block


# ----------------------------------------------------------------------------------------------------------
# Whether customers are in the unit that is declared, told by medians, each with a PUBLIC reference:
#
# - the median level of all load points against the public scale, or against a plausible range in kW;
# - the median level of all customers against the public load of a typical one, where it is declared: the
#   only comparison that can see a factor of 4.
#
# Readings a factor of 1,000 beyond any customer (**wild** ones) are counted first and judge nothing: huge
# values of either sign cancel in the mean of a day, and what is left would tell no level at all.


PLAUSIBLE_SHARE = 1 / 300, 10.0
"""Load of a load point on its median day as a share of its public scale; outside, the unit is suspect."""
PLAUSIBLE_KW = 0.02, 200.0
"""The same [kW] where there is no public scale."""
MOST_IDLE = 0.25
"""Share of the load points that may lie below it, as empty homes do."""
TYPICAL_WITHIN = 2.5
"""How far the median customer may be from the typical load declared; √4 would be the middle to a factor 4."""
_THOUSAND = 1000.0
_WILD_SHARE = 0.001


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
    """

    judged: int = 0
    below: int = 0
    above: int = 0
    wild: int = 0


def wild_limit_kw(scale_kw: FloatArray | None) -> float:
    """Beyond it, on either side, no reading of a customer can be [kW or kvar]."""
    scaled = 0.0 if scale_kw is None else PLAUSIBLE_SHARE[1] * float(scale_kw.max(initial=0.0))
    return _THOUSAND * max(PLAUSIBLE_KW[1], scaled)


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
    """

    in_file: int = 0
    listed: int = 0
    unlisted: int = 0
    absent: int = 0

    @property
    def hint(self) -> str:
        """What to do where ids on both sides have no partner, as a clause; empty otherwise."""
        alike = "write each id alike in meter file and service map: zeros, decimals and prefixes count"
        return alike if self.unlisted and self.absent else ""


def compare_ids(in_file: Collection[str], listed: Collection[str]) -> IdFindings:
    """Compare the customers of a file with the service map.

    Raises
    ------
    LoadDataError
        Ids differ only in blanks, case or invisible characters: one service would be two records.
    """
    strangers, absent = set(in_file) - set(listed), set(listed) - set(in_file)
    refuse_alike({*in_file, *listed}, "customers of the meter file and the service map")
    return IdFindings(len(in_file), len(listed), len(strangers), len(absent))


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
    largest_kw = wild_limit_kw(raw.services.scale_kw(raw.services.load_points))

    def count_wild(own: FloatArray) -> list[IntArray]:
        return [np.count_nonzero((own > largest_kw) | (own < -largest_kw), axis=(1, 2))]

    def tame(values: FloatArray) -> FloatArray:
        gaps: FloatArray = np.where(np.abs(values) > largest_kw, np.nan, values) if wild[0].any() else values
        return gaps

    wild = [per_customer(quantity.values, count_wild)[0] for quantity in raw.quantities]
    if rules.on_suspect_unit == "error":
        for of_customers, found in zip(wild, counts, strict=True):
            refuse_wild(of_customers, found.read, len(raw.days))
    limit = MOST_MISSING * np.count_nonzero(exists)
    rejected: BoolArray = np.any([found.missing > limit for found in counts], axis=0)
    bad = _rejected_points(raw, rejected, rules)
    kept = tuple(p for p in raw.services.load_points if p not in bad or rules.on_rejected == "placeholder")
    customers = levels(tame(raw.quantities[0].values))[~rejected]
    filled = []
    for quantity in raw.quantities:
        parts = (
            fill_gaps(quantity.values[customer], raw.days, raw.skipped)
            for customer in np.flatnonzero(~rejected)
        )
        filled.append(sum(parts, GapCounts()))
    position = {point: i for i, point in enumerate(kept)}
    rows = np.array([position.get(raw.services.load_point_of[customer], -1) for customer in raw.customers])
    loads = [_sum_to_points(quantity.values, rows, len(kept)) for quantity in raw.quantities]
    for point in bad & position.keys():
        for load, constant in zip(loads, (PLACEHOLDER_KW, 0.0), strict=False):
            load[position[point]] = constant
    judged = np.array([point not in bad for point in kept])
    units = _check_units(customers, tame(loads[0]), judged, raw.services.scale_kw(kept), rules)
    export = find_export(loads[0], rules.floor_kw, rules.most_export, judged)
    if rules.on_export == "error":
        refuse_export(export, rules.most_export, "; or set on_export to 'floor', which drops what is fed in")
    floored = raise_to_floor(loads[0], rules.floor_kw)
    columns = tuple(
        ColumnReport(
            quantity=quantity.name,
            readings=quantity.counts,
            expected=len(raw.customers) * int(np.count_nonzero(exists)),
            filled=gaps,
            **{name: int(getattr(found, name).sum()) for name in ("missing", "negative", "zero")},
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
    share, hint = MOST_MISSING, f"; {raw.ids.hint}" * bool(raw.ids.hint)
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
    customers: FloatArray,
    load_kw: FloatArray,
    judged: BoolArray,
    scale_kw: FloatArray | None,
    rules: IngestRules,
) -> UnitFindings:
    """What looks like another unit; an empty service, or a large one without a scale, is no evidence.

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
    scaled, level = scale_kw is not None, levels(load_kw) / (1.0 if scale_kw is None else scale_kw)
    low, high = PLAUSIBLE_SHARE if scaled else PLAUSIBLE_KW
    known = np.nan_to_num(level)  # a load point without any load is below the range
    below, above = (int(np.count_nonzero(judged & side)) for side in (known < low, known > high))
    found = UnitFindings(int(np.count_nonzero(judged)), below, above)
    if rules.on_suspect_unit != "error":
        return found
    middle, typical = _median(level[judged]), _median(customers) / (rules.typical_kw or math.nan)
    against = "its public scale" if scaled else "the plausible range of a customer"
    for wrong, sentence in (
        (
            middle < low or middle > high,
            f"the load of the median load point is far {'above' if middle > high else 'below'} {against}, "
            "as if the unit were off by a factor of 1000; correct the declared unit or the public scales, or "
            "set on_suspect_unit to 'keep'",
        ),
        (
            below > MOST_IDLE * found.judged,
            f"{below} of {found.judged} load points draw next to nothing beside {against}, as if they were "
            "in another unit; correct the unit or the scale, or set on_suspect_unit to 'keep'",
        ),
        (
            scaled and above,
            f"{above} of {found.judged} load points have a load far above their public scale, as if it "
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
    return found


def _median(level: FloatArray) -> float:
    """Level of the median one; nan where no level is known."""
    known = level[~np.isnan(level)]
    return float(np.median(known)) if known.size else math.nan
