"""Volt-var curves φ_k of inverters (Eq. voltvar).

IEEE 1547-2018 states a curve as reactive power q(u), a share of the apparent power, piecewise linear in
the voltage magnitude u. The paper states it as an angle: s^g = γ·h·exp(jφ(u)). The two are the same curve
with φ = arcsin q, so that Im s^g = γ·h·q(u) is the standard's and |s^g| = γ·h is the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from dp_powerflow._bits.elementary import joined
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.reduction import Network
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

_COLUMNS_AT_A_TIME = 256
_POWER_STEPS, _SMALLEST_SHARE = 60, 1e-9


@dataclass(frozen=True)
class VoltVarCurve:
    """q(u): piecewise linear through the points, constant outside them.

    Attributes
    ----------
    voltage : increasing voltage magnitudes [p.u.].
    reactive : q at these, share of the apparent power, positive if injected, between −1 and 1.
    """

    voltage: tuple[float, ...]
    reactive: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.voltage) < 2 or len(self.voltage) != len(self.reactive):
            raise PowerFlowError("a volt-var curve needs two or more points of voltage and reactive share")
        if not all(a < b for a, b in zip(self.voltage, self.voltage[1:], strict=False)):
            raise PowerFlowError("the voltages of a volt-var curve must increase from point to point")
        if not all(-1.0 < q < 1.0 for q in self.reactive):
            raise PowerFlowError("the reactive shares of a volt-var curve must lie between -1 and 1")

    def share(self, u: FloatArray) -> FloatArray:
        """q(u) = sin φ(u)."""
        return np.asarray(np.interp(u, self.voltage, self.reactive))

    def angle(self, u: FloatArray) -> FloatArray:
        """φ(u) [rad]."""
        return np.asarray(np.arcsin(self.share(u)))

    def slope(self, u: FloatArray) -> FloatArray:
        """φ′(u) [rad per p.u.]; at a corner the slope to its right."""
        segment = np.searchsorted(self.voltage, u, side="right")
        slopes = np.concatenate([[0.0], np.diff(self.reactive) / np.diff(self.voltage), [0.0]])
        return np.asarray(slopes[segment] / np.sqrt(1.0 - self.share(u) ** 2))

    @property
    def steepest(self) -> float:
        """sup |φ′| [rad per p.u.]: on each segment it is attained at the end with the larger |q|."""
        q = np.asarray(self.reactive)
        largest = np.maximum(abs(q[1:]), abs(q[:-1]))
        return float(np.max(abs(np.diff(q) / np.diff(self.voltage)) / np.sqrt(1.0 - largest**2)))


CATEGORY_A = VoltVarCurve(voltage=(0.90, 1.00, 1.10), reactive=(0.25, 0.0, -0.25))
"""Default curve of IEEE 1547-2018, Table 8, category A."""
CATEGORY_B = VoltVarCurve(voltage=(0.92, 0.98, 1.02, 1.08), reactive=(0.44, 0.0, 0.0, -0.44))
"""Default curve of IEEE 1547-2018, Table 8, category B."""


@dataclass(frozen=True, eq=False)
class VoltVar:
    """Which retained nodes follow which curve.

    Attributes
    ----------
    curves : the curves in use.
    curve_of : (retained,) index into `curves`, −1 for a node without volt-var.
    """

    curves: tuple[VoltVarCurve, ...]
    curve_of: IntArray

    def __post_init__(self) -> None:
        if len(self.curve_of) and not -1 <= int(np.min(self.curve_of)) <= int(np.max(self.curve_of)) < len(
            self.curves
        ):
            raise PowerFlowError(f"curve_of must hold -1 or the index of one of {len(self.curves)} curves")

    @classmethod
    def for_feeder(cls, feeder: Feeder, curve: VoltVarCurve = CATEGORY_B) -> VoltVar:
        """One curve at every node with photovoltaics."""
        has_pv = np.isin(feeder.retained, feeder.pv_shares.indices)
        return cls((curve,), np.where(has_pv, 0, -1).astype(np.int64))

    @cached_property
    def nodes(self) -> IntArray:
        """Indices, among the retained nodes, of those with volt-var."""
        return np.flatnonzero(self.curve_of >= 0)

    @cached_property
    def steepest(self) -> FloatArray:
        """(retained,) sup |φ′_k| [rad per p.u.], 0 without volt-var."""
        slopes = np.array([curve.steepest for curve in self.curves] + [0.0])
        return np.asarray(slopes[self.curve_of])

    def rotation(self, u: FloatArray) -> ComplexArray:
        """exp(jφ_k(u_k)) for u (..., retained) [p.u.]; 1 without volt-var."""
        q = self._by_node(u, "share")
        return joined(np.sqrt(1.0 - q * q), q)

    def slope(self, u: FloatArray) -> FloatArray:
        """φ′_k(u_k) for u (..., retained) [rad per p.u.]; 0 without volt-var."""
        return self._by_node(u, "slope")

    def gain(self, network: Network, peak: FloatArray) -> float:
        """Loop gain of the control at 1 p.u., with every answer at its largest; from 1 on it need not settle.

        The inverters answer a change δu of the voltages with at most γ_k·h_max·sup|φ′_k|·δu_k of power, and
        the network answers that with at most |Z|·δs of voltage, at 1 p.u.: the gain is the spectral radius of
        |Z_kj|·γ_j·h_max·sup|φ′_j| over the nodes with volt-var. Z goes with the power base and γ with its
        inverse, so the gain is the same on every base, as the printed γ_k·h_max·|φ′_k| < 1 (Assumption 1
        (iii)) is not.

        Parameters
        ----------
        peak : (retained,) γ_k·h_max, the largest |s^g| of each node [p.u.].
        """
        answers = (peak * self.steepest)[self.nodes]
        if not answers.any():
            return 0.0
        impedance = np.empty((len(self.nodes), len(self.nodes)))
        for start in range(0, len(self.nodes), _COLUMNS_AT_A_TIME):
            columns = self.nodes[start : start + _COLUMNS_AT_A_TIME]
            unit = np.zeros((network.n, len(columns)), dtype=np.complex128)
            unit[columns, np.arange(len(columns))] = 1.0
            impedance[:, start : start + len(columns)] = np.abs(network.solve(unit)[self.nodes])
        return _spectral_radius(impedance * answers)

    def _by_node(self, u: FloatArray, method: str) -> FloatArray:
        values = np.zeros(np.shape(u))
        for index, curve in enumerate(self.curves):
            at = self.curve_of == index
            values[..., at] = getattr(curve, method)(np.asarray(u)[..., at])
        return values


def _spectral_radius(matrix: FloatArray) -> float:
    """Upper bound of a matrix without negative entries: max (Ax)_i/x_i of any x > 0 (Collatz, Wielandt)."""
    x, bound = np.ones(len(matrix)), np.inf
    for _ in range(_POWER_STEPS):
        y = matrix @ x
        bound = min(bound, float(np.max(y / x)))
        x = np.maximum(y / y.max(), _SMALLEST_SHARE)
    return bound


class Curve(Protocol):
    """Points of a piecewise linear curve."""

    @property
    def voltage(self) -> tuple[float, ...]:
        """Increasing voltages."""

    @property
    def reactive(self) -> tuple[float, ...]:
        """Values at these."""


def curve_arrays(curves: Sequence[Curve]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Knots, value left of the first knot, and slopes; short curves padded with flat segments."""
    width = max((len(curve.voltage) for curve in curves), default=2)
    knots = np.zeros((max(len(curves), 1), width))
    base, slopes = np.zeros(len(knots)), np.zeros((len(knots), width - 1))
    for k, curve in enumerate(curves):
        points = len(curve.voltage)
        knots[k, :points] = curve.voltage
        knots[k, points:] = curve.voltage[-1]
        base[k] = curve.reactive[0]
        slopes[k, : points - 1] = np.diff(curve.reactive) / np.diff(curve.voltage)
    return knots, base, slopes
