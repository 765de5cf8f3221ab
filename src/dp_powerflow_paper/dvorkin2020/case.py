"""A radial feeder with generators whose dispatch is released: the paper's own of 15 nodes, or one of ours.

A case from any radial feeder of ours: one balanced node per bus, generators at the buses with load.

The branch between two buses has the positive-sequence impedance of its block of `y`; one with fewer phases
carries the power in fewer, so its impedance per unit of power is larger. Regulators count as neutral.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from dp_powerflow import Feeder
from dp_powerflow.errors import ConfigError, FeederError, PrivacyError
from dp_powerflow.lowlevel import BusGraph
from dp_powerflow.units import ComplexArray, FloatArray, IntArray
from dp_powerflow_paper.radial import RadialNetwork

FEEDER = "feeder15"
"""Folder of the paper's feeder among the reference cases."""
_TAN = 0.5
"""Ratio of reactive to active power of its generators."""


@dataclass(frozen=True, eq=False)
class Case:
    """What is dispatched. Loads are private, all else is public.

    Attributes
    ----------
    network : line l and node i as in `RadialNetwork`.
    load_p, load_q : (node,) active and reactive load [p.u.].
    cost : (node,) of a generator's active power; 0 where there is none.
    p_max, q_max : (node,) limits of generators [p.u.]; 0 where there is none. The root has one always.
    tan : reactive over active power of every generator; at the root, of its answer to noise only.
    u_min, u_max : (node,) limits of squared voltages [p.u.].
    s_max : (line,) limits of apparent power [p.u.].

    Raises
    ------
    ConfigError : an array has another length, or the root has no generator.
    """

    network: RadialNetwork
    load_p: FloatArray
    load_q: FloatArray
    cost: FloatArray
    p_max: FloatArray
    q_max: FloatArray
    tan: float
    u_min: FloatArray
    u_max: FloatArray
    s_max: FloatArray

    def __post_init__(self) -> None:
        nodes = self.network.nodes
        of_nodes = (self.load_p, self.load_q, self.cost, self.p_max, self.q_max)
        lengths = {len(array) for array in (*of_nodes, self.u_min, self.u_max)}
        if lengths != {nodes} or len(self.s_max) != nodes - 1:
            raise ConfigError("a case needs one figure for every node, and one limit for every line")
        if self.p_max[self.network.root] <= 0.0:
            raise ConfigError("the root of a case needs a generator; give it the limit of the source")

    @property
    def generators(self) -> IntArray:
        """Nodes with a generator, in order."""
        return np.flatnonzero(self.p_max > 0.0)

    @property
    def own_line(self) -> IntArray:
        """(node,) the line whose flow the paper protects a customer in: the one above, −1 for the root."""
        return self.network.line_above

    @property
    def customer(self) -> IntArray:
        """(line,) the node right below a line."""
        nodes = np.empty(len(self.s_max), dtype=np.int64)
        below = self.network.order[1:]
        nodes[self.own_line[below]] = below
        return nodes

    def with_load(self, node: int, change: float) -> Case:
        """The case with another active load at one node [p.u.]: a neighbour."""
        load = self.load_p.copy()
        load[node] += change
        return replace(self, load_p=load)


@dataclass(frozen=True)
class Privacy:
    """What the noise is made for: one customer's active load by at most a share of it.

    Attributes
    ----------
    epsilon, delta : of the flow in the customer's own line.
    share : of the load, by which neighbours differ.
    """

    epsilon: float = 1.0
    delta: float = 1.0 / 14.0
    share: float = 0.1

    def __post_init__(self) -> None:
        if not (0.0 < self.epsilon <= 1.0 and 0.0 < self.delta < 1.0 and self.share > 0.0):
            raise PrivacyError("the noise of a dispatch needs ε in (0, 1], δ in (0, 1) and a positive share")

    @property
    def multiplier(self) -> float:
        """σ over the change that is hidden: √(2·ln(1.25/δ))/ε, the classical figure."""
        return math.sqrt(2.0 * math.log(1.25 / self.delta)) / self.epsilon

    def reach(self, case: Case) -> FloatArray:
        """(line,) β_l: by how much the load right below a line differs between neighbours [p.u.]."""
        return np.asarray(self.share * np.abs(case.load_p[case.customer]))

    def sigma(self, case: Case, lines: Sequence[int] | None = None) -> FloatArray:
        """(line,) σ_l of the noise [p.u.], 0 on lines left out; None for all lines.

        As in the paper it follows from the loads themselves; whoever publishes it publishes them.
        """
        sigma = self.reach(case) * self.multiplier
        if lines is None:
            return sigma
        chosen = np.zeros_like(sigma)
        chosen[list(lines)] = sigma[list(lines)]
        return chosen


def read_feeder15(reference: Path) -> Case:
    """The paper's feeder from the folder of reference cases."""
    folder = reference / FEEDER
    nodes, lines, generators = (_rows(folder / f"{name}.csv") for name in ("nodes", "lines", "generators"))
    count = len(nodes)
    cost, p_max, q_max = np.zeros(count), np.zeros(count), np.zeros(count)
    for row in generators:
        at = int(row["node"])
        cost[at], p_max[at], q_max[at] = float(row["cost"]), float(row["p_max"]), float(row["q_max"])
    start, end = (_column(lines, name).astype(np.int64) for name in ("node_f", "node_t"))
    network = RadialNetwork(start, end, _column(lines, "r"), _column(lines, "x"))
    return Case(
        network=network,
        load_p=_column(nodes, "d_P"),
        load_q=_column(nodes, "d_Q"),
        cost=cost,
        p_max=p_max,
        q_max=q_max,
        tan=_TAN,
        u_min=_column(nodes, "v_min"),
        u_max=_column(nodes, "v_max"),
        s_max=_column(lines, "s_max"),
    )


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        raise ConfigError(
            f"the reference case {path.parent.name} is not here; set DP_POWERFLOW_REFERENCE to the folder "
            f"that holds {path.parent.name}/{path.name}"
        )
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def _column(rows: list[dict[str, str]], name: str) -> FloatArray:
    return np.array([float(row[name]) for row in rows])


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
