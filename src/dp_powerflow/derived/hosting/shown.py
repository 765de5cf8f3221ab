"""Figures of a page: the network by capacity, and capacities in rising order."""

from __future__ import annotations

import numpy as np

from dp_powerflow.corpus.connections import Connections
from dp_powerflow.page.charts import Axis, Band, NetworkMap, Quantiles
from dp_powerflow.page.document import Figure
from dp_powerflow.units import FloatArray, IntArray

_CAPACITY = Axis("hosting capacity", "kW", decimals=1)
_MOST_COUNT = 65_535


def map_of(connections: Connections, places: IntArray, median_kw: FloatArray) -> Figure:
    """The network, coloured by the median over days of the capacity of a node.

    Parameters
    ----------
    places : (candidate,) positions among the released nodes.
    median_kw : (candidate,) [kW].
    """
    most = max(round(float(median_kw.max()), 1), 1.0)
    least = round(float(median_kw.min()), 1)
    least = least if least < most else 0.0
    middle = round(float(np.median(median_kw)), 1)
    middle = middle if least < middle < most else (least + most) / 2.0
    per_kw = max(1, int(_MOST_COUNT // most))
    counts = np.clip(np.floor(median_kw * per_kw).astype(np.int64), 1, _MOST_COUNT)
    views = {}
    for phase in np.unique(connections.phase[places]).tolist():
        of = connections.phase[places] == phase
        view = np.zeros((1, connections.n_buses), dtype=np.int64)
        view[0, connections.bus_of[places[of]]] = counts[of]
        views[f"phase {phase}"] = view
    known = connections.coordinates
    chart = NetworkMap(
        _CAPACITY,
        connections.bus_ids,
        connections.pairs,
        connections.kinds,
        connections.source.tolist(),
        [0],
        views,
        per_kw,
        (least, most),
        middle,
        None if known is None else np.round(known, 6).tolist(),
    )
    laid = (
        "Buses stand at their released coordinates."
        if known is not None
        else "The layout is computed from the connections alone: lengths and directions mean nothing."
    )
    caption = (
        f"Median over days of the largest PV system at a node alone. {laid} Pale buses have no node with a "
        "capacity."
    )
    return Figure("hosting-map", "Hosting capacity over the network", caption, chart)


def band_of(quantiles_kw: FloatArray, levels: tuple[int, ...]) -> Figure:
    """Quantiles over days of every node, nodes in rising order of their median."""
    order = np.argsort(quantiles_kw[levels.index(50)], kind="stable")
    bands = Quantiles("capacity", tuple(float(level) for level in levels), quantiles_kw[:, order])
    at = np.arange(1, len(order) + 1)
    chart = Band(Axis("node, by rising median", decimals=0), _CAPACITY, at, (bands,))
    caption = (
        "Quantiles over days of the capacity of every node. The bands hold all days, the middle 90 % and the "
        "middle 50 %; the line is the median."
    )
    return Figure("hosting-nodes", "Hosting capacity by node", caption, chart)
