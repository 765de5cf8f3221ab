"""Independent ways to the same voltages, slow and plain."""

from __future__ import annotations

import numpy as np

from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.opendss.engine import DssOrigin, circuit_without_injections, run, solve
from dp_powerflow.powerflow.devices import VoltVar
from dp_powerflow.units import KW_PER_MW, ComplexArray


def opendss_with_wye_equivalents(feeder: Feeder) -> ComplexArray:
    """OpenDSS under the nominal loads of the feeder: (node,)."""
    return np.asarray(opendss_voltages(feeder, -feeder.nominal_injection[None, feeder.retained])[0])


def opendss_voltages(
    feeder: Feeder,
    load: ComplexArray,
    generation: ComplexArray | None = None,
    *,
    voltvar: VoltVar | None = None,
) -> ComplexArray:
    """OpenDSS with one constant-power wye load per retained node, controls off: (snapshot, node) [p.u.].

    The engine knows no generation that is turned by curves: each is turned here, until it stays.
    """
    origin, kw = feeder.origin, feeder.base_mva * KW_PER_MW
    assert isinstance(origin, DssOrigin)
    engine = circuit_without_injections(origin, feeder.taps)
    for k in feeder.retained:
        command = (
            f"New Load.wye_{k} Bus1={feeder.nodes[k]} Phases=1 Conn=wye Model=1 kV={feeder.base_kv[k]:.12g} "
            "kW=0 kvar=0 Vminpu=0 Vlowpu=0 Vmaxpu=10"
        )
        run(engine, command, origin)
    run(engine, "Set Mode=Snapshot Tolerance=1e-10 MaxIterations=500", origin)

    def solved(drawn: ComplexArray) -> ComplexArray:
        for own, power in zip(engine.ActiveCircuit.Loads, (kw * drawn).tolist(), strict=True):
            own.kW, own.kvar = power.real, power.imag
        assert solve(engine, origin)
        volts = np.asarray(engine.YMatrix.getV()).view(np.complex128)[1:]
        by_name = dict(zip((n.lower() for n in engine.ActiveCircuit.YNodeOrder), volts, strict=True))
        found = [by_name.get(name, np.nan) for name in feeder.nodes]
        v = np.array(found, dtype=np.complex128) / (1000.0 * feeder.base_kv)
        v[feeder.slack] = feeder.v_slack
        return v

    out = []
    for drawn, fed in zip(load, np.zeros_like(load) if generation is None else generation, strict=True):
        v = solved(drawn - fed)
        for _ in range(0 if voltvar is None else 50):
            before = v
            v = solved(drawn - fed * voltvar.rotation(np.abs(v[feeder.retained])))  # type: ignore[union-attr]
            if np.nanmax(np.abs(v - before)) <= 1e-11:
                break
        out.append(v)
    return np.array(out)
