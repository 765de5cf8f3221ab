"""The key, readings, ids of services and names of the network stay in the state folder and in memory.

While releases are made, a thread reads what other users and programs can see: command lines and environments
of all processes, and temporary files. What was printed, logged and released is searched afterwards.
"""

from __future__ import annotations

import base64
import itertools
import logging
import re
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow._parallel import DaskScheduler, Engine, Local, Processes
from dp_powerflow.errors import LoadDataError
from dp_powerflow.fleet.run import run_fleet
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.state import PrivateState
from support.fleet_small import KEYS, on_twins, write_feeders, write_meters
from support.own_meters import OwnMeters, names

pytest.importorskip("psutil", reason="processes are listed by psutil, which comes with Dask")
import psutil  # type: ignore[import-untyped]

PLANTED = 0.734156829
SERVICE = "service-7d3f"
LINE = "behind_the_hidden_mill"


@dataclass
class Seen:
    """Texts by the place where they were found; many are looked at again and again."""

    texts: dict[str, set[bytes]] = field(default_factory=dict)
    processes: set[int] = field(default_factory=set)

    def add(self, place: str, content: bytes) -> None:
        self.texts.setdefault(place, set()).add(content)

    def folder(self, place: str, folder: Path) -> None:
        for path in list(folder.rglob("*")):
            self.add(place, str(path.relative_to(folder)).encode())
            try:
                if path.is_file():
                    self.add(place, path.read_bytes())
            except OSError:  # gone meanwhile, or a socket
                continue

    def all_processes(self) -> None:
        own = psutil.Process()
        for process in (own, *own.children(recursive=True)):
            for name in ("cmdline", "environ"):
                try:
                    self.add(name, Path(f"/proc/{process.pid}/{name}").read_bytes())
                except OSError:  # it has ended
                    continue
            self.processes.add(process.pid)  # once it is read

    def leaks(self, secrets: dict[str, bytes]) -> set[tuple[str, str]]:
        """Which secret is at which place."""
        found = itertools.product(self.texts.items(), secrets.items())
        return {(at, name) for (at, texts), (name, secret) in found if any(secret in text for text in texts)}


class _Kept(logging.Handler):
    """Every message of every logger, with its exception."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{logging.Formatter().format(record)} {record.args!r}")


@contextmanager
def logged() -> Iterator[list[str]]:
    """What all loggers say, whatever their levels; numba alone tells of code only, a line per operation."""
    kept = _Kept()
    names = [name for name in logging.root.manager.loggerDict if not name.startswith("numba")]
    before = [(logger, logger.level) for logger in (logging.root, *map(logging.getLogger, names))]
    for logger, _ in before:
        logger.setLevel(logging.DEBUG)
        logger.addHandler(kept)
    try:
        yield kept.lines
    finally:
        for logger, level in before:
            logger.setLevel(level)
            logger.removeHandler(kept)


@contextmanager
def watched(temporary: Path) -> Iterator[Seen]:
    """Look at processes and temporary files for as long as the context lasts, and once more after it."""
    seen, over = Seen(), threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            seen.all_processes()
            seen.folder("temporary", temporary)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        with logged() as lines:
            yield seen
    finally:
        over.set()
        thread.join()
    seen.folder("temporary", temporary)
    seen.add("logs", "\n".join(lines).encode())


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go, of this process and of its children."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def key_in_words(state: Path) -> dict[str, bytes]:
    secret = PrivateState.inspect(state).stream_key().secret
    return {
        "key": secret,
        "key in hex": secret.hex().encode(),
        "key in capitals": secret.hex().upper().encode(),
        "key in base64": base64.b64encode(secret).rstrip(b"="),
        "key for addresses": base64.urlsafe_b64encode(secret).rstrip(b"="),
        "key in Python": repr(secret)[2:-1].encode(),
        "key in numbers": ", ".join(map(str, secret)).encode(),
    }


READING = {"reading": f"{PLANTED:.9g}".encode(), "reading in bytes": np.float64(PLANTED).tobytes()}


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["processes", "dask"])
def test_a_fleet_keeps_its_secrets(
    workers: str, tmp_path: Path, temporary: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    loads = with_planted_meters(tmp_path)
    write_feeders(tmp_path, repaired=True)
    for path in (tmp_path / "feeders").iterdir():
        path.write_text(path.read_text().replace("Line.second", f"Line.{LINE}"))
    with ExitStack() as open_:
        seen = open_.enter_context(watched(temporary))
        engine: Engine = Local(2)
        if workers == "dask":
            distributed = pytest.importorskip("distributed")
            options = {"threads_per_worker": 1, "memory_limit": 0, "dashboard_address": "127.0.0.1:0"}
            cluster = distributed.LocalCluster(n_workers=2, host="127.0.0.1", silence_logs=50, **options)
            engine = DaskScheduler(open_.enter_context(cluster).scheduler_address)
        result = run_fleet(on_twins(tmp_path, loads=loads), engine=engine)
    assert result is not None
    assert len(seen.processes) > 2
    seen.folder("released", tmp_path / "out")
    seen.add("printed", "".join(capfd.readouterr()).encode())
    names = {"service": SERVICE.encode(), "line": LINE.encode()}
    assert not seen.leaks(key_in_words(tmp_path / "state") | READING | names)
    places = seen.leaks({"feeder": KEYS[0].encode(), "folder": str(tmp_path / "state").encode()})
    assert not {place for place, _ in places} & {"cmdline", "environ"}


def with_planted_meters(folder: Path) -> dict[str, object]:
    """Meters of a fleet with services and a reading that nothing else holds."""
    loads = write_meters(folder)
    for name in ("meters.csv", "services.csv"):
        path = folder / name
        path.write_text(re.sub(r"^c(\d+),", rf"{SERVICE}-\1,", path.read_text(), flags=re.MULTILINE))
    lines = (folder / "meters.csv").read_text().splitlines()
    lines[7] = lines[7].rpartition(",")[0] + f",{PLANTED:.9g}"
    (folder / "meters.csv").write_text("\n".join(lines) + "\n")
    return loads


def test_what_is_raised_for_bad_readings_says_nothing_private(tmp_path: Path) -> None:
    """Notes, causes and contexts of the exception too."""
    config = OwnMeters().config(tmp_path)
    meters = tmp_path / "meters.csv"
    lines = meters.read_text().splitlines()
    lines[5] = lines[5].rpartition(",")[0] + f",{PLANTED:.9g}x"
    meters.write_text("\n".join(lines) + "\n")
    with pytest.raises(LoadDataError) as refused:
        run_release(config, engine=Processes(1))
    seen = Seen()
    chain: BaseException | None = refused.value
    while chain is not None:
        seen.add("raised", f"{chain!r} {chain} {getattr(chain, '__notes__', '')}".encode())
        chain = chain.__cause__ or chain.__context__
    seen.add("raised", "".join(traceback.format_exception(refused.value)).encode())
    assert not seen.leaks({**READING, "service": names()[0].encode()})


def test_the_search_finds_what_leaks(
    tmp_path: Path, temporary: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret in a temporary file, in a log, in the environment of a child and on its command line."""
    import subprocess
    import sys

    PrivateState.open(tmp_path / "state", insecure_seed=7)
    secrets = key_in_words(tmp_path / "state")
    shown = secrets["key in hex"].decode()
    monkeypatch.setenv("CARELESS", shown)
    with watched(temporary) as seen:
        logging.getLogger("careless").debug("the key is %s", shown)
        (temporary / "careless").write_bytes(secrets["key"])
        command = [sys.executable, "-c", "import sys; print(sys.argv[1], flush=True); input()", shown]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
            for _ in range(2):  # a look that began before the child was another program does not count
                seen.processes.discard(child.pid)
                while child.pid not in seen.processes:
                    threading.Event().wait(0.01)
            (temporary / "careless").unlink()
            child.communicate(b"\n")
    seen.add("printed", "".join(capfd.readouterr()).encode())
    assert seen.leaks(secrets) >= {
        *(("cmdline", "key in hex"), ("environ", "key in hex"), ("logs", "key in hex")),
        *(("printed", "key in hex"), ("temporary", "key")),
    }
