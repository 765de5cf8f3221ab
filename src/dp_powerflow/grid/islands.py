"""Nodes of a feeder that no source feeds, and the feeder without them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from dp_powerflow.grid.feeder import GROUND, Feeder, Load, PVSystem
from dp_powerflow.grid.operation import without_nodes


def islanded_nodes(feeder: Feeder) -> list[str]:
    """Names of the nodes that no chain of admittances connects to a slack node."""
    pattern = sp.csr_array(feeder.y != 0)
    _, component = connected_components(pattern, directed=False)
    fed = np.isin(component, component[feeder.slack])
    return [feeder.nodes[k] for k in np.flatnonzero(~fed)]


def without_islands(feeder: Feeder) -> Feeder:
    """The feeder without its islanded nodes and everything connected to them, stated in its notes."""
    dead = set(islanded_nodes(feeder))
    if not dead:
        return feeder
    kept = np.array([k for k, name in enumerate(feeder.nodes) if name not in dead])
    moved = {int(old): new for new, old in enumerate(kept)} | {GROUND: GROUND}

    def fed(element: Load | PVSystem) -> bool:
        return all(node in moved for branch in element.branches for node in branch)

    def shifted(element: Load | PVSystem) -> tuple[tuple[int, int], ...]:
        return tuple((moved[i], moved[j]) for i, j in element.branches)

    loads = tuple(replace(load, branches=shifted(load)) for load in feeder.loads if fed(load))
    pv = tuple(replace(system, branches=shifted(system)) for system in feeder.pv if fed(system))
    lines = tuple(
        replace(line, nodes=tuple(moved[k] for k in line.nodes))
        for line in feeder.lines
        if all(k in moved for k in line.nodes)
    )
    note = (
        f"{len(dead)} islanded nodes are left out, with {len(feeder.loads) - len(loads)} loads, "
        f"{len(feeder.pv) - len(pv)} PV systems and {len(feeder.lines) - len(lines)} lines on them"
    )
    return replace(
        feeder,
        nodes=tuple(feeder.nodes[k] for k in kept),
        base_kv=feeder.base_kv[kept],
        y=feeder.y[kept, :][:, kept],
        slack=np.array([moved[int(k)] for k in feeder.slack]),
        nominal_angle_deg=feeder.nominal_angle_deg[kept],
        neutral=np.array([moved[int(k)] for k in feeder.neutral if int(k) in moved], dtype=np.int64),
        loads=loads,
        pv=pv,
        lines=lines,
        notes=(*feeder.notes, note),
        operation=feeder.operation and without_nodes(feeder.operation, kept.tolist()),
    )
