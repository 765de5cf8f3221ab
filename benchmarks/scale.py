"""What a feeder-day costs on feeders of 100, 1,000 and 10,000 nodes, and a feeder before its first day.

    python benchmarks/scale.py [--sizes 100 1000 10000] [--operated] [--evidence] [--lines N]

Every size runs in a process of its own, so that peak memory is its own; one thread. A feeder-day is 96 steps
drawn, solved to 1e-12, rounded and written. Figures are processor seconds, because machines are shared.

By default the frame is fixed: one draw of the day model per loaded node, voltages of loaded nodes. With
`--operated` it is what a twin publishes by default: a customer who persists in every house, controls acting,
voltages of all nodes, the power drawn at every node beside them.
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SIZES = (100, 1_000, 10_000)
STEPS = 96
TOLERANCE = 1e-12  # that of a release
SNAPSHOT_NODES = 2_000_000
SECONDS_PER_SIZE = 12.0
FEEDERS, YEARS = 5_000, 10
CALIBRATION_DAYS = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--operated", action="store_true", help="as a twin is released by default")
    parser.add_argument("--evidence", action="store_true", help="also Theorem 1")
    parser.add_argument("--seconds", type=float, default=SECONDS_PER_SIZE, help="of days, at least, per size")
    parser.add_argument("--lines", type=int, default=0, help="losses of so many lines, 2 days of 24 steps")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        print(json.dumps(measure(arguments.child, arguments)))
        return
    rows = [in_a_process(size, arguments) for size in arguments.sizes]
    columns = list(rows[0])
    print(" | ".join(columns))
    for row in rows:
        print(" | ".join(f"{row[name]:.4g}" for name in columns))
    if len(rows) > 1:
        project(rows)


def project(rows: list[dict[str, float]]) -> None:
    """Exponent of the cost of a day in the number of nodes, and the bill of a fleet."""
    nodes = np.log([row["nodes"] for row in rows])
    for name in ("day_s", "prepare_s", "day_mb"):
        exponent, constant = np.polyfit(nodes, np.log([row[name] for row in rows]), 1)
        print(f"{name} ≈ {np.exp(constant):.3g}·nodes^{exponent:.2f}")
    days = FEEDERS * YEARS * 365
    for row in rows:
        hours = (days * row["day_s"] + FEEDERS * (row["open_s"] + row["prepare_s"])) / 3600.0
        size = days * row["day_mb"] / 1e6
        print(
            f"{FEEDERS:,} feeders × {YEARS} years of {row['nodes']:,.0f} nodes: {days:,} feeder-days, "
            f"{hours:,.0f} core-hours, {size:,.2f} TB"
        )
        if "theorem_s" in row:
            seconds = row["theorem_s"] + (CALIBRATION_DAYS - 20) * row["calibration_day_s"]
            print(f"    and {FEEDERS * seconds / 3600.0:,.0f} core-hours of Theorem 1, {seconds:,.0f} s each")


def in_a_process(size: int, arguments: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", str(size), "--lines", str(arguments.lines)]
    command += ["--seconds", str(arguments.seconds)]
    command += ["--evidence"] if arguments.evidence else []
    command += ["--operated"] if arguments.operated else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(size: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Processor seconds, megabytes on disk and peak memory of one feeder."""
    from dp_powerflow import open_feeder

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from support.synthetic import write_synthetic

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = write_synthetic(folder / "feeder.dss", size, whole_houses=arguments.operated)
        began = time.process_time()
        feeder = open_feeder(path)
        opened = time.process_time()
        solver = operated_solver(feeder) if arguments.operated else frozen_solver(feeder)
        prepared = time.process_time()
        job = operated_job(solver, folder) if arguments.operated else frozen_job(solver, folder)
        days, parts, megabytes = write_days(job, folder, arguments.seconds)
        found = {
            "nodes": float(len(feeder.energised)),
            "retained": float(len(feeder.retained)),
            "open_s": opened - began,
            "prepare_s": prepared - opened,
            "days": float(days),
            "day_s": sum(parts) / days,
            "draw_s": parts[0] / days,
            "solve_s": parts[1] / days,
            "write_s": parts[2] / days,
            "day_mb": megabytes / days,
        }
        if arguments.evidence:
            few, many = (theorem(feeder, days) for days in (20, 60))
            found["theorem_s"] = few
            found["calibration_day_s"] = (many - few) / 40.0
        if arguments.lines:
            found["line_s"] = line_losses(feeder, arguments.lines) / arguments.lines
    found["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return found


def line_losses(feeder, count: int) -> float:  # type: ignore[no-untyped-def]
    """Processor seconds of the losses of some lines, both directions, x = 1 %, two days of 24 steps."""
    from dp_powerflow import StreamKey
    from dp_powerflow.evidence.lines.evidence import LineLoss
    from dp_powerflow.lowlevel import ClassLaw, nominal_law, scaled

    steps = 24
    nominal = -feeder.nominal_injection[feeder.retained]
    lag = np.abs(np.subtract.outer(np.arange(steps), np.arange(steps)))
    of_class = ClassLaw.gaussian(
        np.full(steps, np.log(0.5)),
        0.09 * np.exp(-lag / 2.0) + 0.01 * np.eye(steps),
        q_covariance=0.8 * np.exp(-lag / 2.0) + 0.2 * np.eye(steps),
    )
    law = nominal_law(nominal, of_class, 0.15)
    lines = [line for line in feeder.lines if not line.is_switch]
    chosen = [lines[k] for k in np.linspace(0, len(lines) - 1, count).astype(int)]
    began = time.process_time()
    loss = LineLoss(feeder, law, threads=1)
    days = loss.draws(StreamKey.from_insecure_seed(0), 2)
    found = loss.losses([scaled(line, 0.01) for line in chosen], days)
    print("mean losses:", found.by_direction.mean(axis=2).tolist(), file=sys.stderr)
    return time.process_time() - began


def frozen_solver(feeder: Any) -> Any:
    from dp_powerflow import BatchSolver

    return BatchSolver(feeder, tolerance=TOLERANCE, threads=1)


def operated_solver(feeder: Any) -> Any:
    from dp_powerflow import OperatedSolver

    return OperatedSolver(feeder, controls="day", steps=STEPS, tolerance=TOLERANCE, threads=1)


@dataclass(frozen=True, eq=False)
class Job:
    """What is drawn, solved and written.

    Attributes
    ----------
    nodes : whose voltages are written.
    extras : of solved days, what is written beside them.
    """

    source: Any
    solver: Any
    writer: Any
    nodes: Any
    extras: Callable[[Any], Any]


def frozen_job(solver: Any, folder: Path) -> Job:
    """One draw of the day model per loaded node, voltages alone."""
    from dp_powerflow import StreamKey
    from dp_powerflow.corpus.schema import CorpusLayout
    from dp_powerflow.corpus.writer import CorpusWriter
    from dp_powerflow.lowlevel import LoadSampler
    from dp_powerflow.model.law import LoadNodes

    feeder = solver.feeder
    nominal_kw = -feeder.nominal_injection[feeder.retained].real * feeder.base_mva * 1000.0
    model = load_model()
    count = len(nominal_kw)
    horizon = SNAPSHOT_NODES // count  # more than are written; the writer asks the disk for all of them
    scale_kw = nominal_kw if model.scaled else None
    law = model.at(LoadNodes((model.class_names[0],) * count, scale_kw, feeder.base_mva))
    source = LoadSampler(law, StreamKey.from_insecure_seed(7), horizon)
    layout = CorpusLayout(days=horizon, steps=model.n_steps, nodes=count, days_per_part=source.days_per_block)
    writer = CorpusWriter(folder / "corpus", layout, "scale")
    return Job(source, solver, writer, "retained", lambda _: None)


def operated_job(solver: Any, folder: Path) -> Job:
    """A customer in every house, all nodes, powers and states beside the voltages."""
    from decade import history
    from limits import Workload, part_extras

    from dp_powerflow.corpus.schema import CorpusLayout, ExtrasLayout
    from dp_powerflow.corpus.writer import CorpusWriter
    from dp_powerflow.model.sample import days_per_block

    feeder = solver.feeder
    nodes, houses, operation = len(feeder.energised), len(feeder.loads), feeder.as_operated
    horizon = SNAPSHOT_NODES // nodes
    source = history(feeder, houses, horizon)
    extras = ExtrasLayout(
        loads=True,
        regulators=len(operation.regulators),
        capacitors=len(operation.capacitors),
        scaled_down=True,
    )
    layout = CorpusLayout(days=horizon, steps=STEPS, nodes=nodes, days_per_part=days_per_block(houses))
    writer = CorpusWriter(folder / "corpus", layout, "scale", extras)
    workload = Workload("twin", source, solver, "all", extras, 0.0, 0.0, 0.0)
    return Job(source, solver, writer, "all", lambda made: part_extras(workload, made))


def write_days(job: Job, folder: Path, least_s: float) -> tuple[int, tuple[float, ...], float]:
    """Draw, solve and write parts for some seconds, the first part (compilation) not counted.

    Returns
    -------
    Days; processor seconds of drawing, of solving and of writing them; megabytes.
    """
    from decade import Timed

    from dp_powerflow import OperatedSolver
    from dp_powerflow.model.sample import BlockSolver, blocks_at_once
    from dp_powerflow.pipeline.parts import runs_of
    from dp_powerflow.powerflow.operated import days_at_once

    job.writer.prepare()
    spent, days, first, scaled_down = np.zeros(3), 0, 0, 0
    source, feeder = Timed(job.source), job.solver.feeder
    width = len(feeder.retained if job.nodes == "retained" else feeder.energised)
    lanes = days_at_once("day") if isinstance(job.solver, OperatedSolver) else 1
    runs = runs_of(range(job.writer.layout.n_parts), blocks_at_once(source, width, lanes))
    # A log-normal draw has a long tail: a few snapshots in a million have no solution as drawn.
    blocks = BlockSolver(job.solver, source, nodes=job.nodes, scale_down=True)
    for number, run in enumerate(runs):
        if number > 1 and spent.sum() >= least_s:
            break
        source.seconds, marks = 0.0, [time.process_time()]
        solved = blocks.run(run)
        scaled_down += sum(int(np.count_nonzero(made.scaled_down)) for made in solved)
        marks.append(time.process_time())
        for part, made in zip(run, solved, strict=True):
            job.writer.write_part(part, made.v, job.extras(made))
        marks.append(time.process_time())
        if number:
            both, writing = np.diff(marks)
            spent += (source.seconds, both - source.seconds, writing)
            days += sum(made.days for made in solved)
        first = first or sum(made.days for made in solved)
    if scaled_down:
        print(f"{scaled_down} snapshots scaled down", file=sys.stderr)
    size = sum(file.stat().st_size for file in folder.rglob("*.parquet")) / 1e6
    return days, tuple(spent.tolist()), size * days / (days + first)


def load_model():  # type: ignore[no-untyped-def]
    """A load model fitted on simulated customers, relative to the nominal load of a node."""
    from dp_powerflow import Budget, FitOptions, StreamKey
    from dp_powerflow.lowlevel import PrivacyUnit, PublicSpread, Structured, simulate_load_history
    from dp_powerflow.model.fit import fit
    from dp_powerflow.model.options import FixedPowerFactor

    history = simulate_load_history(200, n_days=20, step_minutes=1440 // STEPS, seed=0)
    options = FitOptions(
        bounds=(0.01, 2.0),
        estimator=Structured(),
        use_scale=True,
        reactive=PublicSpread(FixedPowerFactor(default=0.33), 0.1, 60),
        variance_floor=0.01,
    )
    budget = Budget(8.0, 1e-6, PrivacyUnit("load-point-day"))
    return fit(history, budget=budget, options=options, key=StreamKey.from_insecure_seed(7))


def theorem(feeder, days: int) -> float:  # type: ignore[no-untyped-def]
    """Processor seconds of Theorem 1 in every mode; both load laws are calibrated on so many days."""
    from dp_powerflow import StreamKey
    from dp_powerflow.evidence.collect import Instance, Policy, collect_evidence
    from dp_powerflow.lowlevel import ClassLaw, Network, nominal_law

    nominal = -feeder.nominal_injection[feeder.retained]
    lag = np.abs(np.subtract.outer(np.arange(STEPS), np.arange(STEPS)))
    of_class = ClassLaw.gaussian(
        np.full(STEPS, -0.05),
        0.09 * 0.95**lag + 0.01 * np.eye(STEPS),
        margins=(0.2, 5.0),
        q_covariance=0.95**lag + 0.01 * np.eye(STEPS),
    )
    law = nominal_law(nominal, of_class, 0.15)
    began = time.process_time()
    collect_evidence(
        Instance(Network(feeder), law), Policy(1e-10, 50.0, 0.9, 1, days), StreamKey.from_insecure_seed(0)
    )
    return time.process_time() - began


if __name__ == "__main__":
    main()
