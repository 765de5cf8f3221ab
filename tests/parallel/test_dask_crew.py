"""A crew of Dask workers: they may die or come later, and the cluster shows nothing private."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from dp_powerflow._parallel import Answer, Crew, DaskScheduler
from dp_powerflow._parallel.cluster import wait_for_worker
from dp_powerflow._parallel.dask_crew import DaskCrew, Parcel, ParcelledJob
from dp_powerflow.errors import DpPowerflowError
from support.crew_jobs import SECRET, Counting

distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install dask distributed")

KEY = bytes(range(200, 232))
FEEDER = "feeder-of-hidden-street"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A real cluster of two processes, with the dashboard if bokeh is installed."""
    with distributed.LocalCluster(
        **{"n_workers": 2, "threads_per_worker": 1, "host": "127.0.0.1", "memory_limit": 0},
        **{"dashboard_address": "127.0.0.1:0", "silence_logs": 50},
    ) as cluster:
        yield cluster


@contextmanager
def threaded(workers: int) -> Iterator[tuple[Any, Any]]:
    """A cluster of threads of this process, and a client of it."""
    web = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    with (
        distributed.LocalCluster(
            **{"n_workers": workers, "threads_per_worker": 1, "processes": False, "memory_limit": 0},
            **{"scheduler_kwargs": web, "silence_logs": 50},
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield cluster, client


@contextmanager
def crew_on(cluster: Any, told: list[Any] | None = None) -> Iterator[Crew]:
    seen: list[Any] = [] if told is None else told
    engine = DaskScheduler(cluster.scheduler_address)
    with engine.crew(lambda number, thing: seen.append((number, thing)), 100) as crew:
        crew.give(Counting())
        yield crew


def test_workers_of_dask_keep_what_they_have_begun_and_then_forget_it(cluster: Any) -> None:
    told: list[Any] = []
    with crew_on(cluster, told) as crew:
        assert crew.at_once == 2
        for number in range(4):
            crew.submit(number, ("tell", number))
        began = {answer.number: answer for answer in crew.answers()}
        assert sorted(began) == [0, 1, 2, 3]
        for number, answer in began.items():
            crew.submit(10 + number, ("go on", number), near=answer.where)
            (near,) = crew.answers()
            assert (near.number, near.where) == (10 + number, answer.where)
            assert near.value["pid"] == answer.value["pid"]
            assert near.value["held"] > 1
        assert {answer.value["threads"] for answer in began.values()} == {1}
        crew.submit(20, ("go on", 0), near="tcp://127.0.0.1:9")  # a worker that is no more
        assert [answer.number for answer in crew.answers()] == [20]
    assert sorted(told) == [(number, ("began", number)) for number in range(4)]
    assert held(cluster) == (0, 0)


def held(cluster: Any) -> tuple[int, int]:
    """Tasks of the scheduler and data of the workers, once what was given back is gone."""
    for _ in range(200):
        with distributed.Client(cluster, set_as_default=False) as client:
            on_workers = client.run(lambda dask_worker: len(dask_worker.data)).values()
        found = len(cluster.scheduler.tasks), sum(on_workers)
        if found == (0, 0):
            break
        time.sleep(0.05)
    return found


def test_failures_on_dask_are_answers_and_say_nothing_private(cluster: Any) -> None:
    with crew_on(cluster) as crew:
        for number, what in enumerate(("known", "missing file", "defect", "fine")):
            crew.submit(number, (what, f"/nowhere/{FEEDER}"))
        found = {answer.number: answer for answer in crew.answers()}
    assert found[0].problem == "no solution"
    assert FEEDER in str(found[1].problem)  # a sentence for the data owner
    assert str(found[2].defect).startswith("ValueError in crew_jobs.py, line ")
    assert found[3].value["fact"] == f"/nowhere/{FEEDER}"
    with distributed.Client(cluster, set_as_default=False) as client:
        logs = str(client.get_worker_logs()) + str(client.get_scheduler_logs())
    assert SECRET not in logs
    assert FEEDER not in logs


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


def test_scheduler_and_dashboard_show_nothing_private_in_the_middle_of_a_run(
    cluster: Any, tmp_path: Path
) -> None:
    pytest.importorskip("bokeh", reason="the dashboard needs bokeh: pip install bokeh")
    free = tmp_path / FEEDER
    with crew_on(cluster) as crew:
        crew.give(Counting(name=FEEDER, key=KEY))
        for number in range(3):
            crew.submit(number, ("tell", KEY))
        list(crew.answers())  # plots show what was done, too
        for number in range(4):
            crew.submit(number, ("wait", str(free)))
        keys: list[str] = []
        while len(list(tmp_path.iterdir())) < 2 or len(keys) < 4:
            time.sleep(0.01)
            keys = [key for key in list(cluster.scheduler.tasks) if key.startswith("feeder-step-")]
        shown = pages(cluster, keys)
        shown["scheduler"] = held_by_scheduler(cluster.scheduler)
        free.touch()
        assert len(list(crew.answers())) == 4
    assert len(keys) == 4
    assert any("feeder-step" in text for page, text in shown.items() if page.startswith("plots"))
    assert all(f"feeder-step-{key.rsplit('-', 1)[1]}" in shown[f"info/task/{key}.html"] for key in keys)
    planted = [SECRET, FEEDER, str(tmp_path), KEY.hex(), str(list(KEY))[1:-1], repr(KEY)[2:-1]]
    planted += [KEY.decode("latin-1")]
    assert not [(page, canary) for page, text in shown.items() for canary in planted if canary in text]


def held_by_scheduler(scheduler: Any) -> str:
    """Everything that the scheduler holds of its tasks and events, as text and as it was sent."""
    found = [str(scheduler.identity()), repr(scheduler.get_events())]
    for key, task in scheduler.tasks.items():
        found += [str(key), repr(task), repr(task.run_spec), repr(task.annotations), str(task.type)]
        found.append(pickle.dumps(task.run_spec).decode("latin-1"))
    return "\n".join(found)


def test_a_careless_client_is_found_out(cluster: Any) -> None:
    with distributed.Client(cluster, set_as_default=False) as client:
        future = client.submit(len, FEEDER, pure=False, key=f"task-of-{SECRET}")
        assert future.result() == len(FEEDER)
        found = held_by_scheduler(cluster.scheduler)
    assert FEEDER in found
    assert SECRET in found


def test_a_parcel_shows_nothing() -> None:
    for parcel in (Parcel.of(FEEDER), ParcelledJob(pickle.dumps(Counting()))):
        assert "PRIVATE" in repr(parcel)
        assert FEEDER not in f"{parcel} {vars(parcel).keys()}"


@pytest.mark.slow
def test_a_request_outlives_a_worker_of_dask_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        distributed.LocalCluster(
            **{"n_workers": 1, "threads_per_worker": 1, "host": "127.0.0.1", "memory_limit": 0},
            **{"scheduler_kwargs": {"dashboard": False, "dashboard_address": "127.0.0.1:0"}},
            silence_logs=50,
        ) as cluster,
        crew_on(cluster) as crew,
    ):
        crew.submit(0, ("begin", 0))
        (first,) = crew.answers()
        crew.submit(1, ("kill once", str(tmp_path / "killed")), near=first.where)
        crew.submit(2, ("begin", 2))
        found = {answer.number: answer for answer in crew.answers()}
        assert found[1].value["fact"] == str(tmp_path / "killed")
        assert found[1].value["pid"] != first.value["pid"]
        assert found[2].value["fact"] == 2
        monkeypatch.setattr("dp_powerflow._parallel.dask_crew.TRIES", 1)
        crew.submit(3, ("kill", None))
        assert list(crew.answers()) == [Answer(3, "", lost=True)]


def test_workers_that_come_later_take_part(tmp_path: Path) -> None:
    with (
        threaded(1) as (cluster, client),
        closing(DaskCrew(client, lambda *_: None, wait_for_worker)) as crew,
    ):
        crew.give(Counting())
        for number in range(6):
            crew.submit(number, ("wait", str(tmp_path / "free")))
        answers = crew.answers()
        cluster.scale(2)
        client.wait_for_workers(2, timeout=60)
        for _ in range(3000):  # until both have begun something
            with_work = [worker for worker in cluster.scheduler.workers.values() if worker.processing]
            if len(with_work) == 2:
                break
            time.sleep(0.01)
        (tmp_path / "free").touch()
        assert len({answer.where for answer in answers}) == 2
        assert crew.at_once == 2


def test_a_cluster_without_workers_ends_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dp_powerflow._parallel.fitness.CONNECT_SECONDS", 0.3)
    with threaded(0) as (_, client), closing(DaskCrew(client, lambda *_: None, wait_for_worker)) as crew:
        crew.give(Counting())
        with pytest.raises(DpPowerflowError, match=r"no workers; see to the cluster"):
            crew.submit(0, ("begin", 0))
