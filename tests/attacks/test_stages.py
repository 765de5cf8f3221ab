"""Stages, endings and temporary files: no part of another run gets into a release, no lock is lost."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dp_powerflow as dpf
from dp_powerflow import Config, Ledger, PrivateState, _files
from dp_powerflow._files import remove_temporaries, remove_unlocked
from dp_powerflow._parallel import Local
from dp_powerflow.corpus.schema import CorpusLayout
from dp_powerflow.corpus.storage import RemotePath, file_hashes
from dp_powerflow.corpus.tables import NodeTable
from dp_powerflow.corpus.writer import CorpusWriter, clear
from dp_powerflow.errors import ConfigError, CorpusError, PrivacyError
from dp_powerflow.fleet.feeders import FleetConfig
from dp_powerflow.fleet.run import run_fleet
from dp_powerflow.pipeline import release as run_module
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.ledger import store as database
from support.fleet_small import fleet_config, write_feeders
from support.here import Here
from support.small import small_config, tree_hash

DAYS = 300
"""Three parts."""
MEMORY = "memory://foreign-stages"


def config_of(folder: Path, state: str, **release: Any) -> Config:
    return small_config(folder, release={"days": DAYS, "state": state, "insecure_seed": None, **release})


def interrupted(config: Config) -> None:
    """A run that ends once a part is there, and leaves it."""

    def interrupt(done: int, total: int) -> None:
        if done and total == 3:  # parts, not evidence or days of the page
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_release(config, engine=Local(1), progress=interrupt)


def spends(folder: Path) -> int:
    """Charges in the ledger of a private state, which may not have one yet."""
    if not (folder / "ledger.sqlite").exists():
        return 0
    return len(Ledger.open(PrivateState.inspect(folder), create=False).spends())


def parts_at(place: Path | RemotePath) -> set[str]:
    """SHA-256 of all parts below a place."""
    if isinstance(place, RemotePath):
        return {digest for name, digest in file_hashes(place).items() if "data/part-" in name}
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in place.rglob("data/part-*")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "at_url"), [({"insecure_seed": 7}, False), ({}, True)], ids=["seed, folder", "another key, url"]
)
def test_parts_of_another_key_never_get_into_a_release(
    tmp_path: Path, first: dict[str, Any], at_url: bool
) -> None:
    if at_url:
        pytest.importorskip("fsspec")
    output = f"{MEMORY}/{tmp_path.name}/out" if at_url else "out"
    interrupted(config_of(tmp_path, "state-1", output=output, **first))
    place = RemotePath(f"{MEMORY}/{tmp_path.name}") if at_url else tmp_path
    theirs = parts_at(place)
    assert theirs
    config = config_of(tmp_path, "state-2", output=output)
    with pytest.raises(CorpusError, match=r"never continued; remove .*out\.partial-small"):
        run_release(config, engine=Local(1))
    if not at_url:
        with pytest.raises(CorpusError, match="never continued"):
            plan(config)
    assert parts_at(place) == theirs  # it was not this run's to remove
    assert spends(tmp_path / "state-2") == 0
    remove_stage(place)
    run_release(config, engine=Local(1))
    assert parts_at(place).isdisjoint(theirs)


def remove_stage(place: Path | RemotePath) -> None:
    """What the sentence says."""
    if isinstance(place, Path):
        [stage] = place.glob("out.partial-*")
        shutil.rmtree(stage)
        return
    for name in place.below():
        (place / name).unlink()


@pytest.mark.slow
def test_a_stage_that_another_state_leaves_after_the_spend_is_refused_and_nothing_is_paid_twice(
    tmp_path: Path,
) -> None:
    """Both states have begun the release, so only the digest tells whose parts these are."""
    mine, other = config_of(tmp_path, "mine"), config_of(tmp_path, "other")
    interrupted(mine)
    aside = tmp_path / "aside"
    [stage] = tmp_path.glob("out.partial-*")
    stage.rename(aside)
    interrupted(other)
    assert spends(tmp_path / "mine") == 2  # customers and network, before anything is drawn
    with pytest.raises(CorpusError, match="never continued"):
        run_release(mine, engine=Local(1))
    assert spends(tmp_path / "mine") == 2
    remove_stage(tmp_path)
    aside.rename(stage)
    kept = parts_at(stage)
    assert run_release(mine, engine=Local(1)).path == tmp_path / "out"
    assert kept < parts_at(tmp_path / "out")
    assert spends(tmp_path / "mine") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "other", "out"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["out.partial-small", "out.partial-small.0123456789abcdef0123456789abcdef"])
def test_a_stage_without_the_digest_of_the_release_is_refused_before_anything_is_spent(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name / "data").mkdir(parents=True)
    (tmp_path / "out.partial-small-2").mkdir()  # of another release: it is left alone
    config = config_of(tmp_path, "state")
    with pytest.raises(CorpusError, match="never continued"):
        run_release(config, engine=Local(1))
    assert spends(tmp_path / "state") == 0
    (tmp_path / name / "data").rmdir()
    (tmp_path / name).rmdir()
    run_release(config, engine=Local(1))


@pytest.mark.slow
def test_a_finished_release_of_another_state_is_not_reported_as_done(tmp_path: Path) -> None:
    short = {"days": 20}
    run_release(config_of(tmp_path, "state-1", **short), engine=Local(1))
    before = tree_hash(tmp_path / "out")
    with pytest.raises(CorpusError, match="exists already"):
        run_release(config_of(tmp_path, "state-2", **short), engine=Local(1))
    assert spends(tmp_path / "state-2") == 0
    assert run_release(config_of(tmp_path, "state-1", **short), engine=Local(1)).worst_mismatch is None
    assert tree_hash(tmp_path / "out") == before


class Killed(BaseException):
    """As kill -9, for what a fleet leaves of a feeder in the making."""


def killed_fleet(config: FleetConfig) -> None:
    """A fleet that ends when the parts of its first feeder are there."""

    def killed(*_: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CorpusWriter, "write_nodes", killed)
        with pytest.raises(Killed):
            run_fleet(config, engine=Here())


@pytest.mark.slow
@pytest.mark.parametrize("at_url", [False, True], ids=["folder", "url"])
def test_feeders_of_another_state_never_get_into_a_fleet(tmp_path: Path, at_url: bool) -> None:
    """Both what a killed run of the other state has in the making, and what it has published."""
    if at_url:
        pytest.importorskip("fsspec")
    place = RemotePath(f"{MEMORY}/{tmp_path.name}") if at_url else tmp_path
    output = f"{place}/out" if at_url else "out"
    write_feeders(tmp_path, repaired=True)
    first = fleet_config(tmp_path, fleet={"state": "state-1", "output": output})
    other = fleet_config(tmp_path, fleet={"state": "state-2", "output": output, "insecure_seed": None})
    killed_fleet(first)
    theirs = parts_at(place)
    assert theirs
    with pytest.raises(ConfigError, match=r"out.*/feeder=.* made with another private state than fleet"):
        run_fleet(other, engine=Here())
    assert spends(tmp_path / "state-2") == 0
    assert parts_at(place) == theirs
    run_fleet(first, engine=Here())
    assert theirs < parts_at(place / "out")
    gone = place / "out" / "feeder=feeder-0001"  # one is missing, the others are there
    clear(gone) if isinstance(gone, RemotePath) else shutil.rmtree(gone)
    with pytest.raises(ConfigError, match=r"out/feeder=.* made with another private state"):
        run_fleet(other, engine=Here())
    assert spends(tmp_path / "state-2") == 0


@pytest.mark.slow
def test_of_two_runs_that_begin_at_once_at_a_url_the_one_that_lost_its_mark_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store does not say which of two came first: both saw a free place."""
    pytest.importorskip("fsspec")
    place = RemotePath(f"{MEMORY}/{tmp_path.name}/race")
    config = config_of(tmp_path, "state", output=str(place), days=5)
    write = CorpusWriter.write_nodes

    def overtaken(writer: CorpusWriter, nodes: Any) -> Any:
        assert writer.remote is not None
        writer.remote.marker.write_bytes(b"stage of another key")
        return write(writer, nodes)

    monkeypatch.setattr(CorpusWriter, "write_nodes", overtaken)
    with pytest.raises(CorpusError, match="never continued"):
        run_release(config, engine=Local(1))
    assert "manifest.json" not in place.below()


@pytest.mark.slow
def test_verify_private_finds_a_part_of_another_key(tmp_path: Path) -> None:
    """Planted in the stage itself, where the digest does not see it."""
    (tmp_path / "other").mkdir()
    interrupted(config_of(tmp_path, "state", keys="keep"))
    run_release(config_of(tmp_path / "other", "state", keys="keep"), engine=Local(1))
    name = "data/part-00002.parquet"
    [stage] = tmp_path.glob("out.partial-*")
    shutil.copy(tmp_path / "other" / "out" / name, stage / name)
    config = config_of(tmp_path, "state", keys="keep")
    run_release(config, engine=Local(1))
    found = dpf.verify(tmp_path / "out", private=tmp_path / "state", config=config)
    assert [check.name for check in found.failures] == ["days solved again"]
    assert "part-00002" in found.failures[0].sentence
    sound = config_of(tmp_path / "other", "state", keys="keep")
    found = dpf.verify(tmp_path / "other" / "out", private=tmp_path / "other" / "state", config=sound)
    assert found.verdict == "release"


LAYOUT = CorpusLayout(days=4, steps=24, nodes=3, days_per_part=2)


@pytest.fixture
def store() -> Iterator[Any]:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    yield memory
    for path in memory.find("/red-faults"):
        memory.rm(path)


def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that is refused when its place is looked at, or else later."""
    writer = CorpusWriter("memory://red-faults/shelf", LAYOUT, "red")  # type: ignore[arg-type]
    monkeypatch.setattr(run_module, "ready_writer", lambda _: writer)
    state = SimpleNamespace(read_internal=lambda *_: None)
    nothing: Any = SimpleNamespace(inputs=SimpleNamespace(state=state))
    with pytest.raises((CorpusError, PrivacyError)), run_module.place_kept(nothing):
        raise PrivacyError("refused")


def test_a_refused_release_gives_back_the_place_that_it_reserved_and_no_other(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = "/red-faults/shelf.partial-red"
    refused(monkeypatch)
    assert store.find("/red-faults") == []
    store.pipe(marker, b"")  # reserved by a run that was killed then
    refused(monkeypatch)
    assert store.find("/red-faults") == []
    CorpusWriter("memory://red-faults/shelf", LAYOUT, "red", stage="0" * 32).prepare()  # type: ignore[arg-type]
    refused(monkeypatch)
    assert store.find("/red-faults") == [marker]
    # Releases, a whole fleet or somebody's notes: a URL that is taken is refused, and stays as it is.
    theirs = ["/red-faults/shelf/notes.txt", "/red-faults/shelf/release-1/manifest.json"]
    for path in theirs:
        store.pipe(path, b"theirs")
    refused(monkeypatch)
    assert sorted(store.find("/red-faults")) == [marker, *theirs]


BEGIN = """\
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
try:
    connection.execute("BEGIN IMMEDIATE")
except sqlite3.OperationalError:
    sys.exit(3)
"""


def others_may_write(path: Path) -> bool:
    """Whether another process can begin a transaction now."""
    done = subprocess.run([sys.executable, "-S", "-E", "-c", BEGIN, str(path)])
    assert done.returncode in (0, 3)
    return done.returncode == 0


class InTransaction:
    """A thread that writes to a ledger as soon as there is one."""

    def __init__(self, path: Path) -> None:
        self._path, self._begun, self._leave = path, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._write)

    def start(self) -> None:
        """Begin, and give it time; it may have to wait until the ledger is made."""
        self._thread.start()
        self._begun.wait(0.3)

    def _write(self) -> None:
        with database.Database(self._path).session() as connection:
            connection.execute("BEGIN IMMEDIATE")
            self._begun.set()
            self._leave.wait()

    @contextmanager
    def under_way(self) -> Iterator[None]:
        try:
            assert self._begun.wait(60)
            yield
        finally:
            self._leave.set()
            self._thread.join()


def test_who_makes_a_ledger_leaves_other_threads_their_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To close any descriptor of the file drops the locks that SQLite has in this process: two write then."""
    state = PrivateState.open(tmp_path / "state", insecure_seed=1)
    writer = InTransaction(state.ledger_path)
    link = os.link

    def linked(source: Path, target: Path) -> None:
        link(source, target)
        writer.start()

    monkeypatch.setattr(os, "link", linked)
    making = threading.Thread(target=Ledger.open, args=(state,))  # it waits for the writer, in the end
    real = database.Database.make
    made = threading.Event()

    def make(self: database.Database, *arguments: Any) -> None:
        real(self, *arguments)
        made.set()

    monkeypatch.setattr(database.Database, "make", make)
    making.start()
    assert made.wait(60)
    with writer.under_way():
        assert not others_may_write(state.ledger_path)
    making.join()
    assert Ledger.open(state).spends() == ()


def test_who_removes_what_is_left_behind_leaves_other_threads_their_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process publishes the ledger just when this one looks whether its temporary file is locked."""
    state = PrivateState.open(tmp_path / "state", insecure_seed=1)
    Ledger.open(state)
    temporary = state.ledger_path.with_name("ledger.sqlite.tmp-0123456789abcdef")
    state.ledger_path.rename(temporary)
    writer = InTransaction(state.ledger_path)

    def locked(handle: int, *, wait: bool) -> bool:
        os.link(temporary, state.ledger_path)
        writer.start()
        return False  # the other process has it

    monkeypatch.setattr(_files, "_locked", locked)
    remove_unlocked(temporary)
    with writer.under_way():
        assert not others_may_write(state.ledger_path)


def straggler(folder: Path) -> int:
    """What a worker that was given up writes still: a temporary file with its lock."""
    handle = os.open(folder / "part-00000.parquet.tmp-0123456789abcdef", os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def test_a_release_never_has_the_unfinished_file_of_a_worker_that_was_given_up(tmp_path: Path) -> None:
    writer = CorpusWriter(tmp_path / "release", LAYOUT, "red")
    writer.prepare()
    for part in range(LAYOUT.n_parts):
        writer.write_part(part, np.ones((2, 24, 3), dtype=complex))
    writer.write_nodes(NodeTable(("a", "b", "c")))
    handle = straggler(writer.partial / "data")
    remove_temporaries(writer.partial)
    assert len(os.listdir(writer.partial / "data")) == LAYOUT.n_parts + 1  # while it could be of use
    writer.finish()
    os.close(handle)
    assert sorted(os.listdir(tmp_path / "release" / "data")) == ["part-00000.parquet", "part-00001.parquet"]
