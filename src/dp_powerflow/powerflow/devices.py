"""Loads, PV systems, generators and switched capacitors as branches between two nodes.

A device is one row of the powers of a snapshot; a branch is one of the pairs of nodes that it connects.
Devices come in the order loads, PV systems, generators, capacitors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dp_powerflow._bits.elementary import joined
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import GROUND, Feeder, Load, PVSystem
from dp_powerflow.grid.operation import (
    CONSTANT_IMPEDANCE,
    Branch,
    Generator,
    InverterCurve,
    Response,
    SwitchedCapacitor,
)
from dp_powerflow.grid.reduction import Network
from dp_powerflow.powerflow._kernels import devices as kernels
from dp_powerflow.units import KW_PER_MW, ComplexArray, FloatArray, IntArray

_COLUMNS_AT_A_TIME = 256


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
        return float(np.abs(np.linalg.eigvals(impedance * answers)).max())

    def _by_node(self, u: FloatArray, method: str) -> FloatArray:
        values = np.zeros(np.shape(u))
        for index, curve in enumerate(self.curves):
            at = self.curve_of == index
            values[..., at] = getattr(curve, method)(np.asarray(u)[..., at])
        return values


def curve_arrays(curves: Sequence[VoltVarCurve | InverterCurve]) -> tuple[FloatArray, FloatArray, FloatArray]:
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


_SAME_BASE = 1e-6


@dataclass(frozen=True)
class Device:
    """One element that draws or injects power.

    Attributes
    ----------
    rated : voltage across a branch that the response is relative to, over the base voltage of its first node.
    nominal : complex power injected at nominal [p.u.], for the first guess and the fixed slopes.
    curve : volt-var control: one that turns the apparent power (the paper's form), or one that adds reactive
        power (the file's).
    rating : apparent power of what has a curve [p.u.].
    """

    branches: tuple[Branch, ...]
    rated: float
    response: Response
    nominal: complex
    curve: VoltVarCurve | InverterCurve | None = None
    rating: float = 0.0


def devices_of(
    feeder: Feeder, volt_var: VoltVarCurve | None, *, file_curves: bool = True
) -> tuple[Device, ...]:
    """Every device of a feeder as operated: loads, PV systems, generators, capacitors.

    Parameters
    ----------
    volt_var : curve of every PV system, instead of the file's.
    file_curves : whether PV systems follow the curves of the file where `volt_var` names none.
    """
    operation, base = feeder.as_operated, feeder.base_mva * KW_PER_MW

    def device(
        unit: Load | PVSystem | Generator | SwitchedCapacitor, response: Response, power: complex
    ) -> Device:
        return Device(unit.branches, _rated(feeder, unit.branches, unit.rated_kv), response, power / base)

    def inverter(pv: PVSystem) -> Device:
        curve = volt_var or (pv.curve if file_curves else None)
        return replace(device(pv, pv.response, 0j), curve=curve, rating=pv.kva / base)

    return (
        *(device(load, load.response, -complex(load.kw, load.kvar)) for load in feeder.loads),
        *(inverter(pv) for pv in feeder.pv),
        *(device(unit, unit.response, complex(unit.kw, unit.kvar)) for unit in operation.generators),
        *(device(bank, CONSTANT_IMPEDANCE, complex(0.0, bank.kvar)) for bank in operation.capacitors),
    )


def _rated(feeder: Feeder, branches: tuple[Branch, ...], kv: float | None) -> float:
    for a, b in branches:
        if GROUND not in (a, b) and abs(feeder.base_kv[a] / feeder.base_kv[b] - 1.0) > _SAME_BASE:
            raise PowerFlowError(
                "a load is connected between two nodes with different base voltages; give them the same base"
            )
    if kv is None:
        pair = branches[0]
        return 1.0 if GROUND in pair else float(abs(_nominal_across(feeder, pair)))
    first = branches[0][0] if branches[0][0] != GROUND else branches[0][1]
    return float(kv / feeder.base_kv[first])


def _nominal_across(feeder: Feeder, pair: Branch) -> complex:
    a, b = (np.exp(1j * np.deg2rad(feeder.nominal_angle_deg[k])) * (k not in feeder.neutral) for k in pair)
    return complex(a - b)


# ---------------------------------------------------------------------------------- arrays


def branch_arrays(devices: tuple[Device, ...], position: IntArray, rows: IntArray) -> kernels.Branches:
    """Every branch of every device, in order; slopes are zero.

    Parameters
    ----------
    position : (operation node,) position in the order of the factors.
    rows : positions with a device, increasing: row k of the injected currents belongs to `rows[k]`.
    """
    table: list[tuple[int, ...]] = []
    constants: list[list[float]] = []
    curves: list[VoltVarCurve | InverterCurve] = []
    first = [0]
    for number, device in enumerate(devices):
        if device.curve is not None and device.curve not in curves:
            curves.append(device.curve)
        curve = -1 if device.curve is None else curves.index(device.curve)
        for pair in device.branches:
            # A branch from ground to a node is the same with its voltage turned round.
            nodes = pair if pair[0] != GROUND else (pair[1], GROUND)
            at = [-1 if node == GROUND else int(position[node]) for node in nodes]
            row = [-1 if place < 0 else int(np.searchsorted(rows, place)) for place in at]
            table.append((*at, *row, number, _kind(device), curve))
            constants.append([*_constants(device), 0.0, 0.0, 0.0, 0.0])
        first.append(len(table))
    knots, base, slopes = curve_arrays(curves)
    return kernels.Branches(
        table=np.array(table, dtype=np.int64).reshape(-1, kernels.TABLE_COLUMNS),
        constant=np.array(constants, dtype=np.float64).reshape(-1, kernels.CONSTANTS),
        first=np.array(first, dtype=np.int64),
        knots=knots,
        base=base,
        slopes=slopes,
    )


def _kind(device: Device) -> int:
    if device.curve is not None:
        return kernels.TURNED if isinstance(device.curve, VoltVarCurve) else kernels.ADDED
    law = device.response
    if law.constant_impedance:
        return kernels.IMPEDANCE
    if law.constant_power:
        return kernels.POWER
    same = law.exponents is None and law.active == law.reactive and not law.abrupt
    return kernels.ZIP if same else kernels.GENERAL


def _constants(device: Device) -> list[float]:
    law = device.response
    scale = 1.0 / device.rated**2
    lowest, cut = law.lowest, min(law.cut, law.lowest)
    p_low, q_low = (_slope_below(law, part, lowest, cut) for part in (0, 1))
    exponents = law.exponents or (0.0, 0.0)
    marks = (1.0 if law.exponents is not None else 0.0) + (kernels.ABRUPT if law.abrupt else 0.0)
    if isinstance(device.curve, InverterCurve):
        marks = 1.0 if device.curve.reference == "rated" else 0.0
    return [
        scale,
        scale / len(device.branches),
        lowest * lowest,
        law.highest * law.highest,
        *law.active,
        *law.reactive,
        cut,
        p_low,
        q_low,
        marks,
        exponents[0] - 2.0,
        exponents[1] - 2.0,
    ]


def _slope_below(law: Response, part: int, lowest: float, cut: float) -> float:
    """How fast the current, over that of the rated impedance at rated voltage, grows from cut to lowest."""
    if lowest <= cut:
        return 0.0
    return (_admittance_at(law, part, lowest) * lowest - cut) / (lowest - cut)


def _admittance_at(law: Response, part: int, u: float) -> float:
    """p(u)/(p·u²) at a limit: the admittance over that which draws nominal power at rated voltage."""
    if law.abrupt:
        return 1.0 / u**2
    if law.exponents is not None:
        return float(u ** (law.exponents[part] - 2.0))
    z, i, c = law.active if part == 0 else law.reactive
    return z + i / u + c / u**2
