"""However a run ends: true words, no leftovers, no worker alive; the next run resumes to the same bits."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dp_powerflow import Ledger, PrivateState, _files, cli
from dp_powerflow._files import create_once, is_temporary, remove_temporaries, whole_file, write_private
from dp_powerflow._parallel import Local, cluster
from dp_powerflow._parallel.local import Failure, Sealed
from dp_powerflow._spending import of_one_feeder
from dp_powerflow.cli import app
from dp_powerflow.errors import CorpusError, FeederError, PrivacyError
from dp_powerflow.pipeline import plan as planning
from dp_powerflow.pipeline import release as run_module
from dp_powerflow.pipeline.inputs import meters_of
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.budget import Neighbours
from dp_powerflow.privacy.ledger.accounts import InstanceCap, InstanceCost
from dp_powerflow.privacy.ledger.store import LedgerStore
from support import ledgers
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


ENDINGS = {"before": (143, NOTHING), "charged": (130, SPENT), "parts": (129, SPENT), "twice": (130, SPENT)}


@pytest.mark.slow
def test_an_interrupted_release_ends_in_one_true_sentence(interrupted: dict[str, dict[str, Any]]) -> None:
    """It keeps parts and nothing else, resumes to the same bits, and charges customers and network once."""
    for case, (code, said) in ENDINGS.items():
        found = interrupted[case]
        assert found["code"] == code, found["text"]
        assert "Traceback" not in found["text"]
        *stages, last = found["text"].splitlines()
        assert last == said
        assert not any("interrupted" in line for line in stages)
        assert (found["spends"] > 0) == (said == SPENT)
        assert found["resumed"]
        assert found["charges"] == 2
    assert interrupted["parts"]["parts"] > 0
    assert not interrupted["before"]["partial"]
    assert not interrupted["charged"]["partial"]


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


SIGNALLED = json.loads(Path(__file__).with_name("signals.json").read_bytes())
"""Commands and exit codes.

In a finalizer no exception can be raised; what swallows the first signal does not swallow the second.
"""


@pytest.mark.parametrize(("body", "code"), SIGNALLED)
def test_a_signal_ends_a_command_that_makes_nothing_without_a_traceback(body: str, code: int) -> None:
    done = ended(body)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "interrupted\n")


def test_a_signal_that_is_ignored_stays_so_as_with_nohup() -> None:
    done = ended("os.kill(os.getpid(), 1)", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    assert (done.returncode, done.stdout, done.stderr) == (0, "went on\n", "")


def test_a_signal_while_the_command_is_imported_ends_it_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os\nos.kill(os.getpid(), 15)\n")
    command = [sys.executable, "-m", "dp_powerflow", "verify", "x"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
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


@contextmanager
def workers_of(program: str) -> Iterator[tuple[subprocess.Popen[bytes], list[Any]]]:
    """A program that has begun, and the processes below it, none of which outlives the context."""
    psutil = pytest.importorskip("psutil", reason="psutil comes with Dask")
    command = [sys.executable, "-c", program]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=ENVIRONMENT, **pipes) as parent:
        assert parent.stdout is not None
        assert parent.stdout.read(1) == b"."
        workers = psutil.Process(parent.pid).children(recursive=True)
        try:
            yield parent, workers
        finally:
            parent.kill()
            parent.wait()
        _, alive = psutil.wait_procs(workers, timeout=60)
        assert not alive


# The worker holds the lock of its interpreter for ever: no thread of it can notice anything.
BUSY = """
from dp_powerflow._parallel.local import Pool
from support.parallel_jobs import HoldingTheLock
Pool(1).map(HoldingTheLock(1), [0], print)
"""
STARTING = """
import os, time
from dp_powerflow._parallel.local import WorkerProcess
worker = WorkerProcess(1)
os.write(1, b".")
time.sleep(1000)
"""


ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")


@ON_LINUX
@pytest.mark.parametrize("program", [BUSY, STARTING], ids=["busy", "starting"])
def test_no_worker_outlives_a_parent_that_is_killed(program: str) -> None:
    with workers_of(program) as (_, workers):
        assert workers


@ON_LINUX
def test_a_worker_whose_parent_is_gone_already_does_not_begin() -> None:
    program = "from dp_powerflow._parallel.local import end_with; end_with(1); print('went on')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


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
    path, new = tmp_path / "secret.key", tmp_path / "secret.key.new"
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
    for moment in (kill_at("fsync"), kill_at("link")):  # a ledger that is not finished is made again
        killed(moment, lambda: Ledger.open(state))
        Ledger.open(PrivateState.open(state.root))
        assert set(names_below(state.root)) - {"ledger.anchor"} == {"ledger.sqlite", "secret.key"}
        for name in ("ledger.anchor", "ledger.sqlite"):
            (state.root / name).unlink(missing_ok=True)  # the anchor comes with the first transaction
    Ledger.open(state)
    before = names_below(state.root)
    places = [state.root / name for name in ("ledger.anchor", "internal/r1/report.json", "x/r1/table.json")]
    for path in places:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        killed(kill_at("fsync"), lambda path=path: write_private(path, b"private"))  # type: ignore[misc]
    assert len(names_below(state.root)) == len(before) + len(places)
    (state.root / "secret.key.new").write_bytes((state.root / "secret.key").read_bytes())
    PrivateState.open(state.root)
    assert names_below(state.root) == before


def test_what_a_process_writes_now_is_not_removed(tmp_path: Path) -> None:
    """Nor a journal, with which SQLite undoes what a killed process began."""
    assert not is_temporary("ledger.sqlite-journal")
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


def test_init_removes_what_a_killed_one_left_of_its_own_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine.toml.tmp-0123456789abcdef", "mine.toml.tmp-notes", "other.toml.tmp-0123456789abcdef"):
        (tmp_path / name).write_text("half")
    assert CliRunner().invoke(app, ["init", "mine.toml"]).exit_code == 0
    kept = ["mine.toml", "mine.toml.tmp-notes", "other.toml.tmp-0123456789abcdef"]
    assert sorted(os.listdir(tmp_path)) == kept


LINE = Neighbours("one line, admittance scaled by up to 1 %")
REQUEST = "0" * 64


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


def test_a_refused_feeder_of_a_fleet_speaks_for_itself_alone() -> None:
    refused = "choose another scale; nothing was spent"
    assert of_one_feeder(refused, paid=False) == "choose another scale; nothing was spent on its network"
    assert "nothing was spent" not in of_one_feeder(refused, paid=True)


REFUSALS = (FeederError("x"), CorpusError("x"), PrivacyError("x"))
FAILURES = (*REFUSALS, MemoryError(), OSError(5), KeyboardInterrupt())


@pytest.mark.slow
def test_whatever_ends_a_run_before_its_first_part_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tmp_path, release={"days": 20})
    history = meters_of(config, None).history
    for place, error in [*(("refuse_another_model", each) for each in FAILURES), ("open_ledger", OSError(5))]:

        def fail(*_: object, error: BaseException = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(planning, place, fail)
            with pytest.raises(type(error)):
                run_release(config, engine=Local(1), history=history)
        assert os.listdir(tmp_path) == ["state"], error


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
