"""`init`: write the config of a feeder and its meters, and a service map where there is none; all or nothing.

Configs are `templates/release.toml`, filled with public facts, and `templates/example.toml`, every key on
public data.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import os
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from dp_powerflow._files import write_named
from dp_powerflow._names import RELEASE_RULE
from dp_powerflow._texts import filled
from dp_powerflow.config import Config, TwinNetwork, parse_config
from dp_powerflow.errors import ConfigError, FeederError, LoadDataError, ServiceMapError
from dp_powerflow.grid.sources import BUILT_IN, SIMBENCH
from dp_powerflow.loads.declared import ServiceMap, one_service_each, read_service_map
from dp_powerflow.pipeline.customers import Services, count_customers, some_loaded_nodes
from dp_powerflow.pipeline.inputs import require_declared_taps
from dp_powerflow.setup.facts import (
    BOUNDS_OF_SCALE,
    CustomerKind,
    DeclaredFormat,
    FeederFacts,
    MeterFacts,
    class_of_nodes,
    delta_for,
    feeder_facts,
    internal_list,
    kind_of,
    meter_facts,
    twin_problems,
)

MODES = (TWIN, TRUE) = ("twin-network", "true-network")
DEFAULT_MODE = TWIN
_DAYS = 28
_FEWEST = 2
_COMMENTS_AT = 32


def example(mode: str = DEFAULT_MODE) -> str:
    """The commented example of a mode; the keys of the other one are comments."""
    return _filled("example.toml", mode=mode)


def _filled(template: str, **facts: object) -> str:
    filters = {"toml": _toml, "line": lambda text: " ".join(text.split()), "commented": _commented}
    return filled(template, filters, **facts)


def _toml(value: object) -> str:
    """A value of TOML; strings of JSON are strings of TOML. In templates ## begins a comment."""
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("##", r"#\u0023")


def _commented(lines: str) -> str:
    return re.sub("^(?!#)", "# ", lines.rstrip("\n"), flags=re.MULTILINE)


def _aligned(text: str) -> str:
    """The lines of a config, their comments one below the other."""
    parts = (line.partition(" ## ") for line in text.split("\n"))
    return "\n".join(f"{key:<{_COMMENTS_AT - 1}} # {said}" if mark else key for key, mark, said in parts)


@dataclass(frozen=True)
class SetupRequest:
    """What a user asks of `init`.

    Attributes
    ----------
    config : file to write.
    feeder : as `open_feeder` takes it; a path is relative to the working directory.
    meters, services, taps, loads : files.
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
    loads: Path | None = None
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
    _check_mode(request.mode)
    _refuse_overwriting(request.config)  # a folder too, which may have no name
    stem = _name(request.config.stem)
    own_map = request.config.with_name(f"{stem}-services.csv")
    source = _known_feeder(request.feeder)
    say("reading the stamps of the meters")
    meters = meter_facts(request.meters, request.declared)
    say("reading the feeder")
    feeder = feeder_facts(source, request.taps, request.loads)
    services = (
        one_service_each(meters.customers) if request.services is None else read_service_map(request.services)
    )
    _check_services(services)
    scale_kw = _written_scale(request, services)
    writes_map = request.services is None or scale_kw is not None
    map_path = own_map if writes_map else request.services or own_map
    map_text = _map_text(services, scale_kw) if writes_map else ""
    map_is_there = writes_map and _has(own_map, map_text)  # a killed run wrote it, and no config
    if writes_map and not map_is_there:
        _refuse_overwriting(own_map)
    facts = _public_facts(request, feeder, meters, services, _relative(map_path, request.config), scale_kw)
    text = _aligned(_filled("release.toml", **facts))
    say("checking the feeder")
    config = parse_config(tomllib.loads(text), base=request.config.resolve().parent)
    if problems := _problems(config, feeder, _declared(services)):
        raise FeederError(internal_list(problems))
    if writes_map and not map_is_there:
        write_named(own_map, map_text.encode())
    write_named(request.config, text.encode())
    notes = _notes(request, meters, feeder, services, facts["services"])
    return Written(request.config, own_map if writes_map else None, notes)


def write_example(path: Path, mode: str) -> Written:
    """Write the example of a mode: every key, on public data."""
    _check_mode(mode)
    _refuse_overwriting(path)
    write_named(path, example(mode).encode())
    return Written(path, None, ())


def _check_mode(word: str) -> None:
    if word not in MODES:
        raise ConfigError(f"--mode is one of {', '.join(MODES)}, not '{word}'")


def _refuse_overwriting(path: Path) -> None:
    if path.exists():
        raise ConfigError(f"{path} exists already; give another name, or move it away", code="output-taken")
    if not path.resolve().parent.is_dir():
        raise ConfigError(f"the folder of {path} does not exist; make it first", code="config-not-found")


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
        raise FeederError(f"{feeder} does not exist; check the path of --feeder", code="feeder-not-found")
    return feeder


def _check_services(services: ServiceMap) -> None:
    points, labelled = len(services.load_points), len(services.class_of)
    if points < _FEWEST:
        raise LoadDataError(
            "there is only one load point, but differential privacy hides one customer among many; add "
            "customers",
            code="too-few-customers",
        )
    if 0 < labelled < points:
        raise ServiceMapError(
            f"{points - labelled} of {points} load points of the service map have no class; give one to all "
            "or to none"
        )


def _written_scale(request: SetupRequest, services: ServiceMap) -> float | None:
    """The public scale that the map lacks and the true network needs: a node is one customer scaled up."""
    if request.mode == TWIN or services.scale_kw_of:
        return None
    labels = tuple(services.class_of.values())
    return kind_of(class_of_nodes(labels) if labels else None).kw_per_customer


def _public_facts(
    request: SetupRequest,
    feeder: FeederFacts,
    meters: MeterFacts,
    services: ServiceMap,
    map_path: str,
    written_scale_kw: float | None,
) -> dict[str, Any]:
    """The facts of a config: format, declared facts, and public figures."""
    stem = _name(request.config.stem)
    release_id = f"{stem}-1" if request.release_id is None else request.release_id
    problem = RELEASE_RULE.problem(release_id)
    if problem is not None:
        raise ConfigError(f"--id '{release_id}' is not usable: {problem}")
    is_file = request.feeder.lower().endswith((".dss", ".json"))
    twin = request.mode == TWIN
    labels = tuple(sorted(set(services.class_of.values())))
    load_class = class_of_nodes(services.class_of.values()) if labels else None
    kind = kind_of(load_class)
    scale_kw = fmean(services.scale_kw_of.values()) if services.scale_kw_of else written_scale_kw

    def bounds(of: CustomerKind) -> tuple[float, float]:
        """Public bounds of a kind of customers [kW, or relative to the scale]."""
        if not twin:
            return of.bounds_of_one(scale_kw or kind.kw_per_customer)
        return of.bounds_kw if scale_kw is None else BOUNDS_OF_SCALE

    return {
        "twin": twin,
        "source": _relative(Path(request.feeder), request.config) if is_file else request.feeder,
        "taps": None if request.taps is None else _relative(request.taps, request.config),
        "loads": None if request.loads is None else _relative(request.loads, request.config),
        "feeder": feeder,
        "latitude": request.latitude,
        "path": _relative(request.meters, request.config),
        "services": map_path,
        "load_points": len(services.load_points),
        "meters": meters,
        "delta": delta_for(len(services.load_points)),
        "scaled": scale_kw is not None,
        "bounds": bounds,
        "kind": kind,
        "labels": labels,
        "load_class": load_class,
        "others": {label: kind_of(label) for label in labels if kind_of(label) is not kind},
        # The upper bound of a node is its nominal load, which feeders are built for: a public rule.
        "scale_factor": float(f"{1.0 / bounds(kind)[1]:.2g}"),
        "release_id": release_id,
        "days": _DAYS if request.days is None else request.days,
        "output": stem,
        "published": request.published,
    }


def _relative(path: Path, config: Path) -> str:
    """A path as it stands in a config."""
    return Path(os.path.relpath(path.resolve(), config.resolve().parent)).as_posix()


def _problems(config: Config, facts: FeederFacts, services: Services) -> tuple[str, ...]:
    """Why no twin can be drawn of the feeder, or it cannot be solved with fixed taps; INTERNAL."""
    network = config.network
    found = twin_problems(facts, network.design) if isinstance(network, TwinNetwork) else ()
    try:
        if isinstance(network, TwinNetwork):
            count_customers(config, facts.feeder, services)
        else:
            some_loaded_nodes(facts.feeder)
            require_declared_taps(config, facts.feeder)
    except ConfigError as error:
        return (*found, str(error))
    return found


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
    request: SetupRequest, meters: MeterFacts, feeder: FeederFacts, services: ServiceMap, map_path: str
) -> tuple[str, ...]:
    listed, metered = set(services.customers), set(meters.customers)
    text = _filled(
        "init-notes.txt",
        request=request,
        meters=meters,
        feeder=feeder,
        services=map_path,
        days=(meters.last_day - meters.first_day).days + 1,
        absent=len(listed - metered),
        unlisted=len(metered - listed),
        true_network=request.mode == TRUE,
    )
    return tuple(text.rstrip("\n").split("\n"))
