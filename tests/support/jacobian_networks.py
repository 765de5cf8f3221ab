"""Small random networks for the tests of the Jacobian: trees with loops, with and without injections."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.units import ComplexArray
from support.small_feeders import feeder_of


@dataclass(frozen=True, eq=False)
class RandomNetwork:
    """A feeder, and its dense reduced Y and b."""

    feeder: Feeder
    y: ComplexArray
    b: ComplexArray

    @property
    def n(self) -> int:
        return len(self.b)

    def operating_point(
        self, rng: np.random.Generator, snapshots: int, loading: float
    ) -> tuple[ComplexArray, ComplexArray]:
        """Solved snapshots (v, s) by the fixed point to rounding.

        `loading` below 1 is max_k Σ_j |z_kj·s_j| in units of the 1/4 up to which a solution must exist.
        """
        z = np.linalg.inv(self.y)
        w = -z @ self.b
        share = rng.lognormal(0.0, 0.5, (snapshots, self.n))
        s = -share * (1.0 + 1j * rng.uniform(-0.2, 0.6, (snapshots, self.n)))
        drop = np.max(np.abs(s) @ np.abs(z).T, axis=1, keepdims=True)
        s *= 0.25 * loading * np.min(np.abs(w)) ** 2 / drop
        v = np.tile(w, (snapshots, 1))
        for _ in range(300):
            v = w + np.conj(s / v) @ z.T
        assert np.max(np.abs(v * np.conj(v @ self.y.T + self.b) - s)) < 1e-9
        return v, s


def random_network(seed: int, nodes: int, *, loops: int = 0, retained_share: float = 0.5) -> RandomNetwork:
    """A tree of `nodes` nodes behind one slack, plus `loops` more branches; impedances of about 0.01 p.u."""
    rng = np.random.default_rng(seed)
    ends = [(int(rng.integers(max(0, node - 4), node)), node) for node in range(1, nodes + 1)]
    for _ in range(loops if nodes > 1 else 0):
        first, second = rng.choice(np.arange(1, nodes + 1), 2, replace=False)
        ends.append((int(first), int(second)))
    # Node 0 is the slack, which `feeder_of` has at the end.
    branches = [
        ((i - 1) % (nodes + 1), j - 1, complex(rng.uniform(0.005, 0.02), rng.uniform(0.005, 0.03)))
        for i, j in ends
    ]
    shunts = [(node, 1j * rng.uniform(0.0, 0.02)) for node in range(nodes + 1)]
    count = max(1, round(retained_share * nodes))
    retained = np.sort(rng.choice(nodes, count, replace=False)).astype(np.int64)
    feeder = feeder_of(nodes + 1, branches, [(int(k), 0.1 + 0.0j) for k in retained], shunts=shunts)
    others = np.setdiff1d(np.arange(nodes), retained)
    dense = feeder.y.toarray()
    kept = dense[retained]
    if len(others):
        inner = np.linalg.solve(dense[np.ix_(others, others)], dense[others])
        kept = kept - dense[np.ix_(retained, others)] @ inner
    return RandomNetwork(feeder, kept[:, retained], kept[:, -1])
