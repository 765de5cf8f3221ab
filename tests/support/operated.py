"""A feeder as operated against OpenDSS: currents must balance at the engine's voltages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from dp_powerflow.grid.feeder import GROUND, Feeder, Tap
from dp_powerflow.grid.opendss.engine import (
    DssOrigin,
    Engine,
    build_circuit,
    enabled_names,
    regulated_taps,
    run,
)
from dp_powerflow.grid.operation import Branch, Operation, Response

KW = 1000.0
NOT_MODELLED = ("pvsystem", "storage", "invcontrol")


@dataclass(frozen=True, eq=False)
class EngineSolution:
    """What OpenDSS found with its own controls.

    Attributes
    ----------
    v : complex (node,) of the feeder [p.u.].
    ratios : (transformer, winding) → ratio.
    closed : capacitor → whether it is closed.
    """

    engine: Engine
    v: np.ndarray
    ratios: Mapping[tuple[str, int], float]
    closed: Mapping[str, bool]


def solved(feeder: Feeder, *commands: str) -> EngineSolution:
    """The file's own circuit without PV and storage, controls acting, then solved to the last digits.

    Whether it converged is for `imbalance` to say: the engine goes on for ever about islanded nodes.
    """
    origin = feeder.origin
    assert isinstance(origin, DssOrigin)
    engine = build_circuit(origin)
    for kind in NOT_MODELLED:
        for name in enabled_names(engine, kind):
            run(engine, f'Disable "{kind}.{name}"', origin)
    for name in enabled_names(engine, "generator"):
        engine.ActiveCircuit.SetActiveElement(f"generator.{name}")
        if engine.ActiveCircuit.ActiveCktElement.Properties("model").Val == "3":
            run(engine, f'Disable "generator.{name}"', origin)
    static = "Set Mode=Snapshot ControlMode=Static MaxControlIter=200 MaxIterations=500 Tolerance=1e-10"
    for command in (static, *commands, "Solve", "Set ControlMode=Off Tolerance=1e-12", "Solve"):
        run(engine, command, origin)
    circuit = engine.ActiveCircuit
    volts = np.asarray(engine.YMatrix.getV()).view(np.complex128)[1:]
    by_name = dict(zip((node.lower() for node in circuit.YNodeOrder), volts, strict=True))
    v = np.empty(len(feeder.nodes), dtype=np.complex128)
    for k in feeder.energised:
        v[k] = by_name[feeder.nodes[k]] / (KW * feeder.base_kv[k])
    v[feeder.slack] = feeder.v_slack
    closed = {}
    for name in enabled_names(engine, "capacitor"):
        circuit.SetActiveElement(f"capacitor.{name}")
        element = circuit.ActiveCktElement
        closed[name] = not element.IsOpen(1, 0) and "0" not in element.Properties("states").Val.split()
    ratios = {(tap.transformer, tap.winding): tap.ratio for tap in regulated_taps(engine)}
    return EngineSolution(engine, v, ratios, closed)


def with_inner(operation: Operation, v: np.ndarray, ratios: Mapping[tuple[str, int], float]) -> np.ndarray:
    """Voltages of all nodes of the operation."""
    whole = np.concatenate([v, np.zeros(len(operation.nodes) - len(v), dtype=np.complex128)])
    for each in operation.regulators:
        for inner, outer in each.phases:
            whole[inner] = v[outer] / ratios[each.transformer, each.winding]
    return whole


def folded(operation: Operation, count: int, ratios: Mapping[tuple[str, int], float]) -> sp.csc_array:
    """Admittances between the feeder's own nodes at these ratios."""
    place = sp.lil_array((len(operation.nodes), count))
    place[:count, :count] = sp.eye_array(count)
    for each in operation.regulators:
        for inner, outer in each.phases:
            place[inner, outer] = 1.0 / ratios[each.transformer, each.winding]
    fold = sp.csc_array(place)
    return sp.csc_array(fold.T @ operation.y @ fold)


def ratios_of(taps: Iterable[Tap]) -> dict[tuple[str, int], float]:
    return {(tap.transformer, tap.winding): tap.ratio for tap in taps}


def imbalance(feeder: Feeder, solution: EngineSolution) -> np.ndarray:
    """(energised node,) current that is left over at the engine's voltages [p.u.]."""
    operation, v = feeder.as_operated, solution.v
    left = folded(operation, len(v), solution.ratios) @ v
    for load in feeder.loads:
        assert load.rated_kv is not None
        _draw(left, feeder, v, load.branches, complex(load.kw, load.kvar), load.rated_kv, load.response)
    for unit in operation.generators:
        _draw(left, feeder, v, unit.branches, -complex(unit.kw, unit.kvar), unit.rated_kv, unit.response)
    for bank in operation.capacitors:
        if solution.closed[bank.name]:
            impedance = Response(active=(1.0, 0.0, 0.0), reactive=(1.0, 0.0, 0.0))
            _draw(left, feeder, v, bank.branches, complex(0.0, -bank.kvar), bank.rated_kv, impedance)
    return np.asarray(left[feeder.energised])


def _draw(
    left: np.ndarray,
    feeder: Feeder,
    v: np.ndarray,
    branches: tuple[Branch, ...],
    power: complex,
    rated_kv: float,
    law: Response,
) -> None:
    """Add the currents of one element to those that leave its nodes."""
    share = power / len(branches) / (KW * feeder.base_mva)
    for a, b in branches:
        base = feeder.base_kv[a if a != GROUND else b]
        across = (v[a] if a != GROUND else 0.0) - (v[b] if b != GROUND else 0.0)
        rated = rated_kv / base
        current = admittance(law, abs(across) / rated, share) / rated**2 * across
        if a != GROUND:
            left[a] += current
        if b != GROUND:
            left[b] -= current


def admittance(law: Response, u: float, power: complex) -> complex:
    """Admittance at u over 1/rated²: the definition of `Response`, written down once more."""
    if law.constant_impedance:
        return power.conjugate()
    plain = Response(lowest=law.lowest, highest=law.highest, cut=law.cut)
    if u > law.highest:
        return _at(plain if law.abrupt else law, law.highest, power)
    if u > law.lowest:
        return _at(law, u, power)
    if u <= law.cut:
        return power.conjugate()
    start = _at(plain if law.abrupt else law, law.lowest, power) * law.lowest
    end = power.conjugate() * law.cut
    return (end + (start - end) * (u - law.cut) / (law.lowest - law.cut)) / u


def _at(law: Response, u: float, power: complex) -> complex:
    if law.exponents is not None:
        p, q = (u**exponent for exponent in law.exponents)
    else:
        p, q = (z * u**2 + i * u + c for z, i, c in (law.active, law.reactive))
    return complex(power.real * p, -power.imag * q) / u**2
