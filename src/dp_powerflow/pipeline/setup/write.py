"""Write the config of a feeder and its meters, and the service map where there is none; all or nothing."""

from __future__ import annotations

import csv
import datetime as dt
import io
import os
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from dp_powerflow._files import write_named
from dp_powerflow._names import RELEASE_RULE
from dp_powerflow.config import parse_config
from dp_powerflow.errors import ConfigError, FeederError, LoadDataError
from dp_powerflow.grid.ieee import BUILT_IN
from dp_powerflow.grid.sources import SIMBENCH
from dp_powerflow.loads.declared import ServiceMap, one_service_each, read_service_map
from dp_powerflow.pipeline.customers import Services
from dp_powerflow.pipeline.setup.example import example
from dp_powerflow.pipeline.setup.feeder import FeederFacts, feeder_facts, internal_list
from dp_powerflow.pipeline.setup.meters import DeclaredFormat, MeterFacts, meter_facts
from dp_powerflow.pipeline.setup.modes import DEFAULT_MODE, mode_named
from dp_powerflow.pipeline.setup.public import DAYS, class_of_nodes, kind_of
from dp_powerflow.pipeline.setup.text import PublicFacts, config_text

_FEWEST = 2


@dataclass(frozen=True)
class SetupRequest:
    """What somebody asks of `init`.

    Attributes
    ----------
    config : file to write.
    feeder : as `open_feeder` takes it; a path is relative to the working directory.
    meters, services, taps : files.
    declared : what is declared of the meter file.
    mode : of the network.
    days : of the corpus, None for the usual number.
    release_id : None for one that follows from the name of the config.
    latitude : of the sun, None without one [degrees].
    published : day of publication that the config declares, by default today.
    """

    config: Path
    feeder: str
    meters: Path
    services: Path | None = None
    taps: Path | None = None
    declared: DeclaredFormat = field(default_factory=DeclaredFormat)
    mode: str = DEFAULT_MODE
    days: int | None = None
    release_id: str | None = None
    latitude: float | None = None
    published: dt.date = field(default_factory=dt.date.today)


@dataclass(frozen=True)
class Written:
    """What `init` has written, and what the producer should know (INTERNAL)."""

    config: Path
    services: Path | None
    notes: tuple[str, ...]


def set_up(request: SetupRequest, say: Callable[[str], None] = lambda _: None) -> Written:
    """Write a config that fits a feeder and its meters; nothing private is in it.

    Parameters
    ----------
    say : told what takes long.

    Raises
    ------
    DpPowerflowError
        Nothing was written; says what to declare, or what in the feeder is not supported.
    """
    mode = mode_named(request.mode)
    refuse_overwriting(request.config)  # a folder too, which may have no name
    stem = _name(request.config.stem)
    own_map = request.config.with_name(f"{stem}-services.csv")
    say("reading the feeder")
    feeder = feeder_facts(_known_feeder(request.feeder), request.taps)
    say("reading the stamps of the meters")
    meters = meter_facts(request.meters, request.declared)
    services = (
        one_service_each(meters.customers) if request.services is None else read_service_map(request.services)
    )
    _check_services(services)
    scale_kw = _written_scale(request, services)
    writes_map = request.services is None or scale_kw is not None
    map_text = _map_text(services, scale_kw) if writes_map else ""
    map_is_there = writes_map and _has(own_map, map_text)  # a killed run wrote it, and no config
    if writes_map and not map_is_there:
        refuse_overwriting(own_map)
    facts = _public(request, feeder, meters, services, own_map if writes_map else request.services or own_map)
    text = config_text(facts)
    say("checking the feeder")
    config = parse_config(tomllib.loads(text), base=request.config.resolve().parent)
    problems = mode.problems(config, feeder, _declared(services))
    if problems:
        raise FeederError(internal_list(problems))
    if writes_map and not map_is_there:
        write_new(own_map, map_text)
    write_new(request.config, text)
    return Written(request.config, own_map if writes_map else None, _notes(request, facts, feeder, services))


def write_example(path: Path, mode: str) -> Written:
    """Write the example of a mode: every key, on public data."""
    mode_named(mode)
    text = example(mode)
    refuse_overwriting(path)
    write_new(path, text)
    return Written(path, None, ())


def refuse_overwriting(path: Path) -> None:
    """Refuse to write where something is."""
    if path.exists():
        raise ConfigError(f"{path} exists already; give another name, or move it away")
    if not path.resolve().parent.is_dir():
        raise ConfigError(f"the folder of {path} does not exist; make it first")


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there, whole or not at all."""
    write_named(path, text.encode())


def _has(path: Path, text: str) -> bool:
    """Whether a file is there with this very text."""
    try:
        return path.read_bytes() == text.encode()
    except OSError:
        return False


def _name(stem: str) -> str:
    """The name of a config file as ids and names of files begin with it."""
    plain = "".join(sign if sign.isascii() and (sign.isalnum() or sign in "-_") else "-" for sign in stem)
    return plain.strip("-_")[:40].strip("-_") or "release"


def _known_feeder(feeder: str) -> str:
    """The feeder, its file looked for first."""
    lowered = feeder.lower()
    if lowered in BUILT_IN or lowered.startswith(SIMBENCH) or Path(feeder).is_file():
        return feeder
    if lowered.endswith((".dss", ".json")):
        raise FeederError(f"{feeder} does not exist; check the path of --feeder")
    return feeder


def _check_services(services: ServiceMap) -> None:
    points, labelled = len(services.load_points), len(services.class_of)
    if points < _FEWEST:
        raise LoadDataError(
            "there is only one load point, but differential privacy hides one customer among many; add "
            "customers"
        )
    if 0 < labelled < points:
        raise LoadDataError(
            f"{points - labelled} of {points} load points of the service map have no class; give one to all "
            "or to none"
        )


def _written_scale(request: SetupRequest, services: ServiceMap) -> float | None:
    """The public scale that the map lacks and the true network needs: a node is one customer scaled up."""
    if not mode_named(request.mode).needs_scale or services.scale_kw_of:
        return None
    labels = tuple(services.class_of.values())
    return kind_of(class_of_nodes(labels) if labels else None).kw_per_customer


def _public(
    request: SetupRequest, feeder: FeederFacts, meters: MeterFacts, services: ServiceMap, map_path: Path
) -> PublicFacts:
    folder, stem = request.config.resolve().parent, _name(request.config.stem)
    release_id = f"{stem}-1" if request.release_id is None else request.release_id
    problem = RELEASE_RULE.problem(release_id)
    if problem is not None:
        raise ConfigError(f"--id '{release_id}' is not usable: {problem}")
    is_file = request.feeder.lower().endswith((".dss", ".json"))
    scales = tuple(services.scale_kw_of.values())
    return PublicFacts(
        source=_relative(Path(request.feeder), folder) if is_file else request.feeder,
        taps=None if request.taps is None else _relative(request.taps, folder),
        path=_relative(request.meters, folder),
        services=_relative(map_path, folder),
        meters=meters,
        load_points=len(services.load_points),
        mode=mode_named(request.mode),
        release_id=release_id,
        output=stem,
        days=DAYS if request.days is None else request.days,
        published=request.published,
        islanded=feeder.islanded,
        pv=feeder.pv,
        curves=feeder.curves,
        latitude=request.latitude,
        classes=tuple(services.class_of[point] for point in services.load_points)
        if services.class_of
        else (),
        scale_kw=fmean(scales) if scales else None,
        written_scale_kw=_written_scale(request, services),
    )


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path.resolve(), folder)).as_posix()


def _declared(services: ServiceMap) -> Services:
    points = services.load_points
    nodes, classes = (
        tuple(of.get(point) for point in points) for of in (services.node_of, services.class_of)
    )
    return Services(nodes, classes)


def _map_text(services: ServiceMap, scale_kw: float | None) -> str:
    """A service map in the order of the ids."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    extra = [("node", services.node_of), ("class", services.class_of)]
    shown = [(name, values) for name, values in extra if values]
    writer.writerow(
        ["customer", "load_point", *(name for name, _ in shown), *(["scale_kw"] if scale_kw else [])]
    )
    for customer, point in sorted(services.load_point_of.items()):
        row = [customer, point, *(values.get(point, "") for _, values in shown)]
        writer.writerow([*row, *([scale_kw] if scale_kw else [])])
    return file.getvalue()


def _notes(
    request: SetupRequest, facts: PublicFacts, feeder: FeederFacts, services: ServiceMap
) -> tuple[str, ...]:
    meters = facts.meters
    absent = len(set(services.customers) - set(meters.customers))
    unlisted = len(set(meters.customers) - set(services.customers))
    days = (meters.last_day - meters.first_day).days + 1
    notes = [
        f"{len(meters.customers)} customers, {days} days from {meters.first_day} to {meters.last_day}, every "
        f"{meters.step_minutes} min, read as {meters.unit}",
        *meters.notes,
    ]
    if request.services is None:
        notes.append(
            f"the customers in {facts.services}, one service each, are declared public with their number; "
            "check that the list follows from contracts, not from who has readings"
        )
    if absent or unlisted:
        notes.append(
            f"{absent} customers of the service map are not in the meter file, and {unlisted} of the meter "
            "file are not in the map; correct the ids before a release"
        )
    if feeder.islanded:
        notes.append("nodes of the feeder that no source feeds are left out (feeder.drop_islanded)")
    if facts.pv and request.latitude is None:
        notes.append("the feeder has PV systems; they are idle unless --latitude gives them a sun")
    if not facts.pv and request.latitude is not None:
        notes.append("the feeder has no PV system; --latitude is not used")
    if (note := mode_named(request.mode).note) is not None:
        notes.append(note)
    return tuple(notes)
