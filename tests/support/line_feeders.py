"""Feeders of a few nodes with line records, and load laws for them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dp_powerflow.grid.feeder import Feeder, Line
from dp_powerflow.model.law import LoadLaw
from support.laws import gaussian_classes
from support.small_feeders import feeder_of

SERIES = (4.0 - 9.0j, 6.0 - 8.0j, 5.0 - 12.0j, 7.0 - 7.0j, 9.0 - 11.0j)


def chain(
    n: int,
    *,
    empty: tuple[int, ...] = (),
    pv_only: tuple[int, ...] = (),
    ties: tuple[tuple[int, int], ...] = (),
) -> Feeder:
    """Nodes in a row behind the source: loads on all but the empty ones, PV alone on some, extra lines."""
    shunt, branches, shunts, lines = 0.02j, [], [], []
    for k, (i, j) in enumerate([(n if k == 0 else k - 1, k) for k in range(n)] + list(ties)):
        series = SERIES[k % len(SERIES)]
        primitive = np.array([[series + shunt, -series], [-series, series + shunt]])
        branches.append((i, j, 1.0 / series))
        shunts += [(i, shunt), (j, shunt)]
        lines.append(Line(f"l{k + 1}", (i, j), primitive, 100.0, False, "c"))
    loads = [(k, 0.1 + 0.04j) for k in range(n) if k not in empty and k not in pv_only]
    feeder = feeder_of(n + 1, branches, loads, shunts=shunts, pv=[(k, 0.05) for k in pv_only])
    nodes = (*(f"b{k}.1" for k in range(n)), "emf(s).1")
    return replace(feeder, name="chain", nodes=nodes, lines=tuple(lines))


def law_of(n: int, steps: int = 1, *, spread: float = 0.3, q: float = 0.15, size: float = 0.3) -> LoadLaw:
    """Total load `size` p.u. shared by n nodes in two classes."""
    lag = np.abs(np.subtract.outer(np.arange(steps), np.arange(steps)))
    correlation = 0.7**lag
    scale = np.linspace(0.8, 1.2, n) * size / n
    return LoadLaw(
        classes=gaussian_classes(
            [np.full(steps, -0.05), np.linspace(-0.1, 0.1, steps)],
            [spread**2 * correlation, spread**2 * (0.5 * correlation + 0.5 * np.eye(steps))],
            correlation,
        ),
        class_of=np.arange(n) % 2,
        scale_kw=scale,
        tan_theta=np.linspace(0.3, 0.5, n),
        q_size=np.full(n, q),
    )
