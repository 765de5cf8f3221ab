"""Records made to break a sensitivity claim, and a session that keeps every record's integers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dp_powerflow.privacy.budget import PrivacyUnit
from dp_powerflow.privacy.queries import Query, QuerySession, quantise
from dp_powerflow.privacy.random import StreamKey


class WatchedSession(QuerySession):
    """Answers as usual and remembers the integer contributions of all records to every query."""

    def __init__(self, rho: float = 1.0, seed: int = 0) -> None:
        super().__init__(StreamKey.from_insecure_seed(seed), PrivacyUnit.LOAD_POINT, None, rho)
        self.integers: dict[str, np.ndarray] = {}

    def ask(self, query: Query, blocks: Sequence[Iterable[np.ndarray]]) -> list[np.ndarray]:
        chunks = [list(block) for block in blocks]
        parts = [quantise(chunk, query) for block in chunks for chunk in block]
        self.integers[query.name] = np.concatenate(parts)
        return super().ask(query, chunks)

    def worst_ratio(self) -> dict[str, float]:
        """Largest change of each query's sum over all replacements, over the claimed sensitivity.

        Also over replacements that move a record from one class's block to another's.
        """
        claims = {cost.query: cost.sensitivity_squared for cost in self.costs}
        ratios = {}
        for name, grid in self.integers.items():
            exact = grid.astype(object)
            norms = (exact * exact).sum(axis=1)
            squared = norms[:, None] + norms[None, :] - 2 * (exact @ exact.T)
            moved = norms[:, None] + norms[None, :]
            worst = max(max(row) for row in np.maximum(squared, moved).tolist())
            ratios[name] = float(worst / claims[name]) ** 0.5
        return ratios


def extreme_days(n_steps: int, n_days: int, low: float, high: float) -> np.ndarray:
    """Hand-made records (record, day, step) of log load, within the declared bounds and far outside."""
    t = np.arange(n_steps)
    spike = np.where(t == n_steps // 3, high, low)
    shapes = [
        np.full(n_steps, low),
        np.full(n_steps, high),
        np.full(n_steps, (low + high) / 2),
        np.where(t % 2 == 0, low, high),
        np.where(t % 2 == 0, high, low),
        np.where(t < n_steps // 2, low, high),
        np.where(t < n_steps // 2, high, low),
        spike,
        low + high - spike,
        1e6 * np.cos(np.pi * t / n_steps),
        -1e6 * np.cos(np.pi * t / n_steps),
        np.full(n_steps, 1e12),
        np.full(n_steps, -1e12),
        np.full(n_steps, np.nan),
        np.full(n_steps, np.inf),
    ]
    for k in (1, 2, 5):
        wave = np.cos(np.pi * k * (t + 0.5) / n_steps)
        shapes += [(low + high) / 2 + (high - low) / 2 * wave, (low + high) / 2 - (high - low) / 2 * wave]
    same = np.repeat(np.array(shapes)[:, None, :], n_days, axis=1)
    turned = same.copy()
    turned[:, ::2] = turned[::-1, ::2]  # days of one record that contradict each other
    return np.concatenate([same, turned])
