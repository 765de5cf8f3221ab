"""One TOML file for many feeders and one meter source; unknown keys are errors that name the nearest key.

The sections are those of a release (`config`). What differs: `[fleet]` stands in place of `[release]` and
lists the feeders, `[feeder]` holds what all feeders share, and `[overrides]` what some have of their own.
"""

from __future__ import annotations

import datetime as dt
import difflib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, ValidationError, model_validator

from dp_powerflow._names import PUBLIC_RULE, alike
from dp_powerflow.config import (
    STATE_RULES,
    CalendarSection,
    Config,
    Count,
    LoadsSection,
    ModelSection,
    NodesSection,
    Positive,
    Probability,
    PublicationSection,
    PVSection,
    Reason,
    Section,
    StorageUrl,
    TrueNetwork,
    TwinNetwork,
    WeatherSection,
    absolute_sections,
    checked,
    named_by,
    path_or_url,
    read_toml,
    sentence_of,
)
from dp_powerflow.errors import ConfigError, Lines, printable
from dp_powerflow.grid.quantities import Protect

PublicName = Annotated[str, named_by(PUBLIC_RULE)]
OF_THE_FLEET = frozenset({"mode", "bound", "id"})
"""Keys of [network] that no feeder has of its own: the accounts and what they are about hang on them."""
_NOT_REMOVABLE = frozenset(f"network.{key}" for key in OF_THE_FLEET)


class SameFrame(Section):
    """Feeders that are different networks although they have the same nodes and connections.

    Attributes
    ----------
    feeders : their keys.
    reason : why, such as a standard design; the ledger records it.
    """

    feeders: Annotated[tuple[str, ...], Field(min_length=2)]
    reason: Annotated[str, Field(min_length=1, pattern=r"\S")]


class FleetSection(Section):
    """Which feeders, what is written and where.

    Attributes
    ----------
    feeders : globs of `.dss` and `.json` files, relative to the config file, and names of built-in feeders.
    names : public names of feeders, by their keys; the others are numbered.
    models : one load model of all customers, or one per feeder from the public column `feeder` of the
        service map.
    output : directory or URL of the corpus, such as `s3://bucket/fleet`.
    state : private directory of keys, ledger and internal reports; never publish it.
    continues : earlier fleet whose feeders these are: names and accounts go on.
    unrelated : why no feeder is a version of networks that were charged outside this fleet, or for feeders
        that it no longer lists: a table of accounts and reason, as in a release.
    same_frame : which feeders are different networks of the same structure, and why.
    continues_loads, unrelated_loads : the same for the customers, as in a release.
    """

    id: PublicName
    feeders: Annotated[tuple[str, ...], Field(min_length=1)]
    names: dict[str, PublicName] = Field(default_factory=dict)
    models: Literal["one", "per-feeder"] = "one"
    days: Count
    first_day: dt.date | None = None
    output: Annotated[Path | StorageUrl, PlainValidator(path_or_url)]
    state: Path
    epsilon_cap: Positive | None = None
    network_epsilon_cap: Positive | None = None
    network_delta_cap: Probability | None = None
    continues: PublicName | None = None
    unrelated: Reason = None
    same_frame: SameFrame | None = None
    continues_loads: str | None = None
    unrelated_loads: Reason = None
    insecure_seed: int | None = None

    rules = STATE_RULES

    @model_validator(mode="after")
    def _is_clear(self) -> FleetSection:
        if len(set(self.names.values())) < len(self.names):
            raise ValueError("two feeders have the same public name in fleet.names")
        if alike(self.names.values()):
            raise ValueError("two public names of fleet.names differ in case only; choose another")
        if self.continues == self.id:
            raise ValueError("a fleet cannot continue itself; run it again to finish it")
        return self


class SharedFeederSection(Section):
    """What all feeders share; `taps` is a folder with one CSV file per feeder, named by its key."""

    taps: Path | None = None
    base_mva: Positive = 1.0
    drop_islanded: bool = False


class FleetTwin(TwinNetwork):
    """As the section of a release; the ids of the twins begin with `id`, by default that of the fleet.

    What is protected is protected on the feeders that have it: a fleet is mixed.
    """

    id: PublicName | None = None  # type: ignore[assignment]
    protect: Protect = "if present"


FleetNetwork = Annotated[TrueNetwork | FleetTwin, Field(discriminator="mode")]


class Override(Section):
    """What one feeder has of its own; checked together with what all share.

    Attributes
    ----------
    feeder, nodes, pv, network : keys of these sections, in place of the shared ones.
    remove : shared keys that the feeder goes without, as `network.capacitors`; `pv` is that whole section.
    continues_network : account of the network that this feeder is a version of, as in a release.
    """

    feeder: dict[str, Any] = Field(default_factory=dict)
    nodes: dict[str, Any] = Field(default_factory=dict)
    pv: dict[str, Any] = Field(default_factory=dict)
    network: dict[str, Any] = Field(default_factory=dict)
    remove: tuple[str, ...] = ()
    continues_network: str | None = None

    def removed(self, section: str) -> frozenset[str]:
        """Keys of a section that this feeder goes without."""
        named = (name.split(".", 1) for name in self.remove if "." in name)
        return frozenset(key for table, key in named if table == section)


def _removable(config: FleetConfig) -> dict[str, frozenset[str]]:
    """Section → its keys that a feeder may go without."""
    shared = {"feeder": config.feeder, "nodes": config.nodes, "network": config.network}
    found = {name: frozenset(type(section).model_fields) for name, section in shared.items()}
    return found | {"pv": frozenset(PVSection.model_fields)}


def _wrong_removal(key: str, name: str, override: Override, known: dict[str, frozenset[str]]) -> str | None:
    where = f"overrides of feeder '{key}'"
    section, _, inner = name.partition(".")
    if section == "network" and inner in OF_THE_FLEET:
        return f"{where} remove '{name}', which belongs to the fleet; put the feeder into a fleet of its own"
    if name != "pv" and inner not in known.get(section, ()):
        names = ["pv", *(f"{table}.{field}" for table, fields in known.items() for field in fields)]
        near = difflib.get_close_matches(name, sorted(set(names) - _NOT_REMOVABLE), n=1, cutoff=0.0)
        return f"{where} remove an unknown key '{name}'; did you mean '{near[0]}'?"
    set_too = {"feeder": override.feeder, "nodes": override.nodes, "pv": override.pv}
    if override.pv if name == "pv" else inner in set_too.get(section, override.network):
        return f"{where} both set and remove '{name}'; keep one of them"
    return None


class FleetConfig(Section):
    """Everything about one fleet."""

    fleet: FleetSection
    feeder: SharedFeederSection = SharedFeederSection()
    loads: LoadsSection
    model: ModelSection
    nodes: NodesSection = NodesSection()
    pv: PVSection | None = None
    calendar: CalendarSection = CalendarSection()
    weather: WeatherSection | None = None
    publication: PublicationSection = PublicationSection()
    network: FleetNetwork
    overrides: dict[str, Override] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_one_meter_source(self) -> FleetConfig:
        if self.loads.kind == "opendss-shapes":
            raise ValueError(
                "loads.kind = 'opendss-shapes' belongs to one feeder; a fleet needs 'long', 'wide' or "
                "'simulated'"
            )
        if self.fleet.models == "per-feeder" and self.loads.services is None and self.model.reuse is None:
            raise ValueError("fleet.models = 'per-feeder' needs loads.services with a column 'feeder'")
        return self

    @model_validator(mode="after")
    def _removes_what_can_be_removed(self) -> FleetConfig:
        known = _removable(self)
        problems = [
            sentence
            for key, override in self.overrides.items()
            for name in override.remove
            if (sentence := _wrong_removal(key, name, override, known)) is not None
        ]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def charged_under(self) -> str:
        """Under which id the customers were, or will be, charged for the load model or models."""
        return self.model.reuse or self.fleet.id


def read_fleet_config(path: Path) -> FleetConfig:
    """Read a TOML file; paths in it are relative to it."""
    raw = read_toml(path, "fleet file", "docs/how-to/fleet.md has an example")
    return parse_fleet_config(raw, base=path.resolve().parent, files_must_exist=True)


def parse_fleet_config(
    raw: dict[str, Any], base: Path = Path(), *, files_must_exist: bool = False
) -> FleetConfig:
    """Check a fleet's config given as a dictionary; parameters as in `parse_config`."""
    return _with_absolute_paths(checked(raw, FleetConfig, base if files_must_exist else None), base)


def parse_feeder_config(sections: dict[str, Any], key: str) -> Config:
    """Check the config of one feeder, made of shared sections and its own; paths in it are absolute."""
    try:
        return Config.model_validate(sections)
    except ValidationError:
        raise ConfigError(Lines(f"of feeder '{printable(key)}', {sentence_of(sections, Config)}")) from None


def _with_absolute_paths(config: FleetConfig, base: Path) -> FleetConfig:
    if set("*?[") & set(str(base)):
        raise ConfigError(f"the folder {base} of the fleet file has a wildcard in its name; rename it")

    def own(override: Override) -> Override:
        sections = {"feeder": dict(override.feeder), "pv": dict(override.pv)}
        for section, name in (("feeder", "taps"), ("feeder", "loads"), ("pv", "irradiance")):
            if isinstance(sections[section].get(name), str):
                sections[section][name] = base / sections[section][name]
        return override.model_copy(update=sections)

    sections = absolute_sections(config, base)
    feeders = tuple(item if is_named(item) else str(base / item) for item in config.fleet.feeders)
    sections["fleet"] = sections["fleet"].model_copy(update={"feeders": feeders})
    overrides = {key: own(override) for key, override in config.overrides.items()}
    return config.model_copy(update={**sections, "overrides": overrides})


def is_named(feeder: str) -> bool:
    """Whether an entry of `fleet.feeders` is the name of a feeder, not a path or a glob."""
    return not feeder.lower().endswith((".dss", ".json"))
