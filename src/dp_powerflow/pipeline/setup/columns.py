"""Which column of a meter file is what, told by the names alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.declared import ENERGY_UNITS, POWER_UNITS
from dp_powerflow.loads.tables import MeterTable

# fmt: off
_TIMES = (
    "time", "timestamp", "datetime", "date_time", "time_stamp", "stamp", "ts", "tstp", "utc", "local_time",
    "interval_start", "interval_end", "period_start", "period_end", "start_time", "end_time", "start", "end",
    "date",
)
_CUSTOMERS = (
    "customer", "customer_id", "customerid", "meter", "meter_id", "meterid", "lclid", "household",
    "household_id", "house", "house_id", "home_id", "service", "service_id", "service_point",
    "service_point_id", "account", "account_id", "user", "user_id", "client", "client_id", "dataid",
    "data_id", "mpan", "nmi", "icp", "mrid", "premise", "premise_id", "site", "site_id", "load_point", "id",
)
_READINGS = ("active", "load", "power", "energy", "consumption", "usage", "demand", "reading", "value", "p")
# fmt: on
_TIME_WORDS = {"time", "timestamp", "datetime", "stamp"}
_REACTIVE = {"reactive", "kvar", "kvarh", "var", "varh", "q"}
_NOT_CONSUMPTION = {"export", "exported", "generation", "generated", "pv", "solar", "feedin", "injection"}
_UNITS = {
    "kwh": "kWh per interval",
    "wh": "Wh per interval",
    "kw": "kW",
    "w": "W",
    "watt": "W",
    "watts": "W",
    "kilowatt": "kW",
    "kilowatts": "kW",
}
UNITS = (*POWER_UNITS, *ENERGY_UNITS)


@dataclass(frozen=True)
class Named:
    """Columns that the command line names; None where it names none."""

    customer: str | None = None
    time: str | None = None
    active: str | None = None


@dataclass(frozen=True, repr=False)
class Columns:
    """Columns of a meter file.

    Attributes
    ----------
    kind : "long", a row per customer and interval, or "wide", a column per customer.
    customer, active : None of a wide file.
    reactive : None if there is none.
    customers : of a wide file; they are private.
    unit : as the names of the columns state it, None where they do not.
    """

    kind: Literal["long", "wide"]
    time: str
    customer: str | None = None
    active: str | None = None
    reactive: str | None = None
    customers: tuple[str, ...] = ()
    unit: str | None = None

    @property
    def label(self) -> Literal["start", "end"] | None:
        """Whether a stamp names the start or the end of its interval, if the name of its column says so."""
        words = set(_words(self.time))
        return "end" if "end" in words else "start" if "start" in words else None


def find_columns(table: MeterTable, named: Named) -> Columns:
    """Tell the columns of a file by their names.

    Raises
    ------
    LoadDataError
        If a column is not told by its name; says with which option to name it.
    """
    table.require(*(name for name in (named.customer, named.time, named.active) if name is not None))
    if len(table.columns) == 1:
        raise LoadDataError(
            f"{table.path} has one column; separate its columns by commas, and write decimal points"
        )
    time = named.time or _time(table)
    others = tuple(name for name in table.columns if name != time)
    customer = named.customer or _first(others, _CUSTOMERS)
    readings = tuple(name for name in others if name != customer)
    stated = [name for name in readings if _is_reading(name) and unit_in(name) is not None]
    if customer is None and named.active is None and len(stated) in (0, len(others)):
        units = {unit_in(name) for name in others}
        unit = units.pop() if len(units) == 1 else None
        return Columns("wide", time, customers=tuple(name.strip() for name in others), unit=unit)
    if customer is None:
        raise LoadDataError(
            f"no column of {table.path} has a name such as 'customer'; name the column of customer ids with "
            "--customer-column"
        )
    active = named.active or _active(table, readings, stated)
    reactive = [name for name in readings if _REACTIVE & set(_words(name)) and name != active]
    return Columns(
        "long", time, customer, active, reactive[0] if len(reactive) == 1 else None, unit=unit_in(active)
    )


def unit_in(name: str) -> str | None:
    """The unit that the name of a column states, such as 'consumption_kwh'."""
    for word in _words(name):
        if word in _UNITS:
            return _UNITS[word]
        for ending in ("kwh", "kw"):  # consumptionKWh, KWHhh
            if word.endswith(ending) or word.startswith("kwh"):
                return _UNITS["kwh" if word.startswith("kwh") else ending]
    return None


def declared_unit(word: str) -> str:
    """The unit of a config that is meant by what somebody writes: kWh is that of an interval."""
    for unit in UNITS:
        if word.strip().casefold() in (unit.casefold(), unit.split()[0].casefold()):
            return unit
    known = ", ".join(f"'{unit}'" for unit in UNITS)
    raise LoadDataError(f"--unit '{word}' is not known; use one of {known}")


def _time(table: MeterTable) -> str:
    found = _first(table.columns, _TIMES)
    if found is None:
        found = next((name for name in table.columns if _TIME_WORDS & set(_words(name))), None)
    if found is None:
        raise LoadDataError(
            f"no column of {table.path} has a name such as 'time'; name the column of stamps with "
            "--time-column"
        )
    return found


def _active(table: MeterTable, readings: tuple[str, ...], stated: list[str]) -> str:
    """The column of the readings: the one that states a unit, or else the one that is called like one."""
    if len(stated) == 1:
        return stated[0]
    called = [name for name in readings if _is_reading(name) and _plain(name) in _READINGS]
    if not stated and len(called) == 1:
        return called[0]
    if not stated and not called and len(readings) == 1:
        return readings[0]
    many = "several columns" if stated or called else "no column"
    raise LoadDataError(
        f"{many} of {table.path} could hold the active readings by name; name the column with --active-column"
    )


def _is_reading(name: str) -> bool:
    return not (_REACTIVE | _NOT_CONSUMPTION) & set(_words(name))


def _first(names: tuple[str, ...], known: tuple[str, ...]) -> str | None:
    """The column with the name that comes first among those known."""
    plain = {_plain(name): name for name in reversed(names)}
    return next((plain[name] for name in known if name in plain), None)


def _plain(name: str) -> str:
    return "_".join(_words(name))


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())
