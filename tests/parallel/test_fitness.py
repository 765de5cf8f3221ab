"""Workers that cannot do what a run needs are refused before anything is spent, all of them at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow._parallel import Local, cluster
from dp_powerflow._parallel.cluster import refuse_unfit_workers
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
    refuse_unfit_workers(client, tmp_path / "new" / "out")
    refuse_unfit_workers(client, "memory://bucket/out")
    Local(2).check(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "versions": ({"versions": {"numpy": None}}, r"needs the versions .*numpy \d\S+ \(it has none\)"),
    "kind of processor": ({"machine": "aarch64"}, "processor of kind aarch64"),
    "spilling": ({"spills": True}, "--memory-limit 0"),
    "output": ({"output": "not found"}, r"cannot use the output .*/out \(not found\); choose a directory"),
}


def test_all_problems_of_all_workers_come_at_once_with_what_is_lacking(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {name: value for these, _ in UNFIT.values() for name, value in these.items()}
    with pytest.raises(ConfigError) as caught:
        refuse_with(changes, client, tmp_path, monkeypatch)
    said = str(caught.value).splitlines()
    assert "nothing was spent" in said[0]
    workers = list(client.scheduler_info()["workers"])
    for line, (_, message) in zip(said[1:], UNFIT.values(), strict=True):
        assert re.search(message, line)
        assert all(worker in line for worker in workers)


def refuse_with(changes: dict[str, Any], client: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask workers that say something else of themselves."""
    real = cluster.facts

    def changed(probe: Any, dask_worker: Any = None) -> dict[str, Any]:
        return real(probe, dask_worker) | ({} if dask_worker is None else changes)

    monkeypatch.setattr(cluster, "facts", changed)
    refuse_unfit_workers(client, folder / "out")


def test_a_process_says_what_it_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "DECIDE_THE_BITS", ("no-such-package",))
    same, other, gone = (tmp_path / name for name in ("same", "other", "gone"))
    same.write_text("as on the client")
    other.write_text("changed")
    seen = cluster.facts
    facts = seen((str(same), "as on the client"))
    assert facts["output"] == "seen"
    assert facts["versions"]["no-such-package"] is None
    assert seen((str(gone), "x"))["output"] == "not found"
    assert seen((str(other), "x"))["output"] == "it may not write there"


def test_a_worker_with_a_limit_of_memory_may_spill(client: Any) -> None:
    def limit(bytes_: int) -> None:
        client.run(lambda dask_worker: setattr(dask_worker.memory_manager, "memory_limit", bytes_))

    limit(1 << 40)
    try:
        with pytest.raises(ConfigError, match="may spill private data to its disk"):
            refuse_unfit_workers(client)
    finally:
        limit(0)


@dataclass(frozen=True)
class Odd:
    """A client of workers that do not come, or that raise something when asked."""

    late: bool

    def wait_for_workers(self, count: int, timeout: float) -> None:
        if self.late:
            raise TimeoutError

    def run(self, *asked: Any, on_error: str) -> dict[str, Any]:
        return {"tcp://w:1": AttributeError("a reading of 0.73 kW")}


def test_workers_that_do_not_come_or_cannot_answer_are_refused() -> None:
    with pytest.raises(ConfigError, match="has no workers; start some"):
        refuse_unfit_workers(Odd(late=True))
    with pytest.raises(ConfigError, match=r"tcp://w:1: cannot say what it has \(AttributeError\)") as caught:
        refuse_unfit_workers(Odd(late=False))
    assert "0.73" not in str(caught.value)
    assert "nothing was spent" in str(caught.value)
    with pytest.raises(ConfigError, match="never charges twice") as caught:  # how to resume, in the middle
        refuse_unfit_workers(Odd(late=False), first=False)
    assert "nothing was spent" not in str(caught.value)
