"""A radial feeder with generators whose dispatch is released: the paper's own of 15 nodes, or one of ours."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dp_powerflow.errors import ConfigError, PrivacyError
from dp_powerflow.units import FloatArray, IntArray
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
