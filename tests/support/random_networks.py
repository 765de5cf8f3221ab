"""Small random networks and load laws for the certificate's tests."""

from __future__ import annotations

import numpy as np

from dp_powerflow.evidence.theorem import OperatingSet
from dp_powerflow.grid.reduction import Network
from dp_powerflow.model.law import LoadLaw
from dp_powerflow.powerflow.jacobian.matrices import diagonal_terms, real_form
from dp_powerflow_paper.losses import Admittance, injection
from support.laws import gaussian_classes


def random_network(n: int, rng: np.random.Generator) -> Admittance:
    """A connected network of n nodes fed by one slack at 1 p.u."""
    y = np.zeros((n + 1, n + 1), dtype=complex)
    for i in range(n):
        j = n if i == 0 else int(rng.integers(0, i))
        series = 1.0 / complex(rng.uniform(0.01, 0.05), rng.uniform(0.02, 0.08))
        y[i, i] += series
        y[j, j] += series
        y[i, j] -= series
        y[j, i] -= series
    return Admittance(y[:n, :n], y[:n, n])


def solve(network: Admittance | Network, load: np.ndarray) -> np.ndarray:
    """Voltages by the fixed point: (..., node)."""
    z = np.linalg.inv(network.y)
    idle = -z @ network.b
    v = np.broadcast_to(idle, load.shape)
    for _ in range(300):
        v = idle + np.conj(-load / v) @ z.T
    return v


def small_law(n: int, steps: int, rng: np.random.Generator, *, random_q: bool) -> LoadLaw:
    """Two classes, correlated steps."""
    lag = np.abs(np.subtract.outer(np.arange(steps), np.arange(steps)))
    scale = rng.uniform(0.02, 0.06, n)
    return LoadLaw(
        classes=gaussian_classes(
            [np.full(steps, -0.1), np.linspace(-0.2, 0.1, steps)],
            [0.04 * 0.6**lag, 0.09 * 0.3**lag + 0.01 * np.eye(steps)],
            0.7**lag if random_q else None,
        ),
        class_of=np.arange(n) % 2,
        scale_kw=scale,
        tan_theta=rng.uniform(0.1, 0.6, n),
        q_size=rng.uniform(0.003, 0.01, n) / scale if random_q else None,
    )


def changed(network: Admittance, size: float, rng: np.random.Generator) -> Admittance:
    """The network with random changes of all entries, of this Frobenius norm."""
    n = len(network.y)
    change = rng.normal(size=(n, n + 1)) + 1j * rng.normal(size=(n, n + 1))
    change *= size / np.linalg.norm(change)
    return Admittance(network.y + change[:, :n], network.b + change[:, n])


def inverse_norms(y: np.ndarray, b: np.ndarray, v: np.ndarray) -> np.ndarray:
    """‖M̃⁻¹‖ at voltages (..., node), by dense matrices."""
    matrices = real_form(y, *diagonal_terms(v, injection(y, b, v)))
    return 1.0 / np.linalg.svd(matrices, compute_uv=False)[..., -1]


def measured_set(network: Admittance, v: np.ndarray) -> OperatingSet:
    """What holds at these voltages."""
    size, s = np.abs(v), np.abs(injection(network.y, network.b, v))
    mu = inverse_norms(network.y, network.b, v)
    return OperatingSet(float(size.min()), float(size.max()), float(s.max()), float(mu.max()), 0.0, "draws")
