"""pandapower with numba: Newton-Raphson in a loop, the admittance matrix kept from run to run."""

from __future__ import annotations

import time

import numpy as np
import pandapower as pp
from cases import balanced_branches, load_factors, nodal_load, open_case
from outcome import Outcome

from peers.pandapower_net import net_of

KEEP = 16


def run(case: str, snapshots: int, variant: str) -> Outcome:
    del variant
    feeder = open_case(case)
    branches = balanced_branches(feeder)
    load = nodal_load(feeder, load_factors(len(feeder.loads), snapshots))
    net = net_of(branches)
    options = {"numba": True, "tolerance_mva": 1e-8, "calculate_voltage_angles": True}
    pp.runpp(net, **options)
    recycle = {"bus_pq": True, "trafo": False, "gen": False}
    kept = []
    begin = time.perf_counter()
    for k in range(snapshots):
        net.load["p_mw"], net.load["q_mvar"] = load[k].real, load[k].imag
        pp.runpp(net, recycle=recycle, **options)
        if k < KEEP:
            result = net.res_bus.loc[branches.place[:, 0]]
            kept.append(result.vm_pu.to_numpy() * np.exp(1j * np.deg2rad(result.va_degree.to_numpy())))
    seconds = time.perf_counter() - begin
    return Outcome(seconds, list(range(len(kept))), np.array(kept) * branches.turn, "runpp, numba, recycled")
