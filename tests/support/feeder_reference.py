"""Independent ways to the same voltages, slow and plain."""

from __future__ import annotations

import numpy as np

from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.opendss.engine import DssOrigin, circuit_without_injections, run, solve
from dp_powerflow.grid.reduction import Network
from dp_powerflow.units import ComplexArray


def reduced_solution(network: Network, injection: ComplexArray) -> ComplexArray:
    """Voltages of the retained nodes by the fixed point on the dense reduced matrix."""
    inverse = np.linalg.inv(network.y)
    idle = -inverse @ network.b
    v = idle
    for _ in range(200):
        v = idle + inverse @ np.conj(injection / v)
    return v


def opendss_with_wye_equivalents(feeder: Feeder) -> ComplexArray:
    """OpenDSS with one single-phase constant-power wye load per loaded node, controls off: (node,)."""
    origin = feeder.origin
    assert isinstance(origin, DssOrigin)
    engine = circuit_without_injections(origin, feeder.taps)
    for k in feeder.retained:
        power = -feeder.nominal_injection[k] * feeder.base_mva * 1000.0
        command = (
            f"New Load.wye_{k} Bus1={feeder.nodes[k]} Phases=1 Conn=wye Model=1 kV={feeder.base_kv[k]:.12g} "
            f"kW={power.real:.15g} kvar={power.imag:.15g} Vminpu=0 Vmaxpu=10"
        )
        run(engine, command, origin)
    run(engine, "Set Mode=Snapshot Tolerance=1e-10 MaxIterations=500", origin)
    assert solve(engine, origin)
    volts = np.asarray(engine.YMatrix.getV()).view(np.complex128)[1:]
    by_name = dict(zip((n.lower() for n in engine.ActiveCircuit.YNodeOrder), volts, strict=True))
    found = [by_name.get(name, np.nan) for name in feeder.nodes]
    v = np.array(found, dtype=np.complex128) / (1000.0 * feeder.base_kv)
    v[feeder.slack] = feeder.v_slack
    return v
