"""Checks of meter data, in one order: gaps, sum to load points, sign, unit, floor.

Every step treats each customer (and then each load point) by itself, with declared limits only. What
was found is reported as counts in an `IngestReport`, which is INTERNAL like everything computed from
the meters.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import astuple, dataclass, field

import numpy as np

from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.declared import GapRule, IngestRules, ServiceMap
from dp_powerflow.loads.history import MINUTES_PER_DAY, SATURDAY, LoadHistory
from dp_powerflow.loads.timegrid import ReadingCounts
from dp_powerflow.units import BoolArray, FloatArray, IntArray


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


@dataclass(frozen=True, eq=False)
class IngestReport:
    """INTERNAL. What the checks found: counts, never a reading.

    `repr` and `summary` print totals only. The fields per customer help to find a faulty meter; they
    stay with the meter data.
    """

    columns: tuple[ColumnReport, ...]
    n_customers: int
    n_load_points: int
    n_rejected: int
    n_suspect_unit: int
    n_unlisted_customers: int
    n_days: int
    floor_kw: float
    customers: tuple[str, ...] = field(repr=False)
    missing_by_customer: IntArray = field(repr=False)
    negative_by_customer: IntArray = field(repr=False)
    rejected_load_points: tuple[str, ...] = field(repr=False)
    suspect_load_points: tuple[str, ...] = field(repr=False)

    def summary(self) -> tuple[str, ...]:
        """Sentences for the producer, totals only."""
        lines = [
            f"{self.n_customers} customers behind {self.n_load_points} load points, {self.n_days} days",
            f"{self.n_rejected} load points rejected for too many missing readings",
            f"{self.n_suspect_unit} load points with a mean load outside the plausible range",
            f"{self.n_unlisted_customers} customers left out because the service map does not list them",
        ]
        for column in self.columns:
            name, r, f = column.quantity, column.readings, column.filled
            lines += [
                f"{name}: {r.accepted} readings for {column.expected} steps, {column.missing} missing",
                f"{name}: left out {r.outside_days} outside the days, {r.off_grid} off the step grid, "
                f"{r.skipped_hour} in skipped hours, {r.no_value} without value, {r.not_finite} not finite",
                f"{name}: averaged {r.duplicated} duplicates and {r.doubled_hour} steps of doubled hours",
                f"{name}: filled {f.linear_short} linearly, {f.similar_day} from similar days, "
                f"{f.linear_long} linearly over a long gap, {f.clock_change} for clock changes",
                f"{name}: {column.negative} negative and {column.zero} zero readings",
            ]
        lines.append(f"{self.columns[0].floored} loads raised to the floor of {self.floor_kw:g} kW")
        return tuple(lines)


@dataclass(frozen=True, eq=False)
class IngestResult:
    """A checked history (PRIVATE) and what the checks found (INTERNAL)."""

    history: LoadHistory
    report: IngestReport


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
    n_unlisted_customers
        Customers in the file that the service map does not list.
    """

    quantities: tuple[Quantity, ...]
    customers: tuple[str, ...] = field(repr=False)
    services: ServiceMap
    days: tuple[dt.date, ...]
    step_minutes: int
    skipped: IntArray
    n_unlisted_customers: int = 0


@dataclass(frozen=True, eq=False)
class _Findings:
    """Per quantity (first axis) and customer: steps without a reading, readings below and at zero, all."""

    missing: IntArray
    negative: IntArray
    zero: IntArray
    read: IntArray


def check_history(raw: RawHistory, rules: IngestRules) -> IngestResult:
    """Fill gaps, sum customers to load points, check sign and unit, raise to the floor."""
    exists = np.ones(raw.quantities[0].values[0].size, dtype=bool)
    exists[raw.skipped] = False
    found = _find(raw.quantities, exists)
    _check_sign(found)
    limit = rules.gaps.max_missing_share * np.count_nonzero(exists)
    rejected: BoolArray = np.any(found.missing > limit, axis=0)
    bad = _rejected_points(raw, rejected, rules)
    kept = tuple(p for p in raw.services.load_points if p not in bad or rules.on_rejected == "placeholder")
    filled = [_fill(quantity.values, ~rejected, raw, rules.gaps) for quantity in raw.quantities]
    position = {point: i for i, point in enumerate(kept)}
    rows = np.array([position.get(raw.services.load_point_of[customer], -1) for customer in raw.customers])
    loads = [_sum_to_points(quantity.values, rows, len(kept)) for quantity in raw.quantities]
    for point in bad & position.keys():
        loads[0][position[point]] = rules.placeholder_kw
        for reactive in loads[1:]:
            reactive[position[point]] = 0.0
    suspect = _suspect_units(loads[0], raw.services.scale_kw(kept), rules)
    floored = int(np.count_nonzero(loads[0] < rules.floor_kw))
    np.maximum(loads[0], rules.floor_kw, out=loads[0])
    report = IngestReport(
        columns=_columns(raw, found, filled, floored, int(np.count_nonzero(exists))),
        n_customers=len(raw.customers),
        n_load_points=len(kept),
        n_rejected=len(bad),
        n_suspect_unit=int(suspect.sum()),
        n_unlisted_customers=raw.n_unlisted_customers,
        n_days=len(raw.days),
        floor_kw=rules.floor_kw,
        customers=raw.customers,
        missing_by_customer=found.missing.max(axis=0),
        negative_by_customer=found.negative[0],
        rejected_load_points=tuple(p for p in raw.services.load_points if p in bad),
        suspect_load_points=tuple(point for point, flag in zip(kept, suspect, strict=True) if flag),
    )
    mixed = bool(bad) or any(counts.across_days for counts in filled)
    return IngestResult(_history(raw, kept, loads, mixed), report)


def _history(raw: RawHistory, kept: tuple[str, ...], loads: list[FloatArray], mixed: bool) -> LoadHistory:
    return LoadHistory(
        load_kw=loads[0],
        load_kvar=loads[1] if len(loads) > 1 else None,
        load_points=kept,
        days=raw.days,
        step_minutes=raw.step_minutes,
        node_of=tuple(raw.services.node_of.get(point) for point in kept),
        class_label=tuple(raw.services.class_of.get(point) for point in kept),
        scale_kw=raw.services.scale_kw(kept),
        days_mixed=mixed,
    )


def _columns(
    raw: RawHistory, found: _Findings, filled: list[GapCounts], floored: int, steps: int
) -> tuple[ColumnReport, ...]:
    return tuple(
        ColumnReport(
            quantity=quantity.name,
            readings=quantity.counts,
            expected=len(raw.customers) * steps,
            missing=int(found.missing[i].sum()),
            filled=filled[i],
            negative=int(found.negative[i].sum()),
            zero=int(found.zero[i].sum()),
            floored=floored if i == 0 else 0,
        )
        for i, quantity in enumerate(raw.quantities)
    )


def _find(quantities: tuple[Quantity, ...], exists: BoolArray) -> _Findings:
    """Count, one customer at a time to save memory."""
    counts = [
        [
            (
                np.count_nonzero(np.isnan(own.reshape(-1)[exists])),
                np.count_nonzero(own < 0),
                np.count_nonzero(own == 0),
                np.count_nonzero(~np.isnan(own)),
            )
            for own in quantity.values
        ]
        for quantity in quantities
    ]
    missing, negative, zero, read = np.moveaxis(np.array(counts, dtype=np.int64), 2, 0)
    return _Findings(missing, negative, zero, read)


def _check_sign(found: _Findings) -> None:
    if found.negative[0].sum() > found.read[0].sum() / 2:
        raise LoadDataError(
            "more than half of the active readings are negative; "
            "declare positive='generation' if the meters count feed-in as positive"
        )


def _fill(values: FloatArray, wanted: BoolArray, raw: RawHistory, rule: GapRule) -> GapCounts:
    total = GapCounts()
    for customer in np.flatnonzero(wanted):
        total += fill_gaps(values[customer], raw.days, raw.skipped, rule)
    return total


def _rejected_points(raw: RawHistory, rejected: BoolArray, rules: IngestRules) -> set[str]:
    """Load points with a rejected customer."""
    points, load_point_of = raw.services.load_points, raw.services.load_point_of
    out = {load_point_of[raw.customers[i]] for i in np.flatnonzero(rejected)}
    share = rules.gaps.max_missing_share
    if len(out) == len(points):
        raise LoadDataError(
            f"every load point has a customer with more than {share:.0%} of its readings missing; "
            "check the step, the days and the time zone declared"
        )
    if out and rules.on_rejected == "error":
        raise LoadDataError(
            f"{len(out)} of {len(points)} load points have a customer with more than {share:.0%} of its "
            "readings missing; repair or unlist them, or set on_rejected"
        )
    return out


def _sum_to_points(values: FloatArray, rows: IntArray, n: int) -> FloatArray:
    if np.array_equal(rows, np.arange(n)):
        return values  # one customer per load point and none rejected: no copy of a large array
    total = np.zeros((n, *values.shape[1:]))
    for own, row in zip(values, rows, strict=True):
        if row >= 0:
            total[row] += own
    return total


def _suspect_units(load_kw: FloatArray, scale_kw: FloatArray | None, rules: IngestRules) -> BoolArray:
    """(load point,) mean load outside the plausible range; raises on a wrong unit."""
    mean = load_kw.mean(axis=(1, 2))
    low, high = rules.plausible_kw if scale_kw is None else rules.plausible_share
    ratio = mean if scale_kw is None else mean / scale_kw
    suspect: BoolArray = (ratio < low) | (ratio > high)
    against = "the plausible range declared" if scale_kw is None else "its public scale"
    middle = np.median(ratio)
    side = "above" if middle > high else "below"
    if not low <= middle <= high:
        raise LoadDataError(
            f"the mean load of the median load point is far {side} {against}, "
            "as if the unit were off by a factor of 1000; correct the unit declared, or the range"
        )
    # an empty service, or a large one without a scale of its own, is no evidence of a wrong unit
    above = int(np.count_nonzero(ratio > high))
    if scale_kw is not None and above and rules.on_suspect_unit == "error":
        raise LoadDataError(
            f"the mean load of {above} of {suspect.size} load points is far above {against}, as if its unit "
            "were another one; correct unit or scale, or set on_suspect_unit to 'keep'"
        )
    return suspect


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
