"""Power flow for very many snapshots of one feeder: the implicit Z-bus fixed point, in blocks.

The equations are v∘conj(Y·v + b) = s with s = generation − load. With the no-load voltage w (Y·w = −b) they
are the fixed point v = w + Y⁻¹·i(v), i(v) = conj(s/v), which contracts while the feeder is not near voltage
collapse (`docs/explanation/power-flow.md`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import scipy.sparse as sp

from dp_powerflow._bits.elementary import divide, modulus, multiply, square
from dp_powerflow._threads import cores, in_order
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.powerflow._kernels import solve as kernels
from dp_powerflow.powerflow._kernels.simd import LANES
from dp_powerflow.powerflow._kernels.solve import Check, Plan
from dp_powerflow.powerflow.devices import VoltVar, curve_arrays
from dp_powerflow.powerflow.factor import (
    Factors,
    factorise,
    factors_with,
    measured_rows,
    solve_blocks,
    sweeps,
)
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

SLOW_AFTER = 20
"""Iterations of the fixed point after which a snapshot is handed to Newton's method."""
TYPICAL_LOAD = 0.6
"""Share of the nominal load at which the loads are linearised."""
_TASK = 32 * LANES
"""Snapshots per task of a thread: long enough to hide its start, short enough to share evenly."""


Columns = Literal["nodes", "elements"]
"""What the columns of a load are: retained nodes, or the loads of the feeder one by one."""


Nodes = Literal["retained", "all"]


class Solver(ABC):
    """A power-flow engine for many snapshots of one feeder.

    Parameters
    ----------
    tolerance : largest power mismatch [p.u.] of a converged snapshot.
    threads : None for one per core.
    """

    columns: Columns = "nodes"
    """What `solve` takes: power per retained node, or per load and PV system."""

    def __init__(self, feeder: Feeder, tolerance: float, threads: int | None = 1, **settings: object) -> None:
        if not 0.0 < tolerance < 1.0:
            raise PowerFlowError("the tolerance must lie between 0 and 1 p.u., such as 1e-8")
        self._feeder, self._tolerance = feeder, float(tolerance)
        self._threads = checked_threads(threads)
        self._settings: dict[str, Any] = {"tolerance": self._tolerance, **settings}

    @property
    def feeder(self) -> Feeder:
        """The network that is solved."""
        return self._feeder

    def on(self, feeder: Feeder, *, threads: int | None = 1, **changed: object) -> Self:
        """A solver of another feeder, such as one with more PV systems, with the same settings but some.

        Volt-var curves of nodes do not move by themselves: a caller that has some states the new ones.
        """
        if self._settings.get("voltvar") is not None and changed.get("voltvar") is None:
            raise PowerFlowError(
                "volt-var curves of nodes would turn every power that is injected there; solve the feeder as "
                'operated (controls = "day"), or leave out the curves'
            )
        return type(self)(feeder, threads=threads, **(self._settings | changed))

    @abstractmethod
    def solve(
        self,
        load: ComplexArray,
        generation: ComplexArray | None = None,
        *,
        nodes: Nodes = "retained",
        out: ComplexArray | None = None,
    ) -> Solution:
        """Solve every row of `load`, complex (snapshot, column) drawn [p.u.]."""

    def _asked(self, nodes: Nodes) -> IntArray:
        """Indices of the nodes whose voltages are wanted."""
        if nodes not in ("retained", "all"):
            raise PowerFlowError(f"nodes must be 'retained' or 'all', not {nodes!r}")
        return self._feeder.retained if nodes == "retained" else self._feeder.energised


class BatchSolver(Solver):
    """Solves batches of snapshots of one feeder on all cores.

    Parameters
    ----------
    tolerance : largest power mismatch [p.u.] of a converged snapshot; where rounding hides more, 0.1 W at
        most.
    threads : None for one per core.
    voltvar : curves that turn the generation of some nodes, None for constant generation.

    Attributes
    ----------
    plans : the arrays in use: the factors, with the rounding floors of the mismatch, and all made of them.
    """

    def __init__(
        self,
        feeder: Feeder,
        *,
        tolerance: float = 1e-8,
        threads: int | None = None,
        voltvar: VoltVar | None = None,
    ) -> None:
        super().__init__(feeder, tolerance, threads, voltvar=voltvar)
        self.voltvar = voltvar
        self.plans = prepare(feeder, voltvar, self._tolerance)

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
        load, generation = checked_pair(self.feeder, load, generation)
        n = len(load)
        plans = self.plans
        targets = plans.factors.position[np.searchsorted(self.feeder.energised, self._asked(nodes))]
        check = plans.core_check if nodes == "retained" else plans.full_check
        v = checked_output((n, len(targets)), out)
        task = kernels.Task(
            load=load.view(np.float64),
            generation=generation.view(np.float64),
            out=v.view(np.float64),
            targets=targets,
            iterations=np.zeros(n, dtype=np.int64),
            mismatch=np.full(n, np.nan),
            converged=np.zeros(n, dtype=np.bool_),
            status=np.zeros(n, dtype=np.int64),
            tolerance=self._tolerance,
            max_iterations=SLOW_AFTER,
        )
        plan = plans.plan
        in_threads(
            lambda first: kernels.solve_range(
                first, min(first + _TASK, n), plan, check, kernels.new_work(plan), task
            ),
            range(0, n, _TASK),
            self._threads,
        )
        refuse_bad_power(task.status)
        slow = np.flatnonzero(~task.converged)
        system = kernels.System(plan, plans.factors.blocks, plans.core_check)
        in_threads(
            lambda first: kernels.newton_range(slow[first : first + LANES], system, check, task),
            range(0, len(slow), LANES),
            self._threads,
        )
        return Solution(v, task.converged, task.iterations, task.mismatch)


def in_threads(run: Callable[[int], None], starts: Sequence[int], threads: int) -> None:
    """Call run(start) for every start; the work inside must leave Python's lock."""
    for _ in in_order(run, starts, threads if len(starts) > 1 else 1):
        pass


def checked_threads(threads: int | None) -> int:
    """The number of threads asked for; None is one per core this process may use."""
    if threads is None:
        return cores()
    if threads < 1:
        raise PowerFlowError("threads must be at least 1, or None for one per core")
    return threads


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
        voltages; `docs/explanation/power-flow.md` says over which nodes.
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
                "lower the load or the generation, or check the units (per unit of base_mva per phase)",
                code="no-power-flow",
            )


def checked_power(power: ComplexArray, width: int, name: str, of: str) -> ComplexArray:
    """A batch of powers as a C-contiguous complex128 (snapshot, column) array."""
    array = np.asarray(power)
    if array.dtype.kind not in "fc":
        raise PowerFlowError(f"{name} must be an array of complex numbers, not of {array.dtype}")
    if array.ndim != 2 or array.shape[1] != width:
        raise PowerFlowError(
            f"{name} has shape {array.shape}; it must be (snapshot, {width}), a column for every {of}"
        )
    return np.ascontiguousarray(array, dtype=np.complex128)


def checked_pair(
    feeder: Feeder, load: ComplexArray, generation: ComplexArray | None
) -> tuple[ComplexArray, ComplexArray]:
    """Load and generation of the retained nodes, of the same shape; absent generation has no rows."""
    width, of = len(feeder.retained), "retained node in the order of feeder.retained"
    load = checked_power(load, width, "load", of)
    if generation is None:
        return load, np.empty((0, width), dtype=np.complex128)
    generation = checked_power(generation, width, "generation", of)
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


def refuse_bad_power(status: IntArray) -> None:
    """Raise if any snapshot held a figure that is no load; counts only, never the figures."""
    sentences = {
        kernels.NOT_FINITE: "hold NaN or infinite power; fill or drop the gaps before solving",
        kernels.NEGATIVE: "draw negative active power at a node without delta load; pass generation through "
        "the generation argument",
    }
    for kind, words in sentences.items():
        if count := int(np.count_nonzero(status == kind)):
            raise PowerFlowError(f"{count} of {len(status)} snapshots {words}")


# ------------------------------------------------------------------ arrays that the kernels read


@dataclass(frozen=True, eq=False)
class Plans:
    """Everything the kernels need: of the fixed point, of Newton's method, and of the two checks."""

    factors: Factors
    plan: Plan
    core_check: Check
    full_check: Check


def prepare(feeder: Feeder, voltvar: VoltVar | None, tolerance: float) -> Plans:
    """Factorise a feeder and lay out all arrays."""
    factors = factorise(feeder)
    n, n_retained = factors.n_core, len(feeder.retained)
    if voltvar is not None and len(voltvar.curve_of) != n_retained:
        raise PowerFlowError(
            f"the volt-var curves cover {len(voltvar.curve_of)} nodes but the feeder retains {n_retained}"
        )
    position = factors.position[np.searchsorted(feeder.energised, feeder.retained)]
    # Loads are kept in the order of their positions, so that the sweeps walk through memory.
    order = np.argsort(position)
    at = position[order]
    row_of = np.empty(n_retained, dtype=np.int64)
    row_of[order] = np.arange(n_retained)
    load_at = np.full(len(factors.w), -1, dtype=np.int64)
    load_at[at] = np.arange(n_retained)
    nominal = feeder.nominal_injection[feeder.retained][order]
    start = _nominal_deviation(factors, at, nominal)
    slope, values = _linearised(factors, at, nominal, start)
    size = max(float(np.sum(square(nominal))), np.finfo(np.float64).tiny)
    knots, base, slopes = curve_arrays(() if voltvar is None else voltvar.curves)
    plan = Plan(
        **sweeps(factors, values, n),
        n_core=n,
        slope=slope,
        load_at=load_at,
        at=at,
        row_of=row_of,
        start=start,
        weight_re=nominal.real / size,
        weight_im=nominal.imag / size,
        strict=wye_only(feeder)[order].astype(np.float64),
        curve_of=np.full(n_retained, -1, dtype=np.int64) if voltvar is None else voltvar.curve_of[order],
        knots=knots,
        base=base,
        slopes=slopes,
    )
    names = [feeder.nodes[k] for k in feeder.energised[np.argsort(factors.position)]]
    checks = [
        check_of(feeder, rows, factors.w, load_at[: rows.shape[0]] >= 0, names, tolerance)
        for rows in (factors.core, factors.full)
    ]
    return Plans(factors, plan, *checks)


def check_of(
    feeder: Feeder,
    matrix: sp.csr_array,
    w: ComplexArray,
    held: BoolArray,
    names: list[str],
    tolerance: float,
    *,
    paired: tuple[int, int] = (0, 0),
) -> Check:
    """Rows against which the mismatch is measured, and how much each may have; as of `measured_rows`.

    Parameters
    ----------
    paired : (n, r): the rows n … n + r − 1 are measured together with the r rows behind them.
    """
    n, r = paired
    rows, floor = measured_rows(feeder, matrix, w[: matrix.shape[0]], held, names)
    floor[n + r : n + 2 * r] += floor[n : n + r]
    ptr, col = rows.indptr.astype(np.int64), rows.indices.astype(np.int64)
    limit = 1.0 / np.maximum(tolerance, floor) ** 2
    return Check(ptr, col, rows.data.real.copy(), rows.data.imag.copy(), limit)


def _nominal_deviation(factors: Factors, at: IntArray, nominal: ComplexArray) -> ComplexArray:
    """Deviation from no load at nominal injection, zero if the feeder does not bear it.

    A snapshot starts at this deviation times its share of the nominal load, which saves an iteration.
    """
    values, _ = factors_with(factors.blocks, np.zeros((len(at), 4)))
    w, x = factors.w[at], np.zeros_like(nominal)
    limit = 0.16 * square(w)
    for _ in range(30):
        current = np.zeros(factors.n_core, dtype=np.complex128)
        current[at] = np.conj(divide(nominal, w + x))
        solve_blocks(factors.blocks, values, current)
        moved, x = modulus(current[at] - x), current[at]
        if not bool((square(x) < limit).all()):
            return np.zeros_like(nominal)
        if float(moved.max(initial=0.0)) < 1e-6:
            return x
    return np.zeros_like(nominal)


def _linearised(
    factors: Factors, at: IntArray, nominal: ComplexArray, start: ComplexArray
) -> tuple[FloatArray, FloatArray]:
    """Slope −∂i/∂v of every load at a typical load, and the factors of Y_core + slope.

    With the slope on both sides, (Y + slope)·x⁺ = i(v) + slope·x, the fixed point contracts in proportion to
    the distance from the typical load instead of the load itself; the factors cost the same to apply.
    """
    s = TYPICAL_LOAD * nominal if start.any() else np.zeros_like(nominal)
    v = factors.w[at] + TYPICAL_LOAD * start
    d = np.conj(divide(s, multiply(v, v)))
    slope = np.stack([d.real, d.imag, d.imag, -d.real], axis=1)
    values, negative = factors_with(factors.blocks, slope)
    if negative % 2:
        slope = np.zeros_like(slope)
        values, _ = factors_with(factors.blocks, slope)
    return slope, values


def wye_only(feeder: Feeder) -> BoolArray:
    """(retained,) nodes whose active load cannot be negative.

    The wye equivalent of a delta load may draw negative active power at one of its nodes; a plain
    load may not, and a negative figure there is generation in the wrong argument.
    """
    shares = feeder.load_shares.tocsr()[feeder.retained]
    return np.asarray(np.asarray(abs(shares.imag).sum(axis=1)).ravel() <= 0.0, dtype=np.bool_)
