"""Formats by name: what an owner gives, what somebody receives, and feeders."""

from __future__ import annotations

import datetime as dt
import gc
import io
import itertools
import json
import math
import random
import re
import shutil
import warnings
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from pydantic import TypeAdapter

import dp_powerflow as dpf
from dp_powerflow import Feeder, PrivateState
from dp_powerflow._names import RELEASE_ID
from dp_powerflow._parallel import cluster, engine_of
from dp_powerflow.almanac.calendar import WeatherFormat, read_holidays
from dp_powerflow.almanac.weather import Weather
from dp_powerflow.cli.checks import render_verification
from dp_powerflow.errors import CorpusError, DpPowerflowError
from dp_powerflow.fleet.feeders import find_sources, read_fleet_config, read_register
from dp_powerflow.fleet.manifest import fleet_page, read_entries
from dp_powerflow.fleet.run import read_feeder_map
from dp_powerflow.fleet.verify import hear_witnesses
from dp_powerflow.grid.opendss.script import read_script
from dp_powerflow.grid.sources import feeder_problems, open_feeder, read_loads, read_taps
from dp_powerflow.loads.declared import read_service_map
from dp_powerflow.loads.ingest import read_load_classes, read_opendss_shapes
from dp_powerflow.pipeline.inputs import almanac_of, budget_of, fit_options_of
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.plan import kept_model, open_ledger
from dp_powerflow.powerflow.sun import read_irradiance
from dp_powerflow.setup import DeclaredFormat, SetupRequest, set_up
from dp_powerflow.twin.draw import Twin
from support.fleet_small import RAW as FLEET_RAW
from support.fleet_small import TWIN, circuit
from support.fuzz.changes import (
    WORDS,
    Mutate,
    csv_changed,
    damaged,
    json_changed,
    parquet_changed,
    toml_changed,
    words_changed,
)
from support.fuzz.judging import Door, WrongAcceptanceError, wrong_words
from support.fuzz.world import DAYS, FLEET, SECRET, SEED, STEP_MINUTES, World, swapped
from support.own_config import RAW as OWN_RAW
from support.small import RAW as SMALL_RAW
from support.small import toml_text

Make = Callable[[World], Door]
Read = Callable[[Path], object]
Files = dict[str, bytes]
FORMAT = dpf.MeterFormat("kWh per interval", "start", "Europe/Berlin", STEP_MINUTES)
FIRST, LAST = dt.date.fromisoformat(DAYS[0]), dt.date.fromisoformat(DAYS[-1])


def must(holds: object, words: str) -> None:
    """What is accepted must be so, whatever was written."""
    if not holds:
        raise WrongAcceptanceError(words)


def must_be_said_well(*sentences: str) -> None:
    """Every sentence can be shown."""
    for sentence in sentences:
        must(not sentence or not wrong_words(sentence), f"a sentence has a {wrong_words(sentence or '-')}")


MUTATE: dict[str, Mutate] = {
    **{".csv": csv_changed, ".json": json_changed, ".key": json_changed, ".toml": toml_changed},
    **{".parquet": parquet_changed, ".sqlite": damaged, ".anchor": damaged, ".txt": damaged},
    **{".yaml": words_changed(WORDS["YAML"]), ".md": words_changed(WORDS["YAML"])},
    **{".html": words_changed(WORDS["pages"]), ".dss": words_changed(WORDS["OpenDSS"])},
}
"""How a file is changed, by the ending of its name."""


def seed(name: str) -> bytes:
    """A valid file that is written down; as Parquet, where a CSV file of that name is."""
    path = Path(__file__).parent / "seeds" / name
    if path.suffix != ".parquet":
        return path.read_bytes()
    as_text = pa_csv.ConvertOptions(column_types={"time": pa.string()})
    sink = io.BytesIO()
    pq.write_table(pa_csv.read_csv(path.with_suffix(".csv"), convert_options=as_text), sink)
    return sink.getvalue()


def at_file(path: Path, read: Read) -> Callable[[bytes], None]:
    """What writes an input to a file and has it read."""

    def enter(content: bytes) -> None:
        path.write_bytes(content)
        read(path)

    return enter


def file_door(
    name: str, read: Read, *seeds: str | bytes, mutate: Mutate | None = None, beside: Files | None = None
) -> Make:
    """A file for a function that reads it; seeds are valid ones, or names of such, by default its own.

    Parameters
    ----------
    beside : other files in its folder.
    """

    def make(world: World) -> Door:
        path = world.folder(f"{name}-{len(world.doors)}") / name
        for other, content in (beside or {}).items():
            (path.parent / other).write_bytes(content)
        texts = tuple(seed(each) if isinstance(each, str) else each for each in seeds or (name,))
        return Door(texts, mutate or MUTATE[path.suffix], at_file(path, read), (SECRET,))

    return make


# ------------------------------------------------------------------------------------------------- configs
def usable(config: Any) -> None:
    """What an accepted config must be, whatever was written."""
    model, network = config.model, config.network
    figures = (model.epsilon, model.delta, network.epsilon, network.delta)
    positive = all(map(math.isfinite, figures)) and min(model.epsilon, network.epsilon) > 0.0
    must(positive, "a config without a positive epsilon is accepted")
    must(0.0 < model.delta < 1.0 and 0.0 <= network.delta < 1.0, "a delta that is no probability is accepted")
    section = config.release if hasattr(config, "release") else config.fleet
    must(
        section.days >= 1 and re.fullmatch(RELEASE_ID, section.id), "an unusable id, or no days, is accepted"
    )


def reads_config(path: Path) -> None:
    """The TOML file of a release."""
    found = dpf.read_config(path)
    usable(found)
    for part in (budget_of, fit_options_of, mode_of):
        part(found)
    beside = found.weather is not None or isinstance(found.calendar.holidays, Path)
    if found.release.days < 10_000 and not beside:
        almanac_of(found)


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
        usable(found)
        find_sources(found)

    seeds = tuple(toml_text(raw).encode() for raw in (FLEET_RAW, twins))
    return Door(seeds, toml_changed, at_file(folder / "fleet.toml", read))


BESIDE = dict.fromkeys(
    ("net.dss", "meters.csv", "services.csv", "sun.txt", "taps.csv", "weather.csv"), b"a\n"
)
CONFIGS: tuple[str | bytes, ...] = (
    *(toml_text(raw).encode() for raw in (SMALL_RAW, OWN_RAW)),
    "release.toml",
)


# -------------------------------------------------------------------------------------------------- meters
def are_loads(history: dpf.LoadHistory) -> None:
    """What accepted readings must be."""
    positive = np.isfinite(history.load_kw).all() and (history.load_kw > 0.0).all()
    must(positive, "loads that are no positive numbers are accepted")
    shape = (len(history.days), 1440 // history.step_minutes)
    must(history.load_kw.shape[1:] == shape, "loads that do not fill their days are accepted")


def meters(name: str, *, listed: bool) -> Make:
    """A file of readings; `listed` with a list of customers and declared days."""
    columns = dpf.WideColumns() if "wide" in name else dpf.LongColumns()

    def read(path: Path) -> None:
        given: dict[str, Any] = {"services": path.with_name("services.csv"), "days": (FIRST, LAST)}
        are_loads(dpf.read_meters(path, FORMAT, columns, **(given if listed else {})))

    return file_door(name, read, beside={"services.csv": seed("services.csv")})


@dataclass(frozen=True)
class Declared:
    """What an owner declares of a meter file."""

    fmt: dpf.MeterFormat
    columns: dpf.LongColumns


def meter_format(world: World) -> Door:
    """The declared format of a meter file."""
    path, typed = world.folder("meter-format") / "meters.csv", TypeAdapter(Declared)
    path.write_bytes(seed("meters-long.csv"))

    def enter(content: bytes) -> None:
        try:
            given = typed.validate_python(json.loads(content))
        except (ValueError, RecursionError):
            return
        are_loads(dpf.read_meters(path, given.fmt, given.columns))

    return Door((typed.dump_json(Declared(FORMAT, dpf.LongColumns())),), json_changed, enter, (SECRET,))


def is_set_up(path: Path) -> None:
    """A meter file that `init` takes facts of format from."""
    read = (dt.date(2024, 1, 1), dt.date(2024, 1, 6))
    declared = DeclaredFormat("kWh per interval", "Europe/Berlin", "start", days=read)
    config, feeder = path.with_name("release.toml"), str(path.with_name("net.dss"))
    config.unlink(missing_ok=True)
    asked = SetupRequest(config, feeder, path, declared=declared, mode="twin-network")
    set_up(asked, lambda _: None)


def are_told_apart(path: Path) -> None:
    """A list of customers."""
    found = read_service_map(path)
    read_feeder_map(path)
    folded = {customer.casefold().strip() for customer in found.customers}
    must(len(folded) == len(found.customers), "customers that look alike are accepted")


# ---------------------------------------------------------------------------------------------------- days
def has_weather(path: Path) -> None:
    found = Weather.read(path, "Europe/Berlin", WeatherFormat(irradiance="ghi"))
    must(np.isfinite(found.features(found.days)).all(), "weather without figures is accepted")


def has_sun(path: Path) -> None:
    found = read_irradiance(path, 6, ("roof", "barn"))
    must(np.isfinite(found).all() and (found >= 0.0).all(), "irradiance that is no share is accepted")


def has_shape(path: Path) -> None:
    """A file of a load shape, beside another."""
    kw = {"one": 10.0, "two": 20.0}
    found = read_opendss_shapes(path.parent, first_day=FIRST, nominal_kw=kw, step_minutes=STEP_MINUTES)
    are_loads(found.history)


# ------------------------------------------------------------------------------------------- private state
def state_file(name: str) -> Make:
    """A file of the private state: what is read must be what was there, or be refused."""

    def make(world: World) -> Door:
        source, numbers = world.state, itertools.count()
        folder, chosen = world.folder(f"states-{Path(name).name}"), world.release.inputs.config
        before = _summary(source, chosen)
        secret = json.loads((source / "secret.key").read_bytes())["secret"]

        def enter(content: bytes) -> None:
            root = folder / str(next(numbers) % 16)  # no process remembers so many
            shutil.rmtree(root, ignore_errors=True)
            shutil.copytree(source, root)
            (root / name).write_bytes(content)
            same = _summary(root, chosen)[:2] == before[:2]
            must(same, f"{name} was changed, and the ledger says something else")

        mutate = MUTATE[Path(name).suffix]
        return Door(((source / name).read_bytes(),), mutate, enter, (secret, secret[:16]))

    return make


def _summary(root: Path, chosen: dpf.Config) -> tuple[Any, ...]:
    """All that is read of a private state by those who plan and make releases."""
    state = PrivateState.open(root, create=False, insecure_seed=SEED)
    ledger = open_ledger(state)
    return ledger.summary(), ledger.spends(), read_register(state, FLEET), kept_model(chosen, state)


SHAPE = seed("loadshape.csv")
OWNED: dict[str, Make] = {
    "config": file_door("release.toml", reads_config, *CONFIGS, beside=BESIDE),
    "fleet config": fleet_config,
    "meters, long CSV": meters("meters-long.csv", listed=False),
    "meters, long CSV, listed": meters("meters-long.csv", listed=True),
    "meters, wide CSV": meters("meters-wide.csv", listed=False),
    "meters, wide CSV, listed": meters("meters-wide.csv", listed=True),
    "meters, long Parquet": meters("meters-long.parquet", listed=True),
    "meters, wide Parquet": meters("meters-wide.parquet", listed=False),
    "meter format": meter_format,
    "meters, init": file_door(
        "meters.csv",
        is_set_up,
        "meters-long.csv",
        "meters-wide.csv",
        beside={"net.dss": circuit(1.0).encode()},
    ),
    "services": file_door("services.csv", are_told_apart),
    "weather, CSV": file_door("weather-hours.csv", has_weather, "weather-hours.csv", "weather-days.csv"),
    "weather, Parquet": file_door("weather-hours.parquet", has_weather),
    "holidays": file_door("holidays.txt", read_holidays, mutate=words_changed(WORDS["holidays"])),
    "irradiance": file_door("sun.csv", has_sun, "irradiance-one.csv", "irradiance-two.csv"),
    "load shape": file_door("loadshape_two.csv", has_shape, SHAPE, beside={"loadshape_one.csv": SHAPE}),
    "load classes": file_door("classes.csv", read_load_classes),
    "ledger": state_file("ledger.sqlite"),
    "anchor": state_file("ledger.anchor"),
    "secret key": state_file("secret.key"),
    "receipt": state_file("internal/r-1/paid-5.json"),
    "kept model": state_file("internal/r-1/model.json"),
    "fleet register": state_file(f"internal/{FLEET}/feeders.json"),
}


# ------------------------------------------------------------------------------------------------ released
Place = Callable[[World], Path]


def twin(world: World) -> Path:
    return world.release.path


def true(world: World) -> Path:
    return world.true_release.path


def fleet(world: World) -> Path:
    return world.fleet


def swapping(
    place: Place, name: str, act: Callable[[Path, bytes], object], mutate: Mutate | None = None
) -> Make:
    """A file in a finished folder, which something is then done with; a pattern names its first match."""

    def make(world: World) -> Door:
        folder = place(world)
        path = min(found for found in folder.glob(name) if found.is_file())

        def enter(content: bytes) -> None:
            with swapped(path, content):
                act(folder, content)

        return Door((path.read_bytes(),), mutate or MUTATE[path.suffix], enter)

    return make


def verified(place: Place, name: str, private: bool = False) -> Make:
    """A file of a release goes through `verify`: any change of it must be found."""

    def make(world: World) -> Door:
        original = (place(world) / name).read_bytes()

        def act(folder: Path, content: bytes) -> None:
            report = dpf.verify(folder, private=world.release.state if private else None)
            must_be_said_well(*render_verification(report).lines)
            if not report.intact:
                raise CorpusError("the release is not intact")
            must(content == original, f"{name} was changed and the release is called intact")

        return swapping(place, name, act)(world)

    return make


def _read_all(folder: Path, _: bytes) -> None:
    """Everything that a corpus can be asked for."""
    corpus = dpf.open_corpus(folder)
    found = [corpus.voltages(), *(getattr(corpus, name)() for name in corpus.extras.holds)]
    must(all(np.isfinite(values).all() for values in found), "a corpus holds values that are no numbers")
    for part in (corpus.connections, corpus.calendar, corpus.weather, corpus.times()):
        repr(part)
    corpus.to_pandas(days=[0])
    corpus.hashes()


def _read_fleet(place: Path, _: bytes) -> None:
    opened = dpf.open_fleet(place)
    for name in opened.names:
        opened.feeder(name).voltages(days=[0])


def _show_fleet(place: Path, _: bytes) -> None:
    fleet_page("north", read_entries(place)).to_html()


def _use_gridfm(folder: Path, _: bytes) -> None:
    data = dpf.read_gridfm(folder)
    with np.errstate(all="ignore"):
        data.mismatch_mw()
        data.voltage()


def load_model(world: World) -> Door:
    """A load model that somebody gives."""
    texts = tuple((made.path / "model.json").read_bytes() for made in (world.release, world.true_release))
    spent = min(dpf.LoadModel.from_json(text.decode()).spent_epsilon for text in texts)

    def read(path: Path) -> None:
        model = dpf.LoadModel.load(path)
        must(0.0 < model.spent_epsilon < np.inf, "a load model without a cost is accepted")
        cheaper = model.origin is not None and model.spent_epsilon < spent * 0.999999
        must(
            not cheaper or all(cost.rho > 0.0 for cost in model.costs),
            "a query that costs nothing is accepted",
        )

    return Door(texts, json_changed, at_file(world.folder("model") / "model.json", read))


def kept_twin(world: World) -> Door:
    """A twin that is kept in the private state."""

    def enter(content: bytes) -> None:
        Twin.from_json(content.decode(errors="replace"))

    return Door((world.twin_record,), json_changed, enter)


def witness(world: World) -> Door:
    """The manifest of an earlier release, heard against a ledger."""
    content = (world.release.path / "manifest.json").read_bytes()

    def read(path: Path) -> None:
        must_be_said_well(*hear_witnesses(world.state, [str(path.parent)]).contradictions)

    return Door((content,), json_changed, at_file(world.folder("witness") / "manifest.json", read))


def location(world: World) -> Door:
    """Where a release is said to be, in words of a user."""
    path = world.release.path
    seeds = [str(path), str(world.fleet), path.as_uri(), "memory://bucket/release", "release", "s3a:/x"]
    seeds += [f"file://localhost{path}", "simplecache::memory://x", "zip://a::memory://b"]
    beyond = ("s3", "http", "ftp", "sftp", "ssh", "gs", "gcs", "az", "abfs", "hdfs", "git", "smb")

    def enter(content: bytes) -> None:
        text = content.decode("utf-8", "surrogateescape")
        if text.lower().startswith(beyond):
            raise CorpusError("stores beyond this machine are not asked")
        try:
            dpf.open_corpus(text)
        except DpPowerflowError:
            dpf.verify(text)

    mutate = words_changed(("://", "/", "..", "file:", "memory:", "::", "?a", "#b"))
    return Door(tuple(text.encode() for text in seeds), mutate, enter)


FEEDER = "feeder=feeder-0001"
_LISTED = (
    *("model.json", "croissant.json", "registry.yaml", "certificate.html", "quality.html", "README.md"),
    *("data/part-00001.parquet", "nodes.parquet"),
)
_TABLES = (
    *("data/part-00000.parquet", "loads/part-00000.parquet", "feeder/part-00000.parquet"),
    *("nodes.parquet", "buses.parquet", "days.parquet", "connections.parquet", "manifest.json"),
)
RELEASED: dict[str, Make] = {
    "manifest": verified(twin, "manifest.json"),
    "manifest, true network": verified(true, "manifest.json"),
    "manifest, audited": verified(twin, "manifest.json", private=True),
    **{f"{name}, verified": verified(twin, name) for name in _LISTED},
    **{f"{name}, read": swapping(twin, name, _read_all) for name in _TABLES},
    "part, quality": swapping(twin, _TABLES[0], lambda folder, _: dpf.quality(dpf.open_corpus(folder))),
    "load model": load_model,
    "kept twin": kept_twin,
    "fleet.json": verified(fleet, "fleet.json"),
    "fleet.json, opened": swapping(fleet, "fleet.json", _read_fleet),
    "fleet entry": swapping(fleet, f"{FEEDER}/manifest.json", _show_fleet),
    "witness": witness,
    "gridfm table": swapping(lambda world: world.gridfm, "**/*.parquet", _use_gridfm),
    "gridfm count": swapping(lambda world: world.gridfm, "**/*.txt", _use_gridfm),
    "location": location,
}


# ------------------------------------------------------------------------------------------------- feeders
def is_a_feeder(feeder: Feeder) -> None:
    """What an accepted feeder must be."""
    finite = np.isfinite(feeder.y.data).all() and np.isfinite(feeder.v_slack).all()
    must(finite, "a feeder without finite figures is accepted")
    must(np.isfinite(feeder.nominal_load).all(), "a feeder with loads that are no numbers is accepted")


def opendss(name: str, read: Callable[[Path], object], *, closed: bool = True) -> Make:
    """An OpenDSS file; nothing may be written beside it, nor to the working directory."""

    def make(world: World) -> Door:
        folder, elsewhere = world.folder(name), world.folder(f"{name}-elsewhere")
        (folder / "other.dss").write_text("New Load.other bus1=b phases=3 kv=12.47 kw=5\n")
        path = folder / "feeder.dss"
        path.write_bytes(b"")

        def enter(path: Path) -> None:
            with chdir(elsewhere):
                read(path)

        seeds = (world.circuit, world.tiny_circuit, circuit(1.0).encode())
        folders = (elsewhere, folder) if closed else ()
        return Door(seeds, MUTATE[".dss"], at_file(path, enter), closed=folders)

    return make


def pandapower(world: World) -> Door:
    """A pandapower net."""
    folder = world.folder("net")
    path = folder / "net.json"
    path.write_bytes(world.net)

    def read(path: Path) -> None:
        is_a_feeder(open_feeder(path))

    return Door((world.net,), _net_changed, at_file(path, read), closed=(folder,))


def _net_changed(rng: random.Random, content: bytes) -> bytes:
    """A net in which a table within a text is changed, or anything else."""
    if rng.random() < 0.4:
        return json_changed(rng, content)
    tree = json.loads(content)
    inner = "_object"
    tables = [value for value in tree[inner].values() if isinstance(value, dict)]
    table = rng.choice([table for table in tables if isinstance(table.get(inner), str)])
    table[inner] = json_changed(rng, table[inner].encode()).decode("utf-8", "replace")
    return json.dumps(tree).encode()


def beside_a_feeder(name: str, head: str, row: str, read: Callable[[Path], Any]) -> Make:
    """A CSV file of taps or loads for a feeder, a row for each that it has."""

    def make(world: World) -> Door:
        folder = world.folder(name)
        feeder = folder / "feeder.dss"
        feeder.write_bytes(world.circuit)
        lines = [head, *(row.format(each) for each in getattr(open_feeder(feeder), name)), ""]

        def enter(path: Path) -> None:
            is_a_feeder(open_feeder(feeder, **{name: read(path)}))

        return Door(("\n".join(lines).encode(),), csv_changed, at_file(folder / f"{name}.csv", enter))

    return make


def scheduler(world: World) -> Door:
    """Address of a cluster; nobody is connected to."""
    cluster.CONNECT_SECONDS = 1
    seeds = (b"tls://127.0.0.1:1", b"tcp://127.0.0.1:1", b"127.0.0.1:1", b"inproc://x", b"local")

    def enter(content: bytes) -> None:
        text = content.decode("utf-8", "surrogateescape")
        if text == "local":
            return
        gc.collect()  # a client that did not connect, collected while another begins, waits for it for ever
        engine_of(None, text).check()

    mutate = words_changed(("tcp://", "tls://", ":", "/", "[::1]", "65536", "-1"))
    return Door(seeds, mutate, enter, may_connect=True)


CALLED: dict[str, Make] = {
    "OpenDSS": opendss("dss", lambda path: is_a_feeder(open_feeder(path))),
    "OpenDSS, all problems": opendss("problems", lambda path: must_be_said_well(*feeder_problems(path))),
    "OpenDSS, parser": opendss("script", read_script, closed=False),
    "pandapower": pandapower,
    "taps": beside_a_feeder(
        "taps",
        "# declared: the operator\ntransformer,winding,tap",
        "{0.transformer},{0.winding},{0.ratio}",
        read_taps,
    ),
    "loads": beside_a_feeder("loads", "name,kw,kvar,customers", "{0.name},{0.kw},{0.kvar},2", read_loads),
    "scheduler": scheduler,
}
DOORS = {**OWNED, **RELEASED, **CALLED}
"""All formats, by name."""


def opened(world: World, name: str) -> Door:
    """The door of a format, made once in a world."""
    if name not in world.doors:
        with warnings.catch_warnings(action="ignore"):
            world.doors[name] = DOORS[name](world)
    return world.doors[name]
