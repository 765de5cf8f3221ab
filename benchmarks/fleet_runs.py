"""One run of the command `dp-powerflow fleet`, with its time, its memory and the bytes that it released."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

CLIENT = Path(__file__).resolve().parent / "fleet_client.py"
LOOK_S = 0.3
"""How often memory is looked at [s]; peaks are the kernel's own, so only short-lived processes are missed."""


@dataclass(frozen=True)
class FleetRun:
    """What a run took and what it released.

    Attributes
    ----------
    wall, processor : seconds by the clock; of all processors, of the command and whatever it started, but for
        workers of Dask, which nobody waits for.
    ledger : seconds by the clock that the client was busy with the ledger, or waited for its disk.
    client_mib, worker_mib, all_mib : peak memory of the client, of the largest other process, and of all at
        one time.
    files : SHA-256 of every released file, by its path below `out`.
    megabytes : of all released files.
    """

    wall: float
    processor: float
    ledger: float
    client_mib: float
    worker_mib: float
    all_mib: float
    files: dict[str, str]
    megabytes: float


def run_fleet(
    write: Callable[[Path], object], options: Sequence[str], source: Path, folder: Path
) -> FleetRun:
    """Write a fleet into a folder that is made, release it with the package of `source`, remove it."""
    folder.mkdir()
    try:
        write(folder)
        return _measured(folder, options, source)
    finally:
        shutil.rmtree(folder)


def _measured(folder: Path, options: Sequence[str], source: Path) -> FleetRun:
    command = [sys.executable, str(CLIENT), "times.json", "fleet", "fleet.toml", *options]
    # As installed: bytecode is kept.
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": ""}
    before, began = _of_children(), time.perf_counter()
    with (
        (folder / "said").open("w+") as said,
        subprocess.Popen(
            command, cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT
        ) as process,
    ):
        memory = _Memory(process.pid)
        process.wait()
        memory.stop()
    wall, processor = time.perf_counter() - began, _of_children() - before
    if process.returncode != 0:
        sys.exit("the fleet failed:\n" + (folder / "said").read_text()[-3000:])
    times = json.loads((folder / "times.json").read_text())
    files, size = _released(folder / "out")
    return FleetRun(
        wall,
        processor,
        times["ledger_s"],
        memory.client / 1024,
        memory.worker / 1024,
        memory.together / 1024,
        files,
        size / 1e6,
    )


def _released(out: Path) -> tuple[dict[str, str], int]:
    paths = sorted(path for path in out.rglob("*") if path.is_file())
    found = {}
    for path in paths:
        with path.open("rb") as file:
            found[str(path.relative_to(out))] = hashlib.file_digest(file, "sha256").hexdigest()
    return found, sum(path.stat().st_size for path in paths)


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _Memory(threading.Thread):
    """Looks at a process and those that it started, now and then; figures in KiB."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid, self._end = pid, threading.Event()
        self.client = self.worker = self.together = 0
        self.start()

    def stop(self) -> None:
        self._end.set()
        self.join()

    def run(self) -> None:
        while not self._end.wait(LOOK_S):
            together = 0
            for pid in _family(self._pid):
                peak, now = _status(pid)
                together += now
                if pid == self._pid:
                    self.client = max(self.client, peak)
                else:
                    self.worker = max(self.worker, peak)
            self.together = max(self.together, together)


def _family(pid: int) -> list[int]:
    """A process and all that it started, as far as they are there."""
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        found.append(one)
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except OSError:  # it has ended
            continue
    return found


def _status(pid: int) -> tuple[int, int]:
    """Peak and present resident memory [KiB]."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    figures = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("VmHWM", "VmRSS"))}
    return int(figures.get("VmHWM", 0)), int(figures.get("VmRSS", 0))
