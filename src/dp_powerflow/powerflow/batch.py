"""Power flow for very many snapshots of one feeder: the implicit Z-bus fixed point, in blocks.

The equations are v∘conj(Y·v + b) = s with s = generation − load. With the no-load voltage w (Y·w = −b) they
are the fixed point v = w + Y⁻¹·i(v), i(v) = conj(s/v), which contracts while the feeder is not near voltage
collapse (`docs/powerflow.md`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from dp_powerflow._bits.phasors import modulus
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.powerflow._kernels.newton import newton_range
from dp_powerflow.powerflow._kernels.simd import LANES
from dp_powerflow.powerflow._kernels.solve import NEGATIVE, NOT_FINITE, Check, Task, new_work, solve_range
from dp_powerflow.powerflow.factor import Factors
from dp_powerflow.powerflow.plan import prepare
from dp_powerflow.powerflow.voltvar import VoltVar
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

SLOW_AFTER = 20
"""Iterations of the fixed point after which a snapshot is handed to Newton's method."""
_TASK = 32 * LANES
"""Snapshots per task of a thread: long enough to hide its start, short enough to share evenly."""


class BatchSolver:
    """Solves batches of snapshots of one feeder on all cores.

    Parameters
    ----------
    tolerance : largest power mismatch [p.u.] of a converged snapshot, beyond the rounding floor of its rows.
    max_iterations : linear solves of the fixed point per snapshot before Newton's method is asked.
    threads : None for one per core.
    voltvar : curves that turn the generation of some nodes, None for constant generation.
    """

    def __init__(
        self,
        feeder: Feeder,
        *,
        tolerance: float = 1e-8,
        max_iterations: int = SLOW_AFTER,
        threads: int | None = None,
        voltvar: VoltVar | None = None,
    ) -> None:
        if not 0.0 < tolerance < 1.0:
            raise PowerFlowError("the tolerance must lie between 0 and 1 p.u., such as 1e-8")
        if max_iterations < 1:
            raise PowerFlowError("max_iterations must be at least 1")
        if threads is not None and threads < 1:
            raise PowerFlowError("threads must be at least 1, or None for one per core")
        self._feeder = feeder
        self._tolerance = float(tolerance)
        self._max_iterations = int(max_iterations)
        self._threads = threads or _cores()
        self._voltvar = voltvar
        self._plans = prepare(feeder, voltvar, self._tolerance)

    @property
    def feeder(self) -> Feeder:
        """The network that is solved."""
        return self._feeder

    @property
    def factors(self) -> Factors:
        """The factors in use, with the rounding floors of the mismatch."""
        return self._plans.factors

    def flops(self, iterations: float) -> float:
        """Floating-point operations of a snapshot that takes so many iterations; a division is one."""
        plan, check = self._plans.plan, self._plans.core_check
        entries = int(plan.lower_ptr[plan.n_core]) + len(plan.upper_col)
        each = 8 * entries + 6 * plan.n_core + 32 * len(plan.at)
        return iterations * each + 8 * len(check.col) + 20 * plan.n_core

    def solve(
        self,
        load: ComplexArray,
        generation: ComplexArray | None = None,
        *,
        nodes: Nodes = "retained",
        out: ComplexArray | None = None,
    ) -> Solution:
        """Voltages of every snapshot.

        Parameters
        ----------
        load : complex (snapshot, retained) power drawn [p.u.].
        generation : complex (snapshot, retained) power injected before volt-var [p.u.].
        nodes : "retained", or "all" for every energised node; then the mismatch is measured at all of them.
        out : complex (snapshot, node) to write into. Reuse one: fresh memory costs up to as much as the
            solution itself.
        """
        load, generation = checked_pair(self._feeder, load, generation)
        if self._voltvar is not None and len(generation):
            self._voltvar.check(modulus(generation).max(axis=0))
        n = len(load)
        targets, check = self._targets(nodes)
        v = checked_output((n, len(targets)), out)
        iterations = np.zeros(n, dtype=np.int64)
        mismatch = np.full(n, np.nan)
        converged = np.zeros(n, dtype=np.bool_)
        status = np.zeros(n, dtype=np.int64)

        task = Task(
            load=load.view(np.float64),
            generation=generation.view(np.float64),
            out=v.view(np.float64),
            targets=targets,
            iterations=iterations,
            mismatch=mismatch,
            converged=converged,
            status=status,
            tolerance=self._tolerance,
            max_iterations=self._max_iterations,
        )
        plan = self._plans.plan
        self._share(lambda first, last: solve_range(first, last, plan, check, new_work(plan), task), n)
        refuse_bad_power(int(np.sum(status == NOT_FINITE)), int(np.sum(status == NEGATIVE)), n)
        slow = np.flatnonzero(~converged)

        def newton(first: int, last: int) -> None:
            plans = self._plans
            newton_range(slow[first:last], plans.plan, plans.blocks, plans.core_check, check, task)

        if len(slow):
            self._share(newton, len(slow), task=LANES)
        return Solution(v, converged, iterations, mismatch)

    def stream(
        self,
        blocks: Iterable[ComplexArray | tuple[ComplexArray, ComplexArray]],
        *,
        nodes: Nodes = "retained",
    ) -> Iterator[Solution]:
        """Solve one block of snapshots after the other in bounded memory.

        Each item is a load, or a pair of load and generation. The voltages of a solution live in a buffer
        that the next block overwrites: reduce or copy them first.
        """
        buffer = np.empty((0, len(self._targets(nodes)[0])), dtype=np.complex128)
        for block in blocks:
            load, generation = block if isinstance(block, tuple) else (block, None)
            if len(load) > len(buffer):
                buffer = np.empty((len(load), buffer.shape[1]), dtype=np.complex128)
            yield self.solve(load, generation, nodes=nodes, out=buffer[: len(load)])

    def _targets(self, nodes: Nodes) -> tuple[IntArray, Check]:
        if nodes == "retained":
            return self._plans.plan.at[self._plans.plan.row_of], self._plans.core_check
        if nodes == "all":
            return self._plans.factors.position, self._plans.full_check
        raise PowerFlowError(f"nodes must be 'retained' or 'all', not {nodes!r}")

    def _share(self, run: Callable[[int, int], None], n: int, task: int = _TASK) -> None:
        """Call run(first, last) for consecutive ranges, on threads if there is more than one."""
        ranges = [(first, min(first + task, n)) for first in range(0, n, task)]
        if self._threads == 1 or len(ranges) <= 1:
            for first, last in ranges:
                run(first, last)
            return
        with ThreadPoolExecutor(self._threads) as pool:
            futures = [pool.submit(run, first, last) for first, last in ranges]
        for future in futures:
            future.result()


def _cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


Nodes = Literal["retained", "all"]


@dataclass(frozen=True, eq=False)
class Solution:
    """Voltages of a batch of snapshots, and how far each can be trusted.

    Attributes
    ----------
    v : complex (snapshot, node) [p.u.], NaN where not converged; the nodes are `feeder.retained`,
        or `feeder.energised` if all were asked for.
    converged : (snapshot,) whether the measured mismatch is within the tolerance.
    iterations : (snapshot,) linear solves spent.
    mismatch : (snapshot,) largest |v_k·conj((Y v)_k) − s_k| [p.u.], measured with the returned
        voltages; `docs/powerflow.md` says over which nodes.
    """

    v: ComplexArray
    converged: BoolArray
    iterations: IntArray
    mismatch: FloatArray

    def __repr__(self) -> str:
        return f"Solution({len(self.converged)} snapshots, {self.n_failed} failed)"

    @property
    def n_failed(self) -> int:
        """Number of snapshots without a solution."""
        return int(np.count_nonzero(~self.converged))

    def raise_if_failed(self) -> None:
        """Refuse a batch that is not solved in full."""
        if self.n_failed:
            raise PowerFlowError(
                f"{self.n_failed} of {len(self.converged)} snapshots have no power-flow solution; "
                "lower the load or the generation, or check the units (per unit of base_mva per phase)"
            )


class Solver(Protocol):
    """A power-flow engine for many snapshots of one feeder."""

    @property
    def feeder(self) -> Feeder:
        """The network that is solved."""
        ...

    def solve(
        self,
        load: ComplexArray,
        generation: ComplexArray | None = None,
        *,
        nodes: Nodes = "retained",
        out: ComplexArray | None = None,
    ) -> Solution:
        """Solve every row of `load`, complex (snapshot, retained) drawn [p.u.]."""
        ...


def checked_power(feeder: Feeder, power: ComplexArray, name: str) -> ComplexArray:
    """A batch of nodal powers as a C-contiguous complex128 (snapshot, retained) array."""
    array = np.asarray(power)
    if array.dtype.kind not in "fc":
        raise PowerFlowError(f"{name} must be an array of complex numbers, not of {array.dtype}")
    if array.ndim != 2 or array.shape[1] != len(feeder.retained):
        raise PowerFlowError(
            f"{name} has shape {array.shape}; it must be (snapshot, retained node) = "
            f"(any, {len(feeder.retained)}), in the order of feeder.retained"
        )
    return np.ascontiguousarray(array, dtype=np.complex128)


def checked_pair(
    feeder: Feeder, load: ComplexArray, generation: ComplexArray | None
) -> tuple[ComplexArray, ComplexArray]:
    """Load and generation of the same shape; absent generation has no rows."""
    load = checked_power(feeder, load, "load")
    if generation is None:
        return load, np.empty((0, load.shape[1]), dtype=np.complex128)
    generation = checked_power(feeder, generation, "generation")
    if generation.shape != load.shape:
        raise PowerFlowError(f"generation has {len(generation)} snapshots but load has {len(load)}")
    return load, generation


def checked_output(shape: tuple[int, int], out: ComplexArray | None) -> ComplexArray:
    """The array that receives the voltages, new or given by the caller."""
    if out is None:
        return np.empty(shape, dtype=np.complex128)
    if out.dtype != np.complex128 or out.shape != shape or not out.flags.c_contiguous:
        raise PowerFlowError(
            f"out must be a C-contiguous complex128 array of shape {shape}, "
            f"not {out.dtype} of shape {out.shape}"
        )
    if not out.flags.writeable:
        raise PowerFlowError("out is read-only; pass an array that may be written")
    return out


def refuse_bad_power(n_not_finite: int, n_negative: int, n_snapshots: int) -> None:
    """Raise if any snapshot held a figure that is no load; counts only, never the figures."""
    if n_not_finite:
        raise PowerFlowError(
            f"{n_not_finite} of {n_snapshots} snapshots hold NaN or infinite power; "
            "fill or drop the gaps before solving"
        )
    if n_negative:
        raise PowerFlowError(
            f"{n_negative} of {n_snapshots} snapshots draw negative active power at a node without delta "
            "load; pass generation through the generation argument"
        )
