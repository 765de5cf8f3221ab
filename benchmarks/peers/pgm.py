"""power-grid-model: one batch on all threads, with each of its exact methods, the faster one reported."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import power_grid_model as pgm
from cases import (
    KV,
    Z_BASE,
    Branches,
    balanced_branches,
    load_factors,
    nodal_load,
    open_case,
    three_phase_case,
)
from outcome import Outcome

from dp_powerflow.units import ComplexArray

KEEP = 32
VOLT = 1e3
WATT_PER_PU = 1e6
METHODS = (pgm.CalculationMethod.newton_raphson, pgm.CalculationMethod.iterative_current)


def run(case: str, snapshots: int, variant: str) -> Outcome:
    del variant
    three = case == "ieee123-neutral"
    feeder, branches = three_phase_case() if three else (open_case(case), None)
    branches = branches or balanced_branches(feeder)
    load = nodal_load(feeder, load_factors(len(feeder.loads), snapshots))
    parts, update = network(branches, load, symmetric=not three)
    model = pgm.PowerGridModel(parts)
    best, least, chosen, result = np.inf, np.inf, "", None
    for method in METHODS:
        begin, worked = time.perf_counter(), time.process_time()
        result_now = model.calculate_power_flow(
            symmetric=not three,
            update_data=update,
            threading=0,
            calculation_method=method,
            error_tolerance=1e-8,
            max_iterations=50,
            output_component_types={"node": ["u_pu", "u_angle"]},
        )
        seconds = time.perf_counter() - begin
        least = min(least, time.process_time() - worked)
        if seconds < best:
            best, chosen, result = seconds, method.name, result_now
    assert result is not None
    node = {name: values[:KEEP] for name, values in result["node"].items()}
    v = node["u_pu"] * np.exp(1j * node["u_angle"])
    bus, phase = branches.place.T
    v = v[:, bus] if not three else v[:, bus, phase]
    note = f"{chosen}, all threads"
    return Outcome(best, list(range(KEEP)), v * branches.turn, note, processor_s=least)


def network(branches: Branches, load: ComplexArray, *, symmetric: bool) -> tuple[dict[str, Any], Any]:
    """Network and load updates; three-phase networks use lines given by their matrices."""
    n = branches.n_bus
    node = pgm.initialize_array("input", "node", n)
    node["id"] = np.arange(n)
    # PGM rates a node line to line; KV is to neutral on three-phase and the total's base on balanced cases.
    node["u_rated"] = KV * VOLT * (1.0 if symmetric else np.sqrt(3.0))
    source = pgm.initialize_array("input", "source", 1)
    source["id"], source["node"], source["status"] = n, branches.source, 1
    source["u_ref"], source["sk"] = abs(branches.v_source), 1e18
    parts = {"node": node, "source": source}
    parts |= _lines(branches, n + 1, symmetric)
    first = n + 1 + len(branches.ends)
    kind = "sym_load" if symmetric else "asym_load"
    bus, phase = branches.place.T
    shunted = np.flatnonzero(np.any(branches.shunt != 0.0, axis=1))
    loads = pgm.initialize_array("input", kind, len(bus) + len(shunted))
    loads["id"] = first + np.arange(len(loads))
    loads["node"] = np.concatenate([bus, shunted])
    loads["status"] = 1
    loads["type"] = np.repeat(
        [pgm.LoadGenType.const_power, pgm.LoadGenType.const_impedance], [len(bus), len(shunted)]
    )
    power = np.conj(branches.shunt[shunted]) * WATT_PER_PU
    for name, part in (("p_specified", power.real), ("q_specified", power.imag)):
        loads[name][: len(bus)] = 0.0
        loads[name][len(bus) :] = part[:, 0] if symmetric else part
    parts[kind] = loads
    update = pgm.initialize_array("update", kind, (len(load), len(bus)))
    update["id"] = loads["id"][: len(bus)]
    for name, part in (("p_specified", load.real), ("q_specified", load.imag)):
        if symmetric:
            update[name] = part * WATT_PER_PU
        else:
            update[name] = 0.0
            update[name][:, np.arange(len(bus)), phase] = part * WATT_PER_PU
    return parts, {kind: update}


def _lines(branches: Branches, first: int, symmetric: bool) -> dict[str, Any]:
    kind = "line" if symmetric else "asym_line"
    lines = pgm.initialize_array("input", kind, len(branches.ends))
    lines["id"] = first + np.arange(len(lines))
    lines["from_node"], lines["to_node"] = branches.ends.T
    lines["from_status"] = lines["to_status"] = 1
    z = branches.z * Z_BASE
    if symmetric:
        lines["r1"], lines["x1"] = z[:, 0, 0].real, z[:, 0, 0].imag
        lines["c1"] = lines["tan1"] = 0.0
    else:
        for i, row in enumerate("abc"):
            for j, col in enumerate("abc"[: i + 1]):
                lines[f"r_{row}{col}"], lines[f"x_{row}{col}"] = z[:, i, j].real, z[:, i, j].imag
        lines["c0"] = lines["c1"] = 0.0
    return {kind: lines}
