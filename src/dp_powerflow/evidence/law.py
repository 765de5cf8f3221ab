"""The law of the loads as the certificate sees it: node by node, over the steps of a day.

Active load of node k ∈ class ℓ: p_k = scale_k·exp(ξ_k), ξ_k ~ N(μ⁽ˡ⁾, Σ⁽ˡ⁾), independent over nodes.
Reactive load: fixed power factor, q_k = tanθ_k·p_k (the paper), or with randomness of its own,
q_k = tanθ_k·p_k + q_sigma_k·ζ_k, ζ_k ~ N(0, Σ_ζ) (full support, paper correction 4).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.stats import norm

from dp_powerflow.errors import PrivacyError
from dp_powerflow.units import ComplexArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class NodeLaw:
    """Law of the loads of n nodes over T steps; public, because the load model is released.

    Attributes
    ----------
    class_of : (node,) index of the node's class.
    mean : (class, step) of log(p/scale).
    covariance : (class, step, step) of log(p/scale).
    scale : (node,) [p.u.]
    tan_theta : (node,) tangent of the power-factor angle.
    p_min, p_max : (class,) box of p/scale that draws are truncated to, None for untruncated draws.
    log_accept : (class,) log of the probability that one node's untruncated day stays in the box.
    q_sigma : (node,) [p.u.] size of the random part of q, None for a fixed power factor.
    q_covariance : (step, step) of ζ, None for a fixed power factor.
    """

    class_of: IntArray
    mean: FloatArray
    covariance: FloatArray
    scale: FloatArray
    tan_theta: FloatArray
    p_min: FloatArray | None = None
    p_max: FloatArray | None = None
    log_accept: FloatArray | None = None
    q_sigma: FloatArray | None = None
    q_covariance: FloatArray | None = None

    def __post_init__(self) -> None:
        n, steps = len(self.class_of), self.mean.shape[1]
        if self.covariance.shape != (len(self.mean), steps, steps):
            raise PrivacyError("the covariance of a load law must be (class, step, step) beside its mean")
        if self.scale.shape != (n,) or self.tan_theta.shape != (n,) or np.any(self.scale <= 0.0):
            raise PrivacyError("a load law needs one positive scale and one power factor per node")
        if (self.p_min is None) != (self.p_max is None) or (self.p_min is None) != (self.log_accept is None):
            raise PrivacyError("a truncated load law states p_min, p_max and the acceptance probability")
        if (self.q_sigma is None) != (self.q_covariance is None):
            raise PrivacyError("random reactive load needs both its size per node and its covariance")

    @property
    def n(self) -> int:
        """Number of nodes."""
        return len(self.class_of)

    @property
    def steps(self) -> int:
        """T."""
        return int(self.mean.shape[1])

    @cached_property
    def std(self) -> FloatArray:
        """(class, step) standard deviation of log(p/scale)."""
        return np.sqrt(np.diagonal(self.covariance, axis1=1, axis2=2))

    def at_step(self, t: int) -> NodeLaw:
        """The law of one step by itself (T = 1).

        Of a law truncated over the day this is the step's Gaussian truncated by itself, which is what the
        paper's formula speaks of but not what a day's draw has at that step.
        """
        return replace(
            self,
            mean=self.mean[:, [t]],
            covariance=self.covariance[:, [t], :][:, :, [t]],
            q_covariance=None if self.q_covariance is None else self.q_covariance[[t], :][:, [t]],
            log_accept=None if self.log_accept is None else self._log_accept_of_step(t),
        )

    def with_floor(self, floor: float) -> NodeLaw:
        """Σ + floor·I, the log mean lowered by floor/2 so that the mean load stays (paper correction 14).

        A truncated law loses its acceptance probability with this and is returned untruncated.
        """
        if floor < 0.0:
            raise PrivacyError("a covariance floor cannot be negative")
        return replace(
            self,
            mean=self.mean - floor / 2.0,
            covariance=self.covariance + floor * np.eye(self.steps),
            p_min=None,
            p_max=None,
            log_accept=None,
        )

    def lowest_load(self, delta: float) -> FloatArray:
        """(node,) [p.u.] below which any load of the day falls with probability at most δ (union bound)."""
        quantile = norm.isf(delta / (self.n * self.steps))
        lowest = np.exp((self.mean - quantile * self.std).min(axis=1))
        return np.asarray(self.scale * lowest[self.class_of])

    def highest_load(self, delta: float) -> FloatArray:
        """(node,) [p.u.] above which any load of the day rises with probability at most δ (union bound)."""
        quantile = norm.isf(delta / (self.n * self.steps))
        highest = np.exp((self.mean + quantile * self.std).max(axis=1))
        return np.asarray(self.scale * highest[self.class_of])

    def draw(self, days: int, generator: np.random.Generator) -> ComplexArray:
        """Complex (day, step, node) untruncated loads drawn [p.u.], for calibration."""
        xi = np.empty((days, self.steps, self.n))
        for ell, (mean, covariance) in enumerate(zip(self.mean, self.covariance, strict=True)):
            nodes = np.flatnonzero(self.class_of == ell)
            root = _square_root(covariance)
            z = generator.standard_normal((days, len(nodes), self.steps))
            xi[:, :, nodes] = np.swapaxes(mean + z @ root.T, 1, 2)
        p = self.scale * np.exp(xi)
        q = p * self.tan_theta
        if self.q_sigma is not None and self.q_covariance is not None:
            root = _square_root(self.q_covariance)
            zeta = generator.standard_normal((days, self.n, self.steps)) @ root.T
            q = q + self.q_sigma * np.swapaxes(zeta, 1, 2)
        return np.asarray(p + 1j * q)

    def _log_accept_of_step(self, t: int) -> FloatArray:
        assert self.p_min is not None
        assert self.p_max is not None
        low = (np.log(self.p_min) - self.mean[:, t]) / self.std[:, t]
        high = (np.log(self.p_max) - self.mean[:, t]) / self.std[:, t]
        return np.asarray(np.log(norm.cdf(high) - norm.cdf(low)))


def _square_root(covariance: FloatArray) -> FloatArray:
    """A with A·Aᵀ = Σ for any positive semidefinite Σ."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.clip(values, 0.0, None)))
