"""Feeders of a few nodes whose answers can be written down."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from dp_powerflow.grid.feeder import GROUND, Feeder, Load, PVSystem

Branch = tuple[int, int, complex]


def feeder_of(
    n: int,
    branches: Sequence[Branch],
    loads: Sequence[tuple[int, complex]],
    *,
    shunts: Sequence[tuple[int, complex]] = (),
    pv: Sequence[tuple[int, float]] = (),
    delta: Sequence[tuple[int, int, complex]] = (),
    angles: Sequence[float] | None = None,
) -> Feeder:
    """Feeder of n nodes; node n − 1 is the slack. Branches by impedance, powers in per unit."""
    y = np.zeros((n, n), dtype=np.complex128)
    for i, j, z in branches:
        y[i, i] += 1.0 / z
        y[j, j] += 1.0 / z
        y[i, j] -= 1.0 / z
        y[j, i] -= 1.0 / z
    for i, admittance in shunts:
        y[i, i] += admittance
    kw = 1000.0
    records = [
        Load(f"l{k}", ((node, GROUND),), s.real * kw, s.imag * kw, "wye") for k, (node, s) in enumerate(loads)
    ]
    records += [
        Load(f"d{k}", ((i, j),), s.real * kw, s.imag * kw, "delta") for k, (i, j, s) in enumerate(delta)
    ]
    return Feeder(
        name="small",
        nodes=tuple(f"n{k}.1" for k in range(n)),
        base_kv=np.ones(n),
        base_mva=1.0,
        y=sp.csc_array(y),
        slack=np.array([n - 1]),
        v_slack=np.array([1.0 + 0.0j]),
        nominal_angle_deg=np.zeros(n) if angles is None else np.array(angles, dtype=np.float64),
        loads=tuple(records),
        pv=tuple(PVSystem(f"p{k}", ((i, GROUND),), p * kw, p * kw) for k, (i, p) in enumerate(pv)),
        lines=(),
    )


def one_line(z: complex = 0.1 + 0.2j, nominal: complex = 0.1 + 0.05j) -> Feeder:
    """A source, a line, a load."""
    return feeder_of(2, [(0, 1, z)], [(0, nominal)])


def exact_voltage(z: complex, s: complex) -> complex:
    """High-voltage solution behind one line of impedance z that carries the load s."""
    a = z * np.conj(s)
    # v = 1 − z·conj(s)/conj(v): with u = |v|², u² + (2·Re a − 1)·u + |a|² = 0.
    linear = 2.0 * a.real - 1.0
    u = (-linear + np.sqrt(linear**2 - 4.0 * abs(a) ** 2)) / 2.0
    # conj(v)·v = conj(v) − a, so conj(v) = u + a.
    return complex(np.conj(u + a))


def largest_load(z: complex, direction: complex) -> float:
    """Largest t for which the load t·direction behind one line has a solution."""
    a = z * np.conj(direction)
    # (1 − 2t·Re a)² = 4t²|a|²
    return float(1.0 / (2.0 * (a.real + abs(a))))
