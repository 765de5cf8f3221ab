"""Counterpart of the kernel of `privacy.budget`."""

from __future__ import annotations

import numpy as np

from dp_powerflow._bits._numpy.vectors import exp, log


def _epsilon_at(rho: float, delta: float, log_order_minus_1: float) -> float:
    excess = exp(np.float64(log_order_minus_1))
    order = 1 + excess
    return float(rho * order + log(excess / order) - log(delta * order) / excess)
