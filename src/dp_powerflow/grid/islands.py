"""Leaving out what no source feeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dp_powerflow.grid.checks import islanded_nodes
from dp_powerflow.grid.feeder import GROUND, Feeder, Load, PVSystem


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
    )
