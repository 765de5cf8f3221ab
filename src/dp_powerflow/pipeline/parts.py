"""One part of the corpus: draw the loads of its days, solve, check, round, write.

A part is a pure function of the job and its number, so any thread of any process may make any part and a
killed run makes the same bytes again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from dp_powerflow._bits.elementary import kernel, modulus, multiply
from dp_powerflow._parallel import Rest, Runner
from dp_powerflow.corpus.grid import NodeColumns
from dp_powerflow.corpus.gridfm.tables import GridfmWriter
from dp_powerflow.corpus.schema import CorpusLayout
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.manifest.model import TWIN, Tables
from dp_powerflow.model.sample import BlockSolver, LoadSource, SolvedDays, blocks_at_once, days_per_block
from dp_powerflow.pipeline.inputs import Solar
from dp_powerflow.powerflow.batch import BatchSolver, Nodes, Solver
from dp_powerflow.powerflow.operated import ControlMode, OperatedSolution, OperatedSolver, days_at_once
from dp_powerflow.units import KW_PER_MW, ComplexArray, IntArray

SOLVER_TOLERANCE = 1e-12
"""Voltages are solved to this mismatch [p.u.], or to the rounding floor of their rows, 0.1 W at most:
nodes between which more is hidden count as one, or are refused by name. A snapshot that does not get there
aborts the release."""


@dataclass(frozen=True)
class SolverMaker:
    """Makes the solver of a worker: of the fixed frame, or of the feeder as operated.

    Attributes
    ----------
    controls : what taps and capacitors start from; "frozen" is the fixed frame.
    steps : of a day.
    """

    controls: ControlMode = "frozen"
    steps: int = 1

    @property
    def acts(self) -> bool:
        """Whether the feeder is solved as operated: controls act, loads answer to the voltage."""
        return self.controls != "frozen"

    @property
    def days_at_once(self) -> int:
        """Days that cost hardly more than one; 1 where days are no unit."""
        return days_at_once(self.controls) if self.acts else 1

    def __call__(self, feeder: Feeder, solar: Solar, threads: int | None) -> Solver:
        """The solver; `threads` None means all cores. Refuses a feeder that it cannot solve."""
        if not self.acts:
            return BatchSolver(feeder, tolerance=SOLVER_TOLERANCE, threads=threads, voltvar=solar.voltvar)
        return OperatedSolver(
            feeder,
            controls=self.controls,
            steps=self.steps,
            tolerance=SOLVER_TOLERANCE,
            threads=threads,
            volt_var=solar.curve,
            file_curves=solar.use_file_curves,
        )


@dataclass(frozen=True, eq=False)
class GraphTables:
    """Tables of a published network, for graph models.

    Attributes
    ----------
    writer : what writes them.
    days : how many days of the corpus they hold, loads besides the voltages.
    """

    writer: GridfmWriter
    days: int

    def stated(self, steps: int) -> Tables:
        """How the manifest describes them."""
        scenarios = max(self.days * steps, 1)
        return Tables(days=self.days, scenarios=scenarios, frame="rotated", switches_merged=True)

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
        return {f"{TWIN}/{name}": digest for name, digest in written.items()}


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes
    ----------
    mismatch : the largest power mismatch [p.u.] behind it.
    hashes : SHA-256 of every file.
    scaled_down : snapshots whose powers were lowered.
    parts : how many of them.
    """

    mismatch: float = 0.0
    scaled_down: int = 0
    hashes: Mapping[str, str] = field(default_factory=dict)
    parts: int = 0

    @classmethod
    def joined(cls, some: Sequence[Written]) -> Written:
        """All of it."""
        hashes = {name: digest for each in some for name, digest in each.hashes.items()}
        worst = max((each.mismatch for each in some), default=0.0)
        return cls(worst, sum(each.scaled_down for each in some), hashes, sum(each.parts for each in some))


@dataclass(frozen=True, eq=False)
class PartJob:
    """What a worker needs; PRIVATE, it holds the network and the key.

    A task makes a run of parts. Their days are solved together where that is faster.

    Attributes
    ----------
    feeder : the network that is solved: the true one, or its twin.
    released : indices of the released nodes in `feeder.nodes`, in the secret random order of the release.
    graph : tables of a published network; None publishes none.
    solver : what solves the power flow.
    scales_down : whether the powers of a snapshot without solution are lowered until it has one.
    runs : parts of every task, one after the other.
    """

    feeder: Feeder
    source: LoadSource
    writer: CorpusWriter
    released: IntArray
    solar: Solar
    graph: GraphTables | None = None
    solver: SolverMaker = SolverMaker()
    scales_down: bool = False
    runs: Sequence[Sequence[int]] = ()

    @property
    def solves_all(self) -> bool:
        """Whether voltages of nodes without load or generation are wanted."""
        whole = self.graph is not None or bool(self.writer.extras.holds)
        return whole or not np.isin(self.released, self.feeder.retained).all()

    def start(self, threads: int | None) -> Callable[[int], Rest[Written]]:
        """What makes one run of parts in this process; `threads` None means all cores."""
        self.writer.refuse_unseen()
        solver = self.solver(self.feeder, self.solar, threads)
        nodes: Nodes = "all" if self.solves_all else "retained"
        blocks = BlockSolver(solver, self.source, self.solar.generation, nodes, self.scales_down)
        return partial(make_run, self, blocks)

    def __repr__(self) -> str:
        return "PartJob(PRIVATE)"


def layout_of(days: int, steps: int, nodes: int, loaded: int) -> CorpusLayout:
    """One part per block of the sampler, which draws for the loaded nodes; all released nodes are in it."""
    return CorpusLayout(days=days, steps=steps, nodes=nodes, days_per_part=days_per_block(loaded))


def make_run(job: PartJob, blocks: BlockSolver, number: int) -> Rest[Written]:
    """Make the parts of one run; what is left is to write them."""
    parts = job.runs[number]
    solved = blocks.run(parts)
    made = [make_part(job, blocks.solver, part, days) for part, days in zip(parts, solved, strict=True)]
    return Rest(lambda: Written.joined([part.finish() for part in made]))


def make_part(job: PartJob, solver: Solver, part: int, made: SolvedDays) -> Rest[Written]:
    """Make one part of solved days; what is left is to write it."""
    solution = made.solution
    worst = float(np.max(solution.mismatch, initial=0.0))
    if solution.n_failed:
        raise PowerFlowError(
            "a snapshot of the release has no power-flow solution, so nothing was released, and what was "
            "charged stays spent; lower nodes.scale_factor under a new release id and take the model already "
            "paid for with model.reuse",
            code="no-power-flow",
        )
    tables = {} if job.graph is None else _write_graph(job, made)
    files = job.writer.encoded(part, part_voltages(job, made), part_extras(job, solver, made))
    scaled_down = int(np.count_nonzero(made.scaled_down))
    # Last, for a part that is there is complete.
    return Rest(lambda: Written(worst, scaled_down, tables | job.writer.write_files(files), 1))


def _write_graph(job: PartJob, made: SolvedDays) -> dict[str, str]:
    """The part's days of the tables, loads besides the voltages."""
    assert job.graph is not None
    first = made.first_day * made.steps
    count = min(len(made.load), job.graph.days * made.steps - first)
    if count <= 0:
        return {}
    v = with_slack(job.feeder, made.solution.v[:count])
    injected = None if made.generation is None else injected_power(job, made.generation[:count], made)
    return job.graph.write(first, made.load[:count], injected, v, made.steps)


def make_parts(job: PartJob, engine: Runner, progress: Callable[[int, int], None] | None) -> Written:
    """Have all missing parts written by the workers, then what remains of the tables."""
    missing, total = job.writer.missing_parts(), job.writer.layout.n_parts
    solved = job.feeder.energised if job.solves_all else job.feeder.retained
    runs = runs_of(missing, blocks_at_once(job.source, len(solved), job.solver.days_at_once))
    done: list[Written] = []

    def made(some: Written) -> None:
        done.append(some)
        if progress is not None:
            progress(total - len(missing) + sum(each.parts for each in done), total)

    engine.map(replace(job, runs=runs), range(len(runs)), made)
    rest = {} if job.graph is None else job.graph.finish(job.feeder, job.writer.layout.steps)
    return Written.joined([*done, Written(hashes=rest)])


def runs_of(parts: Sequence[int], most: int) -> list[range]:
    """Ascending numbers as runs of consecutive ones, each of at most `most`."""
    runs: list[range] = []
    for part in parts:
        if runs and part == runs[-1].stop and len(runs[-1]) < most:
            runs[-1] = range(runs[-1].start, part + 1)
        else:
            runs.append(range(part, part + 1))
    return runs


def part_voltages(job: PartJob, made: SolvedDays) -> NodeColumns:
    """Voltages of the released nodes [p.u.]."""
    return NodeColumns(made.solution.v, np.searchsorted(_solved(job), job.released), made.steps)


def part_extras(job: PartJob, solver: Solver, made: SolvedDays) -> dict[str, Any]:
    """What the corpus holds of the part besides its voltages (`schema.EXTRAS`), in kW and kvar."""
    holds, feeder, solution = job.writer.extras, job.feeder, made.solution
    shape, kw = (made.days, made.steps, -1), feeder.base_mva * KW_PER_MW
    found: dict[str, Any] = {"scaled_down": made.scaled_down.reshape(shape[:2])}
    if holds.source_phases:
        found["head"] = head_power(feeder, solution.v).reshape(shape) * kw
    loads = generation = None
    if isinstance(solver, OperatedSolver) and isinstance(solution, OperatedSolution):
        if holds.loads:
            powers = solver.device_powers(made.load, made.generation, solution)
            loads, generation = (_at_released(job, made, power, nodes) for nodes, power in powers)
        found |= {name: getattr(solution, name).reshape(shape) for name in ("taps", "capacitors")}
        found["locked"] = solution.locked.reshape(shape[:2])
    elif holds.loads:
        loads, nodes = _at_released(job, made, made.load, feeder.retained), feeder.retained[:0]
        injected = np.empty((len(made.load), 0), dtype=np.complex128)
        if made.generation is not None:
            injected, nodes = injected_power(job, made.generation, made), feeder.retained
        generation = _at_released(job, made, injected, nodes)
    found |= {"loads": loads, "generation": generation}
    return {name: found[name] for name in holds.holds}


def injected_power(job: PartJob, generation: ComplexArray, made: SolvedDays) -> ComplexArray:
    """Generation of the first snapshots after volt-var: complex (snapshot, retained) [p.u.]."""
    if job.solar.voltvar is None:
        return generation
    v = made.solution.v[: len(generation), _columns(_solved(job), job.feeder.retained)]
    return multiply(generation, job.solar.voltvar.rotation(modulus(v)))


def with_slack(feeder: Feeder, v: ComplexArray) -> ComplexArray:
    """Voltages of all nodes, given the energised ones: complex (snapshot, node)."""
    full = np.empty((len(v), len(feeder.nodes)), dtype=np.complex128)
    full[:, feeder.energised] = v
    full[:, feeder.slack] = feeder.v_slack
    return full


def head_power(feeder: Feeder, v: ComplexArray) -> ComplexArray:
    """Power that the sources feed in, from voltages of the energised nodes: complex (snapshot, slack) [p.u.].

    Only neighbours of the slack count; the current of a source is summed in the order of its row.
    """
    rows = feeder.y[feeder.slack].tocsr()
    column = np.full(len(feeder.nodes), -1, dtype=np.int64)
    column[feeder.energised] = np.arange(len(feeder.energised))
    column[feeder.slack] = -1 - np.arange(len(feeder.slack))
    out = np.empty((len(v), len(feeder.slack)), dtype=np.complex128)
    slack = np.ascontiguousarray(feeder.v_slack, dtype=np.complex128)
    _head_power((rows.indptr, column[rows.indices], rows.data), slack, v, out)
    return out


@kernel
def _head_power(
    y: tuple[IntArray, IntArray, ComplexArray], slack: ComplexArray, v: ComplexArray, out: ComplexArray
) -> None:
    """v·conj(Y·v) at the slack; columns below 0 are the slack itself, -1 the first."""
    first, columns, values = y
    for row in range(v.shape[0]):
        for k in range(slack.size):
            real, imag = 0.0, 0.0
            for at in range(first[k], first[k + 1]):
                u = v[row, columns[at]] if columns[at] >= 0 else slack[-1 - columns[at]]
                real += values[at].real * u.real - values[at].imag * u.imag
                imag += values[at].real * u.imag + values[at].imag * u.real
            own = slack[k]
            out[row, k] = complex(own.real * real + own.imag * imag, own.imag * real - own.real * imag)


def _at_released(job: PartJob, made: SolvedDays, power: ComplexArray, nodes: IntArray) -> NodeColumns:
    kw = job.feeder.base_mva * KW_PER_MW
    return NodeColumns(power, _columns(nodes, job.released), made.steps, kw)


def _solved(job: PartJob) -> IntArray:
    return job.feeder.energised if job.solves_all else job.feeder.retained


def _columns(nodes: IntArray, wanted: IntArray) -> IntArray:
    """Positions of the wanted nodes among others in ascending order, -1 where one is not among them."""
    return np.where(np.isin(wanted, nodes), np.searchsorted(nodes, wanted), -1)
