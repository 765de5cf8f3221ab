"""Checks of meter data, in one order: gaps, sum to load points, sign, unit, floor.

Every step treats each customer (and then each load point) by itself, with declared limits only. What
was found is reported as counts in an `IngestReport`, which is INTERNAL like everything computed from
the meters.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field

import numpy as np

from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.declared import ServiceMap, one_of
from dp_powerflow.loads.gaps import GapCounts, GapRule, fill_gaps
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.loads.timegrid import ReadingCounts
from dp_powerflow.units import BoolArray, FloatArray, IntArray


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


@dataclass(frozen=True)
class IngestRules:
    """Declared, PUBLIC limits.

    Parameters
    ----------
    floor_kw
        Loads of a load point below this, zero and negative ones too, are raised to it [kW], because
        the model takes logs. So net export behind a PV meter counts as the floor.
    gaps
        How gaps are filled and when a customer is rejected.
    plausible_share
        Mean load of a load point as a share of its public scale; outside, the unit is suspect.
    plausible_kw
        Mean load [kW] of the median load point where there is no public scale; outside, the unit is suspect.
    on_rejected
        "drop" leaves rejected load points out: which meters are complete is then treated as public.
        "placeholder" keeps them as a constant load, so that not even the number of records depends on a
        reading. "error" stops.
    placeholder_kw
        That constant [kW].
    on_suspect_unit
        "error" stops if the mean of any load point is above `plausible_share` of its public scale, "keep"
        only counts them. The median load point outside the range always stops.
    """

    floor_kw: float = 0.01
    gaps: GapRule = field(default_factory=GapRule)
    plausible_share: tuple[float, float] = (1 / 300, 10.0)
    plausible_kw: tuple[float, float] = (0.02, 200.0)
    on_rejected: str = "drop"
    placeholder_kw: float = 0.5
    on_suspect_unit: str = "error"

    def __post_init__(self) -> None:
        for name in ("floor_kw", "placeholder_kw"):
            if not (np.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise LoadDataError(f"{name} must be positive, because the model takes logs; correct it")
        for name in ("plausible_share", "plausible_kw"):
            low, high = getattr(self, name)
            if not 0 <= low < high:
                raise LoadDataError(f"{name} must be a lower and a higher limit, not below 0; correct it")
        one_of("on_rejected", self.on_rejected, ("drop", "placeholder", "error"))
        one_of("on_suspect_unit", self.on_suspect_unit, ("keep", "error"))


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
