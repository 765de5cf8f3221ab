"""What the producer declares about meter data: format, services, limits. All of it is PUBLIC.

Nothing here is guessed from the data: a guess made from private readings would be a leak, and a wrong
guess would be silent. The guarantee takes the number of load points as public, so it should come from a
list that does not depend on the readings; a `ServiceMap` is that list.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np

from dp_powerflow._names import is_absent, refuse_unusable
from dp_powerflow.almanac.calendar import zone_of
from dp_powerflow.errors import LoadDataError, ServiceMapError
from dp_powerflow.loads.history import FLOOR_KW, MOST_EXPORT, refuse_alike, steps_per_day
from dp_powerflow.units import FloatArray

MINUTES_PER_HOUR = 60

POWER_UNITS = {"kW": 1.0, "W": 1e-3}
ENERGY_UNITS = {"kWh per interval": 1.0, "Wh per interval": 1e-3}


def _names_a_day(stamp_format: str) -> bool:
    """Whether every part of a date is in a format; Arrow makes up the others, and may die of an empty one."""
    codes = set(re.findall("%[EO]?([A-Za-z%])", stamp_format.replace("%%", "")))
    by_month = codes & set("mbBh") and codes & set("de")
    return bool(codes & set("FDscx") or (codes & set("Yy") and (by_month or "j" in codes)))


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
        refuse_unusable("".join((self.stamp_format or "", self.delimiter, *self.missing)), LoadDataError)
        if self.stamp_format is not None and not _names_a_day(self.stamp_format):
            raise LoadDataError(
                "the format of the stamps must name year, month and day, such as '%d.%m.%Y %H:%M'; correct "
                "it, or leave it out for ISO 8601"
            )
        steps_per_day(self.step_minutes)
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
    return zone_of(name, LoadDataError)


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise unless a declared word is one of those allowed.

    It lists them and suggests none: the nearest to "kWh" is "kW", which would be a wrong unit.
    """
    if value not in allowed:
        words = ", ".join(f"'{word}'" for word in allowed)
        raise LoadDataError(f"{name} '{value}' is not known; use one of {words}")


@dataclass(frozen=True, repr=False)
class ServiceMap:
    """Customers, the load points they are behind, and what is public about those.

    Parameters
    ----------
    load_point_of
        Customer → load point; several customers may share one.
    node_of
        Load point → feeder node or load; load points left out are not on this feeder.
    class_of
        Load point → public class.
    scale_kw_of
        Load point → public scale [kW] (connected kVA, contracted power): for all load points or none.
    """

    load_point_of: Mapping[str, str]
    node_of: Mapping[str, str] = field(default_factory=dict)
    class_of: Mapping[str, str] = field(default_factory=dict)
    scale_kw_of: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.load_point_of:
            raise ServiceMapError("the service map has no customer; list at least one")
        points = set(self.load_points)
        refuse_alike(self.load_point_of, "customers")
        refuse_alike(points, "load points")
        for name in ("node_of", "class_of", "scale_kw_of"):
            strangers = sum(point not in points for point in getattr(self, name))
            if strangers:
                raise LoadDataError(
                    f"{name} lists {strangers} load points without a customer; add or remove them"
                )
        if self.scale_kw_of and len(self.scale_kw_of) != len(points):
            raise ServiceMapError(
                f"{len(points) - len(self.scale_kw_of)} of {len(points)} load points have no public scale; "
                "give one for all of them or for none"
            )
        if not all(math.isfinite(scale) and scale > 0 for scale in self.scale_kw_of.values()):
            raise ServiceMapError(
                "the public scale of a load point must be a positive number of kW; correct the map"
            )

    def __repr__(self) -> str:
        # who is behind which service is public to the guarantee, but no business of a log
        return f"ServiceMap({len(self.load_point_of)} customers, {len(self.load_points)} load points)"

    @property
    def customers(self) -> tuple[str, ...]:
        return tuple(self.load_point_of)

    @property
    def load_points(self) -> tuple[str, ...]:
        """In the order of first mention."""
        return tuple(dict.fromkeys(self.load_point_of.values()))

    def scale_kw(self, load_points: Iterable[str]) -> FloatArray | None:
        """(load point,) public scale [kW], or None if none was declared."""
        if not self.scale_kw_of:
            return None
        return np.array([self.scale_kw_of[point] for point in load_points])


def one_service_each(customers: Iterable[str]) -> ServiceMap:
    """Every customer is one load point, and nothing else is public about it."""
    return ServiceMap({customer: customer for customer in customers})


def read_service_rows(
    path: Path, needed: tuple[str, ...], why: str = "", what: str = "service map"
) -> list[dict[str, str]]:
    """Rows of a service map, their cells without blanks around them; a cell that says nothing is left out.

    Parameters
    ----------
    needed : columns that the map must have.
    why : words that follow the name of a column it lacks.
    what : what the file is called.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in needed if name not in (reader.fieldnames or ())]
            rows = [
                {name: text.strip() for name, text in row.items() if not is_absent(text)} for row in reader
            ]
    except (OSError, ValueError, csv.Error):
        raise ServiceMapError(f"the {what} {path} cannot be read; check the path and the encoding") from None
    if missing:
        raise ServiceMapError(f"the {what} {path} has no column '{missing[0]}'{why}; add it")
    return rows


def read_service_map(path: str | Path) -> ServiceMap:
    """Read a service map: CSV, one row per customer.

    Columns: `customer`, `load_point`; optional `node`, `class`, `scale_kw`, which every customer of a
    load point repeats or leaves empty.
    """
    path = Path(path)
    rows = read_service_rows(path, ("customer", "load_point"))
    load_point_of: dict[str, str] = {}
    for number, row in enumerate(rows, start=2):
        customer, point = row.get("customer"), row.get("load_point")
        if not customer or not point:
            raise ServiceMapError(
                f"row {number} of the service map {path} lacks a customer or a load point; fill it in"
            )
        if customer in load_point_of:
            raise ServiceMapError(
                f"row {number} of the service map {path} repeats a customer; keep one row for each"
            )
        load_point_of[customer] = point
    scales = {point: _scale(text, path) for point, text in _attribute(rows, "scale_kw", path).items()}
    return ServiceMap(load_point_of, _attribute(rows, "node", path), _attribute(rows, "class", path), scales)


def _attribute(rows: list[dict[str, str]], name: str, path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, row in enumerate(rows, start=2):
        text = row.get(name)
        if not text:
            continue
        if found.setdefault(row["load_point"], text) != text:
            raise ServiceMapError(
                f"row {number} of the service map {path} contradicts an earlier '{name}'; make them equal"
            )
    return found


def _scale(text: str, path: Path) -> float:
    try:
        return float(text)
    except ValueError:
        raise ServiceMapError(f"a 'scale_kw' of the service map {path} is not a number; correct it") from None


PLACEHOLDER_KW = 0.5
"""What a load point with too many gaps draws where it is kept [kW]."""


@dataclass(frozen=True)
class IngestRules:
    """Declared, PUBLIC limits; a config checks those that it sets.

    Parameters
    ----------
    floor_kw
        Loads of a load point below this, zero and negative ones too, are raised to it [kW], because
        the model takes logs.
    most_export
        Energy that all load points may feed in, as a share of what they draw; loads within ± the floor do
        not count. Up to it what is fed in is raised to the floor.
    on_export
        "error" stops if more is fed in. "floor" raises it to the floor too, however much it is.
    typical_kw
        Public load of a typical customer [kW], such as its yearly energy over 8,760 h. The median customer
        more than 2.5 times above or below it stops; None compares nothing.
    on_rejected
        "drop" leaves rejected load points out: which meters are complete is then treated as public.
        "placeholder" keeps them as a constant load, `PLACEHOLDER_KW`, so that not even the number of records
        depends on a reading.
    most_placeholders
        Share of load points that may be placeholders; more of them stop.
    on_suspect_unit
        "error" stops if the median load point is outside the plausible range or far from the typical load, or
        if any load point is far above its public scale. "keep" only counts all this.
    """

    floor_kw: float = FLOOR_KW
    most_export: float = MOST_EXPORT
    on_export: str = "error"
    typical_kw: float | None = None
    on_rejected: str = "drop"
    most_placeholders: float = 1.0
    on_suspect_unit: str = "error"
