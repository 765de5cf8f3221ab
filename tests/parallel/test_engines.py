"""Every engine makes the same release; workers may die; nothing private is in a task graph."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from dp_powerflow._parallel import DaskScheduler, Local, Processes, engine_of
from dp_powerflow._parallel.cluster import Parcel, Workers
from dp_powerflow._parallel.local import Sealed
from dp_powerflow.config import Config
from dp_powerflow.errors import ConfigError, DpPowerflowError, MissingExtraError, PowerFlowError
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.ledger.book import Ledger
from support.parallel_jobs import CANARY, Failing, Squares, Waiting, children
from support.small import small_config, tree_hash

distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install dask distributed")

DAYS = 800
TWIN: dict[str, Any] = {
    "network": {
        **{"mode": "twin-network", "epsilon": 8.0, "delta": 1e-5},
        **{"transformers": True, "capacitors": True},
        **{"id": "t1", "change": 0.05, "controls": "frozen", "publish": "network and loads", "graph_days": 3},
    }
}
WEB = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
QUIET = {"scheduler_kwargs": WEB, "memory_limit": 0, "silence_logs": 50}


def config_of(folder: Path, network: str) -> Config:
    twin = TWIN if network == "twin" else {}
    return small_config(folder, release={"days": DAYS}, **twin)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, str]]:
    """Hashes of the release on a network, made by one process."""

    @cache
    def hashes(network: str) -> dict[str, str]:
        folder = tmp_path_factory.mktemp(network)
        run_release(config_of(folder, network), engine=Processes(1))
        return tree_hash(folder / "out")

    return hashes


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A real cluster of two processes; the scheduler is in this one."""
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", **QUIET) as cluster:
        yield cluster


def spends(folder: Path) -> Counter[str]:
    ledger = Ledger.inspect(folder / "state")
    return Counter(spend.kind.name for spend in ledger.spends())


def once(action: Callable[[], None]) -> Callable[[int, int], None]:
    """A progress callback that acts when the first part is reported, while others are being made."""
    left = [action]

    def progress(done: int, total: int) -> None:
        if left and total > 4 and done < total - 2:
            left.pop()()

    return progress


@pytest.mark.slow
@pytest.mark.parametrize("network", ["true", "twin"])
def test_processes_and_workers_of_dask_make_the_same_release(
    network: str, expected: Callable[[str], dict[str, str]], cluster: Any, tmp_path: Path
) -> None:
    assert any(name.startswith("twin/") for name in expected(network)) is (network == "twin")
    for engine in (Processes(2), DaskScheduler(cluster.scheduler_address)):
        folder = tmp_path / type(engine).__name__
        folder.mkdir()
        run_release(config_of(folder, network), engine=engine)
        assert tree_hash(folder / "out") == expected(network), engine
        assert set(spends(folder).values()) == {1}, engine
        assert sorted(path.name for path in folder.iterdir()) == ["out", "state"]


@pytest.mark.slow
def test_a_release_outlives_the_only_worker_with_the_private_data(
    expected: Callable[[str], dict[str, str]], tmp_path: Path
) -> None:
    """Its nanny starts another, which gets the job anew."""
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", **QUIET) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        (pid,) = client.run(os.getpid).values()
        kill = partial(os.kill, pid, signal.SIGKILL)
        engine = DaskScheduler(cluster.scheduler_address)
        run_release(config_of(tmp_path, "true"), engine=engine, progress=once(kill))
        assert pid not in client.run(os.getpid).values()
    assert tree_hash(tmp_path / "out") == expected("true")
    assert set(spends(tmp_path).values()) == {1}


def test_a_release_whose_pool_loses_a_process_resumes(
    expected: Callable[[str], dict[str, str]], tmp_path: Path
) -> None:
    others = set(children())

    def kill() -> None:
        os.kill((set(children()) - others).pop(), signal.SIGKILL)

    with pytest.raises(DpPowerflowError, match="run the same command again"):
        run_release(config_of(tmp_path, "true"), engine=Processes(2), progress=once(kill))
    assert not (tmp_path / "out").exists()
    run_release(config_of(tmp_path, "true"), engine=Processes(1))
    assert tree_hash(tmp_path / "out") == expected("true")
    assert set(spends(tmp_path).values()) == {1}


def held_by_scheduler(scheduler: Any) -> bytes:
    """Everything that the scheduler holds of its tasks and events, as text and as it was sent."""
    found = [str(scheduler.identity()), repr(list(scheduler.get_events()) if scheduler else "")]
    sent = []
    for key, task in scheduler.tasks.items():
        found += [str(key), str(task), repr(task)]
        for name in ("run_spec", "annotations", "exception_text", "traceback_text", "prefix", "group"):
            value = getattr(task, name, None)
            found += [str(value), repr(value)]
            sent.append(pickle.dumps(value) if name == "run_spec" else b"")
    return "\n".join(found).encode() + b"".join(sent)


PLOTS = ("/status", "/tasks", "/graph", "/workers", "/events", "/exceptions", "/profile")


def pages(cluster: Any, keys: list[str]) -> dict[str, str]:
    """What the dashboard serves: pages over HTTP, and what its plots send to a browser that opens them."""
    from bokeh.document import Document  # type: ignore[import-not-found,unused-ignore]
    from distributed.dashboard.scheduler import applications, template_variables

    root = cluster.dashboard_link.removesuffix("/status")
    info = ["info/main/workers.html", "info/main/exceptions.html", "info/main/logs.html", "json/counts.json"]
    for worker in cluster.scheduler.workers:
        info += [f"info/{what}/{quote(worker, safe='')}.html" for what in ("worker", "call-stacks", "logs")]
    for key in keys:
        info += [f"info/task/{key}.html", f"info/call-stack/{key}.html"]
    found = {}
    for page in [*info, "status", "tasks", "graph"]:
        with urlopen(f"{root}/{page}", timeout=60) as answer:
            found[page] = answer.read().decode()

    async def plots() -> dict[str, str]:
        made = {}
        for page in PLOTS:
            document = Document()
            applications[page](cluster.scheduler, template_variables(cluster.scheduler), document)
            made[f"plots of {page}"] = str(document.to_json())
        return made

    return {**found, **cluster.sync(plots)}


def test_scheduler_and_dashboard_show_nothing_private_in_the_middle_of_a_run(tmp_path: Path) -> None:
    pytest.importorskip("bokeh", reason="the dashboard needs bokeh: pip install bokeh")
    key, feeder, free = bytes(range(200, 232)), "feeder-of-hidden-street", tmp_path / "free"
    done: list[str] = []
    shown: dict[str, str] = {}
    keys: list[str] = []

    def look(said: str) -> None:
        """Once three items are done, which plots show too, and two of the other four are under way."""
        done.append(said)
        if len(done) != 3:
            return
        while len(list(tmp_path.iterdir())) < 2 or len(keys) < 4:
            time.sleep(0.01)
            keys[:] = [name for name in list(own.scheduler.tasks) if name.startswith("task-")]
        shown.update(pages(own, keys))
        shown["scheduler"] = held_by_scheduler(own.scheduler).decode("latin-1")
        free.touch()

    options: dict[str, Any] = {"dashboard_address": "127.0.0.1:0", "memory_limit": 0, "silence_logs": 50}
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", **options) as own:
        items = [(feeder, key, None)] * 3 + [(feeder, key, free)] * 4
        DaskScheduler(own.scheduler_address).map(Waiting(feeder, key), items, look)
        assert not own.scheduler.tasks  # and after the run nothing at all
    assert done == [feeder] * 7
    assert len(keys) == 4
    assert any("task-" in text for page, text in shown.items() if page.startswith("plots"))
    assert all(name in shown[f"info/task/{name}.html"] for name in keys)
    planted = [CANARY, feeder, str(tmp_path), key.hex(), str(list(key))[1:-1], repr(key)[2:-1]]
    planted += [key.decode("latin-1")]
    assert not [(page, canary) for page, text in shown.items() for canary in planted if canary in text]


def test_the_search_finds_what_a_careless_client_leaves(cluster: Any) -> None:
    with distributed.Client(cluster, set_as_default=False) as client:
        future = client.submit(len, CANARY, pure=False)
        assert future.result() == len(CANARY)
        assert CANARY.encode() in held_by_scheduler(cluster.scheduler)


CLIENT = """
import sys, time
from distributed import Client
from support.parallel_jobs import Failing
from dp_powerflow._parallel.local import Sealed
client = Client(sys.argv[1])
sealed = client.scatter(Sealed(Failing("known")), broadcast=True, hash=False)
print("sent", flush=True)
time.sleep(600)
"""


def test_the_cluster_forgets_the_job_of_a_client_that_was_killed(cluster: Any) -> None:
    def held() -> tuple[int, int]:
        with distributed.Client(cluster, set_as_default=False) as client:
            on_workers = client.run(lambda dask_worker: len(dask_worker.data)).values()
        return len(cluster.scheduler.tasks), sum(on_workers)

    command = [sys.executable, "-c", CLIENT, cluster.scheduler_address]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"sent\n"
        assert held() == (1, 2)
        client.kill()
    for _ in range(100):
        if held() == (0, 0):
            break
        time.sleep(0.2)
    assert held() == (0, 0)


@pytest.mark.parametrize("wrapped", [Sealed(Failing("known")), Parcel(CANARY)])
def test_what_travels_shows_nothing(wrapped: Any) -> None:
    for text in (str(wrapped), repr(wrapped), f"{wrapped}", repr([wrapped]), repr(vars(wrapped).keys())):
        assert CANARY not in text


def test_a_job_travels_to_every_worker_and_not_with_every_task(cluster: Any, tmp_path: Path) -> None:
    with distributed.Client(cluster, set_as_default=False) as client:
        results: list[int] = []
        Workers(client).map(Squares(tmp_path), range(40), results.append)
        pids = {str(pid) for pid in client.run(os.getpid).values()}
    assert sorted(results) == [k * k for k in range(40)]
    received = (tmp_path / "received").read_text().split()
    assert set(received) <= pids
    assert len(received) <= 2 * len(pids)  # a busy worker may fetch it before it is sent there
    # One worker per process and thread, each told that it has one thread.
    assert len((tmp_path / "start-1").read_text().split()) <= len(received)


def test_the_text_of_an_unexpected_error_stays_on_the_worker(cluster: Any) -> None:
    with distributed.Client(cluster, set_as_default=False) as client:
        with pytest.raises(PowerFlowError, match=r"^no solution$"):
            Workers(client).map(Failing("known"), range(4), lambda _: None)
        with pytest.raises(DpPowerflowError, match=r"ValueError in parallel_jobs\.py, line \d+") as caught:
            Workers(client).map(Failing("unexpected"), range(4), lambda _: None)
        logs = str(client.get_worker_logs()) + str(client.get_scheduler_logs())
    assert CANARY not in str(caught.value)
    assert CANARY not in logs
    assert CANARY.encode() not in held_by_scheduler(cluster.scheduler)


def test_a_task_that_ends_every_worker_ends_the_run() -> None:
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", **QUIET) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
        pytest.raises(DpPowerflowError, match="see to the cluster"),
    ):
        Workers(client).map(Failing("kill"), [1], lambda _: None)


def test_a_scheduler_that_is_not_there_is_found_out_before_anything_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dp_powerflow._parallel.cluster.CONNECT_SECONDS", 0.3)
    for address in ("tcp://127.0.0.1:9", "nonsense"):
        with pytest.raises(ConfigError, match="no Dask scheduler answers"):
            run_release(config_of(tmp_path, "true"), engine=DaskScheduler(address))
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_chooses_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_of(3, None) == Local(3)
    assert engine_of(3, "local") == Processes(3)
    assert engine_of(None, "tcp://h:1") == DaskScheduler("tcp://h:1")
    with pytest.raises(ConfigError, match="--workers"):
        engine_of(3, "tcp://h:1")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtraError, match=r"dp-powerflow\[cluster\]"):
        engine_of(None, "tcp://h:1").check()
