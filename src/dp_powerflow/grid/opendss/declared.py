"""What OpenDSS itself says of the feeder with its loads connected as the file declares them.

The program replaces delta loads by nodal wye equivalents; the difference to this solution is the
error that the replacement makes.
"""

from __future__ import annotations

import numpy as np

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.opendss.engine import (
    CONTROLS_OFF,
    DssOrigin,
    build_circuit,
    disable_injections,
    run,
    set_taps,
    solve,
)
from dp_powerflow.units import ComplexArray

SOLVER_TOLERANCE = 1e-10


def declared_voltages(feeder: Feeder) -> ComplexArray:
    """Complex (node,) [p.u.] at nominal load: constant power, connections as declared, taps frozen.

    Slack nodes carry their EMF.
    """
    origin = feeder.origin
    if not isinstance(origin, DssOrigin):
        raise FeederError("only a feeder read from OpenDSS can be solved by it")
    engine = build_circuit(origin)
    set_taps(engine, feeder.taps)
    run(engine, CONTROLS_OFF, origin)
    disable_injections(engine, but="load")
    loads = engine.ActiveCircuit.Loads
    more = loads.First
    while more:
        loads.Model = 1
        loads.Vminpu = 0.0
        loads.Vmaxpu = 10.0
        more = loads.Next
    run(engine, f"Set Mode=Snapshot Tolerance={SOLVER_TOLERANCE} MaxIterations=500", origin)
    if not solve(engine, origin):
        raise FeederError("OpenDSS finds no solution at nominal load; reduce the loads")
    volts = np.asarray(engine.YMatrix.getV()).view(np.complex128)[1:]
    by_name = dict(zip((n.lower() for n in engine.ActiveCircuit.YNodeOrder), volts, strict=True))
    v = np.empty(len(feeder.nodes), dtype=np.complex128)
    for k in feeder.energised:
        v[k] = by_name[feeder.nodes[k]] / (1000.0 * feeder.base_kv[k])
    v[feeder.slack] = feeder.v_slack
    return v
