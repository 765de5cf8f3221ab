"""Threads of one process: the same bytes for any number of them, few results in memory, a prompt end."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow._parallel import Local, Rest, Runner, Threads, local
from dp_powerflow._threads import in_order
from dp_powerflow.config import Config
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.model.sample import LoadBlock, LoadSource
from dp_powerflow.pipeline.inputs import Solar
from dp_powerflow.pipeline.parts import PartJob, SolverMaker, Written
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.powerflow.batch import Solution, Solver
from dp_powerflow.units import ComplexArray
from support.parallel_jobs import Failing, Squares
from support.small import small_config

PARTS = 7
OPERATED: dict[str, Any] = {"mode": "twin-network", "epsilon": 1.0, "id": "t1", "released": "all"}
TABLES: dict[str, Any] = {
    **{"mode": "twin-network", "epsilon": 8.0, "delta": 1e-5, "transformers": True, "capacitors": True},
    **{"id": "t1", "change": 0.05, "controls": "frozen", "publish": "network and loads", "graph_days": 300},
}


def config_of(folder: Path, kind: str, days: int) -> Config:
    """Drawn day by day, or persistent customers on a twin as operated, or a twin with tables for graphs."""
    network = {"days": {}, "operated": OPERATED, "tables": TABLES}[kind]
    nodes = {"kw_per_customer": 2.2} if kind == "operated" else {}
    return small_config(folder, network=network, nodes=nodes, release={"days": days})


class Kept(Exception):  # noqa: N818 - it ends a release once its job is known
    def __init__(self, job: PartJob) -> None:
        super().__init__()
        self.job = job


class Keeper:
    """An engine that does nothing but show the job."""

    def check(self, needs: Any = None) -> None:
        """Nothing is needed."""

    def map(self, job: Any, items: Any, on_done: Any) -> None:
        raise Kept(job)


@pytest.fixture(scope="module", params=["days", "operated", "tables"])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PartJob:
    """The job of a release of `PARTS` parts."""

    def made(days: int) -> PartJob:
        folder = tmp_path_factory.mktemp(request.param)
        with pytest.raises(Kept) as kept:
            run_release(config_of(folder, request.param, days), engine=Keeper())
        found: PartJob = kept.value.job
        return found

    return made(PARTS * made(1).writer.layout.days_per_part)


def hashes(job: PartJob, engine: Runner, folder: Path) -> dict[str, str]:
    """SHA-256 of every file of all parts, made in a new directory."""
    writer = replace(job.writer, target=folder / "out")
    writer.prepare()
    found: list[Written] = []
    engine.map(replace(job, writer=writer), writer.missing_parts(), found.append)
    assert len(found) == PARTS
    assert writer.missing_parts() == ()
    return {name: digest for part in found for name, digest in part.hashes.items()}


def folders(root: Path) -> Iterator[Path]:
    for k in range(100):
        (root / str(k)).mkdir()
        yield root / str(k)


@dataclass(frozen=True, eq=False)
class MeetingSource:
    """Loads as of a source; threads wait for each other once they have drawn."""

    source: LoadSource
    meeting: threading.Barrier

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def block(self, index: int) -> LoadBlock:
        drawn = self.source.block(index)
        self.meeting.wait(timeout=60)
        return drawn


@dataclass(frozen=True, eq=False)
class MeetingMaker(SolverMaker):
    """Makes solvers of a maker whose threads wait for each other once they have solved.

    `shared` is a voltage buffer that all of them write to: a planted bug.
    """

    maker: SolverMaker = field(kw_only=True)
    meeting: threading.Barrier = field(kw_only=True)
    shared: list[ComplexArray] | None = None

    def __call__(self, feeder: Feeder, solar: Solar, threads: int | None) -> Solver:
        solver = self.maker(feeder, solar, threads)
        original = solver.solve

        def solve(load: ComplexArray, *given: Any, **options: Any) -> Solution:
            solution = original(load, *given, **options)
            if self.shared is not None:
                self.shared[:] = self.shared or [np.empty_like(solution.v)]
                self.shared[0][...] = solution.v
                solution = replace(solution, v=self.shared[0])
            self.meeting.wait(timeout=60)
            return solution

        solver.solve = solve  # type: ignore[method-assign]
        return solver


@pytest.mark.slow
def test_threads_that_meet_after_every_stage_share_no_buffer(job: PartJob, tmp_path: Path) -> None:
    """All seven have drawn before one solves, all have solved before one writes."""
    fresh = folders(tmp_path)
    expected = hashes(job, Local(1), next(fresh))
    meeting = threading.Barrier(7)
    solver = MeetingMaker(maker=job.solver, meeting=meeting)
    met = replace(job, source=MeetingSource(job.source, meeting), solver=solver)
    assert hashes(met, Local(7), next(fresh)) == expected
    # The same search finds a buffer that threads do share.
    planted = replace(job, solver=replace(solver, shared=[]))
    found = hashes(planted, Local(7), next(fresh))
    assert {name for name in expected if found[name] != expected[name]}


def test_processes_are_used_where_there_is_much_to_do_for_many_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[tuple[str, int]] = []
    monkeypatch.setattr(local, "run_on_pool", lambda count, *_: used.append(("processes", count)))
    monkeypatch.setattr(local, "_run_in_threads", lambda _, count, *__: used.append(("threads", count)))
    for workers, items in ((2, 18), (8, 3), (8, 100_000), (64, 200), (64, 64 * 64)):
        Local(workers).map(Failing("known"), range(items), forget)
    assert used == [*(("threads", count) for count in (2, 3, 8, 64)), ("processes", 64)]


def test_few_tasks_share_all_cores(tmp_path: Path) -> None:
    found: list[int] = []
    Local(7).map(Squares(tmp_path), range(3), found.append)
    assert sorted(found) == [0, 1, 4]
    assert len((tmp_path / "start-2").read_text().splitlines()) <= 3
    Local(7).map(Squares(tmp_path), range(1), found.append)
    assert (tmp_path / "start-None").exists()
    assert not (tmp_path / "received").exists()  # nothing travels


@pytest.mark.parametrize("engine", [Local(1), Local(3)])
@pytest.mark.parametrize(("how", "kind"), [("known", PowerFlowError), ("unexpected", ValueError)])
def test_a_failure_keeps_its_kind(engine: Runner, how: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        engine.map(Failing(how), range(5), forget)


@dataclass(frozen=True)
class Noted:
    """Notes which tasks were begun and which finished; what is left of a task waits for `go`."""

    go: threading.Event
    begun: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    days_at_once: int = 1

    def start(self, threads: int | None) -> Callable[[int], Rest[int]]:
        return self.work

    def work(self, task: int) -> Rest[int]:
        self.begun.append(task)

        def finish() -> int:
            assert self.go.wait(60)
            if task == 70:
                raise PowerFlowError("no room")
            self.finished.append(task)
            return task

        return Rest(finish)


def forget(result: int) -> None:
    """A result that nobody needs."""


def until(happened: Callable[[], bool]) -> None:
    for _ in range(60_000):
        if happened():
            return
        time.sleep(0.001)
    raise AssertionError("it never happened")


def test_threads_compute_while_others_wait_for_the_disk_but_not_far_ahead() -> None:
    job = Noted(threading.Event())
    taken: list[int] = []
    run = threading.Thread(target=lambda: Threads(2).map(job, range(50), taken.append))
    run.start()
    until(lambda: len(job.begun) == 4)  # two wait for the disk, two have no room to wait
    time.sleep(0.05)
    assert (len(job.begun), job.finished, taken) == (4, [], [])
    job.go.set()
    run.join()
    assert sorted(taken) == list(range(50))


def test_what_fails_while_it_is_written_ends_the_run() -> None:
    job = Noted(threading.Event())
    job.go.set()
    for engine in (Threads(3), Local(1)):
        with pytest.raises(PowerFlowError, match=r"^no room$"):
            engine.map(job, range(10_000), forget)
    assert len(job.begun) < 10_000


def test_an_interruption_ends_the_run_after_the_tasks_that_are_being_done() -> None:
    job, main = Noted(threading.Event()), threading.get_ident()

    def interrupt() -> None:
        until(lambda: len(job.begun) == 4)
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.05)
        job.go.set()

    other = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a library may have put its own there
    try:
        other.start()
        with pytest.raises(KeyboardInterrupt):
            Threads(2).map(job, range(71, 100_071), forget)  # after the one that fails
        other.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert sorted(job.begun) == sorted(job.finished)  # nothing is left half done
    assert len(job.begun) < 100_000


def test_items_keep_their_order_in_threads() -> None:
    assert list(in_order(lambda k: k * k, range(20), 3)) == [k * k for k in range(20)]
    assert list(in_order(str, ())) == []
