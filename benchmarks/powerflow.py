"""Solves per second of this package and its peers, side by side.

    python benchmarks/powerflow.py [--rounds 2] [--cases ieee123 ...] [--json powerflow.json]

Every run is a process of its own and the tools take turns, round after round; each process times its solves
once and the best round counts, for all alike. Voltages are compared with this package's. Peers that are not
installed are named and left out (`pip install -r benchmarks/requirements.txt`).

    python benchmarks/powerflow.py --operated

runs the section "as operated" alone: acting controls against frozen ones, against OpenDSS's own and against
power-grid-model, frozen and with its tap changers. `--processor-time` ranks by processor time instead of the
clock, where a tool gives it: the ratios then hold on a machine with other work to do.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 300
NEEDS = {
    "pgm": "power_grid_model",
    "pgm_operated": "power_grid_model",
    "lightsim": "lightsim2grid",
    "pandapower_numba": "pandapower",
    "opendss": "dss",
}
TARGETS = {("pgm", "batch"): 25.0, ("opendss", "yearly-2"): 10.0, ("opendss", "snapshot"): 50.0}

# case → (tool, variant, snapshots): about two seconds each on an idle two-core machine.
PLAN: dict[str, list[tuple[str, str, int]]] = {
    "ieee123": [
        ("ours", "batch", 35040),
        ("opendss", "snapshot", 2000),
        ("opendss", "yearly-1", 5000),
        ("opendss", "yearly-2", 10000),
    ],
    "ieee123-neutral": [("ours", "batch", 35040), ("pgm", "batch", 5000)],
    "simbench": [
        ("ours", "batch", 35040),
        ("pgm", "batch", 5000),
        ("lightsim", "batch", 5000),
        ("pandapower_numba", "loop", 60),
        ("opendss", "snapshot", 2000),
        ("opendss", "yearly-1", 5000),
        ("opendss", "yearly-2", 10000),
    ],
    "radial1000": [
        ("ours", "batch", 16000),
        ("pgm", "batch", 2000),
        ("lightsim", "batch", 1500),
        ("pandapower_numba", "loop", 60),
        ("opendss", "snapshot", 300),
        ("opendss", "yearly-1", 1000),
        ("opendss", "yearly-2", 2000),
    ],
    "radial3000": [
        ("ours", "batch", 6000),
        ("pgm", "batch", 1000),
        ("lightsim", "batch", 400),
        ("pandapower_numba", "loop", 25),
        ("opendss", "snapshot", 100),
        ("opendss", "yearly-1", 300),
        ("opendss", "yearly-2", 600),
    ],
}
# The feeder as operated: case → (tool, variant, snapshots), a year of IEEE 123 for what is fast.
OPERATED: dict[str, list[tuple[str, str, int]]] = {
    "ieee123": [
        ("operated", "batch", 35040),
        ("operated", "day", 35040),
        ("operated", "snapshot", 35040),
        ("operated", "frozen", 35040),
        ("operated", "solved", 9600),
        ("operated", "failing", 960),
        ("opendss_operated", "yearly-2", 9600),
        ("pgm_operated", "pgm-frozen", 2000),
        ("pgm_operated", "pgm-taps", 1000),
    ],
    "radial1000-regulated": [
        ("operated", "day", 9600),
        ("operated", "snapshot", 9600),
        ("pgm_operated", "pgm-frozen", 500),
        ("pgm_operated", "pgm-taps", 200),
    ],
    "radial3000-regulated": [
        ("operated", "day", 3840),
        ("operated", "snapshot", 3840),
        ("pgm_operated", "pgm-frozen", 200),
        ("pgm_operated", "pgm-taps", 60),
    ],
}
GROWTH = [("radial300", 30000), ("radial1000", 16000), ("radial3000", 6000), ("radial10000", 2000)]


@dataclass
class Row:
    """Best of the rounds of one tool on one case."""

    case: str
    tool: str
    variant: str
    snapshots: int
    solves_per_s: float
    largest_difference_pu: float
    peak_mib: float
    gflop_per_s: float
    note: str
    ours_over_this: float = float("nan")


def run_once(tool: str, variant: str, case: str, snapshots: int) -> dict[str, np.ndarray] | str:
    """Results of one process, or why there are none."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "out.npz"
        command = [sys.executable, str(HERE / "one_run.py"), tool, variant, case, str(snapshots), str(out)]
        try:
            done = subprocess.run(
                command, cwd=HERE, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return f"took longer than {TIMEOUT_S} s"
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines()
            return lines[-1] if lines else f"ended with code {done.returncode}"
        with np.load(out) as data:
            return dict(data)


def measure(
    case: str, run: tuple[str, str, int], best: dict[tuple[str, str, str], Row], *, by_processor: bool
) -> None:
    """One run; keep it if it is the best so far."""
    tool, variant, snapshots = run
    result = run_once(tool, variant, case, snapshots)
    label = f"{case:16s} {tool:18s} {variant:10s}"
    if isinstance(result, str):
        print(f"{label} failed: {result}", flush=True)
        return
    worked = float(result["processor_s"])
    seconds = worked if by_processor and worked == worked else float(result["seconds"])
    rate = snapshots / seconds
    print(f"{label} {rate:12,.0f} /s   {result['note']}", flush=True)
    key = case, tool, variant
    if key in best and best[key].solves_per_s >= rate:
        return
    difference = float("nan") if tool == "ours" or not len(result["which"]) else compare(case, result)
    best[key] = Row(
        case,
        tool,
        variant,
        snapshots,
        rate,
        difference,
        float(result["peak_mib"]),
        rate * float(result["flops"]) / 1e9,
        str(result["note"]),
    )


def compare(case: str, result: dict[str, np.ndarray]) -> float:
    """Largest |Δv| [p.u.] against this package on the snapshots that a tool gave."""
    sys.path.insert(0, str(HERE))
    from cases import load_factors, nodal_load, open_case

    from dp_powerflow import BatchSolver

    feeder = open_case(case)
    which = result["which"]
    load = nodal_load(feeder, load_factors(len(feeder.loads), int(which.max()) + 1)[which])
    return float(abs(BatchSolver(feeder).solve(load).v - result["v"]).max())


def installed(tool: str) -> bool:
    return tool not in NEEDS or importlib.util.find_spec(NEEDS[tool]) is not None


def print_table(rows: list[Row], limit: float) -> None:
    print(
        f"\n{'case':16s} {'tool':18s} {'variant':10s} {'solves/s':>12s} {'ours/this':>10s} {'max |dv|':>9s}"
    )
    for row in rows:
        print(
            f"{row.case:16s} {row.tool:18s} {row.variant:10s} {row.solves_per_s:12,.0f} "
            f"{row.ours_over_this:9.1f}x {row.largest_difference_pu:9.1e}"
        )
    print(f"\nfloating-point limit (dgemm, all threads): {limit:.0f} Gflop/s")
    for row in rows:
        if row.tool == "ours":
            share = row.gflop_per_s / limit
            print(f"  {row.case:16s} {row.gflop_per_s:6.1f} Gflop/s, {share:5.1%} of the limit")
    print("\ntargets")
    for row in rows:
        target = TARGETS.get((row.tool, row.variant))
        if target is not None:
            verdict = "met" if row.ours_over_this >= target else "MISSED"
            print(
                f"  {row.case:16s} {row.tool} {row.variant}: {row.ours_over_this:.1f}x "
                f"of {target:.0f}x, {verdict}"
            )


def growth() -> list[dict[str, float]]:
    """Cost per snapshot and node of radial feeders of several sizes."""
    table = []
    print("\ncost on radial feeders")
    for case, snapshots in GROWTH:
        result = run_once("ours", "batch", case, snapshots)
        if isinstance(result, str):
            print(f"  {case} failed: {result}")
            continue
        nodes = int(case.removeprefix("radial"))
        cost = 1e9 * float(result["seconds"]) / snapshots / nodes
        print(f"  {case:12s} {cost:6.2f} ns per snapshot and node   {result['note']}", flush=True)
        table.append({"nodes": nodes, "ns_per_snapshot_and_node": cost})
    return table


def as_operated(rounds: int) -> dict[str, float]:
    """Acting controls by CPU time, one thread each: other work on the machine does not count."""
    found: dict[str, float] = {}
    for case, runs in OPERATED.items():
        best = _costs(case, runs, rounds)
        ratios = {
            "power-grid-model, frozen, over days with acting controls (10)": ("pgm-frozen", "day"),
            "power-grid-model, frozen, over snapshots with acting controls": ("pgm-frozen", "snapshot"),
            "power-grid-model with its tap changers over days": ("pgm-taps", "day"),
        }
        if case == "ieee123":
            ratios |= {
                "days with acting controls over the frozen solver (0.4)": ("batch", "day"),
                "snapshots with acting controls over the frozen solver": ("batch", "snapshot"),
                "OpenDSS's year with controls over days, as many cores (10)": ("yearly-2", "day"),
                "a snapshot without solution over one with (at most 10)": ("failing", "solved"),
            }
        for text, pair in ratios.items():
            ratio = _ratio(best, *pair)
            print(f"  {text}: {ratio:.2f}")
            found[f"{case}: {text}"] = ratio
        found |= {f"{case}: {name}": cost for name, cost in best.items()}
    return found


def _costs(case: str, runs: list[tuple[str, str, int]], rounds: int) -> dict[str, float]:
    """Variant → µs per snapshot, best of the rounds."""
    best: dict[str, float] = {}
    print(f"\nas operated: {case}, CPU time of one thread [µs per snapshot]")
    for _ in range(rounds):
        for tool, variant, snapshots in runs:
            if not installed("opendss" if tool == "opendss_operated" else tool):
                continue
            # The peer holds IEEE 123 with neutral taps only.
            on = "ieee123-neutral" if tool == "pgm_operated" and case == "ieee123" else case
            result = run_once(tool, variant, on, snapshots)
            if isinstance(result, str):
                print(f"  {variant} failed: {result}")
                continue
            # Two engines share the snapshots; a thread of ours has them all.
            engines = 2 if tool == "opendss_operated" else 1
            cost = 1e6 * engines * float(result["seconds"]) / snapshots
            print(f"  {variant:10s} {cost:9.2f}   {result['note']}", flush=True)
            best[variant] = min(best.get(variant, cost), cost)
    return best


def _ratio(best: dict[str, float], one: str, other: str) -> float:
    return best.get(one, float("nan")) / best.get(other, float("nan"))


def stream(snapshots: int) -> dict[str, float]:
    """Peak memory of many snapshots streamed to disk."""
    result = run_once("stream", "batch", "ieee123", snapshots)
    if isinstance(result, str):
        print(f"\nstream failed: {result}")
        return {}
    rate, peak = snapshots / float(result["seconds"]), float(result["peak_mib"])
    print(
        f"\n{snapshots:,} snapshots of ieee123 streamed to disk: {rate:,.0f} /s, peak memory {peak:.0f} MiB"
    )
    print(f"  {result['note']}")
    return {"snapshots": snapshots, "solves_per_s": rate, "peak_mib": peak}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cases", nargs="*", choices=list(PLAN), default=list(PLAN))
    parser.add_argument(
        "--stream", type=int, default=1_000_000, help="snapshots of the memory test, 0 for none"
    )
    parser.add_argument("--operated", action="store_true", help="the section 'as operated' alone")
    parser.add_argument("--processor-time", action="store_true", help="rank by processor time")
    parser.add_argument("--json", type=Path, default=HERE / "powerflow.json")
    options = parser.parse_args()
    if options.operated:
        as_operated(options.rounds)
        return
    best: dict[tuple[str, str, str], Row] = {}
    for tool in sorted({tool for case in options.cases for tool, _, _ in PLAN[case]}):
        if not installed(tool):
            print(f"{tool} is not installed and left out: pip install -r benchmarks/requirements.txt")
    limit_result = run_once("limit", "batch", "none", 1500)
    limit = float("nan")
    if not isinstance(limit_result, str):
        limit = 1500.0 * float(limit_result["flops"]) / float(limit_result["seconds"]) / 1e9
    for _ in range(options.rounds):
        for case in options.cases:
            for run in PLAN[case]:
                if installed(run[0]):
                    measure(case, run, best, by_processor=options.processor_time)
    rows = [best[key] for key in sorted(best, key=lambda key: list(PLAN).index(key[0]))]
    for row in rows:
        ours = best.get((row.case, "ours", "batch"))
        if ours is not None:
            row.ours_over_this = ours.solves_per_s / row.solves_per_s
    print_table(rows, limit)
    report = {
        "machine": platform.processor() or platform.machine(),
        "limit_gflop_per_s": limit,
        "rows": [asdict(row) for row in rows],
        "as_operated": as_operated(options.rounds),
        "growth": growth(),
        "stream": stream(options.stream) if options.stream else {},
    }
    options.json.write_text(json.dumps(report, indent=2) + "\n")
    print(f"\nwritten: {options.json}")


if __name__ == "__main__":
    main()
