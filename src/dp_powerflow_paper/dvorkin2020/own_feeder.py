"""A case from any radial feeder of ours: one balanced node per bus, generators at the buses with load.

The branch between two buses has the positive-sequence impedance of its block of `y`; one with fewer phases
carries the power in fewer, so its impedance per unit of power is larger. Regulators count as neutral.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from dp_powerflow import Feeder
from dp_powerflow.errors import FeederError
from dp_powerflow.grid.buses import BusGraph
from dp_powerflow.units import ComplexArray
from dp_powerflow_paper.dvorkin2020.case import Case
from dp_powerflow_paper.radial import RadialNetwork

_GOLDEN = 0.6180339887498949
"""Its multiples, modulo 1, fill the unit interval evenly: costs that differ, without a draw."""


@dataclass(frozen=True)
class Generators:
    """Public generators of a feeder that has none of its own, and its limits.

    Attributes
    ----------
    capacity : of a generator, over the nominal load of its bus.
    cost : of the cheapest and of the dearest; those of a feeder are spread evenly between.
    source_cost : of power from the source.
    tan : reactive over active power.
    v : limits of the voltage [p.u.].
    rating : of a line, over the nominal load below it.
    """

    capacity: float = 2.0
    cost: tuple[float, float] = (6.5, 13.4)
    source_cost: float = 20.0
    tan: float = 0.5
    v: tuple[float, float] = (0.9, 1.1)
    rating: float = 2.0


def case_of(feeder: Feeder, generators: Generators | None = None, load: ComplexArray | None = None) -> Case:
    """The case of a feeder; powers are per unit of its base.

    Parameters
    ----------
    generators : None for the usual ones. They and the limits follow the nominal loads, which are public.
    load : complex (node,) load [p.u.], None for the nominal one.

    Raises
    ------
    FeederError : the feeder is meshed, has several sources, or has no load.
    """
    chosen = generators or Generators()
    graph = BusGraph.of(feeder)
    pairs = sorted(graph.kind_of)
    if int(graph.source.sum()) != 1 or len(pairs) != len(graph.names) - 1:
        raise FeederError(
            "a private dispatch needs a radial feeder with one source; open the switches that close its loops"
        )
    z = np.array([_impedance(feeder, graph, pair) for pair in pairs])
    root = int(np.flatnonzero(graph.source)[0])
    ends = np.array(pairs, dtype=np.int64)
    network = RadialNetwork(ends[:, 0], ends[:, 1], z.real, z.imag, root)
    nominal = _at_buses(graph, -feeder.nominal_injection)
    if nominal.real.sum() <= 0.0:
        raise FeederError("a private dispatch needs a feeder with loads; none draws power")
    case = _with_generators(network, nominal, chosen)
    if load is None:
        return case
    drawn = _at_buses(graph, load)
    return replace(case, load_p=np.asarray(drawn.real), load_q=np.asarray(drawn.imag))


def _at_buses(graph: BusGraph, at_nodes: ComplexArray) -> ComplexArray:
    """(bus,) sums over the nodes of every bus."""
    total = np.zeros(len(graph.names), dtype=np.complex128)
    np.add.at(total, graph.bus_of, at_nodes)
    return total


def _with_generators(network: RadialNetwork, load: ComplexArray, chosen: Generators) -> Case:
    loaded = load.real > 0.0
    loaded[network.root] = False
    low, high = chosen.cost
    cost, p_max = np.zeros(network.nodes), np.zeros(network.nodes)
    places = np.flatnonzero(loaded)
    cost[places] = low + (high - low) * ((1 + np.arange(len(places))) * _GOLDEN % 1.0)
    p_max[places] = chosen.capacity * load.real[places]
    cost[network.root], p_max[network.root] = chosen.source_cost, 10.0 * np.abs(load).sum()
    q_max = chosen.tan * p_max
    q_max[network.root] = p_max[network.root]
    below = np.abs(network.below @ load)
    least = float(np.abs(load[loaded]).min())
    low_v, high_v = (np.full(network.nodes, v * v) for v in chosen.v)
    return Case(
        network=network,
        load_p=np.asarray(load.real),
        load_q=np.asarray(load.imag),
        cost=cost,
        p_max=p_max,
        q_max=q_max,
        tan=chosen.tan,
        u_min=low_v,
        u_max=high_v,
        s_max=np.asarray(chosen.rating * np.maximum(below, least)),
    )


def _impedance(feeder: Feeder, graph: BusGraph, pair: tuple[int, int]) -> complex:
    """Of the branch between two buses, for power that is the sum over its phases [p.u.]."""
    first, second = (np.flatnonzero(graph.bus_of == bus) for bus in pair)
    block = -sp.csr_array(feeder.y)[first][:, second].toarray()
    phases = int(min((np.abs(block).sum(axis=axis) > 0.0).sum() for axis in (0, 1)))
    turn = [np.exp(1j * np.deg2rad(feeder.nominal_angle_deg[at])) for at in (first, second)]
    admittance = complex(np.conj(turn[0]) @ block @ turn[1])
    if phases == 0 or admittance == 0.0:
        raise FeederError("two buses are joined by nothing that carries power; join them by a line")
    # y of one phase is the projection over its phases; all of them together carry the power.
    return 1.0 / admittance
