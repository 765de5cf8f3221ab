"""A hostile second look at endings, temporary files, the ledger's birth and words about spending."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dp_powerflow import _files
from dp_powerflow._files import remove_temporaries, remove_unlocked
from dp_powerflow._parallel import Local
from dp_powerflow.corpus.schema import CorpusLayout
from dp_powerflow.corpus.tables import NodeTable
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import CorpusError, PrivacyError
from dp_powerflow.fleet import run as fleet_run
from dp_powerflow.fleet.feeders import FleetFeeder
from dp_powerflow.pipeline import release as run_module
from dp_powerflow.pipeline.plan import REQUEST_FILE
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.ledger import store as database
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import PrivateState
from support.small import small_config

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
    nothing: Any = SimpleNamespace(
        inputs=SimpleNamespace(state=SimpleNamespace(read_internal=lambda *_: None))
    )
    with pytest.raises((CorpusError, PrivacyError)), run_module.place_kept(nothing):
        raise PrivacyError("refused")


def test_a_refused_release_removes_nothing_that_others_have_at_its_url(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Releases, a whole fleet or somebody's notes: a URL that is taken is refused, and stays as it is."""
    theirs = ["/red-faults/shelf/notes.txt", "/red-faults/shelf/release-1/manifest.json"]
    for path in theirs:
        store.pipe(path, b"theirs")
    refused(monkeypatch)
    assert sorted(store.find("/red-faults")) == theirs


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


def after_the_link(monkeypatch: pytest.MonkeyPatch, do: Callable[[], None]) -> None:
    """Do something when a file has got its name."""
    real = os.link

    def link(source: Path, target: Path) -> None:
        real(source, target)
        do()

    monkeypatch.setattr(os, "link", link)


def test_who_makes_a_ledger_leaves_other_threads_their_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To close any descriptor of the file drops the locks that SQLite has in this process: two write then."""
    state = PrivateState.open(tmp_path / "state", insecure_seed=1)
    writer = InTransaction(state.ledger_path)
    after_the_link(monkeypatch, writer.start)
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


def test_a_resumed_run_does_not_say_that_nothing_was_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run before it was charged: who believes the sentence begins anew, and pays twice."""
    config = small_config(tmp_path, release={"days": 20})

    def full(*_: object, **__: object) -> None:
        raise CorpusError("the disk is full; free some space; nothing was spent")

    monkeypatch.setattr(run_module, "make_ready", full)
    with pytest.raises(CorpusError, match="space; nothing was spent"):
        run_release(config, engine=Local(1))
    PrivateState.open(tmp_path / "state", insecure_seed=7).write_internal("small", REQUEST_FILE, b"0" * 64)
    with pytest.raises(CorpusError, match="space; what was spent stays spent; run the same command again"):
        run_release(config, engine=Local(1))


def test_a_feeder_that_an_earlier_run_paid_for_does_not_say_that_nothing_was_spent(tmp_path: Path) -> None:
    state = PrivateState.open(tmp_path / "state", insecure_seed=7)
    nothing: Any = None
    owner: Any = SimpleNamespace(state=state)
    shelf: Any = SimpleNamespace(abandon=lambda *_: None)
    run = fleet_run._Run(owner, nothing, shelf, lambda _: None, lambda _: None, lambda _: None)
    feeder = FleetFeeder("private", "public", small_config(tmp_path, release={"id": "fleet_public"}))

    def said() -> str | None:
        way = fleet_run._Way(feeder, "checking")
        run._fail(way, "the disk is full; nothing was spent", "corpus")
        return way.problem

    assert said() == "the disk is full; nothing was spent on its network"
    state.write_internal("fleet_public", REQUEST_FILE, b"0" * 64)
    assert "nothing was spent" not in str(said())


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
