"""The connections of a network that a release publishes: its buses under opaque names, in an order that tells
nothing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dp_powerflow.corpus.tables import MOST_PLACE, Connections, opaque_buses
from dp_powerflow.errors import ConfigError
from dp_powerflow.grid.buses import BusGraph
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import FloatArray, IntArray

Places = Mapping[str, tuple[float, float]]
"""Bus, as the feeder names it → x and y."""


def released_connections(
    feeder: Feeder, released: IntArray, key: StreamKey, places: Places | None = None
) -> Connections:
    """Buses of the network that is solved, the phases of the released nodes, and what joins the buses.

    Buses come in the order of the released nodes, which is secret and random; those without one follow in a
    random order of their own. So nothing of the order in the feeder's file is left.

    Parameters
    ----------
    feeder : the twin.
    released : indices of the released nodes in `feeder.nodes`, in their secret order.
    key : of the draws of the release.
    places : coordinates of every bus that are declared public; None publishes none.
    """
    graph = BusGraph.of(feeder)
    order = _order(graph, released, key)
    row = np.empty(len(order), dtype=np.int64)
    row[order] = np.arange(len(order))
    pairs = sorted(
        (
            (*sorted((int(row[first]), int(row[second]))), kind)
            for (first, second), kind in graph.kind_of.items()
        )
    )
    return Connections(
        bus_ids=opaque_buses(len(order)),
        bus_of=row[graph.bus_of[released]],
        phase=graph.phase[released],
        pairs=np.array([pair[:2] for pair in pairs], dtype=np.int64).reshape(-1, 2),
        kinds=tuple(str(pair[2]) for pair in pairs),
        source=graph.source[order],
        coordinates=None if places is None else _at(places, [graph.names[bus] for bus in order]),
    )


def public_places(structure: Feeder, coordinates: Places) -> Places:
    """Coordinates of every bus of a network, by its name.

    Parameters
    ----------
    structure : has the buses of the network that is solved.
    coordinates : of the feeder's file; a source may be in it as "emf(bus)".

    Raises
    ------
    ConfigError : the file has none that can be for some bus.
    """
    names = BusGraph.of(structure).names
    found = {name: coordinates.get(name, coordinates.get(f"emf({name})")) for name in names}
    known = {
        name: place for name, place in found.items() if place and all(abs(at) <= MOST_PLACE for at in place)
    }
    if len(known) < len(names):
        raise ConfigError(
            f"the feeder's file has no coordinates for {len(names) - len(known)} of its {len(names)} buses; "
            'add them, or set network.coordinates = "private"'
        )
    return known


def _order(graph: BusGraph, released: IntArray, key: StreamKey) -> IntArray:
    """Buses in the order in which they are published."""
    with_nodes = list(dict.fromkeys(graph.bus_of[released].tolist()))
    others = np.setdiff1d(np.arange(len(graph.names)), with_nodes)
    shuffled = others[key.stream("order of the buses").generator.permutation(len(others))]
    return np.array([*with_nodes, *shuffled.tolist()], dtype=np.int64)


def _at(places: Places, names: list[str]) -> FloatArray:
    return np.array([places[name] for name in names], dtype=np.float64)
