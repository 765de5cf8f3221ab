"""Workers that cannot do what a run needs are refused before anything is spent, all of them at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow._parallel import Local, LocalDask, Needs, cluster, refuse_unfit_workers
from dp_powerflow.errors import ConfigError

distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install dask distributed")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A client of a cluster of two threads of this process."""
    web = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    with (
        distributed.LocalCluster(
            **{"n_workers": 2, "threads_per_worker": 1, "processes": False, "memory_limit": 0},
            **{"scheduler_kwargs": web, "silence_logs": 50},
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


def test_workers_of_this_machine_are_fit_and_no_probe_is_left(client: Any, tmp_path: Path) -> None:
    feeder = tmp_path / "feeder.dss"
    feeder.write_text("clear\n")
    needs = Needs(tmp_path / "new" / "out", [feeder])
    refuse_unfit_workers(client, needs)
    refuse_unfit_workers(client, Needs("memory://bucket/out"))
    for engine in (Local(2), LocalDask(2)):
        engine.check(needs)
        engine.check()
    assert list(tmp_path.iterdir()) == [feeder]


UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "versions": ({"versions": {"numpy": None}}, r"needs the versions .*numpy \d\S+ \(it has none\)"),
    "kind of processor": ({"machine": "aarch64"}, "processor of kind aarch64"),
    "spilling": ({"spills": True}, "--memory-limit 0"),
    "output": ({"output": "not found"}, r"cannot use the output .*/out \(not found\); choose a directory"),
    "feeders": ({"unseen": ["/f/a.dss"]}, r"does not see 1 of 1 feeder files as they are here, such as /f/a"),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_an_unfit_worker_is_named_with_what_it_lacks(
    kind: str, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, message = UNFIT[kind]
    with pytest.raises(ConfigError, match=message) as caught:
        refuse_with(changes, client, tmp_path, monkeypatch)
    assert "nothing was spent" in str(caught.value)
    for worker in client.scheduler_info()["workers"]:
        assert worker in str(caught.value)


def test_all_problems_of_all_workers_come_at_once(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {name: value for these, _ in UNFIT.values() for name, value in these.items()}
    with pytest.raises(ConfigError) as caught:
        refuse_with(changes, client, tmp_path, monkeypatch)
    assert str(caught.value).count("\n- workers ") == 5


def refuse_with(changes: dict[str, Any], client: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask workers that say something else of themselves."""
    feeder = folder / "feeder.dss"
    feeder.touch()
    real = cluster._facts_of

    def facts_of(*asked: Any) -> Any:
        facts = real(*asked)

        def changed(dask_worker: Any = None) -> dict[str, Any]:
            return facts() if dask_worker is None else {**facts(dask_worker), **changes}

        return changed

    monkeypatch.setattr(cluster, "_facts_of", facts_of)
    refuse_unfit_workers(client, Needs(folder / "out", [feeder]))


def test_a_process_says_what_it_sees(tmp_path: Path) -> None:
    same, other, gone = (tmp_path / name for name in ("same", "other", "gone"))
    same.write_text("as on the client")
    other.write_text("changed")
    sizes = {str(same): 16, str(other): 16, str(gone): 16}

    def seen(probe: tuple[str, str] | None, url: str | None = None) -> dict[str, Any]:
        return cluster._facts_of(["no-such-package"], probe, url, sizes)()

    facts = seen((str(same), "as on the client"))
    assert facts["unseen"] == [str(other), str(gone)]
    assert facts["output"] == "seen"
    assert facts["versions"]["no-such-package"] is None
    assert seen((str(gone), "x"))["output"] == "not found"
    assert seen((str(other), "x"))["output"] == "it may not write there"
    assert seen(None, "no-such-way://x/y")["output"] == "ValueError"


def test_a_worker_with_a_limit_of_memory_may_spill(client: Any) -> None:
    def limit(bytes_: int) -> None:
        client.run(lambda dask_worker: setattr(dask_worker.memory_manager, "memory_limit", bytes_))

    limit(1 << 40)
    try:
        with pytest.raises(ConfigError, match="may spill private data to its disk"):
            refuse_unfit_workers(client)
    finally:
        limit(0)


def test_a_cluster_without_workers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty:
        def wait_for_workers(self, count: int, timeout: float) -> None:
            raise TimeoutError

    with pytest.raises(ConfigError, match="has no workers; start some"):
        refuse_unfit_workers(Empty())
