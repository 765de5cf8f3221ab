"""One part of the corpus: draw the loads of its days, solve, check, round, write.

A part is a pure function of the job and its number, so any process may make any part and a killed run makes
the same bytes again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from dp_powerflow._bits.elementary import modulus, multiply
from dp_powerflow._parallel import Engine
from dp_powerflow.corpus.extras import PartExtras
from dp_powerflow.corpus.gridfm.writer import GridfmWriter
from dp_powerflow.corpus.schema import CorpusLayout
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.reduction import Network
from dp_powerflow.model.ahead import solve_ahead
from dp_powerflow.model.sample import LoadSource, SolvedDays, days_per_block, solve_days
from dp_powerflow.pipeline.inputs import Solar
from dp_powerflow.powerflow.batch import BatchSolver, Nodes, Solver
from dp_powerflow.powerflow.opendss import OpenDssSolver
from dp_powerflow.powerflow.operated import ControlMode, OperatedSolution, OperatedSolver
from dp_powerflow.units import KW_PER_MW, ComplexArray, IntArray

SOLVER_TOLERANCE = 1e-12
"""Voltages are solved to this mismatch [p.u.], or to the rounding floor of their rows: a switch of 1e8 p.u.
between two loaded nodes leaves 1e-8. A snapshot that does not get there aborts the release."""
OPENDSS_MISMATCH_MVA = 1e-7
"""0.1 W: on a small power base fewer digits of 1 p.u., or every release would be refused after it is paid."""
_ROUNDINGS = 16.0


def batch_solver(feeder: Feeder, solar: Solar, threads: int | None) -> Solver:
    """The package's own solver of the fixed frame: the same bits on every processor."""
    return BatchSolver(feeder, tolerance=SOLVER_TOLERANCE, threads=threads, voltvar=solar.voltvar)


def opendss_solver(feeder: Feeder, solar: Solar, threads: int | None) -> Solver:
    """OpenDSS, on one thread; refuses a feeder that was not read from it."""
    return OpenDssSolver(feeder, tolerance=opendss_tolerance(feeder), voltvar=solar.voltvar)


@dataclass(frozen=True)
class OperatedMaker:
    """Makes the solver of the feeder as operated.

    Attributes
    ----------
    controls : what taps and capacitors start from.
    steps : of a day.
    """

    controls: ControlMode
    steps: int

    def __call__(self, feeder: Feeder, solar: Solar, threads: int | None) -> Solver:
        """The solver; refuses a feeder with settings that it does not know."""
        return OperatedSolver(
            feeder,
            controls=self.controls,
            steps=self.steps,
            tolerance=SOLVER_TOLERANCE,
            threads=threads,
            volt_var=solar.curve,
            file_curves=solar.use_file_curves,
        )


def opendss_tolerance(feeder: Feeder) -> float:
    """Mismatch [p.u.] that OpenDSS is allowed: the same power on every base, beyond the rounding of Y·v."""
    rounding = _ROUNDINGS * float(np.finfo(np.float64).eps) * float(Network(feeder).rows.abs_sum.max())
    return min(OPENDSS_MISMATCH_MVA / feeder.base_mva + rounding, 0.5)


SolverMaker = Callable[[Feeder, Solar, int | None], Solver]
SOLVER_OF: Mapping[str, SolverMaker] = {"batch": batch_solver, "opendss": opendss_solver}
"""What `release.solver` names."""


@dataclass(frozen=True, eq=False)
class GraphTables:
    """Tables of a published network, for graph models.

    Attributes
    ----------
    folder : name of their folder in the release.
    writer : writes them.
    days : how many days of the corpus they hold, loads beside the voltages.
    """

    folder: str
    writer: GridfmWriter
    days: int

    def write(self, *block: Any) -> dict[str, str]:
        """Write a block of scenarios (`GridfmWriter.write_block`); names in the release and their SHA-256."""
        return self._below(self.writer.write_block(*block))

    def finish(self, feeder: Feeder, steps: int) -> dict[str, str]:
        """The rest of the tables; without loads, one scenario that has none."""
        scenarios, written = self.days * steps, {}
        if not scenarios:
            load = np.zeros((1, len(feeder.retained)), dtype=np.complex128)
            solution = BatchSolver(feeder).solve(load, nodes="all")
            solution.raise_if_failed()
            written = self.write(0, load, None, with_slack(feeder, solution.v))
        return written | self._below(self.writer.write_index(scenarios or 1))

    def _below(self, written: Mapping[str, str]) -> dict[str, str]:
        return {f"{self.folder}/{name}": digest for name, digest in written.items()}


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes
    ----------
    mismatch : the largest power mismatch [p.u.] behind it.
    hashes : SHA-256 of every file.
    mended : snapshots whose powers were lowered.
    """

    mismatch: float = 0.0
    mended: int = 0
    hashes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class PartJob:
    """All that a worker needs; PRIVATE, it holds the network and the key.

    Attributes
    ----------
    feeder : the network that is solved: the true one, or its twin.
    released : indices of the released nodes in `feeder.nodes`, in the secret random order of the release.
    graph : tables of a published network; None publishes none.
    solver : what solves the power flow.
    mends : whether the powers of a snapshot without solution are lowered until it has one.
    """

    feeder: Feeder
    source: LoadSource
    writer: CorpusWriter
    released: IntArray
    solar: Solar
    graph: GraphTables | None = None
    solver: SolverMaker = batch_solver
    mends: bool = False

    @property
    def solves_all(self) -> bool:
        """Whether voltages of nodes without load or generation are wanted."""
        whole = self.graph is not None or bool(self.writer.extras.holds)
        return whole or not np.isin(self.released, self.feeder.retained).all()

    def start(self, threads: int | None) -> Callable[[int], Written]:
        """What makes one part in this process, with so many threads, None for all cores."""
        self.writer.refuse_unseen()
        return partial(make_part, self, self.solver(self.feeder, self.solar, threads))

    def __repr__(self) -> str:
        return "PartJob(PRIVATE)"


def layout_of(days: int, steps: int, nodes: int, loaded: int) -> CorpusLayout:
    """One part per block of the sampler, which draws for the loaded nodes; all released nodes are in it."""
    return CorpusLayout(days=days, steps=steps, nodes=nodes, days_per_part=days_per_block(loaded))


def make_part(job: PartJob, solver: Solver, part: int) -> Written:
    """Write one part."""
    nodes: Nodes = "all" if job.solves_all else "retained"
    sun = job.solar.generation
    # Controls that remember are solved day by day, and days of several parts side by side.
    solve = solve_ahead if isinstance(solver, OperatedSolver) else solve_days
    made = solve(solver, job.source, part, generation=sun, nodes=nodes, mend=job.mends)
    solution = made.solution
    worst = float(np.max(solution.mismatch, initial=0.0))
    if solution.n_failed:
        raise PowerFlowError(
            "a snapshot of the release has no power-flow solution, so nothing was released; lower "
            "nodes.scale_factor under a new release id and take the model already paid for with model.reuse"
        )
    tables = {} if job.graph is None else _write_graph(job, made)
    solved = job.feeder.energised if job.solves_all else job.feeder.retained
    v: ComplexArray = solution.v[:, np.searchsorted(solved, job.released)]
    # Last, for a part that is there is complete.
    voltages = v.reshape(made.days, made.steps, len(job.released))
    data = job.writer.write_part(part, voltages, part_extras(job, solver, made))
    return Written(worst, int(np.count_nonzero(made.mended)), tables | data)


def _write_graph(job: PartJob, made: SolvedDays) -> dict[str, str]:
    """The part's days of the tables, loads beside the voltages."""
    assert job.graph is not None
    first = made.first_day * made.steps
    count = min(len(made.load), job.graph.days * made.steps - first)
    if count <= 0:
        return {}
    v = with_slack(job.feeder, made.solution.v[:count])
    injected = None if made.generation is None else _injected(job, made.generation[:count], made)
    return job.graph.write(first, made.load[:count], injected, v, made.steps)


def _injected(job: PartJob, generation: ComplexArray, made: SolvedDays) -> ComplexArray:
    """Generation of the first snapshots after volt-var: complex (snapshot, retained) [p.u.]."""
    if job.solar.voltvar is None:
        return generation
    solved = job.feeder.energised if job.solves_all else job.feeder.retained
    v = made.solution.v[: len(generation), np.searchsorted(solved, job.feeder.retained)]
    return multiply(generation, job.solar.voltvar.rotation(modulus(v)))


def part_extras(job: PartJob, solver: Solver, made: SolvedDays) -> PartExtras | None:
    """What the corpus holds of the part beside its voltages (`CorpusWriter.extras`), in kW and kvar."""
    holds, feeder, shape = job.writer.extras, job.feeder, (made.days, made.steps, -1)
    if not holds.holds:
        return None
    kw = feeder.base_mva * KW_PER_MW

    def at_released(power: ComplexArray, nodes: IntArray) -> ComplexArray:
        full = np.zeros((len(power), len(feeder.nodes)), dtype=np.complex128)
        full[:, nodes] = power
        return np.asarray(full[:, job.released].reshape(shape) * kw)

    solution = made.solution
    head = taps = capacitors = locked = None
    if isinstance(solver, OperatedSolver) and isinstance(solution, OperatedSolution):
        drawn, fed = solver.powers(made.load, made.generation, solution)
        loads, generation = at_released(drawn, feeder.energised), at_released(fed, feeder.energised)
        if holds.states:
            taps, capacitors = solution.taps.reshape(shape), solution.capacitors.reshape(shape)
            locked = solution.locked.reshape(made.days, made.steps)
    else:
        injected = np.zeros_like(made.load)
        if made.generation is not None:
            injected = _injected(job, made.generation, made)
        loads, generation = at_released(made.load, feeder.retained), at_released(injected, feeder.retained)
    if holds.sources:
        v = with_slack(feeder, made.solution.v)
        current = v @ feeder.y[feeder.slack].T
        head = multiply(v[:, feeder.slack], np.conj(current)).reshape(shape) * kw
    return PartExtras(
        loads=loads if holds.loads else None,
        generation=generation if holds.generation else None,
        head=head,
        taps=taps if holds.regulators else None,
        capacitors=capacitors if holds.capacitors else None,
        locked=locked,
        mended=made.mended.reshape(made.days, made.steps) if holds.mended else None,
    )


def with_slack(feeder: Feeder, v: ComplexArray) -> ComplexArray:
    """Voltages of all nodes from those of the energised ones: complex (snapshot, node)."""
    full = np.empty((len(v), len(feeder.nodes)), dtype=np.complex128)
    full[:, feeder.energised] = v
    full[:, feeder.slack] = feeder.v_slack
    return full


def make_parts(job: PartJob, engine: Engine, progress: Callable[[int, int], None] | None) -> Written:
    """Have all missing parts written by the workers, then what remains of the tables."""
    missing = job.writer.missing_parts()
    total = job.writer.layout.n_parts
    parts: list[Written] = []

    def made(part: Written) -> None:
        parts.append(part)
        if progress is not None:
            progress(total - len(missing) + len(parts), total)

    engine.run(job, missing, made)
    rest = {} if job.graph is None else job.graph.finish(job.feeder, job.writer.layout.steps)
    hashes = {name: digest for part in parts for name, digest in part.hashes.items()}
    worst = max((part.mismatch for part in parts), default=0.0)
    return Written(worst, sum(part.mended for part in parts), hashes | rest)
