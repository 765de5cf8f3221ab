"""What every power-flow engine takes and gives: one interface, one result, one check of the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

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


def wye_only(feeder: Feeder) -> BoolArray:
    """(retained,) nodes whose active load cannot be negative.

    The wye equivalent of a delta load may draw negative active power at one of its nodes; a plain
    load may not, and a negative figure there is generation in the wrong argument.
    """
    shares = feeder.load_shares.tocsr()[feeder.retained]
    delta = np.asarray((abs(shares.imag)).sum(axis=1)).ravel() > 0.0
    return np.asarray(~delta, dtype=np.bool_)


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
