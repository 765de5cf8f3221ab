"""Worker processes that are kept: they start when there is work, are replaced when they end, and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from dp_powerflow._parallel import local
from dp_powerflow._parallel.local import Pool, WorkerDefectError
from dp_powerflow.errors import DpPowerflowError, MissingExtraError, PowerFlowError
from support.parallel_jobs import CANARY, Failing, Squares, children


@dataclass(frozen=True)
class Dying:
    """Item 1 ends its process as often as `times` says; results tell the process."""

    folder: Path
    times: int

    def start(self, threads: int | None) -> Callable[[int], tuple[int, int]]:
        return self._work

    def _work(self, item: int) -> tuple[int, int]:
        if item == 1 and len(list(self.folder.iterdir())) < self.times:
            (self.folder / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return item, os.getpid()


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.05)
    return False


def test_processes_are_kept_from_one_map_to_the_next_and_end_with_the_pool(tmp_path: Path) -> None:
    found: list[int] = []
    others = set(children())
    with closing(Pool(2)) as pool:
        pool.map(Squares(tmp_path), range(5), found.append)
        started = set(children()) - others
        assert len(started) == 2
        pool.map(Squares(tmp_path, secret="other"), iter(range(5, 9)), found.append)
        assert set(children()) - others == started
    assert sorted(found) == [k * k for k in range(9)]
    assert all(map(gone, started))


def test_an_item_whose_process_dies_is_done_by_another_one_and_given_up_after_two(tmp_path: Path) -> None:
    for times in (1, 2):
        folder = tmp_path / str(times)
        folder.mkdir()
        found: list[tuple[int, int]] = []
        with closing(Pool(2)) as pool:
            pool.map(Dying(folder, times), range(4), found.append, lambda item: (item, -1))
        assert sorted(item for item, _ in found) == [0, 1, 2, 3]
        assert (dict(found)[1] == -1) is (times == 2)


def test_a_process_is_replaced_after_so_many_items(tmp_path: Path) -> None:
    found: list[tuple[int, int]] = []
    with closing(Pool(1, most_items=2)) as pool:
        pool.map(Dying(tmp_path, 0), range(5), found.append)
    assert [item for item, _ in found] == [0, 1, 2, 3, 4]
    assert len({pid for _, pid in found}) == 3


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("known", PowerFlowError, "no solution"),
        ("extra", MissingExtraError, "pip install"),
        ("kill", DpPowerflowError, "ended unexpectedly"),
        ("unexpected", WorkerDefectError, CANARY),
    ],
)
def test_a_failure_ends_the_map_with_its_kind(how: str, kind: type[Exception], words: str) -> None:
    with closing(Pool(1)) as pool, pytest.raises(kind, match=words):
        pool.map(Failing(how), range(3), lambda _: None)


def test_workers_that_cannot_start_end_the_run_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_COMMAND", "raise SystemExit(1)")
    with closing(Pool(1)) as pool, pytest.raises(DpPowerflowError, match="end as soon as they start"):
        pool.map(Failing("known"), range(3), lambda _: None)


@pytest.mark.slow
def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"""
from pathlib import Path
from dp_powerflow._parallel import Local
from support.parallel_jobs import Squares
found = []
with Local(2).kept(4, 9) as kept:
    kept.map(Squares(Path({str(tmp_path)!r})), range(4), found.append)
print(sorted(found))
"""
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[0, 1, 4, 9]\n", done.stderr
