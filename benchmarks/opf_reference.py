"""Cost of our dispatch of case33bw beside pandapower's AC optimal power flow (runopp).

    python benchmarks/opf_reference.py

Three units, cheaper than import. Each may inject reactive power up to what its rating leaves at full
power, which is pandapower's box.
"""

from __future__ import annotations

import warnings

import numpy as np
import pandapower as pp
import pandapower.networks as networks

from dp_powerflow import BatchSolver
from dp_powerflow.grid.feeder import GROUND
from dp_powerflow.grid.pandapower.reader import read_pandapower
from dp_powerflow.studies.dispatch.dispatcher import Dispatcher, Options, Snapshots, Unit

IMPORT = 0.05
UNITS = ((17, 600.0, 800.0, 0.030), (24, 500.0, 600.0, 0.035), (32, 700.0, 900.0, 0.025))
"""Bus, kW, kVA, cost per kWh."""
V_MIN, V_MAX = 0.95, 1.05


def pandapower_cost() -> float:
    """Cost per hour of the AC optimum."""
    net = networks.case33bw()
    net.line.drop(net.line.index[~net.line.in_service], inplace=True)
    net.poly_cost.drop(net.poly_cost.index, inplace=True)
    net.bus["min_vm_pu"], net.bus["max_vm_pu"] = V_MIN, V_MAX
    net.ext_grid[["min_p_mw", "min_q_mvar"]] = -10.0
    net.ext_grid[["max_p_mw", "max_q_mvar"]] = 20.0
    net.line.drop(columns="max_loading_percent", inplace=True)
    pp.create_poly_cost(net, 0, "ext_grid", cp1_eur_per_mw=1e3 * IMPORT)
    for bus, kw, kva, cost in UNITS:
        q = np.sqrt(kva**2 - kw**2) / 1e3
        box = {"max_p_mw": kw / 1e3, "min_p_mw": 0.0, "max_q_mvar": q, "min_q_mvar": -q}
        unit = pp.create_sgen(net, bus, 0.0, q_mvar=0.0, controllable=True, **box)
        pp.create_poly_cost(net, unit, "sgen", cp1_eur_per_mw=1e3 * cost)
    pp.runopp(net, verbose=False)
    return float(net.res_cost)


def main() -> None:
    warnings.simplefilter("ignore")
    net = networks.case33bw()
    net.line.drop(net.line.index[~net.line.in_service], inplace=True)
    feeder = read_pandapower(net, name="case33bw")
    units = [
        Unit(f"u{bus}", ((feeder.node_index[f"bus {bus}.1"], GROUND),), kva, kw, 0.0, cost)
        for bus, kw, kva, cost in UNITS
    ]
    load, one = -feeder.nominal_injection[feeder.retained][None], np.ones(1)
    peer = pandapower_cost()
    print(f"pandapower runopp: {peer:.4f} per hour")
    for corrections in (0, 1, 2):
        options = Options(V_MIN, V_MAX, corrections=corrections)
        found = Dispatcher(BatchSolver(feeder, threads=1), units, options).run(
            Snapshots(load, None, IMPORT * one, one, one > 0)
        )
        linear, checked = float(found.linear_cost[0]), float(found.cost[0])
        print(
            f"{corrections} corrections: program {linear:.4f} ({100.0 * (linear / peer - 1.0):+.4f} %), "
            f"after the AC check {checked:.4f} ({100.0 * (checked / peer - 1.0):+.4f} %)"
        )


if __name__ == "__main__":
    main()
