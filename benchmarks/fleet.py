"""Fleets, end to end: twelve mixed feeders by one worker and by default, and many small feeders.

    python benchmarks/fleet.py --mixed [--days 365] [--repetitions 1]
    python benchmarks/fleet.py --small 100 300 1000 [--days 28]
    python benchmarks/fleet.py --mixed --small 100 --against COMMIT

`--mixed` releases the same fleet with `--workers 1` and by default, in turns, and
compares every released byte. A ratio is the time of one worker over that of the setting; wanted are 1.6,
on two idle cores.

`--small` releases fleets of so many small feeders, by default workers, and the smallest of them once more
with a year of days. From both it says what a feeder costs, what a further day of it, and what 5,000 feeders
of 10 years would take. Wanted: the cost per feeder of the fleets differs by less than 10 % up or down, the
client stays below 1 GiB, 1,000 feeders take less than 15 minutes on two cores.

`--against` releases by default workers with an earlier commit as well, in the same run.

Seconds by the clock are meant for an idle machine; processor time stands beside them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import fleet_files
import workloads
from fleet_runs import FleetRun, run_fleet

OWN = workloads.REPOSITORY / "src"
DEFAULT: tuple[str, ...] = ()
SETTINGS: dict[str, tuple[str, ...]] = {"--workers 1": ("--workers", "1"), "default": DEFAULT}
WANTED = {"default": 1.6}
YEAR, FEEDERS, YEARS = 365, 5_000, 10
FLAT, CLIENT_MIB = 0.10, 1024.0
COLUMNS = (
    f"{'seconds':>9} {'processor':>10} {'ledger':>7} {'client MiB':>11} {'worker MiB':>11} {'all MiB':>8}"
)

Write = Callable[[Path], object]
Runs = Mapping[str, tuple[Sequence[str], Path]]
"""Options and source of every setting that is compared."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mixed", action="store_true", help="the twelve mixed feeders")
    parser.add_argument("--small", type=int, nargs="+", metavar="N", default=[], help="fleets of N feeders")
    parser.add_argument("--days", type=int, help=f"per feeder; {YEAR} of the mixed fleet, 28 of small ones")
    parser.add_argument("--repetitions", type=int, default=1, help="of the mixed fleet; the best counts")
    parser.add_argument("--against", metavar="COMMIT", help="also that commit, by default workers")
    parser.add_argument("--folder", type=Path, help="where fleets lie while they are measured")
    asked = parser.parse_args()
    if not asked.mixed and not asked.small:
        parser.error("say --mixed or --small N...")
    root, good = Path(tempfile.mkdtemp(prefix="dp-powerflow-fleet-", dir=asked.folder)), True
    try:
        earlier = workloads.archived(asked.against, root / "archive") if asked.against else None
        if asked.mixed:
            good &= mixed(asked, root, earlier)
        if asked.small:
            good &= small(asked, root, earlier)
    finally:
        shutil.rmtree(root)
    print(f"cores: {len(os.sched_getaffinity(0))}; load of the machine meanwhile: {os.getloadavg()[0]:.1f}")
    sys.exit(0 if good else 1)


def mixed(asked: argparse.Namespace, root: Path, earlier: Path | None) -> bool:
    """Every setting on the mixed fleet; whether bytes are equal and ratios as wanted."""
    days = asked.days or YEAR
    runs: dict[str, tuple[Sequence[str], Path]] = {name: (of, OWN) for name, of in SETTINGS.items()}
    if earlier is not None:
        runs = {"now": (DEFAULT, OWN), asked.against[:10]: (DEFAULT, earlier)}

    def write(folder: Path) -> None:
        fleet_files.write_mixed(folder, days)

    if earlier is not None:
        for each in runs.values():  # compiles kernels
            run_fleet(lambda folder: fleet_files.write_mixed(folder, 2), *each, root / "fleet")
    print(f"mixed fleet, {days} days\n{'setting':18} {COLUMNS} {'ratio':>6}")
    best = best_of(write, runs, asked.repetitions, root)
    first = next(iter(best.values()))
    for name, run in best.items():
        print(f"{name:18} {line_of(run)} {first.wall / run.wall:6.2f}", flush=True)
    if earlier is not None:
        return True
    same = all(run.files == first.files for run in best.values())
    print(
        f"{_feeders(first)} feeders, {len(first.files)} released files, {first.megabytes:,.0f} MB; "
        f"the same bytes from all settings: {'yes' if same else 'NO'}"
    )
    for name, run in best.items():
        other = [path for path in first.files if run.files.get(path) != first.files[path]]
        other += [path for path in run.files if path not in first.files]
        if other:
            print(f"{name}: {len(other)} other files, such as {', '.join(sorted(other)[:8])}")
    fast = all(first.wall / best[name].wall >= ratio for name, ratio in WANTED.items())
    wanted = ", ".join(f"{name} at least {ratio}" for name, ratio in WANTED.items())
    print(f"{wanted}: {'yes' if fast else 'NO'}")
    return same and fast


def small(asked: argparse.Namespace, root: Path, earlier: Path | None) -> bool:
    """Fleets of small feeders by default workers; whether cost is flat and memory as wanted."""
    days, sizes = asked.days or 28, sorted(asked.small)
    sources = {"now": OWN} | ({asked.against[:10]: earlier} if earlier is not None else {})
    for source in sources.values():  # compiles kernels, and fills the caches of the machine
        run_fleet(lambda folder: fleet_files.write_small(folder, 2, 2), DEFAULT, source, root / "fleet")
    print(f"small feeders\n{'':10} {'feeders':>7} {'days':>5} {COLUMNS} {'per feeder':>11} {'processor':>10}")
    found: dict[int, FleetRun] = {}
    for size in sizes:
        for name, source in sources.items():
            run = small_run(name, size, days, source, root)
            if name == "now":
                found[size] = run
    year = small_run("now", sizes[0], days + YEAR, OWN, root)
    each = {size: run.processor / size for size, run in found.items()}
    middle = sum(each.values()) / len(each)
    off = max(abs(value / middle - 1.0) for value in each.values())
    client = max(run.client_mib for run in (*found.values(), year))
    print(f"processor seconds per feeder are within ±{100 * off:.0f} % of their mean over all sizes")
    print(f"client at most {client:,.0f} MiB")
    project(found[sizes[-1]], sizes[-1], days, (found[sizes[0]], year))
    return off <= FLAT and client <= CLIENT_MIB


def small_run(name: str, size: int, days: int, source: Path, root: Path) -> FleetRun:
    """One fleet of small feeders, in a line of the table."""
    run = run_fleet(
        lambda folder: fleet_files.write_small(folder, size, days), DEFAULT, source, root / "fleet"
    )
    print(
        f"{name:10} {size:7d} {days:5d} {line_of(run)} {run.wall / size:11.3f} {run.processor / size:10.3f}",
        flush=True,
    )
    return run


def project(largest: FleetRun, size: int, days: int, two: tuple[FleetRun, FleetRun]) -> None:
    """What 5,000 feeders of 10 years take, from two lengths of one fleet and the largest fleet."""
    short, long = two
    feeders = _feeders(short)
    day = (long.processor - short.processor) / (feeders * YEAR)
    disk = (long.megabytes - short.megabytes) / (feeders * YEAR)
    once = largest.processor / size - days * day
    hours = FEEDERS * (once + YEARS * YEAR * day) / 3600.0
    cores = len(os.sched_getaffinity(0))
    print(f"a feeder: {once:.2f} s before its first day, {1e3 * day:.2f} ms and {disk:.4f} MB for a day")
    print(
        f"{FEEDERS:,} such feeders × {YEARS} years: {hours:,.1f} core-hours, {hours / cores:,.1f} hours on "
        f"{cores} cores that are never idle, {FEEDERS * YEARS * YEAR * disk / 1e6:,.2f} TB, "
        f"{FEEDERS * largest.ledger / size:,.0f} s of the ledger"
    )


def best_of(write: Write, runs: Runs, repetitions: int, root: Path) -> dict[str, FleetRun]:
    """The fastest of some runs of each, one after the other, in turn from the front and from the back."""
    found: dict[str, list[FleetRun]] = {name: [] for name in runs}
    for turn in range(repetitions):
        for name in list(runs)[:: 1 if turn % 2 == 0 else -1]:
            found[name].append(run_fleet(write, *runs[name], root / "fleet"))
            print(f"# {name:16} {line_of(found[name][-1])}", file=sys.stderr, flush=True)
    return {name: min(times, key=lambda run: run.wall) for name, times in found.items()}


def line_of(run: FleetRun) -> str:
    """Figures of a run under `COLUMNS`."""
    return (
        f"{run.wall:9.1f} {run.processor:10.1f} {run.ledger:7.2f} {run.client_mib:11,.0f} "
        f"{run.worker_mib:11,.0f} {run.all_mib:8,.0f}"
    )


def _feeders(run: FleetRun) -> int:
    return sum(name.endswith("/manifest.json") for name in run.files)


if __name__ == "__main__":
    main()
