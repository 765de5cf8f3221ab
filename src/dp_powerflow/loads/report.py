"""`IngestReport`: what reading the meters found, INTERNAL. Counts, never a reading and never an id."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from dp_powerflow.loads.clipping import ClippedCounts
from dp_powerflow.loads.gaps import GapCounts
from dp_powerflow.loads.ids import IdFindings
from dp_powerflow.loads.levels import UnitFindings
from dp_powerflow.loads.timegrid import ReadingCounts

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
