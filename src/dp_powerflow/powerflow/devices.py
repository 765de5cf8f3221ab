"""Loads, PV systems, generators and switched capacitors as branches between two nodes.

A device is one row of the powers of a snapshot; a branch is one of the pairs of nodes that it connects.
Devices come in the order loads, PV systems, generators, capacitors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import GROUND, Feeder
from dp_powerflow.grid.operation import CONSTANT_IMPEDANCE, Branch, InverterCurve, Response
from dp_powerflow.powerflow._kernels.devices import (
    ABRUPT,
    ADDED,
    CONSTANTS,
    GENERAL,
    IMPEDANCE,
    POWER,
    TABLE_COLUMNS,
    TURNED,
    ZIP,
    Branches,
)
from dp_powerflow.powerflow.voltvar import VoltVarCurve, curve_arrays
from dp_powerflow.units import KW_PER_MW, ComplexArray, IntArray

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
    """Every device of a feeder as operated, in order.

    Parameters
    ----------
    volt_var : curve of every PV system, instead of those of the file.
    file_curves : whether PV systems follow the curves of the file where `volt_var` names none.
    """
    return tuple(_devices(feeder, volt_var, file_curves))


def _devices(feeder: Feeder, volt_var: VoltVarCurve | None, file_curves: bool) -> Iterator[Device]:
    operation, base = feeder.as_operated, feeder.base_mva * KW_PER_MW
    for load in feeder.loads:
        rated = _rated(feeder, load.branches, load.rated_kv)
        yield Device(load.branches, rated, load.response, -complex(load.kw, load.kvar) / base)
    for pv in feeder.pv:
        rated = _rated(feeder, pv.branches, pv.rated_kv)
        curve = volt_var or (pv.curve if file_curves else None)
        yield Device(pv.branches, rated, pv.response, 0j, curve, pv.kva / base)
    for unit in operation.generators:
        rated = _rated(feeder, unit.branches, unit.rated_kv)
        yield Device(unit.branches, rated, unit.response, complex(unit.kw, unit.kvar) / base)
    for bank in operation.capacitors:
        rated = _rated(feeder, bank.branches, bank.rated_kv)
        yield Device(bank.branches, rated, CONSTANT_IMPEDANCE, complex(0.0, bank.kvar) / base)


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


@dataclass(frozen=True, eq=False)
class Layout:
    """Where branches meet the order of the factors.

    Attributes
    ----------
    position : (operation node,) position in the order.
    rows : positions that carry a device, increasing; row k of the injected currents is that of `rows[k]`.
    """

    position: IntArray
    rows: IntArray

    def row_of(self, node: int) -> int:
        """Row of the injected currents at a node."""
        return int(np.searchsorted(self.rows, self.position[node]))


def device_nodes(devices: tuple[Device, ...]) -> IntArray:
    """Nodes that some device is connected to."""
    found = {node for device in devices for pair in device.branches for node in pair if node != GROUND}
    return np.array(sorted(found), dtype=np.int64)


def coupled_nodes(devices: tuple[Device, ...]) -> list[tuple[int, int]]:
    """Pairs of nodes that some device joins."""
    pairs = {pair for device in devices for pair in device.branches if GROUND not in pair}
    return sorted(pairs)


def branch_arrays(devices: tuple[Device, ...], layout: Layout) -> Branches:
    """Every branch of every device, in order; slopes are zero."""
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
            a, b = pair if pair[0] != GROUND else (pair[1], GROUND)
            ends = (int(layout.position[a]), -1, layout.row_of(a), -1)
            if b != GROUND:
                ends = (ends[0], int(layout.position[b]), ends[2], layout.row_of(b))
            table.append((*ends, number, _kind(device), curve))
            constants.append([*_constants(device), 0.0, 0.0, 0.0, 0.0])
        first.append(len(table))
    knots, base, slopes = curve_arrays(curves)
    return Branches(
        table=np.array(table, dtype=np.int64).reshape(-1, TABLE_COLUMNS),
        constant=np.array(constants, dtype=np.float64).reshape(-1, CONSTANTS),
        first=np.array(first, dtype=np.int64),
        knots=knots,
        base=base,
        slopes=slopes,
    )


def _kind(device: Device) -> int:
    if device.curve is not None:
        return TURNED if isinstance(device.curve, VoltVarCurve) else ADDED
    law = device.response
    if law.constant_impedance:
        return IMPEDANCE
    if law.constant_power:
        return POWER
    same = law.exponents is None and law.active == law.reactive and not law.abrupt
    return ZIP if same else GENERAL


def _constants(device: Device) -> list[float]:
    law = device.response
    scale = 1.0 / device.rated**2
    lowest, cut = law.lowest, min(law.cut, law.lowest)
    p_low, q_low = (_slope_below(law, part, lowest, cut) for part in (0, 1))
    exponents = law.exponents or (0.0, 0.0)
    marks = (1.0 if law.exponents is not None else 0.0) + (ABRUPT if law.abrupt else 0.0)
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


def nominal_powers(devices: tuple[Device, ...]) -> ComplexArray:
    """Complex (device,) nominal power injected [p.u.]."""
    return np.array([device.nominal for device in devices], dtype=np.complex128)
