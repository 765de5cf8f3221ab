"""However a run ends: true words, no leftovers, no worker alive; the next run resumes to the same bits."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dp_powerflow import _files, cli
from dp_powerflow._files import create_once, is_temporary, remove_temporaries, whole_file, write_private
from dp_powerflow._parallel import Local, cluster
from dp_powerflow._parallel.cluster import refuse_unfit_workers
from dp_powerflow._parallel.processes import Failure, Sealed
from dp_powerflow._spending import of_one_feeder
from dp_powerflow.cli import app
from dp_powerflow.errors import (
    ConfigError,
    CorpusError,
    FeederError,
    LoadDataError,
    PowerFlowError,
    PrivacyError,
    PrivateStateError,
)
from dp_powerflow.pipeline import plan as planning
from dp_powerflow.pipeline import release as run_module
from dp_powerflow.pipeline.inputs import history_of
from dp_powerflow.pipeline.modes.base import OWNER_FILE
from dp_powerflow.pipeline.plan import REPORT_FILE, refuse_another_model
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.budget import Neighbours
from dp_powerflow.privacy.ledger import book as entries
from dp_powerflow.privacy.ledger.accounts import Cost, InstanceCap, InstanceCost, to_plain
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.store import AnchorFile, Database, LedgerStore
from dp_powerflow.privacy.state import PrivateState
from support import ledgers
from support.faults.subjects import TWIN_RELEASE
from support.small import small_config

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="makes processes and kills them")
TESTS = Path(__file__).parents[1]
RESUME = "run the same command again to resume, which never charges twice"
NOTHING = f"interrupted; this run has spent nothing; {RESUME}"
SPENT = f"interrupted; what was spent stays spent; {RESUME}"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(TESTS)}


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of releases that were interrupted, by case."""
    root = tmp_path_factory.mktemp("interrupted")
    command = [sys.executable, "-m", "support.interrupted_child", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "code", "said"),
    [("before", 143, NOTHING), ("charged", 130, SPENT), ("parts", 129, SPENT), ("twice", 130, SPENT)],
)
def test_an_interrupted_release_ends_in_one_true_sentence(
    interrupted: dict[str, dict[str, Any]], case: str, code: int, said: str
) -> None:
    found = interrupted[case]
    assert found["code"] == code, found["stderr"]
    assert found["stdout"] == ""
    assert "Traceback" not in found["stderr"]
    *stages, last = found["stderr"].splitlines()
    assert last == said
    assert not any("interrupted" in line for line in stages)
    assert (found["spends"] > 0) == (said == SPENT)


@pytest.mark.slow
def test_an_interrupted_release_keeps_parts_and_nothing_else_and_resumes_to_the_same_bits(
    interrupted: dict[str, dict[str, Any]],
) -> None:
    assert interrupted["parts"]["parts"] > 0
    assert not interrupted["before"]["partial"]
    assert not interrupted["charged"]["partial"]
    for found in interrupted.values():
        assert found["resumed"]
        assert found["charges"] == 2  # the customers and the network, once


PROGRAM = """
import os, signal, sys
from dp_powerflow._ending import ENDING, run

def command():
    {body}

run(command)
print("went on")
"""


def ended(body: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command that consists of one line."""
    program = PROGRAM.format(body=body)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, **options)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_command_that_makes_nothing_was_just_interrupted(number: int, code: int) -> None:
    done = ended(f"os.kill(os.getpid(), {int(number)})")
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "interrupted\n")


@pytest.mark.parametrize(
    "body",
    [
        # In a finalizer no exception can be raised.
        "type('T', (), {'__del__': lambda self: os.kill(os.getpid(), 15)})()",
        # What swallows the first signal does not swallow the second.
        "exec('try: os.kill(os.getpid(), 15)\\nexcept BaseException: os.kill(os.getpid(), 15)')",
        "exec('try: os.kill(os.getpid(), 15)\\nfinally: os.kill(os.getpid(), 2)')",
    ],
)
def test_no_signal_is_lost_and_none_ends_in_a_traceback(body: str) -> None:
    done = ended(body)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "interrupted\n")


def test_a_signal_that_is_ignored_stays_so_as_with_nohup() -> None:
    done = ended("os.kill(os.getpid(), 1)", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    assert (done.returncode, done.stdout, done.stderr) == (0, "went on\n", "")


def test_a_signal_while_the_command_is_imported_ends_it_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os\nos.kill(os.getpid(), 15)\n")
    done = subprocess.run(
        [sys.executable, "-m", "dp_powerflow", "verify", "x"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "interrupted\n")


@pytest.mark.slow
def test_the_library_raises_an_interrupt_and_installs_no_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    seen: list[Any] = []

    def interrupt(*_: object) -> None:
        seen.extend(signal.getsignal(number) for number in numbers)
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "charge", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_release(small_config(tmp_path), engine=Local(1))
    assert seen == before
    assert os.listdir(tmp_path) == ["state"]


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> set[int]:
    """Processes below a process."""
    found: set[int] = set()
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            found |= {child} | descendants(child)
    return found


def wait_until(true: Callable[[], bool]) -> bool:
    """Whether something comes true; how long it takes does not matter."""
    for _ in range(3000):
        if true():
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def started() -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Starts programs; none of them stays."""
    running: list[subprocess.Popen[bytes]] = []

    def start(program: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", program]
        running.append(
            subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        )
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


# The worker holds the lock of its interpreter for ever: no thread of it can notice anything.
BUSY = """
from dp_powerflow._parallel import Pool
from support.parallel_jobs import HoldingTheLock
Pool(1).map(HoldingTheLock(1), [0], print)
"""
STARTING = """
import os, time
from dp_powerflow._parallel.processes import WorkerProcess
worker = WorkerProcess(1)
os.write(1, b".")
time.sleep(1000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.parametrize("program", [BUSY, STARTING], ids=["busy", "starting"])
def test_no_worker_outlives_a_parent_that_is_killed(
    started: Callable[[str], subprocess.Popen[bytes]], program: str
) -> None:
    parent = started(program)
    assert parent.stdout is not None
    assert parent.stdout.read(1) == b"."
    workers = descendants(parent.pid)
    assert workers
    parent.kill()
    parent.wait()
    assert wait_until(lambda: not any(map(alive, workers)))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_worker_whose_parent_is_gone_already_does_not_begin() -> None:
    program = "from dp_powerflow._parallel.processes import end_with; end_with(1); print('went on')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


DASK = """
import os
from dp_powerflow._parallel import LocalDask
with LocalDask(1).kept() as kept:
    os.write(1, b".")
    {then}
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.campaign)])
def test_no_worker_of_a_local_cluster_outlives_its_run(
    started: Callable[[str], subprocess.Popen[bytes]], number: int
) -> None:
    """Neither those that Dask starts, nor those that watch over them."""
    pytest.importorskip("distributed")
    parent = started(DASK.format(then="import time; time.sleep(1000)"))
    assert parent.stdout is not None
    assert parent.stdout.read(1) == b"."
    workers = descendants(parent.pid)
    assert len(workers) >= 2
    assert all(os.getsid(worker) != os.getsid(parent.pid) for worker in workers if owned(worker, parent.pid))
    parent.send_signal(number)
    parent.wait()
    assert wait_until(lambda: not any(map(alive, workers)))


def owned(pid: int, parent: int) -> bool:
    """Whether a process is a child of another, not of one of its children."""
    return f"\nPPid:\t{parent}\n" in Path(f"/proc/{pid}/status").read_text()


def killed(prepare: Callable[[], None], do: Callable[[], object]) -> None:
    """Do something in a process that `prepare` has arranged to be killed."""
    pid = os.fork()
    if pid == 0:
        try:
            prepare()
            do()
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL


def kill_at(name: str, nth: int = 1, *, after: bool = False) -> Callable[[], None]:
    """Arrange that a function of `os` kills the process, before or after it does its work."""

    def prepare() -> None:
        real, calls = getattr(os, name), 0

        def function(*arguments: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            if calls == nth and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*arguments, **options)
            if calls == nth and after:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(os, name, function)

    return prepare


def names_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


KEY_MOMENTS = {
    "made": kill_at("fchmod"),
    "empty": kill_at("ftruncate", after=True),
    "written": kill_at("fsync"),
    "flushed": kill_at("link"),
    "named": kill_at("link", after=True),
}


@pytest.mark.parametrize("moment", KEY_MOMENTS)
def test_a_kill_while_the_key_is_made_leaves_at_most_one_known_file(tmp_path: Path, moment: str) -> None:
    root = tmp_path / "state"
    killed(KEY_MOMENTS[moment], lambda: PrivateState.open(root))
    assert set(os.listdir(root)) <= {"secret.key.new", "secret.key"}
    kept = (root / "secret.key").read_bytes() if moment == "named" else None
    state = PrivateState.open(root)
    assert os.listdir(root) == ["secret.key"]
    assert kept in (None, (root / "secret.key").read_bytes())
    assert PrivateState.open(root) == state


def test_a_key_that_is_being_made_elsewhere_is_left_alone(tmp_path: Path) -> None:
    """Whoever comes meanwhile waits for the lock and then finds the key."""
    fcntl = pytest.importorskip("fcntl")
    path = tmp_path / "secret.key"
    new = tmp_path / "secret.key.new"
    handle = os.open(new, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    _files.remove_new(path)
    assert new.exists()
    pid = os.fork()
    if pid == 0:
        os.close(handle)  # a fork shares the lock
        create_once(path, b"second")
        os._exit(0)
    os.write(handle, b"first")
    os.link(new, path)
    new.unlink()
    os.close(handle)
    assert os.waitpid(pid, 0)[1] == 0
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["secret.key"]


def test_the_next_start_removes_what_killed_processes_left_anywhere_in_the_state(tmp_path: Path) -> None:
    state = PrivateState.open(tmp_path / "state")
    Ledger.open(state)
    state.write_internal("r1", "report.json", b"{}")
    before = names_below(state.root)
    places = ["ledger.anchor", "internal/r1/report.json", "parsed/x.bin", "experiments/r1/table.json"]
    for name in places:
        path = state.root / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        killed(kill_at("fsync"), lambda path=path: write_private(path, b"private"))  # type: ignore[misc]
    assert len(names_below(state.root)) == len(before) + len(places)
    (state.root / "secret.key.new").write_bytes((state.root / "secret.key").read_bytes())
    PrivateState.open(state.root)
    assert names_below(state.root) == before


def test_a_ledger_that_was_not_finished_is_removed_and_made_again(tmp_path: Path) -> None:
    state = PrivateState.open(tmp_path / "state")
    for moment in (kill_at("fsync"), kill_at("link"), kill_at("link", after=True)):
        killed(moment, lambda: Ledger.open(state))
        Ledger.open(PrivateState.open(state.root))
        assert set(names_below(state.root)) - {"ledger.anchor"} == {"ledger.sqlite", "secret.key"}
        for name in ("ledger.anchor", "ledger.sqlite"):
            (state.root / name).unlink(missing_ok=True)  # the anchor comes with the first transaction


def test_what_a_process_writes_now_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "report"
    with whole_file(path) as file:
        file.write(b"half")
        remove_temporaries(tmp_path)
        file.write(b" and half")
    assert path.read_bytes() == b"half and half"
    assert os.listdir(tmp_path) == ["report"]


def test_a_writer_whose_file_was_taken_for_a_leftover_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between making it and locking it there is a moment."""
    real, calls = _files._locked, 0

    def late(handle: int, *, wait: bool) -> bool:
        nonlocal calls
        calls += 1
        if calls == 1:
            remove_temporaries(tmp_path)
        return real(handle, wait=wait)

    monkeypatch.setattr(_files, "_locked", late)
    write_private(tmp_path / "report", b"whole")
    assert calls > 2
    assert (tmp_path / "report").read_bytes() == b"whole"
    assert os.listdir(tmp_path) == ["report"]


def test_journals_of_the_ledger_are_no_temporary_files() -> None:
    """SQLite undoes with them what a killed process began."""
    assert not is_temporary("ledger.sqlite-journal")


def test_a_probe_for_workers_that_was_left_beside_the_output_is_removed_by_the_next(tmp_path: Path) -> None:
    output = tmp_path / "out"
    killed(lambda: None, lambda: _probed(output, lambda: os.kill(os.getpid(), signal.SIGKILL)))
    assert len(os.listdir(tmp_path)) == 1
    seen: list[int] = []
    # One that another run looks for now stays.
    _probed(output, lambda: _probed(output, lambda: seen.append(len(os.listdir(tmp_path)))))
    assert seen == [2]
    assert os.listdir(tmp_path) == []


def _probed(output: Path, do: Callable[[], object]) -> None:
    with cluster._probe_beside(output):
        do()


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def killed_after(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> None:
    """End the run just after the first of these internal files is written."""
    write = PrivateState.write_internal

    def kill(self: PrivateState, release_id: str, name: str, data: bytes) -> Path:
        path = write(self, release_id, name, data)
        if name in names:
            raise Killed
        return path

    monkeypatch.setattr(PrivateState, "write_internal", kill)


def test_a_run_killed_between_the_report_and_the_file_of_the_owner_makes_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tmp_path, **{**TWIN_RELEASE, "release": {"days": 4}})
    with monkeypatch.context() as patch:
        killed_after(patch, (REPORT_FILE, OWNER_FILE))
        with pytest.raises(Killed):
            run_release(config, workers=1)
    run_release(config, workers=1)
    assert {REPORT_FILE, OWNER_FILE} <= set(os.listdir(tmp_path / "state" / "internal" / "small"))


def test_init_removes_what_a_killed_one_left_of_its_own_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine.toml.tmp-0123456789abcdef", "mine.toml.tmp-notes", "other.toml.tmp-0123456789abcdef"):
        (tmp_path / name).write_text("half")
    assert CliRunner().invoke(app, ["init", "mine.toml"]).exit_code == 0
    assert sorted(os.listdir(tmp_path)) == [
        "mine.toml",
        "mine.toml.tmp-notes",
        "other.toml.tmp-0123456789abcdef",
    ]


LINE = Neighbours("one line, admittance scaled by up to 1 %")
REQUEST = "0" * 64


@contextmanager
def full_ledger(spare: int) -> Iterator[None]:
    """SQLite may make the file of a ledger larger by so many pages and no more, as on a full disk."""
    real = Database._connection

    @contextmanager
    def connection(self: Database) -> Iterator[sqlite3.Connection]:
        with real(self) as opened:
            (pages,) = opened.execute("PRAGMA page_count").fetchone()
            opened.execute(f"PRAGMA max_page_count = {pages + spare}")
            yield opened

    Database._connection = connection  # type: ignore[method-assign]
    try:
        yield
    finally:
        Database._connection = real  # type: ignore[method-assign]


def spends(folder: Path) -> int:
    return len(Ledger.inspect(folder / "state").spends())


@pytest.mark.slow
@pytest.mark.parametrize("large", [1, 2], ids=["customers", "network"])
def test_a_full_disk_at_a_charge_says_what_was_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    """Both are charged in one transaction: whichever of them has no room, neither is charged."""
    config = small_config(tmp_path, release={"days": 20})
    real, costs = Ledger.charge_all, 0

    def noted(record: Any) -> dict[str, Any]:
        nonlocal costs
        costs += isinstance(record, Cost)
        note = {"note": "x" * 100_000} if isinstance(record, Cost) and costs == large else {}
        return to_plain(record) | note

    def charge_all(self: Ledger, charges: Any) -> Any:
        with full_ledger(spare=8):  # enough for all entries but the large one
            return real(self, charges)

    monkeypatch.setattr(entries, "to_plain", noted)
    monkeypatch.setattr(Ledger, "charge_all", charge_all)
    with pytest.raises(PrivacyError, match="disk is full") as caught:
        run_release(config, engine=Local(1))
    assert costs == 2
    assert "nothing was spent" in str(caught.value)
    assert "which never charges twice" not in str(caught.value)
    assert spends(tmp_path) == 0
    run_release(config, engine=Local(1))  # the large entry was one of the first two
    assert spends(tmp_path) == 2


@pytest.mark.slow
def test_a_full_disk_after_a_charge_says_what_was_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger has both charges, and then there is no room for its anchor."""
    config = small_config(tmp_path, release={"days": 20})
    real = AnchorFile.write

    def write(self: AnchorFile, number: int, mac: str) -> None:
        if number > 0:
            raise PrivateStateError("the disk is full")
        real(self, number, mac)

    monkeypatch.setattr(AnchorFile, "write", write)
    with pytest.raises(PrivacyError, match="which never charges twice") as caught:
        run_release(config, engine=Local(1))
    assert "nothing was spent" not in str(caught.value)
    monkeypatch.undo()
    assert spends(tmp_path) == 2
    run_release(config, engine=Local(1))
    assert spends(tmp_path) == 2


def test_a_fault_after_the_commit_does_not_say_that_nothing_was_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.open(PrivateState.open(tmp_path / "state", insecure_seed=1))
    account = ledgers.account(ledger, "1" * 64, InstanceCap(10.0, 0.0, LINE))
    real = LedgerStore._move_on

    def after_commit(self: LedgerStore, connection: sqlite3.Connection, *arguments: Any) -> None:
        os.truncate(self._path, 4096)  # the disk has lost most of it since
        real(self, connection, *arguments)

    monkeypatch.setattr(LedgerStore, "_move_on", after_commit)
    with pytest.raises(PrivacyError) as caught:
        ledgers.spend(ledger, account, "r1", REQUEST, InstanceCost(1.0, 0.0, LINE))
    assert "nothing was spent" not in str(caught.value)
    assert "which never charges twice" in str(caught.value)


class Unfit:
    """A cluster with one worker that does not answer."""

    def wait_for_workers(self, count: int, timeout: float) -> None:
        """It is there."""

    def run(self, function: object, on_error: str) -> dict[str, object]:
        return {"tcp://there": OSError()}


@pytest.mark.parametrize(("first", "said"), [(True, "nothing was spent"), (False, "never charges twice")])
def test_a_cluster_that_is_unfit_in_the_middle_says_how_to_resume(first: bool, said: str) -> None:
    pytest.importorskip("distributed")
    with pytest.raises(ConfigError, match="not fit for this run") as caught:
        refuse_unfit_workers(Unfit(), first=first)
    assert said in str(caught.value)
    assert ("nothing was spent" in str(caught.value)) == first


def test_a_refused_feeder_of_a_fleet_speaks_for_itself_alone() -> None:
    refused = "choose another scale; nothing was spent"
    assert of_one_feeder(refused, paid=False) == "choose another scale; nothing was spent on its network"
    assert "nothing was spent" not in of_one_feeder(refused, paid=True)


FAILURES = [
    FeederError("x"),
    LoadDataError("x"),
    CorpusError("x"),
    PowerFlowError("x"),
    PrivacyError("x"),
    MemoryError(),
    OSError(5, "x"),
    KeyboardInterrupt(),
    ZeroDivisionError(),
]


@pytest.mark.slow
def test_whatever_ends_a_run_before_its_first_part_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tmp_path, release={"days": 20})
    real, history = refuse_another_model, history_of(config, None)
    cases = [(error, False) for error in FAILURES] + [
        (error, True) for error in (OSError(5), KeyboardInterrupt())
    ]
    for error, at_owner in cases:

        def fail(*_: object, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr(planning, "refuse_another_model", real if at_owner else fail)
        monkeypatch.setattr(planning, "open_ledger", fail)
        with pytest.raises(type(error)):
            run_release(config, engine=Local(1), history=history)
        assert os.listdir(tmp_path) == ["state"], error


@pytest.mark.slow
def test_whatever_ends_a_run_later_keeps_the_parts_that_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tmp_path, release={"days": 300})
    for error in (CorpusError("x"), KeyboardInterrupt()):  # a part is made before each

        def fail(done: int, total: int, error: BaseException = error) -> None:
            if done and total == 3:
                raise error

        with pytest.raises(type(error)):
            run_release(config, engine=Local(1), progress=fail)
        assert list(tmp_path.glob("out.partial-small.*/data/*.parquet"))
    assert run_release(config, engine=Local(1)).path == tmp_path / "out"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_no_memory_in_the_middle_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: there is not enough memory; ")


def test_no_memory_in_a_worker_is_a_sentence() -> None:
    class Large:
        def start(self, threads: int | None) -> Callable[[int], int]:
            raise MemoryError

    found = Sealed(Large()).attempt(0)
    assert isinstance(found, Failure)
    assert str(found.error).startswith("there is not enough memory; ")
