"""Prints hashes of what a network becomes: Y, twin levels, factors, voltages, rounded phasors.

Run as `python -m support.network_bits [--threads N] [--fused]` by the tests of equal bits. A pandapower net
is among the networks where pandapower is installed. `--fused` is one network, the solver of many snapshots
far from its limits and the solver as operated, which multiply and add in one instruction: less is compiled.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np

from dp_powerflow.corpus.grid import round_to_grid
from dp_powerflow.corpus.gridfm.network import PublishedNetwork, network_of
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.quantities import Protected
from dp_powerflow.grid.sources import Rebuilder, open_feeder
from dp_powerflow.powerflow.batch import BatchSolver, prepare
from dp_powerflow.powerflow.devices import CATEGORY_B, VoltVar
from dp_powerflow.powerflow.operated import ControlMode, OperatedSolver
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.twin.design import TwinDesign
from dp_powerflow.twin.draw import draw_twin, parameters_of
from dp_powerflow.units import ComplexArray
from support.small_circuits import BANK, small_circuit
from support.synthetic import write_synthetic

SNAPSHOTS = 60
NOSE = {"ieee13": 2.0, "ieee123": 2.9}
"""Multiples of the nominal load near which the feeder collapses."""


def branches_of(network: PublishedNetwork) -> list[Any]:
    """What the tables for graph models hold of a network."""
    found = network.branches
    power = np.full((2, len(network.loaded)), -1e-3 + 0j)
    v = network.solve(power)
    return [found.r, found.x, found.tap, found.shift_deg, found.yft, found.ytt, network.shunt, v]


def digest(*arrays: Any) -> str:
    total = hashlib.sha256()
    for array in arrays:
        values = np.asarray(array)
        # One zero: its sign is no value.
        total.update(np.ascontiguousarray(values + values.dtype.type(0)).tobytes())
    return total.hexdigest()[:16]


def loads_of(feeder: Feeder, scale: float, seed: int = 0) -> ComplexArray:
    """Complex (snapshot, retained) loads around a multiple of the nominal one [p.u.]."""
    rng = np.random.default_rng(seed)
    nominal = -feeder.nominal_injection[feeder.retained]
    spread = rng.uniform(0.7, 1.3, (SNAPSHOTS, len(nominal)))
    load = np.empty(spread.shape, dtype=np.complex128)
    load.real, load.imag = scale * spread * nominal.real, scale * spread * nominal.imag
    return load


def network_bits(feeder: Feeder) -> dict[str, str]:
    """Y and what is made of it before any load."""
    plans = prepare(feeder, None, 1e-10)
    nodes = network_of(feeder)
    turned = nodes.merged(nodes.groups()).turned()
    return {
        "y": digest(feeder.y.data, feeder.y.indices, feeder.y.indptr),
        "slack": digest(feeder.v_slack, feeder.nominal_angle_deg, feeder.base_kv),
        "shares": digest(feeder.load_shares.data, feeder.nominal_injection),
        "lines": digest(*(line.primitive for line in feeder.lines)),
        "no load": digest(plans.factors.w, plans.factors.position),
        "factors": digest(*(np.asarray(part) for part in plans.plan)),
        "branches": digest(*(part for found in (nodes, turned) for part in branches_of(found))),
    }


def voltage_bits(feeder: Feeder, nose: float | None, threads: int) -> dict[str, str]:
    """Voltages far from the nose and near it, if it is given, with and without volt-var."""
    bits: dict[str, str] = {}
    n = len(feeder.retained)
    voltvar = VoltVar((CATEGORY_B,), np.where(np.arange(n) % 3 == 0, 0, -1).astype(np.int64))
    places = {"far": 0.7} if nose is None else {"far": 0.7, "near": nose}
    for place, scale in places.items():
        load = loads_of(feeder, scale)
        generation = np.zeros_like(load)
        generation.real[:, ::2] = np.minimum(0.3 * np.abs(load.real[:, ::2]), 0.08)
        for name, control, fed in (("plain", None, None), ("volt-var", voltvar, generation)):
            solver = BatchSolver(feeder, tolerance=1e-11, threads=threads, voltvar=control)
            solution = solver.solve(load, fed, nodes="all")
            phasors = round_to_grid(solution.v[solution.converged])
            key = f"{place}, {name}"
            bits[key] = digest(np.nan_to_num(solution.v), solution.iterations, solution.converged)
            bits[f"{key}, phasors"] = digest(phasors.vm_pu, phasors.va_deg)
    return bits


def operated_bits(feeder: Feeder, threads: int) -> dict[str, str]:
    """Voltages and states with acting controls and the file's own loads, of snapshots and of days."""
    bits: dict[str, str] = {}
    rng = np.random.default_rng(1)
    load = np.asarray(feeder.nominal_load * rng.uniform(0.2, 1.5, (96, 1)))
    load *= rng.uniform(0.7, 1.3, load.shape)
    load[7] *= 4.0
    for controls, steps in (("snapshot", 1), ("day", 12), ("frozen", 1)):
        solver = OperatedSolver(
            feeder, controls=cast(ControlMode, controls), steps=steps, tolerance=1e-11, threads=threads
        )
        found = solver.solve(load, nodes="all")
        bits[f"operated, {controls}"] = digest(np.nan_to_num(found.v), np.nan_to_num(found.mismatch))
        bits[f"operated, {controls}, states"] = digest(
            found.taps, found.capacitors, found.rounds, found.locked, found.iterations, found.converged
        )
    return bits


def twin_bits(feeder: Feeder) -> dict[str, str]:
    """Levels of a twin, and the network that they make."""
    design = TwinDesign(1.0, protected=Protected(transformers=True, capacitors=True))
    source = Rebuilder(feeder, design.protected)
    twin = draw_twin(parameters_of(source, design), design, StreamKey.from_insecure_seed(7))
    rebuilt = twin.feeder(source)
    return {
        "twin": hashlib.sha256(twin.to_json().encode()).hexdigest()[:16],
        "twin levels": digest([twin.levels[key] for key in sorted(twin.levels)]),
        "twin y": digest(rebuilt.y.data, rebuilt.y.indices),
    }


def with_controls(folder: Path) -> Feeder:
    """A small circuit with a regulator, a switched capacitor, every model of a load, and a generator."""
    more = f"""{BANK.format(settings="type=kvar onsetting=800 offsetting=-200")}
New Load.m4 bus1=b phases=3 kv=12.47 kw=100 kvar=50 model=4 cvrwatts=0.8 cvrvars=3 vmaxpu=1.2
New Load.m5 bus1=b.1 phases=1 kv=7.2 kw=100 kvar=50 model=5
New Load.m8 bus1=b phases=3 conn=delta kv=12.47 kw=100 kvar=50 model=8 zipv=[0.2 0.3 0.5 0.5 0.2 0.3 0]
New Generator.g1 bus1=b phases=3 kv=12.47 kw=100 kvar=20 model=1 vminpu=0.9 vmaxpu=1.1
"""
    return small_circuit(folder, more=more)


def pandapower_net() -> Any:
    import pandapower
    import pandapower.networks

    net = pandapower.networks.create_cigre_network_mv(with_der="pv_wind")
    net.trafo["pfe_kw"], net.trafo["i0_percent"] = 20.0, 0.3
    pandapower.create_shunt(net, 5, q_mvar=-0.2, p_mw=0.01)
    return net


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--fused", action="store_true")
    options = parser.parse_args()
    sys.stdout.write(json.dumps(fused() if options.fused else everything(options.threads)) + "\n")


def fused() -> dict[str, str]:
    """A network, its voltages far from the nose, and those as operated."""
    feeder = open_feeder("ieee13")
    found = (
        network_bits(feeder) | twin_bits(feeder) | voltage_bits(feeder, None, 1) | operated_bits(feeder, 1)
    )
    return {f"ieee13: {key}": value for key, value in found.items()}


def everything(threads: int) -> dict[str, str]:
    """Several networks, everywhere."""
    bits: dict[str, str] = {}

    def add(name: str, found: dict[str, str]) -> None:
        bits.update({f"{name}: {key}": value for key, value in found.items()})

    for name in ("ieee13", "ieee123"):
        feeder = open_feeder(name)
        voltages = voltage_bits(feeder, NOSE[name], threads)
        add(name, network_bits(feeder) | voltages | operated_bits(feeder, threads))
    add("ieee13", twin_bits(open_feeder("ieee13")))
    with tempfile.TemporaryDirectory() as folder:
        add("controls", operated_bits(with_controls(Path(folder)), threads))
        feeder = open_feeder(write_synthetic(Path(folder) / "feeder.dss", 200))
        add("opendss", network_bits(feeder) | twin_bits(feeder) | voltage_bits(feeder, 1.2, threads))
    if find_spec("pandapower") is not None:
        from dp_powerflow.grid.pandapower.reader import read_pandapower

        feeder = read_pandapower(pandapower_net(), name="cigre")
        add("pandapower", network_bits(feeder) | twin_bits(feeder) | voltage_bits(feeder, 2.0, threads))
    return bits


if __name__ == "__main__":
    main()
