"""lightsim2grid: its batch of injections (C++ Newton-Raphson) on all threads."""

from __future__ import annotations

import os
import time
import warnings

import numpy as np
from cases import balanced_branches, load_factors, nodal_load, open_case
from lightsim2grid.injectionSweep import InjectionSweepCPP
from outcome import Outcome

from peers.pandapower_net import net_of

KEEP = 32


def run(case: str, snapshots: int, variant: str) -> Outcome:
    del variant
    import pandapower as pp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from lightsim2grid.network import init_from_pandapower

        feeder = open_case(case)
        branches = balanced_branches(feeder)
        load = nodal_load(feeder, load_factors(len(feeder.loads), snapshots))
        net = net_of(branches)
        net.load["p_mw"], net.load["q_mvar"] = load[0].real, load[0].imag
        pp.runpp(net, numba=True)
        grid = init_from_pandapower(net)
    start = np.full(branches.n_bus, branches.v_source, dtype=np.complex128)
    batch = InjectionSweepCPP(grid)
    batch.nb_thread = len(os.sched_getaffinity(0))
    generators = np.full((snapshots, len(grid.get_generators())), 0.0)
    static = np.zeros((snapshots, len(grid.get_static_generators())))
    p, q = np.ascontiguousarray(load.real), np.ascontiguousarray(load.imag)
    begin, worked = time.perf_counter(), time.process_time()
    status = batch.compute_Vs(generators, static, p, q, start, 30, 1e-8)
    seconds, processor_s = time.perf_counter() - begin, time.process_time() - worked
    assert status == 1
    v = np.asarray(batch.get_voltages())[:KEEP, branches.place[:, 0]]
    note = f"InjectionSweep, {batch.nb_thread} threads"
    return Outcome(seconds, list(range(KEEP)), v * branches.turn, note, processor_s=processor_s)
