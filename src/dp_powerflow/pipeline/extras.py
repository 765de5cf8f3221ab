"""What a part publishes of its solved days: voltages of the released nodes, and what lies beside them.

Arrays of the solver are handed on as they are (`NodeColumns`): what is not released is never copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dp_powerflow._bits.elementary import kernel, modulus, multiply
from dp_powerflow.corpus.grid import NodeColumns
from dp_powerflow.corpus.parts import PartExtras
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.model.sample import SolvedDays
from dp_powerflow.powerflow.batch import Solver
from dp_powerflow.powerflow.operated import OperatedSolution, OperatedSolver
from dp_powerflow.units import KW_PER_MW, ComplexArray, IntArray

if TYPE_CHECKING:
    from dp_powerflow.pipeline.parts import PartJob


def part_voltages(job: PartJob, made: SolvedDays) -> NodeColumns:
    """Voltages of the released nodes [p.u.]."""
    return NodeColumns(made.solution.v, np.searchsorted(_solved(job), job.released), made.steps)


def part_extras(job: PartJob, solver: Solver, made: SolvedDays) -> PartExtras | None:
    """What the corpus holds of the part beside its voltages (`CorpusWriter.extras`), in kW and kvar."""
    holds, feeder, solution = job.writer.extras, job.feeder, made.solution
    if not holds.holds:
        return None
    shape, kw = (made.days, made.steps, -1), feeder.base_mva * KW_PER_MW
    taps = capacitors = locked = None
    loads = generation = None
    if isinstance(solver, OperatedSolver) and isinstance(solution, OperatedSolution):
        if holds.loads:
            powers = solver.device_powers(made.load, made.generation, solution)
            loads, generation = (_at_released(job, made, power, nodes) for nodes, power in powers)
        if holds.states:
            taps, capacitors = solution.taps.reshape(shape), solution.capacitors.reshape(shape)
            locked = solution.locked.reshape(made.days, made.steps)
    elif holds.loads:
        loads, nodes = _at_released(job, made, made.load, feeder.retained), feeder.retained[:0]
        injected = np.empty((len(made.load), 0), dtype=np.complex128)
        if made.generation is not None:
            injected, nodes = injected_power(job, made.generation, made), feeder.retained
        generation = _at_released(job, made, injected, nodes)
    return PartExtras(
        loads=loads,
        generation=generation if holds.generation else None,
        head=head_power(feeder, solution.v).reshape(shape) * kw if holds.sources else None,
        taps=taps if holds.regulators else None,
        capacitors=capacitors if holds.capacitors else None,
        locked=locked,
        mended=made.mended.reshape(made.days, made.steps) if holds.mended else None,
    )


def injected_power(job: PartJob, generation: ComplexArray, made: SolvedDays) -> ComplexArray:
    """Generation of the first snapshots after volt-var: complex (snapshot, retained) [p.u.]."""
    if job.solar.voltvar is None:
        return generation
    v = made.solution.v[: len(generation), _columns(_solved(job), job.feeder.retained)]
    return multiply(generation, job.solar.voltvar.rotation(modulus(v)))


def with_slack(feeder: Feeder, v: ComplexArray) -> ComplexArray:
    """Voltages of all nodes from those of the energised ones: complex (snapshot, node)."""
    full = np.empty((len(v), len(feeder.nodes)), dtype=np.complex128)
    full[:, feeder.energised] = v
    full[:, feeder.slack] = feeder.v_slack
    return full


def head_power(feeder: Feeder, v: ComplexArray) -> ComplexArray:
    """Power that the sources feed in, from voltages of the energised nodes: complex (snapshot, slack) [p.u.].

    Only neighbours of the slack are looked at; the current of a source is summed in the order of its row.
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
    """v·conj(Y·v) at the slack; columns below 0 are those of the slack itself, -1 the first."""
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
    at = np.searchsorted(nodes, wanted)
    return np.where(np.isin(wanted, nodes), at, -1)
