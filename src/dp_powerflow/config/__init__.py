"""One TOML file that says everything about a release; unknown keys are errors that name the nearest key.

Nothing in it is secret, and nothing in it may be tuned on the private data: what the data owner writes here
is declared public, and the manifest repeats it.
"""

from __future__ import annotations

import datetime as dt
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from dp_powerflow._names import refuse_unusable
from dp_powerflow.config.mistakes import Moved, mistakes_in
from dp_powerflow.config.mistakes import Section as Section
from dp_powerflow.config.mistakes import sentence_of as one_message
from dp_powerflow.config.sections import STATE_RULES as STATE_RULES
from dp_powerflow.config.sections import CalendarSection as CalendarSection
from dp_powerflow.config.sections import Count as Count
from dp_powerflow.config.sections import FeederSection as FeederSection
from dp_powerflow.config.sections import LoadsSection as LoadsSection
from dp_powerflow.config.sections import ModelSection as ModelSection
from dp_powerflow.config.sections import Network as Network
from dp_powerflow.config.sections import NetworkSection as NetworkSection
from dp_powerflow.config.sections import NodesSection as NodesSection
from dp_powerflow.config.sections import Positive as Positive
from dp_powerflow.config.sections import Probability as Probability
from dp_powerflow.config.sections import PublicationSection as PublicationSection
from dp_powerflow.config.sections import PVSection as PVSection
from dp_powerflow.config.sections import Reason as Reason
from dp_powerflow.config.sections import ReleaseSection as ReleaseSection
from dp_powerflow.config.sections import StorageUrl as StorageUrl
from dp_powerflow.config.sections import TrueNetwork as TrueNetwork
from dp_powerflow.config.sections import TwinNetwork as TwinNetwork
from dp_powerflow.config.sections import WeatherSection as WeatherSection
from dp_powerflow.config.sections import named_by as named_by
from dp_powerflow.config.sections import path_or_url as path_or_url
from dp_powerflow.errors import ConfigError

Checked = TypeVar("Checked", bound=BaseModel)


def _scale_factor_is_of_the_true_network(config: Config) -> str | None:
    if not isinstance(config.network, TwinNetwork) or "scale_factor" not in config.nodes.model_fields_set:
        return None
    return (
        "nodes.scale_factor belongs to mode 'true-network'; on a twin a load is a sum of customers: "
        "remove it, and set nodes.kw_per_customer, the nominal kW per customer"
    )


def _customers_are_of_a_twin(config: Config) -> str | None:
    stated = config.nodes.model_fields_set & {"kw_per_customer", "kw_per_customer_of_class"}
    if isinstance(config.network, TwinNetwork) or not stated:
        return None
    return (
        f"nodes.{min(stated)} belongs to mode 'twin-network'; on the true network a node is one draw "
        "times its nominal load and nodes.scale_factor: remove it"
    )


def _has_one_partition(config: Config) -> str | None:
    if config.loads.classes is None or not config.model.private_classes:
        return None
    return (
        "loads.classes declares the classes public, but model.private_classes finds them privately; "
        "remove one of the two"
    )


def _dates_are_of_a_twin(config: Config) -> str | None:
    stated = {
        "release.first_day": config.release.first_day is not None,
        "[calendar]": bool(config.calendar.model_fields_set),
        "[weather]": config.weather is not None,
    }
    if config.network.dated or not any(stated.values()):
        return None
    name = next(name for name, there in stated.items() if there)
    return (
        f"{name} belongs to mode 'twin-network'; the days of mode '{config.network.mode}' are independent "
        "draws and have no dates: remove it"
    )


def _histories_are_of_a_twin(config: Config) -> str | None:
    if config.model.estimator != "history" or config.network.dated:
        return None
    return (
        f"model.estimator = 'history' draws days that follow one another, but the evidence of mode "
        f"'{config.network.mode}' is about independent nodes and days; set model.estimator to 'structured', "
        "or network.mode to 'twin-network'"
    )


def _histories_are_long_enough(config: Config) -> str | None:
    return None if config.model.estimator != "history" else history_obstacle(config)


def history_obstacle(config: Config, n_days: int | None = None) -> str | None:
    """PUBLIC. Why the meters are no histories for the estimator `history`; None if they are, or may be.

    Parameters
    ----------
    n_days : days of the meters; None for what the config declares, which may be nothing.
    """
    days = config.loads.declared_days if n_days is None else n_days
    step = config.loads.step_minutes
    if step > LONGEST_STEP_MINUTES:
        return (
            f"the estimator 'history' needs steps of {LONGEST_STEP_MINUTES} minutes or less, but "
            f"loads.step_minutes is {step}; read shorter steps, or set model.estimator to 'structured'"
        )
    if days is not None and days < FEWEST_DAYS:
        return (
            f"the estimator 'history' needs {FEWEST_DAYS} days of meters or more, but there are {days}; give "
            "more days, or set model.estimator to 'structured'"
        )
    return None


def _has_one_first_day(config: Config) -> str | None:
    first, sun = config.release.first_day, None if config.pv is None else config.pv.first_day_of_year
    if first is None or sun is None or sun == first.timetuple().tm_yday:
        return None
    return (
        f"release.first_day = {first} is day {first.timetuple().tm_yday} of its year, but "
        f"pv.first_day_of_year = {sun} says otherwise; remove pv.first_day_of_year"
    )


FEWEST_DAYS = 14
LONGEST_STEP_MINUTES = 180
"""What the estimator `history` needs of the meters: two weeks, and eight steps a day."""
FIRST_DAY = dt.date(2023, 1, 1)
"""Of a release whose config names none, whatever the dates of the meters are."""


class Config(Section):
    """Everything about one release."""

    feeder: FeederSection
    loads: LoadsSection
    model: ModelSection
    nodes: NodesSection = NodesSection()
    pv: PVSection | None = None
    calendar: CalendarSection = CalendarSection()
    weather: WeatherSection | None = None
    network: Network
    release: ReleaseSection
    publication: PublicationSection = PublicationSection()

    rules = (
        _scale_factor_is_of_the_true_network,
        _customers_are_of_a_twin,
        _has_one_partition,
        _dates_are_of_a_twin,
        _has_one_first_day,
        _histories_are_of_a_twin,
        _histories_are_long_enough,
    )

    @property
    def first_day(self) -> dt.date | None:
        """Date of the first day of the release; None where days have no dates."""
        if not self.network.dated:
            return None
        sun = None if self.pv is None else self.pv.first_day_of_year
        return self.release.first_day or FIRST_DAY + dt.timedelta(days=(sun or 1) - 1)

    @property
    def first_day_of_sun(self) -> int:
        """Day of the year on which a clear sky begins, 1 is the first of January."""
        stated = None if self.pv is None else self.pv.first_day_of_year
        return stated or (1 if self.first_day is None else self.first_day.timetuple().tm_yday)


def moved_keys(raw: Any) -> Iterator[Moved]:
    """Keys of a raw config that are gone or of the other mode, and what to do with them."""
    sections = _mapping(raw)
    for name in ("release", "fleet"):
        if "solver" in _mapping(sections.get(name)):
            yield (
                (name, "solver"),
                f"{name}.solver no longer exists: the package itself solves every release; remove the key",
            )
    network = _mapping(sections.get("network"))
    for name in ("bound", "radius"):
        if name in network and network.get("mode") == "twin-network":
            yield (
                ("network", name),
                f"network.{name} belongs to mode 'true-network'; remove it from [network]",
            )


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def read_config(path: Path) -> Config:
    """Read a TOML file; paths in it are relative to it, and what it reads must exist."""
    raw = read_toml(path, "config file", "write one with 'dp-powerflow init'")
    return parse_config(raw, base=path.resolve().parent, files_must_exist=True)


def read_toml(path: Path, what: str, otherwise: str) -> dict[str, Any]:
    """The content of a TOML file; `what` it is and what to do `otherwise`, for the errors."""
    refuse_unusable(path.absolute(), ConfigError)
    if not path.is_file():
        raise ConfigError(f"{what} {path} does not exist; {otherwise}", code="config-not-found")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        raise ConfigError(f"{what} {path} is not text in UTF-8; save it again in that encoding") from None
    except RecursionError:
        raise ConfigError(f"{what} {path} nests tables too deeply; {otherwise}") from None
    except ValueError as error:  # of TOML, or of a number that is too long
        raise ConfigError(f"{what} {path} is not valid TOML: {error}") from None


def parse_config(raw: dict[str, Any], base: Path = Path(), *, files_must_exist: bool = False) -> Config:
    """Check a config given as a dictionary.

    Parameters
    ----------
    raw : its sections.
    base : folder that paths in it are relative to.
    files_must_exist : refuse it also where a file that it reads is not there.

    Raises
    ------
    ConfigError : all its mistakes at once.
    """
    return _with_absolute_paths(checked(raw, Config, base if files_must_exist else None), base)


def checked(raw: dict[str, Any], model: type[Checked], base: Path | None) -> Checked:
    """A config of the given kind, whose files are there if a `base` is given; ConfigError of all mistakes."""
    gone = () if base is None else tuple(absent_files(raw, base))
    try:
        config = model.model_validate(raw)
    except ValidationError:
        raise ConfigError(sentence_of(raw, model, gone)) from None
    if gone:
        raise ConfigError(sentence_of(raw, model, gone))
    return config


_FILES_READ = {
    "feeder": ("source", "taps", "loads"),
    "loads": ("path", "services", "classes"),
    "pv": ("irradiance",),
    "calendar": ("holidays",),
    "weather": ("path",),
}
_FEEDER_FILES = (".dss", ".json")


def absent_files(raw: dict[str, Any], base: Path) -> Iterator[str]:
    """Which of the files that a config reads do not exist, a sentence each."""
    for section, keys in _FILES_READ.items():
        table = _mapping(raw.get(section))
        for key in keys:
            name = table.get(key)
            a_file = isinstance(name, str) and (key != "source" or name.lower().endswith(_FEEDER_FILES))
            where = base / str(name)
            if a_file and not os.path.exists(where):
                yield f"the config's '{section}.{key}' is {where}, which does not exist; correct the path"


def _with_absolute_paths(config: Config, base: Path) -> Config:
    sections = absolute_sections(config, base)
    source = config.feeder.source
    if source.lower().endswith(_FEEDER_FILES):
        sections["feeder"] = sections["feeder"].model_copy(update={"source": str(base / source)})
    return config.model_copy(update=sections)


def absolute_sections(config: Section, base: Path) -> dict[str, Section]:
    """The sections of a config, by their names; paths in them are relative to `base` no more."""
    return {
        name: section.model_copy(update={key: base / path for key, path in section if isinstance(path, Path)})
        for name, section in config
        if isinstance(section, Section)
    }


def sentence_of(raw: dict[str, Any], model: type[BaseModel] = Config, more: tuple[str, ...] = ()) -> str:
    """All mistakes of a config of the given kind, and `more` of them, in one message."""
    return one_message((*mistakes_in(raw, model, moved_keys), *more))
