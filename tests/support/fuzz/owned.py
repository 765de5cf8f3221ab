"""Doors of what an owner gives: configs, meters, lists of customers, days, load shapes, the private state."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter
from typing_extensions import TypedDict

import dp_powerflow as dpf
from dp_powerflow._names import RELEASE_ID
from dp_powerflow.almanac.calendar import WeatherFormat, read_holidays
from dp_powerflow.almanac.weather import Weather
from dp_powerflow.fleet.config import read_fleet_config
from dp_powerflow.fleet.customers import read_feeder_map
from dp_powerflow.fleet.feeders import find_sources, read_register
from dp_powerflow.fleet.owner import read_failures
from dp_powerflow.loads.declared import read_service_map
from dp_powerflow.loads.profiles import read_load_classes, read_opendss_shapes
from dp_powerflow.pipeline.inputs import almanac_of, budget_of, fit_options_of
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.plan import kept_model, open_ledger
from dp_powerflow.powerflow.sun import read_irradiance
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.setup import SetupRequest, set_up
from dp_powerflow.setup.facts import DeclaredFormat, Named
from support.fleet_small import RAW as FLEET_RAW
from support.fleet_small import TWIN, circuit
from support.fuzz.changes import (
    Mutate,
    csv_changed,
    damaged,
    json_changed,
    parquet_changed,
    sqlite_changed,
    toml_changed,
    words_changed,
)
from support.fuzz.judging import Door, WrongAcceptanceError
from support.fuzz.world import DAYS, FLEET, SECRET, SEED, STEP_MINUTES, World, copied
from support.own_config import RAW as OWN_RAW
from support.small import RAW as SMALL_RAW
from support.small import toml_text

FORMAT = dpf.MeterFormat("kWh per interval", "start", "Europe/Berlin", STEP_MINUTES)
FIRST, LAST = dt.date.fromisoformat(DAYS[0]), dt.date.fromisoformat(DAYS[-1])


def through(path: Path, read: Callable[[Path], object]) -> Callable[[bytes], None]:
    """An input as a file, for a function that reads it."""

    def enter(content: bytes) -> None:
        path.write_bytes(content)
        read(path)

    return enter


# ------------------------------------------------------------------------------------------------- configs
def _must_be_usable(config: Any) -> None:
    """What an accepted config must be, whatever was written."""
    model, network = config.model, config.network
    figures = (model.epsilon, model.delta, network.epsilon, network.delta)
    if not all(math.isfinite(figure) for figure in figures) or model.epsilon <= 0.0 or network.epsilon <= 0.0:
        raise WrongAcceptanceError("a config without a positive epsilon is accepted")
    if not (0.0 < model.delta < 1.0 and 0.0 <= network.delta < 1.0):
        raise WrongAcceptanceError("a config whose delta is no probability is accepted")
    section = config.release if hasattr(config, "release") else config.fleet
    if section.days < 1 or not re.fullmatch(RELEASE_ID, section.id):
        raise WrongAcceptanceError("a config with an unusable id or without days is accepted")


def config(world: World) -> Door:
    """The TOML file of a release."""
    folder = world.folder("config")
    for name in (
        "net.dss",
        "meters.csv",
        "services.csv",
        "sun.txt",
        "taps.csv",
        "holidays.txt",
        "weather.csv",
    ):
        (folder / name).write_text("a\n")
    twin = {"mode": "twin-network", "epsilon": 4.0, "id": "tw-1", "change": 0.05, "controls": "day"}
    dated = {
        "release": {**SMALL_RAW["release"], "days": 3, "first_day": dt.date(2024, 1, 1)},
        "network": twin,
    }
    beside = {"calendar": {"holidays": [dt.date(2024, 1, 1)]}, "weather": {"path": "weather.csv"}}
    nodes = {"nodes": {"load_class": "residential", "kw_per_customer": 10.0}}
    publication = {"publication": {"publisher": "P", "license": "CC-BY-4.0", "citation": "C"}}
    raws = (SMALL_RAW, OWN_RAW, {**SMALL_RAW, **dated, **beside, **nodes, **publication})
    path = folder / "release.toml"

    def enter(content: bytes) -> None:
        path.write_bytes(content)
        found = dpf.read_config(path)
        _must_be_usable(found)
        budget_of(found)
        fit_options_of(found)
        mode_of(found)
        if (
            found.release.days < 10_000
            and found.weather is None
            and not isinstance(found.calendar.holidays, Path)
        ):
            almanac_of(found)

    return Door(tuple(toml_text(raw).encode() for raw in raws), toml_changed, enter)


def fleet_config(world: World) -> Door:
    """The TOML file of a fleet."""
    folder = world.folder("fleet-config")
    (folder / "feeders").mkdir(exist_ok=True)
    for key in ("alder-lane", "birch-lane"):
        (folder / "feeders" / f"{key}.dss").write_text(circuit(1.0))
    (folder / "weather.csv").write_text("a\n")
    twins = {**FLEET_RAW, "network": TWIN, "nodes": {"load_class": "residential", "kw_per_customer": 20.0}}
    twins |= {"overrides": {"alder-lane": {"network": {"epsilon": 2.0}, "remove": ["nodes.load_class"]}}}

    def read(path: Path) -> None:
        found = read_fleet_config(path)
        _must_be_usable(found)
        find_sources(found)

    seeds = tuple(toml_text(raw).encode() for raw in (FLEET_RAW, twins))
    return Door(seeds, toml_changed, through(folder / "fleet.toml", read))


# -------------------------------------------------------------------------------------------------- meters
def _must_be_loads(history: dpf.LoadHistory) -> None:
    if not np.isfinite(history.load_kw).all() or not (history.load_kw > 0.0).all():
        raise WrongAcceptanceError("loads that are no positive numbers are accepted")
    if history.load_kw.shape[1:] != (len(history.days), 1440 // history.step_minutes):
        raise WrongAcceptanceError("loads that do not fill their days are accepted")


def meters(ending: str, *, wide: bool, listed: bool) -> Callable[[World], Door]:
    """A file of readings; `listed` with a list of customers and declared days."""

    def make(world: World) -> Door:
        folder = world.folder(f"meters-{ending}-{wide}-{listed}")
        path, services = folder / f"meters.{ending}", folder / "services.csv"
        services.write_bytes(world.services_csv())
        columns = dpf.WideColumns() if wide else dpf.LongColumns()
        seed = {
            ("csv", False): world.long_csv,
            ("csv", True): world.wide_csv,
            ("parquet", False): world.long_parquet,
            ("parquet", True): world.wide_parquet,
        }[ending, wide]()

        def enter(content: bytes) -> None:
            path.write_bytes(content)
            given = {"services": services, "days": (FIRST, LAST)} if listed else {}
            _must_be_loads(dpf.read_meters(path, FORMAT, columns, **given))  # type: ignore[arg-type]

        mutate: Mutate = csv_changed if ending == "csv" else parquet_changed
        return Door((seed,), mutate, enter, (SECRET,))

    return make


class GivenFormat(TypedDict):
    """What `read_meters` is told of a file."""

    fmt: dpf.MeterFormat
    columns: dpf.LongColumns


def meter_format(world: World) -> Door:
    """The declared format of a meter file."""
    path, given = world.folder("meter-format") / "meters.csv", TypeAdapter(GivenFormat)
    path.write_bytes(world.long_csv())

    def enter(content: bytes) -> None:
        try:
            told = json.loads(content)
            told["fmt"]["missing"] = tuple(told["fmt"]["missing"])
            told = given.validate_python(told, strict=True)
        except (ValueError, KeyError, TypeError, RecursionError):
            return  # no call that a type checker would let pass
        _must_be_loads(dpf.read_meters(path, told["fmt"], told["columns"]))

    seed = given.dump_json({"fmt": FORMAT, "columns": dpf.LongColumns()})
    return Door((seed,), json_changed, enter, (SECRET,))


READ = (dt.date(2024, 1, 1), dt.date(2024, 1, 6))


def set_up_from(world: World) -> Door:
    """A meter file that `init` takes facts of format from."""
    folder = world.folder("init")
    feeder = folder / "net.dss"
    feeder.write_text(circuit(1.0))
    request = SetupRequest(
        config=folder / "release.toml",
        feeder=str(feeder),
        meters=folder / "meters.csv",
        services=None,
        taps=None,
        declared=DeclaredFormat("kWh per interval", "Europe/Berlin", "start", Named(None, None, None), READ),
        mode="twin-network",
        days=None,
        release_id=None,
        latitude=None,
    )

    def enter(content: bytes) -> None:
        for path in folder.iterdir():
            if path != feeder:
                path.unlink()
        request.meters.write_bytes(content)
        set_up(request, lambda _: None)

    return Door((world.long_csv(), world.wide_csv()), csv_changed, enter, (SECRET,))


def services(world: World) -> Door:
    """A list of customers."""
    path = world.folder("services") / "services.csv"

    def enter(content: bytes) -> None:
        path.write_bytes(content)
        found = read_service_map(path)
        read_feeder_map(path)
        points = [found.load_point_of[customer] for customer in found.customers]
        folded = {customer.casefold().strip() for customer in found.customers}
        if len(folded) < len(points):
            raise WrongAcceptanceError("customers that look alike are accepted")

    return Door((world.services_csv(),), csv_changed, enter, (SECRET,))


# ---------------------------------------------------------------------------------------------------- days
def weather(ending: str) -> Callable[[World], Door]:
    """A file of weather."""

    def make(world: World) -> Door:
        import pyarrow as pa

        from support.fuzz.world import parquet_bytes

        path = world.folder("weather") / f"weather.{ending}"
        hours = [f"{day}T{hour:02d}:00+02:00" for day in DAYS for hour in range(24)]
        values = [12.0 + 5.0 * math.sin(k / 4.0) for k in range(len(hours))]
        rows = [
            f"{stamp},{value:.2f},{max(0.0, value - 8.0) * 50.0:.1f}"
            for stamp, value in zip(hours, values, strict=True)
        ]
        text = "\n".join(["time,temperature,ghi", *rows, ""]).encode()
        dates = "\n".join(["time,temperature,ghi", *(f"{day},10.5,200" for day in DAYS), ""]).encode()
        table = parquet_bytes(pa.table({"time": hours, "temperature": values, "ghi": values}))
        seeds, mutate = ((text, dates), csv_changed) if ending == "csv" else ((table,), parquet_changed)

        def enter(content: bytes) -> None:
            path.write_bytes(content)
            found = Weather.read(path, "Europe/Berlin", WeatherFormat(irradiance="ghi"))
            if not np.isfinite(found.features(found.days)).all():
                raise WrongAcceptanceError("weather without figures is accepted")

        return Door(seeds, mutate, enter)

    return make


def holidays(world: World) -> Door:
    """A file of holidays."""
    enter = through(world.folder("holidays") / "holidays.txt", read_holidays)
    seed = b"# days off\n2024-12-25  # Christmas\n\n2024-05-01\n2024-01-01\n"
    words = ("2024-02-29", "2023-02-29", "20240101", "2024-W10", "#", "1.5.2024")
    return Door((seed,), words_changed(words), enter)


def irradiance(world: World) -> Door:
    """A file of irradiance."""
    path = world.folder("sun") / "sun.csv"
    seeds = (
        b"0\n0.1\n0.7\n0.9\n0.3\n0\n",
        b"roof,barn\n" + b"0,0\n0.1,0.2\n0.7,0.7\n1,1\n0.2,0.1\n0,0\n" * 2,
    )

    def enter(content: bytes) -> None:
        path.write_bytes(content)
        found = read_irradiance(path, 6, ("roof", "barn"))
        if not (np.isfinite(found).all() and (found >= 0.0).all()):
            raise WrongAcceptanceError("irradiance that is no share is accepted")

    return Door(seeds, csv_changed, enter)


def load_shapes(world: World) -> Door:
    """A file of a load shape."""
    folder = world.folder("shapes")
    other = "\n".join(f"{0.3 + 0.1 * (k % 5):.2f}" for k in range(8)) + "\n"
    (folder / "loadshape_one.csv").write_text(other)
    path = folder / "loadshape_two.csv"

    def enter(content: bytes) -> None:
        path.write_bytes(content)
        kw = {"one": 10.0, "two": 20.0}
        found = read_opendss_shapes(folder, first_day=FIRST, nominal_kw=kw, step_minutes=STEP_MINUTES)
        _must_be_loads(found.history)

    return Door((other.encode(),), csv_changed, enter)


def load_classes(world: World) -> Door:
    """A file of classes of loads."""
    enter = through(world.folder("classes") / "classes.csv", read_load_classes)
    return Door((b"load,class\none,homes\ntwo,shops\nS3,homes\n",), csv_changed, enter)


# ------------------------------------------------------------------------------------------- private state
def state_file(name: str, mutate: Mutate) -> Callable[[World], Door]:
    """A file of the private state: what is read must be what was there, or be refused."""

    def make(world: World) -> Door:
        source, numbers = world.state, itertools.count()
        folder = world.folder(f"states-{Path(name).name}")
        chosen = world.release.inputs.config
        before = _summary(source, chosen)
        seed = (source / name).read_bytes()
        secret = json.loads((source / "secret.key").read_bytes())["secret"]

        def enter(content: bytes) -> None:
            root = copied(source, folder / str(next(numbers) % 16))  # no process remembers so many
            (root / name).write_bytes(content)
            found = _summary(root, chosen)
            if found[:2] != before[:2]:
                raise WrongAcceptanceError(f"{name} was changed, and the ledger says something else")

        return Door((seed,), mutate, enter, (secret, secret[:16]))

    return make


def _summary(root: Path, chosen: dpf.Config) -> tuple[Any, ...]:
    """All that is read of a private state by those who plan and make releases."""
    state = PrivateState.open(root, create=False, insecure_seed=SEED)
    ledger = open_ledger(state)
    register = read_register(state, FLEET)
    failures = [item["feeder"] for item in read_failures(state, FLEET)]
    model = kept_model(chosen, state)
    return ledger.summary(), ledger.spends(), register, failures, model


DOORS: dict[str, Callable[[World], Door]] = {
    "config": config,
    "fleet config": fleet_config,
    "meters, long CSV": meters("csv", wide=False, listed=False),
    "meters, long CSV, listed": meters("csv", wide=False, listed=True),
    "meters, wide CSV": meters("csv", wide=True, listed=False),
    "meters, wide CSV, listed": meters("csv", wide=True, listed=True),
    "meters, long Parquet": meters("parquet", wide=False, listed=True),
    "meters, wide Parquet": meters("parquet", wide=True, listed=False),
    "meter format": meter_format,
    "meters, init": set_up_from,
    "services": services,
    "weather, CSV": weather("csv"),
    "weather, Parquet": weather("parquet"),
    "holidays": holidays,
    "irradiance": irradiance,
    "load shape": load_shapes,
    "load classes": load_classes,
    "ledger": state_file("ledger.sqlite", sqlite_changed),
    "anchor": state_file("ledger.anchor", damaged),
    "secret key": state_file("secret.key", json_changed),
    "receipt": state_file("internal/r-1/paid-5.json", json_changed),
    "kept model": state_file("internal/r-1/model.json", json_changed),
    "fleet register": state_file(f"internal/{FLEET}/feeders.json", json_changed),
    "fleet failures": state_file(f"internal/{FLEET}/failures.json", json_changed),
}
