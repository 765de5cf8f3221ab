"""power-grid-model beside acting controls, one thread; seconds are CPU time.

Variants: "pgm-frozen", its plain batch at neutral taps; "pgm-taps", with its own tap changers
(`tap_changing_strategy`), which move all three phases together. IEEE 123 has regulators of single phases, so
there the peer gets one three-phase tap changer at the source instead: it finds no others, as it does not
follow lines that are given by matrices. On the radial case both tools have the same two. The faster method
and the faster strategy are reported.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import power_grid_model as pgm
from cases import (
    BAND_V,
    PT_RATIO,
    REGULATED,
    TARGET_V,
    Branches,
    balanced_branches,
    daily_factors,
    nodal_load,
    open_case,
    radial_tree,
    regulated_branches,
    three_phase_case,
)
from outcome import Outcome

from peers.pgm import METHODS, network

STRATEGIES = (pgm.TapChangingStrategy.any_valid_tap, pgm.TapChangingStrategy.fast_any_tap)
TAPS = "transformer_tap_regulator"
NOMINAL_V = 7200.0 / PT_RATIO
STEPS, STEP = 16, 0.00625
RATED_VA, IMPEDANCE = 1e9, 1e-3


def run(case: str, snapshots: int, variant: str) -> Outcome:
    three = not case.endswith(REGULATED)
    feeder, branches = three_phase_case() if three else (open_case(case), None)
    branches = branches or balanced_branches(feeder)
    load = nodal_load(feeder, daily_factors(len(feeder.loads), snapshots))
    parts, update = network(branches, load, symmetric=not three)
    strategies = STRATEGIES if variant == "pgm-taps" else (pgm.TapChangingStrategy.disabled,)
    if variant == "pgm-taps":
        _add_tap_changers(parts, _regulated(branches, case), branches.source)
    wanted: dict[str, list[str]] = {"node": ["u_pu", "u_angle"]}
    if TAPS in parts:
        wanted[TAPS] = ["tap_pos"]
    model, best, chosen = pgm.PowerGridModel(parts), np.inf, ""
    for method in METHODS:
        for strategy in strategies:
            begin = time.process_time()
            found = model.calculate_power_flow(
                symmetric=not three,
                update_data=update,
                threading=-1,
                calculation_method=method,
                tap_changing_strategy=strategy,
                error_tolerance=1e-8,
                max_iterations=50,
                output_component_types=wanted,
            )
            seconds = time.process_time() - begin
            if seconds < best:
                best, chosen = seconds, f"{method.name}, {strategy.name}"
                if TAPS in found:
                    chosen += f", taps {found[TAPS]['tap_pos'].min()} to {found[TAPS]['tap_pos'].max()}"
    return Outcome(best, [], np.zeros((0, 0), dtype=np.complex128), f"{chosen}, {case}")


def _regulated(branches: Branches, case: str) -> list[tuple[int, int]]:
    """Branches that end in a tap changer, and the bus behind it; none stands for the source itself."""
    if not case.endswith(REGULATED):
        return []
    tree = radial_tree(int(case.removeprefix("radial").removesuffix(REGULATED)))
    found = []
    for child in regulated_branches(tree):
        parent = branches.source if tree.parent[child] == 0 else int(tree.parent[child]) - 1
        pair = {child, parent}
        found.append((next(k for k, ends in enumerate(branches.ends.tolist()) if set(ends) == pair), child))
    return found


def _add_tap_changers(parts: dict[str, Any], chosen: list[tuple[int, int]], source: int) -> None:
    """End the chosen branches at new nodes, from which transformers with tap changers lead on."""
    count, next_id = max(len(chosen), 1), 1 + max(int(part["id"].max()) for part in parts.values())
    rated = float(parts["node"]["u_rated"][0])
    inner = pgm.initialize_array("input", "node", count)
    inner["id"], inner["u_rated"] = next_id + np.arange(count), rated
    parts["node"] = np.concatenate([parts["node"], inner])
    lines = parts["line"] if "line" in parts else parts["asym_line"]
    transformer = pgm.initialize_array("input", "transformer", count)
    transformer["id"] = next_id + count + np.arange(count)
    for k, (branch, bus) in enumerate(chosen):
        end = "to_node" if lines["to_node"][branch] == bus else "from_node"
        lines[end][branch] = inner["id"][k]
        transformer["from_node"][k], transformer["to_node"][k] = inner["id"][k], bus
    if not chosen:
        parts["source"]["node"] = inner["id"]
        transformer["from_node"], transformer["to_node"] = inner["id"], source
    transformer["from_status"] = transformer["to_status"] = 1
    transformer["u1"] = transformer["u2"] = rated
    transformer["sn"], transformer["uk"], transformer["pk"] = RATED_VA, IMPEDANCE, 0.0
    transformer["i0"] = transformer["p0"] = 0.0
    transformer["winding_from"] = transformer["winding_to"] = pgm.WindingType.wye_n
    transformer["clock"], transformer["tap_side"] = 0, pgm.BranchSide.to_side
    transformer["tap_pos"] = transformer["tap_nom"] = 0
    transformer["tap_min"], transformer["tap_max"], transformer["tap_size"] = -STEPS, STEPS, STEP * rated
    regulator = pgm.initialize_array("input", TAPS, count)
    regulator["id"] = next_id + 2 * count + np.arange(count)
    regulator["regulated_object"], regulator["status"] = transformer["id"], 1
    regulator["control_side"] = pgm.BranchSide.to_side
    regulator["u_set"], regulator["u_band"] = TARGET_V / NOMINAL_V * rated, BAND_V / NOMINAL_V * rated
    parts |= {"transformer": transformer, TAPS: regulator}
