"""What a manifest says of the buses of a release and what joins them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dp_powerflow.corpus.schema import CONNECTION_FILES as FILES
from dp_powerflow.corpus.tables import Connections
from dp_powerflow.grid.feeder import KINDS
from dp_powerflow.manifest.model import ConnectionsOfNodes

if TYPE_CHECKING:
    from dp_powerflow.manifest.build import Facts

ORDER = "first the buses of the released nodes, in their order; then the others in a secret random order"
COORDINATES_PUBLISHED = "COORDINATES ARE PUBLISHED, SO LENGTHS OF LINES ARE NOT PROTECTED"


def described_connections(facts: Facts) -> ConnectionsOfNodes | None:
    """The entry `data.connections`; None if they are not published."""
    found = facts.connections
    if found is None:
        return None
    return ConnectionsOfNodes.model_validate(
        {
            "files": list(FILES),
            "buses": found.n_buses,
            "sources": int(found.source.sum()),
            "pairs": found.n_pairs,
            "kinds": [kind for kind in KINDS if kind in found.kinds],
            "coordinates": found.coordinates is not None,
            "order": ORDER,
            "follows_from": (facts.policy.connections_follow_from or "unknown")
            + "; coordinates as declared" * (found.coordinates is not None),
        }
    )


def released_connections(found: Connections | None) -> list[str]:
    """A sentence on what is published; none if nothing is."""
    if found is None:
        return []
    said = [
        "Which nodes form a bus, the phase of every node, which buses are joined by a line, a switch or a "
        "transformer, and which of them has a source are released too. They follow from the twin, whose "
        f"structure is that of the network. Buses have names that say nothing but their position: {ORDER}."
    ]
    if found.coordinates is not None:
        said.append("Coordinates of the buses are released as the feeder's file has them: declared public.")
    return said


def shown_by_connections(facts: Facts) -> list[str]:
    """What every reader learns of the structure of the network; nothing if it is not published."""
    found = facts.connections
    if found is None:
        return []
    said = [
        f"How the network is connected: its {found.n_buses} buses, with a released node or without, the "
        f"{found.n_pairs} pairs of them that a line, a switch or a transformer joins, where it is fed, and "
        "bus and phase of every released node. Who knows the feeder can tell from it which node is which."
    ]
    if found.coordinates is not None:
        said.append(
            f"{COORDINATES_PUBLISHED}: the coordinates of every bus. Who has them computes the length of "
            "every line and finds the feeder on a map."
        )
    return said


def wrong_connections(facts: Facts) -> Iterator[str]:
    """What cannot be true of the connections of a release."""
    if facts.connections is not None and facts.policy.connections_follow_from is None:
        yield "The release holds connections of its network, which its mode does not publish."
    if facts.connections is not None and len(facts.connections.bus_of) != facts.layout.nodes:
        yield "The release states buses of another number of nodes than it has."
