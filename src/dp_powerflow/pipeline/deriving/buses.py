"""The buses of a published network: those of the release where it publishes its connections, else found in Y.

Tables merge switches, so buses that a switch joins may be one; phases that are not coupled cannot be told to
be of one bus by Y alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from dp_powerflow.corpus.gridfm.network import PublishedNetwork, places_of
from dp_powerflow.corpus.tables import Connections
from dp_powerflow.grid.feeder import TRANSFORMER
from dp_powerflow.units import IntArray


@dataclass(frozen=True, eq=False)
class PublishedBuses:
    """Which nodes of a published network stand at one bus.

    Attributes
    ----------
    bus : (node,) number of the bus.
    names : (node,) "bus.phase", "emf(bus).phase" of a source.
    transformers : pairs of buses that a transformer joins, as far as the release says.
    """

    bus: IntArray
    names: tuple[str, ...]
    transformers: frozenset[tuple[int, int]]

    def joined_by_transformer(self, nodes: IntArray) -> bool:
        """Whether what joins these nodes of two buses is a transformer, as the release says."""
        ends = sorted({int(self.bus[node]) for node in nodes})
        return tuple(ends) in self.transformers


def buses_of(
    network: PublishedNetwork, connections: Connections | None, bus_of_row: IntArray
) -> PublishedBuses:
    """The buses of a network.

    Parameters
    ----------
    connections : of the release; None where it publishes none.
    bus_of_row : (released node,) node of the network.
    """
    bus, phase = places_of(network), np.asarray(network.phase, dtype=np.int64).copy()
    transformers: frozenset[tuple[int, int]] = frozenset()
    if connections is not None:
        merged = _merged(connections, bus_of_row)
        known = merged[connections.bus_of]
        bus = bus + connections.n_buses  # a place without a released node keeps a number of its own
        for place in np.unique(bus[bus_of_row]):
            here = bus_of_row[bus[bus_of_row] == place]
            own = known[bus[bus_of_row] == place]
            bus[bus == place] = own[np.argmin(here)]
        bus[bus_of_row] = known
        phase[bus_of_row] = connections.phase
        transformers = frozenset(
            (min(pair), max(pair))
            for pair, kind in zip(merged[connections.pairs].tolist(), connections.kinds, strict=True)
            if kind == TRANSFORMER
        )
    bus = _with_sources(network, bus)
    return PublishedBuses(bus, _names(network, bus, phase), transformers)


def _merged(connections: Connections, bus_of_row: IntArray) -> IntArray:
    """(bus of the release,) the smallest number of the buses that it was merged with."""
    first: dict[int, int] = {}
    joined = []
    for bus, node in zip(connections.bus_of.tolist(), bus_of_row.tolist(), strict=True):
        joined.append((first.setdefault(node, bus), bus))
    one, other = np.array(joined, dtype=np.int64).T
    count = connections.n_buses
    pattern = sp.coo_array((np.ones(len(joined)), (one, other)), shape=(count, count))
    group = connected_components(pattern.tocsr(), directed=False)[1]
    smallest = np.full(count, count, dtype=np.int64)
    np.minimum.at(smallest, group, np.arange(count))
    return np.asarray(smallest[group], dtype=np.int64)


def _with_sources(network: PublishedNetwork, bus: IntArray) -> IntArray:
    """Sources stand at the bus that they feed."""
    found, y = bus.copy(), sp.csr_array(network.y)
    for node in network.reference.tolist():
        near = [k for k in y.indices[y.indptr[node] : y.indptr[node + 1]] if k not in network.reference]
        if near:
            found[node] = bus[min(near)]
    return found


def _names(network: PublishedNetwork, bus: IntArray, phase: IntArray) -> tuple[str, ...]:
    sources = set(network.reference.tolist())
    names = [
        f"emf({bus[k]}).{phase[k]}" if k in sources else f"{bus[k]}.{phase[k]}" for k in range(network.n)
    ]
    if len(set(names)) < len(names):  # two nodes of one phase cannot be told apart by their bus
        names = [f"{k}.{phase[k]}" for k in range(network.n)]
    return tuple(names)
