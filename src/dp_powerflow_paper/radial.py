"""LinDistFlow of a balanced radial network: one node per bus, one line above every node but the root.

With power drawn p, q [p.u.], losses neglected, and squared voltage magnitudes u:

    f_l = Σ p_i over the nodes i below line l,      u_end = u_start − 2·(r_l·f_l + x_l·g_l)

so that flows and squared voltages are matrices times the power drawn. The matrices are all that a program
of optimal power flow needs of a network.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import breadth_first_order

from dp_powerflow.errors import FeederError
from dp_powerflow.units import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class RadialNetwork:
    """A tree of lines.

    Attributes
    ----------
    start, end : (line,) nodes that a line joins, 0 … lines; either of the two may be nearer to the root.
    r, x : (line,) series resistance and reactance [p.u.].
    root : node of the source.

    Raises
    ------
    FeederError : the lines are no tree that reaches every node.

    Examples
    --------
    >>> import numpy as np
    >>> network = RadialNetwork(np.array([0, 1]), np.array([1, 2]), np.array([0.01, 0.02]), np.zeros(2))
    >>> network.flows(np.array([0.0, 0.1, 0.2])).round(3)
    array([0.3, 0.2])
    >>> network.squared_voltages(np.array([0.0, 0.1, 0.2]), np.zeros(3)).round(3)
    array([1.   , 0.994, 0.986])
    """

    start: IntArray
    end: IntArray
    r: FloatArray
    x: FloatArray
    root: int = 0

    def __post_init__(self) -> None:
        sizes = {len(self.start), len(self.end), len(self.r), len(self.x)}
        if len(sizes) != 1:
            raise FeederError("start, end, r and x of a radial network must have one entry for every line")
        ends = np.concatenate([self.start, self.end])
        if len(ends) and (ends.min() < 0 or ends.max() > len(self.start)):
            raise FeederError("the nodes of a radial network are numbered from 0 to the number of its lines")
        if not 0 <= self.root <= len(self.start):
            raise FeederError("the root must be a node of the radial network")
        if len(self.order) != self.nodes:
            raise FeederError(
                "the lines are no tree: open the line that closes a loop, and join every node to the root"
            )

    @property
    def nodes(self) -> int:
        """Number of nodes, the root included."""
        return len(self.start) + 1

    @cached_property
    def order(self) -> IntArray:
        """Nodes in the order in which they are reached from the root, breadth first."""
        return self._walk[0]

    @cached_property
    def parent(self) -> IntArray:
        """(node,) the next node towards the root; −1 for the root."""
        return self._walk[1]

    @cached_property
    def line_above(self) -> IntArray:
        """(node,) the line towards the root; −1 for the root."""
        return self._walk[2]

    @cached_property
    def _walk(self) -> tuple[IntArray, IntArray, IntArray]:
        shape, number = (self.nodes, self.nodes), np.arange(1, self.nodes)
        one_way = sp.csr_array((number, (self.start, self.end)), shape=shape)
        joined = sp.csr_array(one_way + one_way.T)
        order, found = breadth_first_order(joined, self.root, directed=False)
        parent = np.where(found < 0, -1, found).astype(np.int64)
        above = np.full(self.nodes, -1, dtype=np.int64)
        above[order[1:]] = joined[order[1:], parent[order[1:]]] - 1
        return order.astype(np.int64), parent, above

    @cached_property
    def below(self) -> FloatArray:
        """(line, node) 1 where the node is fed through the line, else 0."""
        found = np.zeros((len(self.start), self.nodes))
        for node in self.order[1:].tolist():
            found[:, node] = found[:, self.parent[node]]
            found[self.line_above[node], node] = 1.0
        return found

    @cached_property
    def resistance(self) -> FloatArray:
        """(node, node) R: resistance that the paths of two nodes to the root share [p.u.]."""
        return np.asarray(self.below.T @ (self.r[:, None] * self.below))

    @cached_property
    def reactance(self) -> FloatArray:
        """(node, node) X: reactance that the paths of two nodes to the root share [p.u.]."""
        return np.asarray(self.below.T @ (self.x[:, None] * self.below))

    def flows(self, drawn: FloatArray) -> FloatArray:
        """(…, line) power away from the root, from that drawn at the nodes, (…, node) [p.u.]."""
        return np.asarray(drawn @ self.below.T)

    def squared_voltages(self, p: FloatArray, q: FloatArray, root: float = 1.0) -> FloatArray:
        """(…, node) u = root − 2·(R·p + X·q) of power drawn, (…, node) [p.u.]; `root` is u of the source."""
        return np.asarray(root - 2.0 * (p @ self.resistance + q @ self.reactance))
