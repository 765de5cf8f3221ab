"""A crew of processes: workers keep what they have begun, may die, and end with the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow._parallel import Answer, Local, WorkerDefectError, run_on_pool
from dp_powerflow._parallel import processes as processes_module
from dp_powerflow._parallel.processes import ProcessCrew
from dp_powerflow._threads import cores
from dp_powerflow.errors import DpPowerflowError
from support.crew_jobs import SECRET, Counting, Unready
from support.parallel_jobs import Failing


@contextmanager
def crew_of(workers: int, *, begun: int = 1000, told: list[Any] | None = None) -> Iterator[ProcessCrew]:
    seen: list[Any] = [] if told is None else told
    with closing(ProcessCrew(workers, lambda number, thing: seen.append((number, thing)), begun)) as crew:
        crew.give(Counting())
        yield crew


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def gone(pid: int) -> bool:
    """Whether a process ends; waits for it."""
    for _ in range(1000):
        if not alive(pid):
            return True
        time.sleep(0.02)
    return False


def test_the_worker_that_began_a_piece_of_work_goes_on_with_it() -> None:
    told: list[Any] = []
    with crew_of(2, told=told) as crew:
        for number in range(4):
            crew.submit(number, ("tell", f"begin {number}"))
        began: dict[int, Answer] = {}
        went_on: dict[int, Answer] = {}
        for answer in crew.answers():
            if answer.number < 10:
                began[answer.number] = answer
                crew.submit(answer.number + 10, ("go on", answer.number), near=answer.where)
            else:
                went_on[answer.number - 10] = answer
        assert began.keys() == went_on.keys() == {0, 1, 2, 3}
        for number, answer in went_on.items():
            assert answer.value["fact"] == number
            assert answer.where == began[number].where
        assert len(crew.pids) <= 2
    assert sorted(told) == [(number, ("began", f"begin {number}")) for number in range(4)]


def test_an_idle_worker_takes_over_what_another_one_began(tmp_path: Path) -> None:
    free = tmp_path / "free"
    with crew_of(2) as crew:
        crew.submit(0, ("begin", 0))
        (first,) = crew.answers()
        crew.submit(1, ("wait", str(free)), near=first.where)  # keeps the first worker
        crew.submit(2, ("begin", 2))  # starts a second one
        answers = crew.answers()
        second = next(answers)
        crew.submit(3, ("go on", 0), near=first.where)
        third = next(answers)
        free.touch()
        assert (third.number, third.where) == (3, second.where)
        assert [(last.number, last.where) for last in answers] == [(1, first.where)]


def test_processes_start_when_there_is_work_for_them_and_share_the_cores() -> None:
    with Local(3).crew(lambda *_: None, 100) as crew:
        assert isinstance(crew, ProcessCrew)
        assert crew.at_once == 3
        crew.give(Counting())
        assert crew.pids == ()
        crew.submit(0, ("begin", 0))
        (answer,) = crew.answers()
        assert len(crew.pids) == 1
        assert answer.value["threads"] == max(1, cores() // 3)
        assert answer.value["blas"] == os.environ.get("OPENBLAS_NUM_THREADS", "1")
    assert gone(answer.value["pid"])
    with Local(1).crew(lambda *_: None, 100) as crew:
        crew.give(Counting())
        crew.submit(0, ("begin", 0))
        assert next(crew.answers()).value["threads"] is None  # all cores


def test_a_worker_is_replaced_after_so_many_pieces_of_work() -> None:
    with crew_of(1, begun=2) as crew:
        for number in range(5):
            crew.submit(number, ("begin", number))
        answers = list(crew.answers())
        last = answers[-1]
        crew.submit(9, ("go on", 9), near=last.where)
        (near,) = crew.answers()
    assert [answer.value["held"] for answer in answers] == [1, 2, 1, 2, 1]
    assert len({answer.value["pid"] for answer in answers}) == 3
    assert (near.value["pid"], near.value["held"]) == (last.value["pid"], 2)  # no new piece of work


def test_a_new_job_reaches_workers_that_had_another_one() -> None:
    with crew_of(1) as crew:
        crew.submit(0, ("begin", 0))
        crew.give(Counting(name="second"))
        crew.submit(1, ("begin", 1))
        crew.submit(2, ("begin", 2))
        answers = sorted(crew.answers(), key=lambda answer: answer.number)
    assert [answer.value["job"] for answer in answers] == ["first", "second", "second"]
    assert [answer.value["held"] for answer in answers] == [1, 1, 2]


def test_what_goes_wrong_is_an_answer_and_the_crew_goes_on(tmp_path: Path) -> None:
    with crew_of(2) as crew:
        for number, what in enumerate(("known", "missing file", "defect", "kill", "fine")):
            crew.submit(number, (what, str(tmp_path / "none")))
        found = {answer.number: answer for answer in crew.answers()}
        crew.give(Unready())
        crew.submit(5, None)
        (unready,) = crew.answers()
    assert found[0].problem == "no solution"
    assert "No such file" in str(found[1].problem)
    assert SECRET in str(found[2].defect)  # PRIVATE: for the data owner's own file
    assert SECRET not in repr(found[2])
    assert found[3].lost
    assert found[3].value is found[3].problem is found[3].defect is None
    assert found[4].value["fact"] == str(tmp_path / "none")
    assert unready.problem == "cannot start"


def test_a_worker_that_is_killed_costs_its_own_request_only(tmp_path: Path) -> None:
    free = tmp_path / "free"
    with crew_of(2) as crew:
        crew.submit(0, ("wait", str(free)))
        crew.submit(1, ("wait", str(free)))
        crew.submit(2, ("begin", 2))
        while not (held := [path for path in tmp_path.iterdir() if path.suffix]):
            time.sleep(0.01)
        os.kill(int(held[0].suffix[1:]), signal.SIGKILL)
        answers = crew.answers()
        lost = next(answers)
        assert lost.lost
        crew.submit(lost.number, ("begin", "again"))
        free.touch()
        again = {answer.number: answer for answer in answers}
    assert again.keys() == {0, 1, 2}
    assert again[lost.number].value["fact"] == "again"


def test_workers_that_cannot_start_end_the_run_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes_module, "_COMMAND", "raise SystemExit(1)")
    with crew_of(2) as crew:
        for number in range(3):
            crew.submit(number, ("begin", number))
        with pytest.raises(DpPowerflowError, match="end as soon as they start"):
            list(crew.answers())


def test_a_pool_whose_process_dies_or_meets_a_defect_ends() -> None:
    with pytest.raises(DpPowerflowError, match="run the same command again"):
        run_on_pool(2, Failing("kill"), range(6), lambda _: None)
    with pytest.raises(WorkerDefectError, match="ValueError"):
        run_on_pool(2, Failing("unexpected"), range(6), lambda _: None)


SCRIPT = """
import sys, time
from dp_powerflow._parallel import run_on_pool, {engine}
from support.crew_jobs import Counting
from support.parallel_jobs import Squares
from pathlib import Path

print("this script has no guard", flush=True)
folder = Path(sys.argv[1])
if {pool}:
    squares = []
    run_on_pool(2, Squares(folder), range(5), squares.append)
    assert sorted(squares) == [0, 1, 4, 9, 16]
with {engine}(2).crew(lambda *_: None, 100) as crew:
    crew.give(Counting())
    crew.submit(0, ("begin", 0))
    assert [answer.value["fact"] for answer in crew.answers()] == [0]
    crew.submit(1, ("wait", str(folder / "free")))
    if len(sys.argv) > 2:
        time.sleep(600)
    (folder / "free").touch()
    assert [answer.value["fact"] for answer in crew.answers()] == [str(folder / "free")]
print("done", flush=True)
"""


def script(engine: str, folder: Path, *more: str, pool: bool = False) -> list[str]:
    path = folder / "script.py"
    path.write_text(SCRIPT.format(engine=engine, pool=pool))
    return [sys.executable, str(path), str(folder), *more]


def with_imports() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.parametrize("engine", ["Local", "LocalDask"])
def test_a_script_needs_no_guard(engine: str, tmp_path: Path) -> None:
    if engine == "LocalDask":
        pytest.importorskip("distributed", reason="Dask is not installed: pip install dask distributed")
    command = script(engine, tmp_path, pool=engine == "Local")
    done = subprocess.run(command, env=with_imports(), capture_output=True, text=True, timeout=300)
    assert done.stdout == "this script has no guard\ndone\n", done.stderr
    assert done.stderr == ""


def test_workers_end_with_a_client_that_is_killed_in_the_middle_of_a_request(tmp_path: Path) -> None:
    with subprocess.Popen(script("Local", tmp_path, "wait"), env=with_imports()) as client:
        for _ in range(3000):
            if held := [path for path in tmp_path.iterdir() if path.name.startswith("free.")]:
                break
            time.sleep(0.02)
        (path,) = held
        worker = int(path.suffix[1:])
        assert alive(worker)
        os.kill(worker, signal.SIGINT)  # an interrupt is for the client
        assert alive(worker)
        client.kill()
    assert gone(worker)
