"""What the producer declares about a meter file: unit, interval label, time zone, columns.

Nothing here is guessed from the data: a guess made from private readings would be a leak, and a wrong
guess would be silent.
"""

from __future__ import annotations

from dataclasses import dataclass
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.history import MINUTES_PER_DAY

MINUTES_PER_HOUR = 60

POWER_UNITS = {"kW": 1.0, "W": 1e-3}
ENERGY_UNITS = {"kWh per interval": 1.0, "Wh per interval": 1e-3}


@dataclass(frozen=True)
class MeterFormat:
    """Declared, PUBLIC facts about a file of readings.

    Parameters
    ----------
    unit
        "kW", "W" (mean power over the interval), "kWh per interval" or "Wh per interval". Reactive
        readings, if there are any, are in the matching unit (kvar for kW, kvarh for kWh).
    interval_label
        "start" if a stamp names the beginning of its interval, "end" if its end.
    time_zone
        IANA name. Days are cut in this zone. Stamps without an offset are wall-clock times in it;
        stamps with one are converted to it.
    step_minutes
        Length of an interval [min].
    stamp_format
        strptime format of text stamps without an offset, e.g. "%d.%m.%Y %H:%M"; None means ISO 8601.
    positive
        "consumption" if a positive reading is load, "generation" if it is feed-in (signs are flipped).
    delimiter, decimal
        Of CSV files.
    missing
        Cells of a CSV file that mean "no reading".
    """

    unit: str
    interval_label: str
    time_zone: str
    step_minutes: int = 15
    stamp_format: str | None = None
    positive: str = "consumption"
    delimiter: str = ","
    decimal: str = "."
    missing: tuple[str, ...] = ("", "NA", "NaN", "nan", "null", "NULL")

    def __post_init__(self) -> None:
        one_of("unit", self.unit, (*POWER_UNITS, *ENERGY_UNITS))
        one_of("interval_label", self.interval_label, ("start", "end"))
        one_of("positive", self.positive, ("consumption", "generation"))
        one_of("decimal", self.decimal, (".", ","))
        if len(self.delimiter) != 1 or self.delimiter == self.decimal:
            raise LoadDataError(
                "the delimiter must be one character other than the decimal sign; use ';' with decimal commas"
            )
        if self.step_minutes <= 0 or MINUTES_PER_DAY % self.step_minutes != 0:
            raise LoadDataError(f"a step of {self.step_minutes} min does not divide a day; use 15, 30 or 60")
        zone(self.time_zone)

    @property
    def to_kw(self) -> float:
        """Factor from a reading to a load [kW], consumption positive; also from kvarh to kvar."""
        sign = 1.0 if self.positive == "consumption" else -1.0
        if self.unit in POWER_UNITS:
            return sign * POWER_UNITS[self.unit]
        return sign * ENERGY_UNITS[self.unit] * MINUTES_PER_HOUR / self.step_minutes


@dataclass(frozen=True)
class LongColumns:
    """Column names of a file with one row per customer and interval."""

    customer: str = "customer"
    time: str = "time"
    active: str = "kwh"
    reactive: str | None = None


@dataclass(frozen=True)
class WideColumns:
    """Column names of a file with one row per interval and one column per customer.

    `active_suffix` and `reactive_suffix` tell the two quantities apart where a file has both
    ("house7_p", "house7_q"); the customer is the column name without the suffix. Other columns than
    the time, with neither suffix, must be listed in `ignore`.
    """

    time: str = "time"
    active_suffix: str = ""
    reactive_suffix: str | None = None
    ignore: tuple[str, ...] = ()


def zone(name: str) -> ZoneInfo:
    """The time zone of an IANA name."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise LoadDataError(
            f"the time zone '{name}' is not in the IANA database; use a name such as 'Europe/Berlin' or 'UTC'"
        ) from None


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise unless a declared word is one of those allowed.

    It lists them and suggests none: the nearest to "kWh" is "kW", which would be a wrong unit.
    """
    if value not in allowed:
        words = ", ".join(f"'{word}'" for word in allowed)
        raise LoadDataError(f"{name} '{value}' is not known; use one of {words}")
