"""Figures of one release against the true data: loads, voltages, physics."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from dp_powerflow.lowlevel import Solver
from dp_powerflow.units import ComplexArray, FloatArray, IntArray
from dp_powerflow_paper.datasets import Dataset
from dp_powerflow_paper.mechanisms import solve_loads
from dp_powerflow_paper.wasserstein.evaluation import distance

_FLAT = 1e-12
"""Variance, over the squared mean, below which a series has no correlation with itself."""


@dataclass(frozen=True)
class Figures:
    """One release.

    Attributes
    ----------
    w1_load : W1 of active load over nominal load of each node by itself, mean over nodes; None without loads.
    lag1_load, lag1_voltage : correlation of a step with the next within a day, mean over nodes and days, of
        the loads and of |v|.
    peak_error : relative error of the mean daily peak of the total active load.
    w1_pooled, w1_per_node : W1 of |v| [p.u.], of all nodes together, and mean of each by itself.
    failed : share of snapshots without a power-flow solution.
    residual : median over snapshots of ‖Im s − tan θ·Re s‖/‖s‖, with s the injections that |v| and the true
        network imply.
    """

    w1_load: float | None
    lag1_load: float | None
    lag1_voltage: float | None
    peak_error: float | None
    w1_pooled: float | None
    w1_per_node: float | None
    failed: float | None
    residual: float | None


FIGURES = tuple(field.name for field in fields(Figures))


@dataclass(frozen=True, eq=False)
class Truth:
    """The true days that every release is compared with, without PV.

    Attributes
    ----------
    data : feeder and profiles.
    days : (day,) days of the history that are compared.
    """

    data: Dataset
    days: IntArray

    @cached_property
    def load(self) -> ComplexArray:
        """Complex (day, step, node) [p.u.]."""
        return self.data.true_load(self.days)

    @cached_property
    def solver(self) -> Solver:
        """Of the true network."""
        return self.data.solver()

    @cached_property
    def voltages(self) -> ComplexArray:
        """Complex (day, step, node) [p.u.]."""
        return solve_loads(self.solver, self.load)

    @cached_property
    def figures(self) -> Figures:
        """Of the true data against themselves: distances are 0, correlations and the residual are not."""
        return self.measure(self.load, self.voltages)

    def measure(self, load: ComplexArray | None, voltages: ComplexArray | None) -> Figures:
        """Figures of a release; `None` where it has no loads or no voltages."""
        found: dict[str, float | None] = dict.fromkeys(FIGURES)
        if load is not None:
            relative = load.real / self.data.nominal.real
            found["w1_load"] = w1_per_node(relative, self._relative)
            found["lag1_load"] = lag1(relative)
            found["peak_error"] = abs(daily_peak(load) / daily_peak(self.load) - 1.0)
        if voltages is not None:
            apart = distance(voltages, self.voltages)
            found["w1_pooled"] = known(apart.pooled)
            found["w1_per_node"] = known(float(apart.per_node.mean()))
            found["failed"] = apart.failed
            found["lag1_voltage"] = lag1(np.abs(voltages))
            found["residual"] = self.residual(voltages)
        return Figures(**found)

    def residual(self, voltages: ComplexArray) -> float | None:
        """How far voltages are from loads at public power factors on the true network; None without any."""
        v = voltages.reshape(-1, voltages.shape[-1])
        v = v[np.isfinite(v).all(axis=1)]
        if not len(v):
            return None
        y, offset = self._network
        s = -v * np.conj(v @ y.T + offset)
        tangent = self.data.nominal.imag / self.data.nominal.real
        size = np.linalg.norm(s, axis=1)
        return float(np.median(np.linalg.norm(s.imag - tangent * s.real, axis=1) / size))

    @cached_property
    def _relative(self) -> FloatArray:
        return np.asarray(self.load.real / self.data.nominal.real)

    @cached_property
    def _network(self) -> tuple[ComplexArray, ComplexArray]:
        return self.data.network.y, self.data.network.b


def known(value: float) -> float | None:
    """A number, or None for what is none."""
    return value if math.isfinite(value) else None


def w1_per_node(released: FloatArray, true: FloatArray) -> float:
    """Mean over nodes of W1, (day, step, node); numbers of days may differ."""
    n = true.shape[-1]
    found, wanted = (np.sort(a.reshape(-1, n), axis=0) for a in (released, true))
    if len(found) != len(wanted):
        at = (np.arange(len(wanted)) + 0.5) / len(wanted)
        found = np.quantile(found, at, axis=0)
    return float(np.abs(found - wanted).mean())


def lag1(series: FloatArray) -> float | None:
    """Correlation of a step with the next within a day, (day, step, node), mean over days and nodes.

    Days without a solution, and series that do not move, have none and are left out.
    """
    before, after = series[:, :-1], series[:, 1:]
    before = before - before.mean(axis=1, keepdims=True)
    after = after - after.mean(axis=1, keepdims=True)
    spread = (before**2).mean(axis=1) * (after**2).mean(axis=1)
    level = np.mean(series, axis=1) ** 4
    seen = spread > _FLAT**2 * level
    if not seen.any():
        return None
    together = (before * after).mean(axis=1)
    return float(np.mean(together[seen] / np.sqrt(spread[seen])))


def daily_peak(load: ComplexArray) -> float:
    """Mean over days of the largest total active load [p.u.]."""
    return float(load.real.sum(axis=2).max(axis=1).mean())
