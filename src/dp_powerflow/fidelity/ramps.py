"""INTERNAL. How fast loads change from one step to the next, of customers and of feeders."""

from __future__ import annotations

import numpy as np

from dp_powerflow.fidelity.metrics import wasserstein_1
from dp_powerflow.units import FloatArray

HIGH = 0.99


def changes(load: FloatArray) -> FloatArray:
    """(customer, change) from step to step, midnights too, over the mean load of the customer [1].

    Parameters
    ----------
    load
        (customer, day, step) [kW].
    """
    series = load.reshape(len(load), -1)
    relative: FloatArray = np.diff(series, axis=1) / series.mean(axis=1, keepdims=True)
    return relative


def changes_w1_percent(drawn: FloatArray, real: FloatArray) -> float:
    """INTERNAL. W1 of the relative step changes of all customers together [% of the mean load]."""
    return 100 * wasserstein_1(changes(drawn).ravel(), changes(real).ravel())


def high_ramp(load: FloatArray) -> float:
    """INTERNAL. 99th percentile of the size of relative step changes [1]."""
    return float(np.quantile(np.abs(changes(load)), HIGH))
