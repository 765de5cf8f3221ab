"""Lower bounds on ε from an attack's scores."""

from __future__ import annotations

import numpy as np
from scipy import stats

CONFIDENCE = 0.999


def epsilon_lower_bound(first: np.ndarray, second: np.ndarray, delta: float) -> float:
    """Valid lower bound on ε at δ from samples of an attack's score under two neighbours."""
    half = len(first) // 2

    def bound(a: np.ndarray, b: np.ndarray, threshold: float) -> float:
        hits, false = int((a > threshold).sum()), int((b > threshold).sum())
        low = stats.beta.ppf(1 - CONFIDENCE, hits, len(a) - hits + 1) if hits else 0.0
        high = stats.beta.ppf(CONFIDENCE, false + 1, len(b) - false) if false < len(b) else 1.0
        return float(np.log((low - delta) / high)) if low > delta else 0.0

    candidates = np.quantile(np.concatenate([first[:half], second[:half]]), np.linspace(0.5, 0.999, 200))
    best = max(candidates, key=lambda threshold: bound(first[:half], second[:half], threshold))
    return bound(first[half:], second[half:], best)
