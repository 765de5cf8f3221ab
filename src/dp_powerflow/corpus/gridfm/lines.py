"""Lines of a published network, found in its admittances alone, and what it is without or with other ones.

The tables name no elements. Nodes of one place (a bus with its phases) are those whose mutual admittance has
the sign of an admittance between neighbours: a line of series matrix S between places A and B adds S to the
blocks AA and BB and −S to AB. Where two phases do not couple, each is a place of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from dp_powerflow.corpus.gridfm.network import PublishedNetwork, summed
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

_TURN_OF_PHASES = 120.0


@dataclass(frozen=True, eq=False)
class PublishedLine:
    """A line, or a transformer without a ratio, between two places.

    Attributes
    ----------
    first, second : (phase,) its nodes at either end, phase by phase.
    series : complex (phase, phase) admittance from the first end to the second [p.u.], in the frame of the
        network.
    """

    first: IntArray
    second: IntArray
    series: ComplexArray

    @property
    def nodes(self) -> IntArray:
        """Both ends."""
        return np.concatenate([self.first, self.second])

    def added(self, share: float) -> tuple[IntArray, IntArray, ComplexArray]:
        """Rows, columns and values that this share of the line adds to Y."""
        a, b = self.first, self.second
        ends = ((a, a, 1.0), (b, b, 1.0), (a, b, -1.0), (b, a, -1.0))
        rows = np.concatenate([np.repeat(at, len(to)) for at, to, _ in ends])
        columns = np.concatenate([np.tile(to, len(at)) for at, to, _ in ends])
        values = np.concatenate([sign * share * self.series.ravel() for *_, sign in ends])
        return rows, columns, values


def lines_of(network: PublishedNetwork) -> tuple[PublishedLine, ...]:
    """The lines of a network, in the order of their first nodes; regulators and sources are none."""
    place = places_of(network)
    found = network.turned().branches
    i, j = found.from_bus, found.to_bus
    straight = (network.angle_deg[i] == network.angle_deg[j]) & (found.tap == 1.0) & (place[i] != place[j])
    tapped = {
        tuple(sorted(pair))
        for pair in zip(place[i[found.tap != 1.0]], place[j[found.tap != 1.0]], strict=True)
    }
    ends: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for a, b in zip(i[straight].tolist(), j[straight].tolist(), strict=True):
        near, far = (a, b) if place[a] < place[b] else (b, a)
        ends.setdefault((int(place[near]), int(place[far])), []).append((near, far))
    sources = set(place[network.reference].tolist())
    lines = []
    for pair, nodes in ends.items():
        if pair in tapped or sources & set(pair):
            continue
        nodes.sort(key=lambda both: network.angle_deg[both[0]])
        first, second = (np.array(side, dtype=np.int64) for side in zip(*nodes, strict=True))
        if len({float(network.angle_deg[node]) for node in first}) == len(first):
            lines.append(PublishedLine(first, second, -network.y[first][:, second].toarray()))
    return tuple(sorted(lines, key=lambda line: (line.first.min(), line.second.min())))


def places_of(network: PublishedNetwork) -> IntArray:
    """(node,) number of the bus that a node is a phase of."""
    entries = sp.coo_array(network.as_phasors().y)
    i, j = entries.coords
    angle = network.angle_deg
    phases = (angle[i] != angle[j]) & (angle[i] % _TURN_OF_PHASES == angle[j] % _TURN_OF_PHASES)
    within = phases & (entries.data.imag > 0.0)
    pattern = sp.coo_array((np.ones(int(np.sum(within))), (i[within], j[within])), shape=entries.shape)
    return np.asarray(connected_components(pattern.tocsr(), directed=False)[1], dtype=np.int64)


def with_shares(
    network: PublishedNetwork, lines: tuple[PublishedLine, ...], shares: FloatArray
) -> PublishedNetwork:
    """The network with each line's admittance times its share; shares above 0 of a new line add it.

    Parameters
    ----------
    shares : (line,) what is added of every line: -1 takes it out, 0 leaves it, 0.2 makes it 20 % stronger.
    """
    entries = sp.coo_array(network.y)
    parts = [(*entries.coords, entries.data)]
    parts += [line.added(share) for line, share in zip(lines, shares.tolist(), strict=True) if share]
    rows, columns, values = (np.concatenate(part) for part in zip(*parts, strict=True))
    return replace(network, y=summed(values, rows, columns, network.n))


def supplied(network: PublishedNetwork) -> BoolArray:
    """(node,) whether a source feeds it, phase by phase: a coupling of two phases feeds nothing."""
    entries = sp.coo_array(network.y)
    i, j = entries.coords
    angle = network.angle_deg
    alike = angle[i] == angle[j]
    across = angle[i] % _TURN_OF_PHASES != angle[j] % _TURN_OF_PHASES  # windings of a transformer
    feeds = alike | across
    pattern = sp.coo_array((np.ones(int(np.sum(feeds))), (i[feeds], j[feeds])), shape=entries.shape)
    part = connected_components(pattern.tocsr(), directed=False)[1]
    return np.isin(part, part[network.reference])
