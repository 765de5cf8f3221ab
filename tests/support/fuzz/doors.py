"""Formats by name: what an owner gives, what somebody receives, feeders, and what people type."""

from __future__ import annotations

import datetime as dt
import gc
import io
import itertools
import json
import math
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

import dp_powerflow as dpf
from dp_powerflow._names import RELEASE_ID
from dp_powerflow._parallel import cluster, engine_of
from dp_powerflow.almanac.calendar import WeatherFormat, read_holidays
from dp_powerflow.almanac.weather import Weather
from dp_powerflow.cli import main
from dp_powerflow.cli.checks import render_verification
from dp_powerflow.corpus.reader import Corpus
from dp_powerflow.errors import ConfigError, CorpusError, DpPowerflowError
from dp_powerflow.fleet.customers import read_feeder_map
from dp_powerflow.fleet.feeders import find_sources, read_fleet_config, read_register
from dp_powerflow.fleet.manifest import read_entries
from dp_powerflow.fleet.owner import read_failures
from dp_powerflow.fleet.publishing import fleet_page, read_summaries
from dp_powerflow.fleet.verify import hear_witnesses
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.opendss.script import read_script
from dp_powerflow.grid.sources import feeder_problems, open_feeder, read_loads, read_taps
from dp_powerflow.loads.declared import read_service_map
from dp_powerflow.loads.ingest import read_load_classes, read_opendss_shapes
from dp_powerflow.page import read_summary
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
    WORDS,
    Mutate,
    csv_changed,
    damaged,
    edited,
    json_changed,
    nasty_text,
    parquet_changed,
    sqlite_changed,
    toml_changed,
    words_changed,
)
from support.fuzz.judging import Door, WrongAcceptanceError, wrong_words
from support.fuzz.world import DAYS, FLEET, SECRET, SEED, STEP_MINUTES, World, copied, swapped
from support.own_config import RAW as OWN_RAW
from support.own_config import write_own
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


_TYPES: dict[Any, tuple[type, ...]] = {
    **{"str": (str,), "int": (int,), "tuple[str, ...]": (tuple,)},
    "str | None": (str, type(None)),
}


def typed(kind: Callable[..., Any], given: dict[str, Any]) -> Any:
    """A dataclass made of values, as far as a type checker would let them pass."""
    known = {field.name: _TYPES[field.type] for field in fields(kind)}  # type: ignore[arg-type]
    if not all(type(value) in known[name] for name, value in given.items()):
        raise TypeError
    return kind(**given)


def meter_format(world: World) -> Door:
    """The declared format of a meter file."""
    path = world.folder("meter-format") / "meters.csv"
    path.write_bytes(world.long_csv())

    def enter(content: bytes) -> None:
        try:
            given = json.loads(content)
            given["fmt"]["missing"] = tuple(map(str, given["fmt"]["missing"]))
            fmt, columns = typed(dpf.MeterFormat, given["fmt"]), typed(dpf.LongColumns, given["columns"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return
        _must_be_loads(dpf.read_meters(path, fmt, columns))

    seed = json.dumps({"fmt": asdict(FORMAT), "columns": asdict(dpf.LongColumns())}).encode()
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


OWNED: dict[str, Callable[[World], Door]] = {
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


def _is_told_well(report: dpf.Config | object) -> None:
    """Every sentence of a report can be shown."""
    for line in render_verification(report).lines:  # type: ignore[arg-type]
        if line and wrong_words(line):
            raise WrongAcceptanceError(f"a line of the report has a {wrong_words(line)}")


def _verified(release: Path, name: str, mutate: Mutate, private: Path | None = None) -> Door:
    """A file of a release goes through `verify`: any change of it must be found."""
    original = (release / name).read_bytes()

    def enter(content: bytes) -> None:
        with swapped(release / name, content):
            report = dpf.verify(release, private=private)
        _is_told_well(report)
        if report.intact:
            if content != original:
                raise WrongAcceptanceError(f"{name} was changed and the release is called intact")
            return
        raise CorpusError("the release is not intact")

    return Door((original,), mutate, enter)


def verified(name: str, mutate: Mutate) -> Callable[[World], Door]:
    """A file of a release on a twin."""
    return lambda world: _verified(world.release.path, name, mutate)


def verified_true(name: str, mutate: Mutate) -> Callable[[World], Door]:
    """A file of a release on the true network."""
    return lambda world: _verified(world.true_release.path, name, mutate)


def audited(world: World) -> Door:
    """The manifest, looked at with the private state."""
    return _verified(world.release.path, "manifest.json", json_changed, world.release.state)


def _read_all(corpus: Corpus) -> None:
    """Everything that a corpus can be asked for."""
    found = [corpus.voltages(), *(getattr(corpus, name)() for name in corpus.extras.holds)]
    if not all(np.isfinite(values).all() for values in found):
        raise WrongAcceptanceError("a corpus holds values that are no numbers")
    _ = corpus.connections, corpus.calendar, corpus.weather, corpus.times(), corpus.to_pandas(days=[0])
    corpus.hashes()


def read(name: str) -> Callable[[World], Door]:
    """A file of a corpus, read as a user reads it."""

    def make(world: World) -> Door:
        release = world.release.path

        def enter(content: bytes) -> None:
            with swapped(release / name, content):
                _read_all(dpf.open_corpus(release))

        return Door(((release / name).read_bytes(),), parquet_changed, enter)

    return make


def quality(world: World) -> Door:
    """A part, looked at for the page of quality."""
    release = world.release.path
    name = "data/part-00000.parquet"

    def enter(content: bytes) -> None:
        with swapped(release / name, content):
            dpf.quality(dpf.open_corpus(release), workers=1).to_json()

    return Door(((release / name).read_bytes(),), parquet_changed, enter)


def load_model(world: World) -> Door:
    """A load model that somebody gives."""
    texts = tuple((made.path / "model.json").read_bytes() for made in (world.release, world.true_release))
    path = world.folder("model") / "model.json"
    spent = min(dpf.LoadModel.from_json(text.decode()).spent_epsilon for text in texts)

    def enter(content: bytes) -> None:
        path.write_bytes(content)
        model = dpf.LoadModel.load(path)
        if not 0.0 < model.spent_epsilon < np.inf:
            raise WrongAcceptanceError("a load model without a cost is accepted")
        if model.origin is not None and content not in texts and model.spent_epsilon < spent * 0.999999:
            _check_costs(model)

    return Door(texts, json_changed, enter)


def _check_costs(model: dpf.LoadModel) -> None:
    """A cheaper model must have answers with more noise, by its own words."""
    if any(not cost.rho > 0.0 for cost in model.costs):
        raise WrongAcceptanceError("a load model with a query that costs nothing is accepted")


def twin_record(world: World) -> Door:
    """A twin that is kept in the private state."""
    from dp_powerflow.twin.draw import Twin

    def enter(content: bytes) -> None:
        Twin.from_json(content.decode(errors="replace"))

    return Door((world.twin_record,), json_changed, enter)


def fleet_file(world: World) -> Door:
    """`fleet.json`, through `verify`."""
    return _verified(world.fleet, "fleet.json", json_changed)


def fleet_opened(world: World) -> Door:
    """`fleet.json`, opened and read."""
    place = world.fleet

    def enter(content: bytes) -> None:
        with swapped(place / "fleet.json", content):
            fleet = dpf.open_fleet(place)
            for name in fleet.names:
                fleet.feeder(name).voltages(days=[0])

    return Door(((place / "fleet.json").read_bytes(),), json_changed, enter)


def fleet_entry(world: World) -> Door:
    """The manifest of a feeder of a fleet, as the page of the fleet reads it."""
    place = world.fleet
    name = "feeder=feeder-0001/manifest.json"

    def enter(content: bytes) -> None:
        with swapped(place / name, content):
            entries = read_entries(place)
            fleet_page("north", entries, read_summaries(place, entries)).to_html()

    return Door(((place / name).read_bytes(),), json_changed, enter)


def fleet_quality(world: World) -> Door:
    """The page of a feeder, whose figures the page of the fleet shows."""
    place = world.fleet
    name = "feeder=feeder-0001/quality.html"
    page = (place / name).read_bytes()
    marked = page.find(b'id="summary">')

    def mutate(rng: random.Random, content: bytes) -> bytes:
        end = content.find(b"</script>", marked)
        begin = marked + len(b'id="summary">')
        if rng.random() < 0.2:
            return damaged(rng, content)
        return content[:begin] + json_changed(rng, content[begin:end]) + content[end:]

    def enter(content: bytes) -> None:
        read_summary(content)
        with swapped(place / name, content):
            entries = read_entries(place)
            fleet_page("north", entries, read_summaries(place, entries)).to_html()

    return Door((page,), mutate, enter)


def witness(world: World) -> Door:
    """The manifest of an earlier release, heard against a ledger."""
    path = world.folder("witness") / "manifest.json"
    seed = (world.release.path / "manifest.json").read_bytes()

    def enter(content: bytes) -> None:
        path.write_bytes(content)
        for sentence in hear_witnesses(world.state, [str(path.parent)]).contradictions:
            if wrong_words(sentence):
                raise WrongAcceptanceError(f"a sentence of a witness has a {wrong_words(sentence)}")

    return Door((seed,), json_changed, enter)


def gridfm(name: str, mutate: Mutate) -> Callable[[World], Door]:
    """A file of the tables of a published twin."""

    def make(world: World) -> Door:
        directory = world.gridfm
        [path, *_] = sorted(found for found in directory.rglob(name) if found.is_file())

        def enter(content: bytes) -> None:
            with swapped(path, content):
                data = dpf.read_gridfm(directory)
                with np.errstate(all="ignore"):
                    data.mismatch_mw()
                    data.voltage()

        return Door((path.read_bytes(),), mutate, enter)

    return make


def location(world: World) -> Door:
    """Where a release is said to be, in words of a user."""
    seeds = [
        str(world.release.path),
        str(world.fleet),
        world.release.path.as_uri(),
        "memory://bucket/release",
    ]
    seeds += [
        "release",
        "s3a:/x",
        f"file://localhost{world.release.path}",
        "simplecache::memory://x",
        "zip://a::memory://b",
    ]

    def enter(content: bytes) -> None:
        text = content.decode("utf-8", "surrogateescape")
        if text.lower().startswith(
            ("s3", "http", "ftp", "sftp", "ssh", "gs", "gcs", "az", "abfs", "hdfs", "git", "smb")
        ):
            raise CorpusError("stores beyond this machine are not asked")
        try:
            dpf.open_corpus(text)
        except DpPowerflowError:
            dpf.verify(text)

    return Door(
        tuple(text.encode() for text in seeds),
        words_changed(("://", "/", "..", "file:", "memory:", "::", "?a", "#b")),
        enter,
    )


RELEASED: dict[str, Callable[[World], Door]] = {
    "manifest": verified("manifest.json", json_changed),
    "manifest, true network": verified_true("manifest.json", json_changed),
    "manifest, audited": audited,
    "model.json of a release": verified("model.json", json_changed),
    "croissant": verified("croissant.json", json_changed),
    "registry": verified("registry.yaml", words_changed(WORDS["YAML"])),
    "certificate": verified("certificate.html", words_changed(WORDS["pages"])),
    "quality page": verified("quality.html", words_changed(WORDS["pages"])),
    "card": verified("README.md", words_changed(WORDS["YAML"])),
    "part, verified": verified("data/part-00001.parquet", parquet_changed),
    "nodes, verified": verified("nodes.parquet", parquet_changed),
    "part, read": read("data/part-00000.parquet"),
    "nodes, read": read("nodes.parquet"),
    "loads, read": read("loads/part-00000.parquet"),
    "states, read": read("feeder/part-00000.parquet"),
    "buses, read": read("buses.parquet"),
    "days, read": read("days.parquet"),
    "connections, read": read("connections.parquet"),
    "part, quality": quality,
    "load model": load_model,
    "kept twin": twin_record,
    "fleet.json": fleet_file,
    "fleet.json, opened": fleet_opened,
    "fleet entry": fleet_entry,
    "fleet quality": fleet_quality,
    "witness": witness,
    "gridfm table": gridfm("*.parquet", parquet_changed),
    "gridfm count": gridfm("*.txt", damaged),
    "location": location,
}


@contextmanager
def within(folder: Path) -> Iterator[None]:
    """This working directory, for a while."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _must_be_a_feeder(feeder: Feeder) -> None:
    if not np.isfinite(feeder.y.data).all() or not np.isfinite(feeder.v_slack).all():
        raise WrongAcceptanceError("a feeder without finite figures is accepted")
    if not np.isfinite(feeder.nominal_load).all():
        raise WrongAcceptanceError("a feeder with loads that are no numbers is accepted")


def opendss(world: World) -> Door:
    """An OpenDSS file, opened as a feeder."""
    folder, elsewhere = world.folder("dss"), world.folder("dss-elsewhere")
    (folder / "other.dss").write_text("New Load.other bus1=b phases=3 kv=12.47 kw=5\n")
    path = folder / "feeder.dss"
    path.write_bytes(b"")

    def enter(content: bytes) -> None:
        path.write_bytes(content)
        with within(elsewhere):
            _must_be_a_feeder(open_feeder(path))

    seeds = (world.circuit, world.tiny_circuit, circuit(1.0).encode())
    return Door(seeds, words_changed(WORDS["OpenDSS"]), enter, closed=(elsewhere, folder))


def opendss_problems(world: World) -> Door:
    """An OpenDSS file, with everything that is wrong with it."""
    folder = world.folder("dss-problems")
    path = folder / "feeder.dss"
    path.write_bytes(b"")

    def enter(content: bytes) -> None:
        path.write_bytes(content)
        for sentence in feeder_problems(path):
            if wrong_words(sentence):
                raise WrongAcceptanceError(f"a problem of a feeder has a {wrong_words(sentence)}")

    seeds = (world.circuit, world.tiny_circuit)
    return Door(seeds, words_changed(WORDS["OpenDSS"]), enter, closed=(folder,))


def opendss_script(world: World) -> Door:
    """An OpenDSS file, read by our own parser."""
    folder = world.folder("script")
    (folder / "other.dss").write_text("New Load.other bus1=b phases=3 kv=12.47 kw=5\n")
    enter = through(folder / "feeder.dss", read_script)
    return Door((world.circuit, world.tiny_circuit), words_changed(WORDS["OpenDSS"]), enter)


def pandapower(world: World) -> Door:
    """A pandapower net."""
    folder = world.folder("net")
    path = folder / "net.json"
    path.write_bytes(world.net)
    enter = through(path, lambda path: _must_be_a_feeder(open_feeder(path)))
    return Door((world.net,), _net_changed, enter, closed=(folder,))


def _net_changed(rng: random.Random, content: bytes) -> bytes:
    """A net in which a table within a text is changed, or anything else."""
    if rng.random() < 0.4:
        return json_changed(rng, content)
    tree = json.loads(content)
    tables = tree["_object"]
    name = rng.choice(
        [key for key, value in tables.items() if isinstance(value, dict) and "_object" in value]
    )
    inner = tables[name]["_object"]
    try:
        if isinstance(inner, str):
            tables[name]["_object"] = json_changed(rng, inner.encode()).decode("utf-8", "replace")
        else:
            tables[name]["_object"] = json.loads(json_changed(rng, json.dumps(inner).encode()))
    except (ValueError, RecursionError):
        return json_changed(rng, content)
    return json.dumps(tree).encode()


def taps(world: World) -> Door:
    """A file of taps, for the feeder that it is of."""
    folder = world.folder("taps")
    feeder, path = folder / "feeder.dss", folder / "taps.csv"
    feeder.write_bytes(world.circuit)
    named = "\n".join(f"{tap.transformer},{tap.winding},{tap.ratio}" for tap in open_feeder(feeder).taps)
    seed = f"# declared: the operator\ntransformer,winding,tap\n{named}\n".encode()
    enter = through(path, lambda path: _must_be_a_feeder(open_feeder(feeder, taps=read_taps(path))))
    return Door((seed,), csv_changed, enter)


def loads(world: World) -> Door:
    """A file of nominal loads, for the feeder that it is of."""
    folder = world.folder("loads")
    feeder, path = folder / "feeder.dss", folder / "loads.csv"
    feeder.write_bytes(world.circuit)
    rows = [f"{load.name},{load.kw},{load.kvar},2" for load in open_feeder(feeder).loads]
    seed = "\n".join(["name,kw,kvar,customers", *rows, ""]).encode()
    enter = through(path, lambda path: _must_be_a_feeder(open_feeder(feeder, loads=read_loads(path))))
    return Door((seed,), csv_changed, enter)


def scheduler(world: World) -> Door:
    """Address of a cluster; nobody is connected to."""
    cluster.CONNECT_SECONDS = 1
    seeds = (
        b"tls://127.0.0.1:1",
        b"tcp://127.0.0.1:1",
        b"127.0.0.1:1",
        b"inproc://x",
        b"ucx://h:1",
        b"local",
    )

    def enter(content: bytes) -> None:
        text = content.decode("utf-8", "surrogateescape")
        if text == "local":
            return
        gc.collect()  # a client that did not connect, collected while another begins, waits for it for ever
        engine_of(None, text).check()

    return Door(
        seeds, words_changed(("tcp://", "tls://", ":", "/", "[::1]", "65536", "-1")), enter, may_connect=True
    )


# -------------------------------------------------------------------------------------------- command line
def command_line(world: World) -> Door:
    """What is typed after `dp-powerflow`, in a folder with valid files."""
    folder = world.folder("typed/a/b/c/d/e")
    write_own(folder)
    (folder / "small.toml").write_text(toml_text(SMALL_RAW))
    (folder / "feeder.dss").write_bytes(world.circuit)
    places = {"release": world.release.path, "fleet": world.fleet, "state": world.state}
    calls = [[word.format(**places) for word in call.split()] for call in WORDS["command line"]]
    seeds = tuple(json.dumps(call).encode() for call in calls)

    def enter(content: bytes) -> None:
        try:
            arguments = json.loads(content)
        except (ValueError, RecursionError):
            return
        if not isinstance(arguments, list) or not all(isinstance(item, str) for item in arguments):
            return
        if any("\0" in item for item in arguments):
            return  # no shell can pass it
        _typed(folder, [item.encode("utf-8", "replace").decode() for item in arguments])

    return Door(seeds, _arguments_changed, enter)


def _typed(folder: Path, arguments: list[str]) -> None:
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["dp-powerflow", *arguments]
    try:
        with within(folder), redirect_stdout(out), redirect_stderr(err):
            main()
        code: object = 0
    except SystemExit as error:
        code = error.code
    finally:
        sys.argv = before
    (folder / "new.toml").unlink(missing_ok=True)
    if "Traceback" in err.getvalue() or code not in (None, 0, 1, 2, 3):
        raise WrongAcceptanceError(f"exit code {code}: {err.getvalue()[-2000:]}")
    said = [line for line in err.getvalue().splitlines() if line.startswith("error: ")]
    if said:
        if wrong_words(said[-1]):
            raise WrongAcceptanceError(f"what is shown has a {wrong_words(said[-1])}")
        raise ConfigError("refused")


def _arguments_changed(rng: random.Random, content: bytes) -> bytes:
    arguments: list[str] = json.loads(content)
    for _ in range(rng.choice((1, 1, 2, 3))):
        where = rng.randrange(len(arguments) + 1)
        choice = rng.randrange(6)
        if choice == 0:
            arguments.insert(
                where,
                rng.choice(
                    ("--json", "--plan", "--help", "--workers", "0", "--", "-x", nasty_text(rng)[:300])
                ),
            )
        elif where == len(arguments):
            arguments.append(nasty_text(rng)[:300])
        elif choice == 1:
            del arguments[where]
        elif choice == 2:
            arguments[where] = edited(rng, arguments[where])[:3000]
        elif choice == 3:
            arguments[where] = nasty_text(rng)[:3000]
        elif choice == 4:
            arguments.insert(where, arguments[where])
        else:
            name, sign, _ = arguments[where].partition("=")
            arguments[where] = (
                f"{name}={nasty_text(rng)[:300]}" if sign or name.startswith("--") else name.upper()
            )
    return json.dumps(arguments).encode()


CALLED: dict[str, Callable[[World], Door]] = {
    "OpenDSS": opendss,
    "OpenDSS, all problems": opendss_problems,
    "OpenDSS, parser": opendss_script,
    "pandapower": pandapower,
    "taps": taps,
    "loads of a feeder": loads,
    "scheduler": scheduler,
    "command line": command_line,
}
DOORS = {**OWNED, **RELEASED, **CALLED}
"""All formats, by name."""
