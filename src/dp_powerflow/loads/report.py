"""`IngestReport`: what reading the meters found, INTERNAL. Counts, never a reading and never an id."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.clipping import ClippedCounts
from dp_powerflow.loads.declared import GapRule, IngestRules, ServiceMap
from dp_powerflow.loads.gaps import GapCounts, fill_gaps
from dp_powerflow.loads.history import LoadHistory, find_export, refuse_export
from dp_powerflow.loads.ids import IdFindings
from dp_powerflow.loads.levels import (
    FOUR,
    THOUSAND,
    Levels,
    UnitFindings,
    count_wild,
    refuse_untypical_median,
    refuse_wild,
    refuse_wrong_median,
    second_group,
    wild_limit_kw,
    without_wild,
)
from dp_powerflow.loads.scanning import count_readings, on_all_cores, raise_to_floor
from dp_powerflow.loads.timegrid import ReadingCounts
from dp_powerflow.units import BoolArray, FloatArray, IntArray

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

    def sentences(self) -> Iterator[str]:
        """Totals; what did not happen is not said."""
        name, r, f = self.quantity, self.readings, self.filled
        yield f"{name}: {r.accepted} readings for {self.expected} steps, {self.missing} missing"
        left_out = {
            "outside the days": r.outside_days,
            "off the step grid": r.off_grid,
            "in skipped hours": r.skipped_hour,
            "without value": r.no_value,
            "not finite": r.not_finite,
        }
        averaged = {"duplicates": r.duplicated, "steps of doubled hours": r.doubled_hour}
        filled = {
            "linearly": f.linear_short,
            "from similar days": f.similar_day,
            "linearly over a long gap": f.linear_long,
            "for clock changes": f.clock_change,
        }
        for verb, counts in {"left out": left_out, "averaged": averaged, "filled": filled}.items():
            if any(counts.values()):
                said = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
                yield f"{name}: {verb} {said}"
        yield f"{name}: {self.negative} negative and {self.zero} zero readings"


@dataclass(frozen=True)
class IngestReport:
    """INTERNAL. What the checks found: counts, never a reading and never an id.

    Parameters
    ----------
    rows
        Rows of the file.
    ids
        Its customers against those of the service map.
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
        fate = "replaced by placeholders" if self.placeholders else "left out"
        units = self.units
        lines = [
            f"{self.rows} rows read; {self.n_customers} customers behind {self.n_load_points} load points, "
            f"{self.n_days} days",
            *self.ids.sentences(),
            f"{self.n_rejected} load points rejected for too many missing readings and {fate}",
            f"{units.below + units.above} load points with a load outside the plausible range "
            f"({units.below} below, {units.above} above)",
        ]
        if units.wild:
            lines.append(
                f"{units.wild} readings beyond what any customer draws; the bounds of the model cut them"
            )
        for count, factor in ((units.off_by_1000, "1,000"), (units.off_by_4, "4")):
            if count:
                lines.append(f"{count} customers look as if their unit were off by a factor of {factor}")
        for column in self.columns:
            lines += column.sentences()
        lines.append(
            f"{self.columns[0].floored} loads raised to the floor of {self.floor_kw:g} kW; more than half of "
            f"those of {self.mostly_floored} load points"
        )
        if self.exporting:
            lines.append(f"{self.exporting} load points feed in; that is raised to the floor too")
        if self.clipped is not None:
            lines.append(self.clipped.sentence())
        return tuple(lines)

    def to_json(self) -> dict[str, Any]:
        """Plain values: every count by its name."""
        return asdict(self)


@dataclass(frozen=True, eq=False, repr=False)
class Faults:
    """PRIVATE. Which meters are at fault, to find and repair them; nothing prints it.

    Parameters
    ----------
    customers
        The customers of the two arrays.
    missing, negative
        (customer,) steps without a reading, and readings below zero.
    rejected_load_points, suspect_load_points
        With too many missing readings, and with a load outside the plausible range.
    """

    customers: tuple[str, ...]
    missing: IntArray
    negative: IntArray
    rejected_load_points: tuple[str, ...]
    suspect_load_points: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class IngestResult:
    """A checked history (PRIVATE), what the checks found (INTERNAL), and where (PRIVATE)."""

    history: LoadHistory
    report: IngestReport
    faults: Faults


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
        Customers of the file against those of the service map.
    """

    quantities: tuple[Quantity, ...]
    customers: tuple[str, ...] = field(repr=False)
    services: ServiceMap
    days: tuple[dt.date, ...]
    step_minutes: int
    skipped: IntArray
    rows: int = 0
    ids: IdFindings = field(default_factory=IdFindings)


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
    largest_kw = wild_limit_kw(raw.services.scale_kw(raw.services.load_points), rules)
    wild = np.stack([count_wild(quantity.values, largest_kw) for quantity in raw.quantities])
    if rules.on_suspect_unit == "error":
        for of_customers, read in zip(wild, found.read, strict=True):
            refuse_wild(of_customers, read, len(raw.days))
    limit = rules.gaps.max_missing_share * np.count_nonzero(exists)
    rejected: BoolArray = np.any(found.missing > limit, axis=0)
    bad = _rejected_points(raw, rejected, rules)
    kept = tuple(p for p in raw.services.load_points if p not in bad or rules.on_rejected == "placeholder")
    tame = without_wild(raw.quantities[0].values, largest_kw, wild[0])
    customers = Levels.of(tame).where(~rejected)
    filled = [_fill(quantity.values, ~rejected, raw, rules.gaps) for quantity in raw.quantities]
    position = {point: i for i, point in enumerate(kept)}
    rows = np.array([position.get(raw.services.load_point_of[customer], -1) for customer in raw.customers])
    loads = [_sum_to_points(quantity.values, rows, len(kept)) for quantity in raw.quantities]
    for point in bad & position.keys():
        loads[0][position[point]] = rules.placeholder_kw
        for reactive in loads[1:]:
            reactive[position[point]] = 0.0
    judged = np.array([point not in bad for point in kept])
    tame = without_wild(loads[0], largest_kw, wild[0])
    units, suspect = _check_units(customers, tame, judged, raw.services.scale_kw(kept), rules)
    units = replace(units, wild=int(wild.sum()))
    export = find_export(loads[0], rules.floor_kw, rules.most_export, judged)
    if rules.on_export == "error":
        refuse_export(export, rules.most_export, "; or set on_export to 'floor', which drops what is fed in")
    floored = np.empty(len(kept), dtype=np.int64)
    on_all_cores(lambda part: raise_to_floor(loads[0][part], rules.floor_kw, floored[part]), len(kept))
    report = IngestReport(
        rows=raw.rows,
        ids=raw.ids,
        columns=_columns(raw, found, filled, int(floored.sum()), int(np.count_nonzero(exists))),
        n_customers=len(raw.customers),
        n_load_points=len(kept),
        n_days=len(raw.days),
        n_rejected=len(bad),
        placeholders=rules.on_rejected == "placeholder",
        units=units,
        floor_kw=rules.floor_kw,
        mostly_floored=int(np.count_nonzero(floored > loads[0][0].size / 2)),
        exporting=export.load_points,
    )
    faults = Faults(
        customers=raw.customers,
        missing=found.missing.max(axis=0),
        negative=found.negative[0],
        rejected_load_points=tuple(p for p in raw.services.load_points if p in bad),
        suspect_load_points=tuple(point for point, flag in zip(kept, suspect, strict=True) if flag),
    )
    mixed = bool(bad) or any(counts.across_days for counts in filled)
    return IngestResult(_history(raw, kept, loads, mixed), report, faults)


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
    counts = np.empty((len(quantities), len(quantities[0].values), 4), dtype=np.int64)
    for quantity, found in zip(quantities, counts, strict=True):
        on_all_cores(partial(_count_some, quantity.values, exists, found), len(found))
    missing, negative, zero, read = np.moveaxis(counts, 2, 0)
    return _Findings(missing, negative, zero, read)


def _count_some(values: FloatArray, exists: BoolArray, found: IntArray, part: slice) -> None:
    count_readings(values[part], exists, found[part])


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
    share, hint = rules.gaps.max_missing_share, f"; {raw.ids.hint}" * bool(raw.ids.hint)
    if len(out) == len(points):
        raise LoadDataError(
            f"every load point has a customer with more than {share:.0%} of its readings missing; "
            f"check the declared step, days and time zone{hint}",
            code="meters-gaps",
        )
    if out and rules.on_rejected == "error":
        raise LoadDataError(
            f"{len(out)} of {len(points)} load points have a customer with more than {share:.0%} of its "
            f"readings missing; repair or unlist them, or set on_rejected{hint}",
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
    customers: Levels,
    load_kw: FloatArray,
    judged: BoolArray,
    scale_kw: FloatArray | None,
    rules: IngestRules,
) -> tuple[UnitFindings, BoolArray]:
    """What looks like another unit, and (load point,) whose load is outside the plausible range.

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
    findings = UnitFindings(
        judged=int(np.count_nonzero(judged)),
        below=int(np.count_nonzero(below)),
        above=int(np.count_nonzero(above)),
        off_by_1000=int(np.count_nonzero(second_group(among, THOUSAND))),
        off_by_4=int(np.count_nonzero(second_group(among, FOUR))) if scaled else 0,
    )
    if rules.on_suspect_unit == "error":
        refuse_wrong_median(points.where(judged), scaled, rules)
        _refuse_units(findings, scaled)
        refuse_untypical_median(customers, rules.typical_kw)
    return findings, below | above


def _refuse_units(found: UnitFindings, scaled: bool) -> None:
    """Refuse a part of the customers in another unit.

    An empty service, or a large one without a scale of its own, is no evidence of it.
    """
    who = "load points" if scaled else "customers"
    for count, factor in ((found.off_by_1000, "1000"), (found.off_by_4, "4")):
        if count:
            raise LoadDataError(
                f"{count} {who} differ from the others by a factor of about {factor} and have the same shape "
                "of load, as if they were in another unit; write all readings in the declared unit, or set "
                "on_suspect_unit to 'keep'",
                code="meters-unit",
            )
    if scaled and found.above:
        raise LoadDataError(
            f"{found.above} of {found.judged} load points have a load far above their public scale, as if it "
            "were in another unit; correct the unit or the scale, or set on_suspect_unit to 'keep'",
            code="meters-unit",
        )
