"""Doors of feeders, OpenDSS files, pandapower nets and their tables, and of what people type."""

from __future__ import annotations

import gc
import io
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np

from dp_powerflow._parallel import cluster, engine_of
from dp_powerflow.cli import main
from dp_powerflow.errors import ConfigError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.opendss.script import read_script
from dp_powerflow.grid.sources import feeder_problems, open_feeder, read_loads, read_taps
from support.fleet_small import circuit
from support.fuzz.changes import (
    WORDS,
    csv_changed,
    edited,
    json_changed,
    nasty_text,
    words_changed,
)
from support.fuzz.judging import Door, WrongAcceptanceError, wrong_words
from support.fuzz.owned import through
from support.fuzz.world import World
from support.own_config import write_own
from support.small import RAW as SMALL_RAW
from support.small import toml_text


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


DOORS: dict[str, Callable[[World], Door]] = {
    "OpenDSS": opendss,
    "OpenDSS, all problems": opendss_problems,
    "OpenDSS, parser": opendss_script,
    "pandapower": pandapower,
    "taps": taps,
    "loads of a feeder": loads,
    "scheduler": scheduler,
    "command line": command_line,
}
