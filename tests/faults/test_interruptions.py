"""Signals: a command says what is true, ends its workers and leaves nothing of no use."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow._parallel import Local
from dp_powerflow.pipeline import release as run_module
from dp_powerflow.pipeline.release import run_release
from support.small import small_config

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
