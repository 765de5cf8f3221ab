"""The floor: what no mechanism can do better, for one element of a public feeder.

Take a chain of networks that differ in one element, each 5 % larger than the one before. Neighbours of the
chain are neighbours of the guarantee, so whatever a mechanism publishes on them is (ε, δ)-close. What it
publishes has a distance to the voltages of each network. If networks i and k are at least D·|i − k| apart
(`Chain`), there is one point of the line whose distance to i, times D, is at most that distance for every i
(the intervals meet pairwise, hence in a point: Helly), and a point between two numbers can be split onto them
at no cost. So the least worst-case expected error is D times the value of a linear program over the
distributions on the numbers of the chain.

The floor holds for the worst network of the chain, not for each, and says nothing beyond the chain's range.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy.sparse as sp

from dp_powerflow.errors import DpPowerflowError
from dp_powerflow.units import FloatArray

STEPS = 8
CHANGE = 0.05


@dataclass(frozen=True)
class Chain:
    """Networks that differ in one element by steps of 5 %.

    Attributes
    ----------
    element : which one.
    smallest, largest : factors on the element's figures at the ends of the chain.
    pooled, node : D, least step of W1 between voltage magnitudes [p.u.], of all nodes together and of the
        node that moves most.
    """

    element: str
    smallest: float
    largest: float
    pooled: float
    node: float

    def floor(self, epsilon: float, delta: float) -> Floor:
        """What no (ε, δ) mechanism can do better on all networks of the chain."""
        least = least_error(STEPS, epsilon, delta)
        return Floor(self, epsilon, delta, least * self.pooled, least * self.node)


@dataclass(frozen=True)
class Floor:
    """Expected W1 that every (ε, δ) mechanism reaches or passes on some network of the chain [p.u.].

    Attributes
    ----------
    pooled : of all nodes together.
    worst_node : of the worst node.
    """

    chain: Chain
    epsilon: float
    delta: float
    pooled: float
    worst_node: float

    @property
    def words(self) -> str:
        """Element and range, without which the figures mean nothing."""
        chain = self.chain
        return f"{chain.element} between {chain.smallest:.3g} and {chain.largest:.3g} times its size"


def chain_of(element: str, magnitudes: Callable[[float], FloatArray], *, down: bool = False) -> Chain:
    """The chain of one element.

    Parameters
    ----------
    magnitudes : factor on the element → voltage magnitudes (snapshot, node) [p.u.].
    down : steps towards smaller figures, where larger ones have no power flow.
    """
    factors = (1.0 + CHANGE) ** ((-1.0 if down else 1.0) * np.arange(STEPS + 1))
    ordered = [np.sort(magnitudes(float(factor)), axis=0) for factor in factors]
    pooled = [np.sort(values, axis=None) for values in ordered]
    away = np.mean(np.abs(ordered[-1] - ordered[0]), axis=0)
    node = int(np.argmax(away))
    return Chain(
        element=element,
        smallest=float(factors.min()),
        largest=float(factors.max()),
        pooled=_least_step(pooled),
        node=_least_step([values[:, node] for values in ordered]),
    )


def _least_step(ordered: list[FloatArray]) -> float:
    """Least step of the distance to the first, which bounds every distance from below; 0 if it ever falls."""
    from_first = np.array([np.mean(np.abs(values - ordered[0])) for values in ordered])
    return max(0.0, float(np.diff(from_first).min()))


@lru_cache(maxsize=64)
def least_error(steps: int, epsilon: float, delta: float) -> float:
    """Least worst-case expected |output − truth| over all (ε, δ) mechanisms on the numbers 0 … steps.

    Variables: P(output j | truth i), the excess of each pair of neighbours, and the error.
    """
    n = steps + 1
    truth = np.repeat(np.arange(n), n)
    pairs = [(i, k) for i in range(n) for k in (i - 1, i + 1) if 0 <= k < n]
    excess = n * n + np.arange(len(pairs) * n)
    size = n * n + len(pairs) * n + 1
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    bounds: list[float] = []

    def at_most(entries: list[tuple[int, float]], bound: float) -> None:
        for column, value in entries:
            rows.append(len(bounds))
            columns.append(column)
            values.append(value)
        bounds.append(bound)

    for i in range(n):
        at_most([*((i * n + j, float(abs(i - j))) for j in range(n)), (size - 1, -1.0)], 0.0)
    for number, (i, k) in enumerate(pairs):
        own = excess[number * n : (number + 1) * n]
        for j in range(n):
            at_most([(i * n + j, 1.0), (k * n + j, -np.exp(epsilon)), (int(own[j]), -1.0)], 0.0)
        at_most([(int(column), 1.0) for column in own], delta)
    sums = sp.csr_array((np.ones(n * n), (truth, np.arange(n * n))), shape=(n, size))
    goal = np.zeros(size)
    goal[-1] = 1.0
    from scipy.optimize import linprog  # slow to import; a release asks for no floor

    found = linprog(
        goal,
        A_ub=sp.csr_array((values, (rows, columns)), shape=(len(bounds), size)),
        b_ub=bounds,
        A_eq=sums,
        b_eq=np.ones(n),
        bounds=(0.0, None),
        method="highs",
    )
    if not found.success:
        raise DpPowerflowError("the linear program of the floor was not solved; report it")
    return float(found.fun)
