"""Small random networks for the tests of the Jacobian: trees with loops, with and without injections."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from dp_powerflow.units import ComplexArray, IntArray


@dataclass(frozen=True, eq=False)
class RandomNetwork:
    """Energised network `full` (node, node), its retained nodes, and the dense reduced Y and b."""

    full: sp.csc_array
    retained: IntArray
    y: ComplexArray
    b: ComplexArray

    @property
    def n(self) -> int:
        return len(self.retained)

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
    rows, columns, values = [], [], []

    def branch(i: int, j: int) -> None:
        y = 1.0 / (rng.uniform(0.005, 0.02) + 1j * rng.uniform(0.005, 0.03))
        for row, column, sign in ((i, i, 1), (j, j, 1), (i, j, -1), (j, i, -1)):
            rows.append(row)
            columns.append(column)
            values.append(sign * y)

    for node in range(1, nodes + 1):
        branch(int(rng.integers(max(0, node - 4), node)), node)
    for _ in range(loops):
        first, second = rng.choice(np.arange(1, nodes + 1), 2, replace=False) if nodes > 1 else (0, 1)
        branch(int(first), int(second))
    whole = sp.csc_array((values, (rows, columns)), shape=(nodes + 1, nodes + 1)).toarray()
    shunts = 1j * rng.uniform(0.0, 0.02, nodes + 1)
    whole += np.diag(shunts)
    full = sp.csc_array(whole[1:, 1:])
    count = max(1, round(retained_share * nodes))
    retained = np.sort(rng.choice(nodes, count, replace=False)).astype(np.int64)
    others = np.setdiff1d(np.arange(nodes), retained)
    dense = whole[1:, :]
    inner = np.linalg.solve(dense[np.ix_(others, others + 1)], dense[others, :]) if len(others) else None
    kept = dense[retained, :]
    if inner is not None:
        kept = kept - dense[np.ix_(retained, others + 1)] @ inner
    return RandomNetwork(full, retained, kept[:, retained + 1], kept[:, 0])
