"""What the checks of meter data found: counts, never a reading."""

from __future__ import annotations

from dataclasses import dataclass, field

from dp_powerflow.loads.gaps import GapCounts
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.loads.readings import ReadingCounts
from dp_powerflow.units import IntArray


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
