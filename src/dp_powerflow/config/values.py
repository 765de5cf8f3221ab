"""Values that a key of a config may have, beyond the types of Python."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainValidator

from dp_powerflow._names import RELEASE_RULE, TWIN_RULE, NameRule, refuse_unusable
from dp_powerflow.almanac.calendar import YEARS, zone_of
from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.budget import LEAST_DELTA, LEAST_EPSILON, MOST_EPSILON
from dp_powerflow.privacy.ledger.records import Unrelated


def _between(least: float, most: float) -> AfterValidator:
    """The check of a figure that would overflow or vanish beyond in what is computed from it."""

    def check(figure: float) -> float:
        if not least <= figure <= most:
            raise ValueError(f"it should lie between {least:g} and {most:g}")
        return figure

    return AfterValidator(check)


Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False), _between(1e-30, 1e15)]
Epsilon = Annotated[float, Field(gt=0.0, allow_inf_nan=False), _between(LEAST_EPSILON, MOST_EPSILON)]
Probability = Annotated[float, Field(gt=0.0, lt=1.0), _between(LEAST_DELTA, 1.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]


def usable(value: Any) -> Any:
    """The value of any key, unless it has a text that names no file or a day of no calendar."""
    for part in (
        (*value, *value.values()) if isinstance(value, dict) else value if isinstance(value, tuple) else ()
    ):
        usable(part)
    if isinstance(value, dt.date) and value.year not in YEARS:
        raise ValueError(f"a day lies between the years {YEARS[0]} and {YEARS[-1]}; correct it")
    if isinstance(value, str | Path):
        refuse_unusable(value, ValueError)
    return value


def named_by(rule: NameRule) -> AfterValidator:
    """The check of an id; what is refused comes with an id that would do."""

    def check(name: str) -> str:
        problem = rule.problem(name)
        if problem is not None:
            raise ValueError(problem)
        return name

    return AfterValidator(check)


TwinId = Annotated[str, named_by(TWIN_RULE)]
ReleaseId = Annotated[str, named_by(RELEASE_RULE)]

_LEAST_POWER_FACTOR = 0.01


def _not_zero(factor: float) -> float:
    if abs(factor) < _LEAST_POWER_FACTOR:
        raise ValueError(
            f"a power factor of 0, or less than {_LEAST_POWER_FACTOR}, has no active load to speak of; give "
            "cos θ, negative where it is leading"
        )
    return factor


PowerFactor = Annotated[float, Field(ge=-1.0, le=1.0), AfterValidator(_not_zero)]
"""cos θ of a load, as OpenDSS writes it: positive where it is lagging (inductive), negative where leading."""


def _ascending(margins: tuple[float, float]) -> tuple[float, float]:
    if not margins[0] < margins[1]:
        raise ValueError("the bounds [p_min, p_max] must satisfy 0 < p_min < p_max; swap or correct them")
    return margins


Margins = Annotated[tuple[Positive, Positive], AfterValidator(_ascending)]


def _known_zone(name: str) -> str:
    zone_of(name, ValueError)
    return name


TimeZone = Annotated[str, AfterValidator(_known_zone)]


class StorageUrl(str):
    """URL of a folder in an object store, such as 's3://bucket/release'; kept as it is written."""

    __slots__ = ()

    def __truediv__(self, name: str) -> StorageUrl:
        return StorageUrl(f"{self.rstrip('/')}/{name}")


def path_or_url(value: object) -> Path | StorageUrl:
    """A path, or a URL as it is written."""
    if isinstance(value, str) and "://" in value:
        return StorageUrl(value)
    if isinstance(value, str | Path):
        return Path(value)
    raise ValueError("give a path, or a URL such as s3://bucket/release")


def dates_or_path(value: object) -> tuple[dt.date, ...] | Path:
    """Dates in order, each once, or the path of a file of them."""
    if isinstance(value, str | Path):
        return Path(value)
    if not isinstance(value, list | tuple):
        raise ValueError("give a list of dates, such as [2024-12-25], or a text file with one date per line")
    return tuple(sorted({_a_date(item) for item in value}))


def _a_date(item: object) -> dt.date:
    try:
        if type(item) is dt.date:
            return item
        return dt.date.fromisoformat(item if isinstance(item, str) else "")
    except ValueError:
        raise ValueError(f"'{item}' is not a date; write dates such as 2024-12-25") from None


def _unrelated(value: object) -> Unrelated | None:
    if value is None or isinstance(value, Unrelated):  # a fleet makes its own
        return value
    try:
        return Unrelated.from_table(value)
    except PrivacyError as error:
        raise ValueError(str(error)) from None


# Not part of any request: it decides which account is charged, not what is released.
Reason = Annotated[Unrelated | None, PlainValidator(_unrelated), Field(exclude=True)]
