"""The whole command `dp-powerflow release`: does any choice of --workers beat the default?

    python benchmarks/release.py [--days 28 365 3650] [--workload old new] [--repetitions 3]
    python benchmarks/release.py --against COMMIT
    python benchmarks/release.py --stages

Two releases of IEEE 123. The old one draws days one by one, a load per node, on the frozen true network. The
new one is what the defaults make: 2,000 persistent customers on a twin, controls act, every node and the
loads are published. Runs alternate, so that whatever else the machine does falls on all alike; the best of
each counts. The ratio is the best time of any setting over that of the default: at least 0.95 is wanted.

`--against` makes the same releases with an earlier commit of this repository too, in the same run.
`--stages` prints how long the release says to be busy with what, by default workers.

Seconds by the clock are meant for an idle machine. Processor time, of the command and all processes that it
started, is printed beside them.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import workloads

WORKLOADS = {"old": workloads.old, "new": workloads.new}
PROGRAM = "from dp_powerflow.cli import main; main()"
DEFAULT: tuple[str, ...] = ()
WANTED = 0.95


@dataclass(frozen=True)
class Took:
    """Seconds by the clock and of all processors, and when the command said what it does."""

    wall: float
    processor: float
    said: tuple[tuple[float, str], ...]


def release(workload: str, days: int, options: Sequence[str], source: Path, root: Path) -> Took:
    """Run the command in a fresh directory below `root`."""
    with tempfile.TemporaryDirectory(dir=root) as folder:
        (Path(folder) / "release.toml").write_text(WORKLOADS[workload](days))
        command = [sys.executable, "-c", PROGRAM, "release", "release.toml", *options]
        before, began = _of_children(), time.perf_counter()
        with subprocess.Popen(
            command,
            cwd=folder,
            # As installed: bytecode of both is kept.
            env={
                **os.environ,
                "PYTHONPATH": str(source),
                "PYTHONUNBUFFERED": "1",
                "PYTHONDONTWRITEBYTECODE": "",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            said = [(time.perf_counter() - began, line.strip()) for line in process.stderr]
        wall, processor = time.perf_counter() - began, _of_children() - before
    if process.returncode != 0:
        sys.exit("\n".join(["the release failed:", *(text for _, text in said)]))
    return Took(wall, processor, tuple(said))


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def settings(cores: int, scheduler: bool) -> dict[str, tuple[str, ...]]:
    """Names and options of the settings that are compared."""
    counts = sorted({1, 2, cores})
    found = {"default": DEFAULT} | {f"--workers {n}": ("--workers", str(n)) for n in counts}
    return found | ({"--scheduler local": ("--scheduler", "local")} if scheduler else {})


def compare(asked: argparse.Namespace, root: Path) -> bool:
    """Every setting on every workload; whether the default is never beaten by more than is allowed."""
    own, good = workloads.REPOSITORY / "src", True
    chosen = settings(len(os.sched_getaffinity(0)), asked.scheduler)
    print(f"{'workload':9} {'days':>5} {'setting':18} {'seconds':>8} {'processor':>10}   best / this")
    for workload in asked.workload:
        for days in asked.days:
            runs = {name: (options, own) for name, options in chosen.items()}
            best = best_of(workload, days, runs, asked.repetitions, root)
            fastest = min(took.wall for took in best.values())
            for name, took in best.items():
                ratio = fastest / took.wall
                print(
                    f"{workload:9} {days:5d} {name:18} {took.wall:8.2f} {took.processor:10.2f} {ratio:8.2f}",
                    flush=True,
                )
            good &= fastest / best["default"].wall >= WANTED
    print(f"default at least {WANTED} of the best: {'yes' if good else 'NO'}")
    return good


def against(asked: argparse.Namespace, root: Path) -> None:
    """This commit and an earlier one, by default workers."""
    print(f"{'workload':9} {'days':>5} {'':10} {'seconds':>8} {'processor':>10}")
    with tempfile.TemporaryDirectory() as folder:
        source = workloads.archived(asked.against, Path(folder) / "archive")
        for workload in asked.workload:
            for days in asked.days:
                runs = {"now": (DEFAULT, workloads.REPOSITORY / "src"), asked.against[:10]: (DEFAULT, source)}
                for first in runs.values():  # compiles
                    release(workload, min(days, 28), *first, root)
                best = best_of(workload, days, runs, asked.repetitions, root)
                now, before = best.values()
                for name, took in best.items():
                    print(f"{workload:9} {days:5d} {name:10} {took.wall:8.2f} {took.processor:10.2f}")
                print(
                    f"{workload:9} {days:5d} {'ratio':10} {before.wall / now.wall:8.2f} "
                    f"{before.processor / now.processor:10.2f}",
                    flush=True,
                )


def best_of(
    workload: str, days: int, runs: Mapping[str, tuple[Sequence[str], Path]], repetitions: int, root: Path
) -> dict[str, Took]:
    """The fastest of some runs of each, one after the other, in turn from the front and from the back."""
    found: dict[str, list[Took]] = {name: [] for name in runs}
    for turn in range(repetitions):
        for name in list(runs)[:: 1 if turn % 2 == 0 else -1]:
            found[name].append(release(workload, days, *runs[name], root))
    return {name: min(times, key=lambda took: took.wall) for name, times in found.items()}


def stages(asked: argparse.Namespace, root: Path) -> None:
    """What the command says, and how long until it says the next thing."""
    runs = {"default": (DEFAULT, workloads.REPOSITORY / "src")}
    for workload in asked.workload:
        for days in asked.days:
            took = best_of(workload, days, runs, asked.repetitions, root)["default"]
            print(f"{workload}, {days} days: {took.wall:.2f} s, {took.processor:.2f} s of the processor")
            begun = begun_stages(took.said)
            print(f"  {begun[0][0]:7.2f} s  start of the program")
            for (when, what), (end, _) in pairwise(begun):
                print(f"  {end - when:7.2f} s  {what}")
            print(f"  {took.wall - begun[-1][0]:7.2f} s  end of the program")


def begun_stages(said: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """When each stage began, and when the first words about the result came."""
    begun: list[tuple[float, str]] = []
    for when, what in said:
        if what.startswith(("warning: ", "released: ")):
            return [*begun, (when, "")]
        if not begun or not what.startswith(f"{begun[-1][1]}: "):  # else it says how far it is
            begun.append((when, what))
    return begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=int, nargs="+", default=[28, 365, 3650])
    parser.add_argument("--workload", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--scheduler", action="store_true", help="worker processes of this machine as well")
    parser.add_argument("--against", metavar="COMMIT", help="compare with an earlier commit instead")
    parser.add_argument("--stages", action="store_true", help="print the stages instead")
    asked = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="dp-powerflow-bench-"))
    good = True
    try:
        if asked.against:
            against(asked, root)
        elif asked.stages:
            stages(asked, root)
        else:
            good = compare(asked, root)
    finally:
        shutil.rmtree(root)
    load = os.getloadavg()[0]
    print(f"cores: {len(os.sched_getaffinity(0))}; load of the machine meanwhile: {load:.1f}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
