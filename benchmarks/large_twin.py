"""A whole twin release of a large feeder through the product: seconds of every stage, and memory.

    python benchmarks/large_twin.py [--nodes 1000 3000 10000] [--days 365] [--workers N]

The feeder is a synthetic OpenDSS script (a house is one load and one customer), read as any utility's would
be. Persistent customers, controls acting, all nodes and all loads published. Every size runs in a process of
its own. Processor seconds count, with those of workers, because machines are shared; `clock_s` is what one
waits. `day_s` is the cost of a day without the preparation before the first part.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import workloads

SIZES = (1_000, 3_000, 10_000)
MADE = "drawing loads and solving"
"""Stage in which the days are made, as the product says it."""
VERIFY = "verify"
AFTER = (MADE, "looking at the corpus", VERIFY)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--workers", type=int, help="as of `dp-powerflow release`; its default if left out")
    parser.add_argument("--homes", type=int, default=1000, help="simulated homes that the model is fitted on")
    parser.add_argument("--folder", type=Path, help="where the releases are made; by default a temporary one")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        found = in_a_folder(options.child, options)
        print(json.dumps(found))
        return
    rows = [in_a_process(nodes, options) for nodes in options.nodes]
    names = list(dict.fromkeys(name for row in rows for name in row))
    width = max(len(name) for name in names)
    for name in names:
        print(f"{name:{width}s} " + " ".join(f"{row.get(name, float('nan')):12,.4g}" for row in rows))
    if len(rows) > 1:
        nodes = np.log([row["nodes"] for row in rows])
        for name in ("day_s", "before_s", "processor_s", "megabytes"):
            exponent, _ = np.polyfit(nodes, np.log([row[name] for row in rows]), 1)
            print(f"{name} grows as nodes^{exponent:.2f}")


def in_a_process(nodes: int, options: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", str(nodes), "--days", str(options.days)]
    command += ["--homes", str(options.homes)]
    if options.workers is not None:
        command += ["--workers", str(options.workers)]
    if options.folder is not None:
        command += ["--folder", str(options.folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def in_a_folder(nodes: int, options: argparse.Namespace) -> dict[str, float]:
    if options.folder is not None:
        folder = options.folder / f"large-{nodes}"
        folder.mkdir(parents=True)
        return measure(nodes, options, folder)
    with tempfile.TemporaryDirectory() as name:
        return measure(nodes, options, Path(name))


@dataclass
class Clock:
    """Processor time at the beginning of every stage, and at every part."""

    stages: list[tuple[str, float]] = field(default_factory=list)
    parts: list[tuple[int, int, float]] = field(default_factory=list)

    def stage(self, words: str) -> None:
        self.stages.append((words, processor_s()))
        print(f"{processor_s():8.1f} s  {words}", file=sys.stderr, flush=True)

    def part(self, done: int, total: int) -> None:
        if self.stages and self.stages[-1][0] == MADE:
            self.parts.append((done, total, processor_s()))

    @property
    def part_s(self) -> float:
        """Processor time of one part: the first, which waits for the solver, is left out."""
        if len(self.parts) < 2:
            return float("nan")
        (first, _, begin), (last, _, end) = self.parts[0], self.parts[-1]
        return (end - begin) / (last - first)


def measure(nodes: int, options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Make the release; what it took."""
    import dp_powerflow as dpf

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from support.synthetic import write_synthetic

    write_synthetic(folder / "feeder.dss", nodes, whole_houses=True)
    config = workloads.new(options.days, feeder="feeder.dss", homes=options.homes)
    (folder / "c.toml").write_text(config, encoding="utf-8")
    os.chdir(folder)
    clock, began = Clock(), time.perf_counter()
    clock.stage("start")
    result = dpf.release(
        dpf.read_config("c.toml"), workers=options.workers, on_stage=clock.stage, on_progress=clock.part
    )
    clock.stage(VERIFY)
    waited = time.perf_counter() - began
    if not dpf.verify(result.path).intact:
        raise SystemExit("the release does not verify")
    clock.stage("end")
    names, times = zip(*clock.stages, strict=True)
    spent = dict(zip(names, np.diff(times).tolist(), strict=False))
    stages = {f"  {words[:40]}": seconds for words, seconds in spent.items()}
    parts = clock.parts[-1][1] if clock.parts else 1
    return {
        "nodes": float(dpf.open_corpus(result.path).layout.nodes),
        "days": float(options.days),
        **stages,
        "before_s": sum(seconds for words, seconds in spent.items() if words not in AFTER),
        "day_s": clock.part_s * parts / options.days,
        "processor_s": sum(seconds for words, seconds in spent.items() if words != VERIFY),
        "clock_s": waited,
        "megabytes": sum(file.stat().st_size for file in Path("out").rglob("*") if file.is_file()) / 1e6,
        "peak_gib": peak_gib(),
    }


def processor_s() -> float:
    """Of this process and of workers that have ended."""
    own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def peak_gib() -> float:
    """Of the largest process."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(one).ru_maxrss for one in who) / 2**20


if __name__ == "__main__":
    main()
