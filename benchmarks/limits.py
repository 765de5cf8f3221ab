"""Every stage of a release against what the machine can do: one run, one table.

    python benchmarks/limits.py [--days 365] [--workloads old new] [--quick]

Two workloads on IEEE 123. "old": the day model, one draw per node, taps frozen, loaded nodes. "new", the
default of the product: 2,000 customers who persist, controls acting, all nodes, loads published.

A figure is per released phasor (day, step, node) and of one thread. The time is processor time, best of the
blocks, so other work hardly counts; writing is timed by the clock. The limit is the longest of

- bytes: what the stage takes in and gives out, each array once, at the measured memory bandwidth. A stage
  whose block is in the caches may be faster than this;
- operations: floating-point operations of the algorithm at the measured rate of multiply-adds (`operations`
  says how they are counted; integer work is not counted);
- words: random bytes at the speed of AES-128 in counter mode; bytes compressed at the speed of bare zstd on
  the same rounded values, split by bytes, at the level of the files; bytes hashed at the speed of SHA-256;
  bytes written at the speed of one large file with fsync.

Share is limit over time. Customers are added up in the kernel that draws them, so "sum" is the rest of it: kW
to per unit, node by node to snapshot by snapshot. "powers" is what loads draw at every node. The Jacobian
(σ_min of every snapshot, proved) is part of a release on the true network only: the new workload has none.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parent))

from machine import Machine, measured, zstd_speed  # noqa: E402

from dp_powerflow.corpus.grid import round_to_grid  # noqa: E402
from dp_powerflow.corpus.schema import NOTHING, CorpusLayout, ExtrasLayout  # noqa: E402
from dp_powerflow.corpus.storage import put  # noqa: E402
from dp_powerflow.corpus.tables import PARQUET  # noqa: E402
from dp_powerflow.corpus.writer import CorpusWriter  # noqa: E402
from dp_powerflow.grid.sources import open_feeder  # noqa: E402
from dp_powerflow.model.history.numbers import Ladder  # noqa: E402
from dp_powerflow.model.sample import LoadBlock, LoadSource, PlacedLaw, SolvedDays, solve_days  # noqa: E402
from dp_powerflow.powerflow.batch import BatchSolver, Nodes  # noqa: E402
from dp_powerflow.powerflow.jacobian.batch import JacobianBatch  # noqa: E402
from dp_powerflow.powerflow.jacobian.matrices import VECTORS  # noqa: E402
from dp_powerflow.powerflow.operated import OperatedSolution, OperatedSolver  # noqa: E402
from dp_powerflow.units import KW_PER_MW  # noqa: E402

PAIR_FLOPS = {"pair1": 67, "short_pair1": 46}
"""Operations of two normals, each sum, product, quotient and root counted as one."""

STEPS = 96
CUSTOMERS = 2000
TOLERANCE = 1e-12  # that of a release
BLOCKS = 6
RELEASE = "limits"

POLAR, BRANCH = 51, 40
"""Operations of a modulus and an angle with their rounding, and of the current of one branch of a load:
counted in the source, a division or a root as one. Those of a draw are counted beside its kernel."""
RANDOM_BYTES = 8.0
"""Of AES for every drawn value, by both samplers."""
SINGLE = 2.0
"""Persistent customers are drawn in single precision: a vector holds twice as many."""


@dataclass
class Stage:
    """One stage of one workload; amounts per released phasor.

    Attributes
    ----------
    bytes : taken in and given out.
    flops : floating-point operations, NaN where they are not counted.
    seconds : per released phasor, best of the blocks.
    words : name → least time [s] that another resource needs.
    """

    name: str
    bytes: float = float("nan")
    flops: float = 0.0
    seconds: float = float("inf")
    words: dict[str, float] = field(default_factory=dict)

    def limit(self, machine: Machine) -> tuple[float, str]:
        """Least time [s] per phasor, and what it is that limits."""
        times = {"memory": self.bytes / machine.memory, "multiply-adds": self.flops / machine.flops}
        times |= self.words
        known = {name: value for name, value in times.items() if np.isfinite(value)}
        name = max(known, key=lambda key: known[key])
        return known[name], name


@dataclass(frozen=True, eq=False)
class Workload:
    """What is drawn, what solves it, and what is published of it.

    Attributes
    ----------
    nodes : of the solver.
    extras : beside the voltages.
    values, draw_words, draw_flops : values that a phasor needs drawn, and for each of them random bytes and
        operations.
    """

    name: str
    source: LoadSource
    solver: Any
    nodes: Nodes
    extras: ExtrasLayout
    values: float
    draw_words: float
    draw_flops: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--customers", type=int, default=CUSTOMERS)
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument(
        "--megabytes", type=int, default=256, help="of the arrays that the peaks are found on"
    )
    parser.add_argument("--quick", action="store_true", help="smallest sizes: does it run?")
    options = parser.parse_args()
    if options.quick:
        options.days, options.customers, options.megabytes = 24, 100, 8
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        machine = measured(folder, options.megabytes)
        print("\n".join(machine.lines()))
        for workload in options.workloads:
            made = WORKLOADS[workload](options.days, options.customers)
            print_table(made, list(stages(made, machine, folder)), machine)


def print_table(workload: Workload, rows: list[Stage], machine: Machine) -> None:
    print(f"\n{workload.name}: per released phasor")
    print(f"{'stage':12s} {'bytes':>8s} {'flop':>8s} {'ns':>8s} {'limit ns':>9s} {'share':>6s}  limited by")
    for row in rows:
        limit, reason = row.limit(machine)
        print(
            f"{row.name:12s} {row.bytes:8.1f} {row.flops:8.0f} {1e9 * row.seconds:8.2f} {1e9 * limit:9.2f} "
            f"{limit / row.seconds:6.0%}  {reason}"
        )
    total, least = (sum(each) for each in zip(*((r.seconds, r.limit(machine)[0]) for r in rows), strict=True))
    print(f"{'all':12s} {'':8s} {'':8s} {1e9 * total:8.2f} {1e9 * least:9.2f} {least / total:6.0%}")


# ------------------------------------------------------------------------------------------ workloads


def flops_of_a_day(steps: int) -> float:
    """Floating-point operations of a step of a day; each sum, product, quotient and root is one.

    A normal, T + 1 of the triangle, 26 of exp, and four to the sums of a load.
    """
    return PAIR_FLOPS["pair1"] / 2 + (steps + 1) + 26 + 4


def flops_of_a_history(ladder: Ladder) -> float:
    """The same of a step of a customer, from words to sums; levels of a day or more are left out.

    A normal for every step and every cell of a smoothed level, three operations to refine a cell (two of even
    cells, four of odd) and two to add its noise, nine for the sum at a step. Then six to the place in the own
    map, three in each look-up, two between them, and four to the sums.
    """
    cells = sum(1 / spacing for spacing in ladder.spacings if 1 < spacing < ladder.n_steps)
    return (1 + cells) * PAIR_FLOPS["short_pair1"] / 2 + 5 * cells + 9 + 18


def old_workload(days: int, customers: int) -> Workload:
    """The day model, one draw per node of IEEE 123, frozen."""
    del customers
    from scale import load_model

    from dp_powerflow.model.law import LoadNodes
    from dp_powerflow.model.sample import LoadSampler
    from dp_powerflow.privacy.random import StreamKey

    feeder, model = open_feeder("ieee123"), load_model()
    nominal_kw = -feeder.nominal_injection[feeder.retained].real * feeder.base_mva * KW_PER_MW
    scale = np.maximum(nominal_kw, 1.0) if model.scaled else None
    names = (model.class_names[0],) * len(nominal_kw)
    law = model.at(LoadNodes(names, scale, feeder.base_mva))
    source = LoadSampler(law, StreamKey.from_insecure_seed(7), days)
    # A day of p and, where q has a random part, one of q.
    draws = 2.0 if law.q_size is not None else 1.0
    flops = draws * flops_of_a_day(law.steps)
    solver = BatchSolver(feeder, tolerance=TOLERANCE, threads=1)
    return Workload("old", source, solver, "retained", NOTHING, 1.0, RANDOM_BYTES * draws, flops)


def new_workload(days: int, customers: int) -> Workload:
    """Customers who persist, controls acting, all nodes of IEEE 123, loads published."""
    from decade import history

    feeder = open_feeder("ieee123")
    source = history(feeder, customers, days)
    solver = OperatedSolver(feeder, controls="day", steps=STEPS, tolerance=TOLERANCE, threads=1)
    operation = feeder.as_operated
    extras = ExtrasLayout(
        loads=True,
        regulators=len(operation.regulators),
        capacitors=len(operation.capacitors),
        scaled_down=True,
    )
    flops = flops_of_a_history(source.law.classes[0].ladder) / SINGLE
    values = customers / len(feeder.energised)
    return Workload("new", source, solver, "all", extras, values, RANDOM_BYTES, flops)


WORKLOADS: dict[str, Callable[[int, int], Workload]] = {"old": old_workload, "new": new_workload}


# --------------------------------------------------------------------------------------------- stages


def stages(workload: Workload, machine: Machine, folder: Path) -> Iterator[Stage]:
    """Time the stages of some blocks, the first (compilation) left out."""
    source, solver = workload.source, workload.solver
    blocks = min(source.n_blocks, 1 + BLOCKS)
    made = solve_days(solver, source, 0, nodes=workload.nodes)
    layout = layout_of(workload, made)
    writer = CorpusWriter(folder / "corpus", layout, RELEASE, workload.extras)
    rows = {name: Stage(name) for name in ("draw", "sum", "solve", "Jacobian", "powers", "round", "compress")}
    write, hashed = Stage("write"), Stage("hash")
    jacobian: JacobianBatch | None = None
    references: list[Any] = []
    for block in range(blocks):
        timed = block > 0
        made = solve_days(solver, source, block, nodes=workload.nodes)
        with Timer(rows["draw"], layout, block, timed):
            drawn = source.block(block)
        with Timer(rows["solve"], layout, block, timed):
            solution = solver.solve(made.load, made.generation, nodes=workload.nodes)
        with Timer(rows["sum"], layout, block, timed):
            solve_days(_Solved(solver, solution), _Drawn(source, drawn), block)
        if isinstance(solver, BatchSolver):
            jacobian = jacobian or JacobianBatch(solver.feeder, threads=1)
            with Timer(rows["Jacobian"], layout, block, timed):
                jacobian.sigma_min_lower_bound(made.solution.v, -made.load, references=references)
        with Timer(rows["powers"], layout, block, timed):
            extras = part_extras(workload, made)
        with Timer(rows["round"], layout, block, timed):
            phasors = round_to_grid(made.v.transpose(0, 2, 1))
        with Timer(rows["compress"], layout, block, timed):
            files = writer.encoded(block, made.v, extras)
        with Timer(hashed, layout, block, timed):
            for content in files.values():
                hashlib.sha256(content).digest()
        with Timer(write, layout, block, timed, time.perf_counter):
            for number, content in enumerate(files.values()):
                put(folder / f"{workload.name}-{block}-{number}", bytes(content))
    # What encodes rounds too.
    rows["compress"].seconds = max(rows["compress"].seconds - rows["round"].seconds, 1e-12)
    count = made.v.size
    out = sum(len(content) for content in files.values()) / count
    amounts(workload, rows, made, (out, write, hashed), machine)
    speed, _ = zstd_speed(np.stack([phasors.vm_pu, phasors.va_deg]), PARQUET["compression_level"])
    rows["compress"].words["zstd"] = (rows["compress"].bytes - out) / speed
    kept = [row for row in rows.values() if np.isfinite(row.seconds) and row.bytes > 0.0]
    yield from (*kept, write, hashed)


def amounts(
    workload: Workload,
    rows: dict[str, Stage],
    made: SolvedDays,
    written: tuple[float, Stage, Stage],
    machine: Machine,
) -> None:
    """Bytes, operations and random words of the stages."""
    count, columns = made.v.size, made.load.size / made.v.size
    drawn = len(made.positions) * len(made.load) / count
    out, write, hashed = written
    rows["draw"].bytes, rows["draw"].flops = 16.0 * drawn, workload.values * workload.draw_flops
    rows["draw"].words["AES"] = workload.values * workload.draw_words / machine.random_bytes
    rows["sum"].bytes, rows["sum"].flops = 16.0 * drawn + 16.0 * columns, 2.0 * drawn
    rows["solve"].bytes = 16.0 * columns + 16.0
    rows["solve"].flops = operations(workload.solver, made) * len(made.load) / count
    rows["Jacobian"].flops = of_bound(made.load.shape[1]) * len(made.load) / count
    rows["Jacobian"].bytes = 16.0 * columns + 16.0 + 8.0 * len(made.load) / count
    beside = 16.0 if workload.extras.loads else 0.0
    rows["powers"].bytes = 16.0 * columns + 16.0 + 2.0 * beside if beside else 0.0
    rows["powers"].flops = BRANCH * columns
    rows["round"].bytes, rows["round"].flops = 16.0 + 8.0, POLAR
    # Rounded voltages are eight bytes; powers come as sixteen and are rounded on the way.
    rows["compress"].bytes = 8.0 + beside / 2.0 + out
    write.bytes = hashed.bytes = out
    write.words["disk"], hashed.words["SHA-256"] = out / machine.disk, out / machine.sha256


def operations(solver: Any, made: SolvedDays) -> float:
    """Floating-point operations of a snapshot: sweeps over factors of 2×2 blocks, currents, one check."""
    sweeps = float(made.solution.iterations.mean())
    if isinstance(solver, BatchSolver):
        from peers.ours import flops

        return flops(solver, sweeps)
    arrays = getattr(solver, "_arrays", None)
    if arrays is None:
        return float("nan")
    plan = arrays.plan
    entries, core = len(plan.lower_col) + len(plan.upper_col), len(plan.pivot)
    small = 8.0 * (2 * plan.phases) ** 2
    each = 8.0 * entries + 14.0 * core + BRANCH * len(arrays.branches.table) + small
    return sweeps * each + 8.0 * len(arrays.full_check.col)


def of_bound(nodes: int) -> float:
    """Operations of σ_min of a snapshot: three k×k blocks of sums over nodes, their SVDs, two products."""
    k = VECTORS
    return 3.0 * 8.0 * nodes * k**2 + 3.0 * 22.0 * k**3 + 4.0 * nodes**2


def layout_of(workload: Workload, made: SolvedDays) -> CorpusLayout:
    return CorpusLayout(
        days=workload.source.n_days, steps=made.steps, nodes=made.v.shape[2], days_per_part=made.days
    )


def part_extras(workload: Workload, made: SolvedDays) -> dict[str, Any]:
    """Powers and states of the days, as a release on a twin publishes them."""
    solution = made.solution
    if not isinstance(solution, OperatedSolution):
        return {}
    shape, kw = (made.days, made.steps, -1), workload.solver.feeder.base_mva * KW_PER_MW
    (nodes, power), _ = workload.solver.device_powers(made.load, made.generation, solution)
    drawn = np.zeros_like(solution.v)
    drawn[:, np.searchsorted(workload.solver.feeder.energised, nodes)] = power
    found = {
        "loads": drawn.reshape(shape) * kw,
        "taps": solution.taps.reshape(shape),
        "capacitors": solution.capacitors.reshape(shape),
        "locked": solution.locked.reshape(shape[:2]),
        "scaled_down": made.scaled_down.reshape(shape[:2]),
    }
    return {name: found[name] for name in workload.extras.holds}


@dataclass(frozen=True, eq=False)
class _Drawn:
    """A source whose block is drawn already."""

    source: LoadSource
    drawn: LoadBlock

    @property
    def law(self) -> PlacedLaw:
        return self.source.law

    @property
    def n_days(self) -> int:
        return self.source.n_days

    @property
    def n_blocks(self) -> int:
        return self.source.n_blocks

    def block(self, index: int) -> LoadBlock:
        del index
        return self.drawn


class _Solved:
    """A solver that has solved already."""

    def __init__(self, solver: Any, solution: Any) -> None:
        self.feeder, self.columns, self.solution = solver.feeder, solver.columns, solution

    def solve(self, *_: Any, **__: Any) -> Any:
        return self.solution


@dataclass
class Timer:
    """Keeps the shortest time per phasor of a stage."""

    stage: Stage
    layout: CorpusLayout
    block: int
    counts: bool
    clock: Callable[[], float] = time.process_time

    def __enter__(self) -> None:
        self.began = self.clock()

    def __exit__(self, *_: object) -> None:
        phasors = len(self.layout.days_of(self.block)) * self.layout.steps * self.layout.nodes
        if self.counts:
            self.stage.seconds = min(self.stage.seconds, (self.clock() - self.began) / phasors)


if __name__ == "__main__":
    main()
