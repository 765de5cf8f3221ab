"""The law of the loads at the nodes, and of a class: samplers draw from it, the evidence is about it.

Active load of node k in class ℓ: p_k = scale_k·exp(ξ_k), ξ_k a mixture of Gaussians N(μ⁽ˡ⁾, Σ⁽ˡ⁾) over the
steps of a day, independent over nodes and days.  # Eq. loadclasses
Reactive load: q_k = tanθ_k·p_k at a fixed power factor (the paper, Eq. powerfactor), or with randomness of
its own, q_k = tanθ_k·p_k + scale_k·c_k·ζ_k, ζ_k ~ N(0, Σ_ζ) (full support, paper correction 4).

**Truncation.** Exact draws from a Gaussian truncated to a box, and the probability of the box: plain
rejection while the box is likely; else minimax tilting (Botev 2017, J. R. Statist. Soc. B 79, 125–148).
Coordinates are drawn one after the other from exponentially tilted truncated normals, and a draw is accepted
with probability exp(ψ(z) − ψ*), where ψ* ≥ ψ(z) for all z at the optimal tilt. Accepted draws follow the
truncated Gaussian exactly. The average of exp ψ(z) is an unbiased estimate of the box's probability with a
small relative error even when the probability is tiny.

A law is public: the load model is released. Nothing here sees meter data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np

from dp_powerflow._bits.elementary import exp, exp1, kernel, log1, log1p1
from dp_powerflow._bits.linear import (
    LOG_SQRT_2PI,
    cholesky,
    log_ndtr1,
    ndtr1,
    ndtri1,
    ndtri_exp1,
    norms,
    product,
    solve_lower,
    solve_upper,
    standard_exponential,
    standard_normal,
)
from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import ComplexArray, FloatArray, IntArray, kw_to_pu

REJECTION_ABOVE = 0.05  # box probability from which plain rejection is cheaper
_BATCH = 4096
_DEEP_TAIL = -5.0
_SOLVED = 1e-6  # gradient at a saddle point that is good enough
_CONVERGED = 1e-12  # gradient at which Newton's method stops
_NEWTON_STEPS = 200
_LEAST_STEP = 1e-10
_LEAST_BEND = -1 + 1e-10
_MIN_PIVOT = 1e-14
_TOO_NARROW = "the load margins exclude almost every day of this model; widen p_min and p_max"


@dataclass(frozen=True)
class BoxProbability:
    """Probability that an untruncated draw lies in the box, with the standard error of the estimate."""

    value: float
    standard_error: float

    @property
    def rejection(self) -> bool:
        """True if draws are by plain rejection, False if by minimax tilting; both are exact."""
        return self.value >= REJECTION_ABOVE

    @property
    def least(self) -> float:
        """What the certificate charges for."""
        return self.value - _STANDARD_ERRORS * self.standard_error


class _Box(NamedTuple):
    """Rows of the Cholesky factor over its diagonal, without the diagonal (T, T), and the scaled box (T,)."""

    coupling: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True, eq=False)
class TruncatedGaussian:
    """A Gaussian restricted to a box, prepared for exact sampling by `truncate`.

    Parameters
    ----------
    mean, factor
        Mean (T,) and lower Cholesky factor (T, T) of the Gaussian.
    low, high
        The box (T,) [log kW].
    order
        (T,) of the coordinates in the tilted sequential proposal.
    unit_factor, scale
        Reordered Cholesky factor with its columns divided by its diagonal, and the diagonal (T,).
    box
        The reordered, rescaled problem.
    shift, peak
        The minimax tilt μ* (T,), and ψ* there.
    """

    mean: FloatArray
    factor: FloatArray
    low: FloatArray
    high: FloatArray
    order: IntArray
    unit_factor: FloatArray
    scale: FloatArray
    box: _Box
    shift: FloatArray
    peak: float

    def probability(self, generator: np.random.Generator, draws: int = 10_000) -> BoxProbability:
        """Probability of the box by importance sampling under the tilt."""
        log_weight = self._propose(generator, draws)[1]
        scale = float(log_weight.max())
        weight = exp(log_weight - scale)
        value = exp1(scale) * float(weight.mean())
        error = exp1(scale) * float(weight.std(ddof=1)) / math.sqrt(draws)
        return BoxProbability(min(value, 1.0), error)

    def draw(self, generator: np.random.Generator, size: int, *, rejection: bool) -> FloatArray:
        """Exact draws (size, T); `rejection` chooses the method, not the law."""
        parts: list[FloatArray] = []
        missing, rate = size, 1.0
        while missing > 0:
            batch = int(min(_BATCH, math.ceil(missing / rate) + 16))
            accepted = self._reject(generator, batch) if rejection else self._tilted(generator, batch)
            rate = min(1.0, max(0.05, 0.5 * rate + 0.5 * len(accepted) / batch))
            parts.append(accepted[:missing])
            missing -= len(parts[-1])
        return np.concatenate(parts) if parts else np.empty((0, self.mean.size))

    def _reject(self, generator: np.random.Generator, batch: int) -> FloatArray:
        draws = self.mean + product(standard_normal(generator, (batch, self.mean.size)), self.factor.T)
        inside: FloatArray = draws[((draws >= self.low) & (draws <= self.high)).all(axis=1)]
        return inside

    def _tilted(self, generator: np.random.Generator, batch: int) -> FloatArray:
        z, log_weight = self._propose(generator, batch)
        keep = -standard_exponential(generator, batch) < log_weight - self.peak
        offset = product(z[:, keep].T * self.scale, self.unit_factor.T)
        draws = np.empty_like(offset)
        draws[:, self.order] = offset
        # Floating point may step over an edge by an ulp; the law has no mass there.
        return np.clip(self.mean + draws, self.low, self.high)

    def _propose(self, generator: np.random.Generator, batch: int) -> tuple[FloatArray, FloatArray]:
        """Proposals z (T, batch) and their log weights ψ(z) (batch,)."""
        z, log_weight = np.empty((self.box.low.size, batch)), np.zeros(batch)
        _propose(self.box, self.shift, generator.random(z.shape), z, log_weight)
        return z, log_weight


def truncate(
    mean: FloatArray, covariance: FloatArray, low: FloatArray, high: FloatArray
) -> TruncatedGaussian:
    """Prepare a Gaussian (mean (T,), covariance (T, T)) truncated to the box [low, high] (T,).

    The least likely intervals come first (Gibson, Glasbey, Elston 1994).
    """
    order, ordered = np.arange(low.size), np.zeros(covariance.shape)
    _order_and_factor(np.array(covariance), low - mean, high - mean, order, ordered)
    scale = np.diag(ordered).copy()
    coupling = ordered / scale[:, None]
    np.fill_diagonal(coupling, 0.0)
    box = _Box(coupling, (low - mean)[order] / scale, (high - mean)[order] / scale)
    shift, peak = _minimax(box)
    factor = cholesky(covariance)
    return TruncatedGaussian(mean, factor, low, high, order, ordered / scale, scale, box, shift, peak)


@kernel
def _order_and_factor(
    matrix: FloatArray, low: FloatArray, high: FloatArray, order: IntArray, factor: FloatArray
) -> None:
    """Fill `order` and `factor`; the other arrays are work space."""
    size = low.size
    variance = np.diag(matrix).copy()
    drift = np.zeros(size)
    for k in range(size):
        pick, least = k, np.inf
        for i in range(k, size):
            std = np.sqrt(max(variance[i], _MIN_PIVOT))
            chance = log_interval1((low[i] - drift[i]) / std, (high[i] - drift[i]) / std)
            if chance < least:
                pick, least = i, chance
        for array in (low, high, variance, drift):
            array[k], array[pick] = array[pick], array[k]
        order[k], order[pick] = order[pick], order[k]
        for j in range(size):
            matrix[k, j], matrix[pick, j] = matrix[pick, j], matrix[k, j]
        for j in range(size):
            matrix[j, k], matrix[j, pick] = matrix[j, pick], matrix[j, k]
        for j in range(k):
            factor[k, j], factor[pick, j] = factor[pick, j], factor[k, j]
        pivot = np.sqrt(max(variance[k], _MIN_PIVOT))
        factor[k, k] = pivot
        expected = slope1((low[k] - drift[k]) / pivot, (high[k] - drift[k]) / pivot)
        for i in range(k + 1, size):
            rest = matrix[i, k]
            for j in range(k):
                rest -= factor[i, j] * factor[k, j]
            factor[i, k] = rest / pivot
            variance[i] -= factor[i, k] * factor[i, k]
            drift[i] += factor[i, k] * expected


def _minimax(box: _Box) -> tuple[FloatArray, float]:
    """Saddle point of ψ(x, μ) = Σ μ²/2 − xμ + log P(low ≤ z ≤ high): the tilt μ* (T,) and ψ*.

    Newton's method with steps cut until the gradient falls. ψ is concave in x and convex in μ, so the Schur
    complement in x has a Cholesky factor.
    """
    size = box.low.size
    free = size - 1  # the last coordinate needs no tilt
    x, mu = np.zeros(size), np.zeros(size)
    by_x = np.ascontiguousarray(box.coupling[:, :free])
    residual, bend = _gradient(box, x, mu)
    for _ in range(_NEWTON_STEPS if free else 0):
        size_of = float(np.abs(residual).max())
        if not np.isfinite(size_of):
            raise PrivacyError(_TOO_NARROW)
        if size_of <= _CONVERGED:
            break
        cross = (by_x.T * bend)[:, :free] - np.eye(free)
        curve = 1 + np.maximum(bend[:free], _LEAST_BEND)
        schur = product(cross / curve, cross.T) - product(by_x.T, bend[:, None] * by_x)
        try:
            factor = cholesky(schur)
        except np.linalg.LinAlgError as error:
            raise PrivacyError(_TOO_NARROW) from error
        right = residual[:free] - product(cross, residual[free:] / curve)
        dx = solve_upper(factor, solve_lower(factor, right))
        dmu = -(residual[free:] + product(cross.T, dx)) / curve
        step = 1.0
        while step > _LEAST_STEP:
            tried = x.copy(), mu.copy()
            tried[0][:free] += step * dx
            tried[1][:free] += step * dmu
            found = _gradient(box, *tried)
            if float(norms(found[0])) < (1 - 1e-4 * step) * float(norms(residual)):
                break
            step /= 2
        else:
            break
        (x, mu), (residual, bend) = tried, found
    if not float(np.abs(residual).max(initial=0.0)) <= _SOLVED:
        raise PrivacyError(_TOO_NARROW)
    drift = mu + product(box.coupling, x)
    peak = float(np.sum(0.5 * mu**2 - x * mu + _log_intervals(box.low - drift, box.high - drift)))
    return mu, peak


def _gradient(box: _Box, x: FloatArray, mu: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Derivatives of ψ by x and by μ (2T − 2,), and of the slopes by the drift (T,)."""
    free = x.size - 1
    drift = mu + product(box.coupling, x)
    slope, bend = np.empty(x.size), np.empty(x.size)
    _slopes_and_bends(box.low - drift, box.high - drift, slope, bend)
    by_x = product(box.coupling.T, slope) - mu
    return np.concatenate([by_x[:free], (mu - x + slope)[:free]]), bend


@kernel
def log_interval1(low: float, high: float) -> float:
    """log(Φ(high) − Φ(low)), accurate in both tails."""
    a, b = (-high, -low) if low > 0 else (low, high)
    log_a, log_b = log_ndtr1(a), log_ndtr1(b)
    return log_b + log1p1(-exp1(min(log_a - log_b, -1e-300)))


@kernel
def _density(at: float, log_interval: float) -> float:
    return exp1(-0.5 * at * at - LOG_SQRT_2PI - log_interval)


@kernel
def slope1(low: float, high: float) -> float:
    """(φ(low) − φ(high)) / P: mean of the truncated standard normal, and derivative of log P by the drift."""
    log_p = log_interval1(low, high)
    return _density(low, log_p) - _density(high, log_p)


@kernel
def _slopes_and_bends(low: FloatArray, high: FloatArray, slope: FloatArray, bend: FloatArray) -> None:
    """Slope of log P, and its derivative by the drift, elementwise."""
    for i in range(low.size):
        log_p = log_interval1(low[i], high[i])
        first, second = _density(low[i], log_p), _density(high[i], log_p)
        slope[i] = first - second
        bend[i] = low[i] * first - high[i] * second - slope[i] * slope[i]


@kernel
def _log_intervals(low: FloatArray, high: FloatArray) -> FloatArray:
    out = np.empty(low.size)
    for i in range(low.size):
        out[i] = log_interval1(low[i], high[i])
    return out


@kernel
def _truncated_normal1(uniform: float, low: float, high: float) -> float:
    """Standard normal on [low, high] by inversion; in logs if the interval is deep in a tail."""
    flip = low > 0
    a, b = (-high, -low) if flip else (low, high)
    if b < _DEEP_TAIL:
        log_a, log_b = log_ndtr1(a), log_ndtr1(b)
        draw = ndtri_exp1(log_b + log1(uniform + (1 - uniform) * exp1(log_a - log_b)))
    else:
        below = ndtr1(a)
        draw = ndtri1(below + uniform * (ndtr1(b) - below))
    return min(max(-draw if flip else draw, low), high)


@kernel
def _propose(
    box: _Box, shift: FloatArray, uniform: FloatArray, z: FloatArray, log_weight: FloatArray
) -> None:
    """Proposals z (T, batch) from uniforms (T, batch); adds ψ(z) to `log_weight` (batch,)."""
    size, batch = z.shape
    drift = np.empty(batch)
    for k in range(size):
        drift[:] = 0.0
        for p in range(k):
            weight = box.coupling[k, p]
            for j in range(batch):
                drift[j] += weight * z[p, j]
        mu = shift[k]
        for j in range(batch):
            low, high = box.low[k] - (drift[j] + mu), box.high[k] - (drift[j] + mu)
            z[k, j] = mu + _truncated_normal1(uniform[k, j], low, high)
            log_weight[j] += log_interval1(low, high) + mu * (0.5 * mu - z[k, j])


PER_UNIT_BASE_MVA = 0.001
"""The power base on which 1 kW is 1 p.u.: for laws that are stated in per unit."""
_PUBLIC_KEY = StreamKey.from_insecure_seed(0)  # estimates about public laws hide nothing
_STANDARD_ERRORS = 4.0
"""By which an estimated acceptance is lowered before the certificate charges for it."""
_NO_MARGINS = "truncated loads need the margins [p_min, p_max] of every class; state them"


@dataclass(frozen=True, eq=False)
class GaussianComponent:
    """One Gaussian of log load.

    Parameters
    ----------
    weight
        Share within its class; the components of a class sum to 1.
    mean
        μ̃ (step,) [log kW, or log of kW per public scale].
    covariance
        Σ̃ (step, step), symmetric positive definite.
    """

    weight: float
    mean: FloatArray
    covariance: FloatArray

    @cached_property
    def factor(self) -> FloatArray:
        """Lower Cholesky factor (step, step) of the covariance."""
        return cholesky(self.covariance)

    @property
    def mean_load(self) -> FloatArray:
        """Expected load (step,) [kW, or per public scale]: exp(μ + diag Σ / 2)."""
        return exp(self.mean + np.diag(self.covariance) / 2)


@dataclass(frozen=True, eq=False)
class ClassLaw:
    """The loads of one class over a day, per public scale.

    Parameters
    ----------
    name
        Of the class; part of the name of its streams.
    components
        The mixture of log p.
    margins
        (p_min, p_max) that truncated days keep [kW, or per public scale]; None if there are none.
    q_covariance
        Σ_ζ (step, step) of the random part of q, None at a fixed power factor.
    """

    name: str
    components: tuple[GaussianComponent, ...]
    margins: tuple[float, float] | None = None
    q_covariance: FloatArray | None = None

    @classmethod
    def gaussian(
        cls,
        mean: FloatArray,
        covariance: FloatArray,
        *,
        margins: tuple[float, float] | None = None,
        q_covariance: FloatArray | None = None,
        name: str = "all",
    ) -> ClassLaw:
        """One Gaussian (step,), (step, step): what Theorem 1 is for."""
        return cls(name, (GaussianComponent(1.0, mean, covariance),), margins, q_covariance)

    @property
    def p_min_max(self) -> tuple[float, float]:
        """The margins, which must be there."""
        if self.margins is None:
            raise PrivacyError(_NO_MARGINS)
        return self.margins

    @cached_property
    def q_factor(self) -> FloatArray | None:
        """Lower Cholesky factor (step, step) of Σ_ζ."""
        return None if self.q_covariance is None else cholesky(self.q_covariance)

    @cached_property
    def truncations(self) -> tuple[TruncatedGaussian, ...]:
        """Every component within the margins, prepared for exact draws."""
        low, high = self.p_min_max
        return tuple(
            truncate(part.mean, part.covariance, *(np.full(part.mean.size, log1(at)) for at in (low, high)))
            for part in self.components
        )

    @cached_property
    def acceptance(self) -> tuple[BoxProbability, ...]:
        """Probability of the margins for every component: a function of the law alone, so public."""
        return tuple(
            prepared.probability(_PUBLIC_KEY.stream(f"acceptance/{self.name}/None/{index}").generator)
            for index, prepared in enumerate(self.truncations)
        )

    def changed(self, change: Callable[[GaussianComponent], GaussianComponent]) -> ClassLaw:
        """The same class with every component changed."""
        return replace(self, components=tuple(change(part) for part in self.components))


@dataclass(frozen=True, eq=False)
class LoadNodes:
    """Declared-public facts of the nodes that loads are drawn for.

    Parameters
    ----------
    classes
        Class of every node: public, or from `draw_node_classes`; never from that node's meter.
    scale_kw
        Public scale (node,) [kW] if the model is relative to one, else None.
    base_mva
        Power base of the feeder [MVA per node].
    positions
        (node,) positions among `feeder.retained`; None for all retained nodes in order.
    """

    classes: tuple[str, ...]
    scale_kw: FloatArray | None = None
    base_mva: float = PER_UNIT_BASE_MVA
    positions: IntArray | None = None


@dataclass(frozen=True, eq=False)
class LoadLaw:
    """Law of the loads of n nodes over the T steps of a day.

    Parameters
    ----------
    classes
        Laws of the classes that have a node.
    class_of
        (node,) index into `classes`.
    scale_kw
        (node,) public scale [kW].
    tan_theta
        (node,) tangent of the power-factor angle.
    q_size
        (node,) c, size of the random part of q per public scale; None at a fixed power factor.
    base_mva
        Power base [MVA per node]; the default takes `scale_kw` to be in per unit.
    positions
        (node,) positions of the nodes among `feeder.retained`; None for all retained nodes in order.
    truncated
        True: days lie within the margins of their class; each component is truncated on its own and keeps
        its weight. False: untruncated.
    identity
        Hash of the model the law comes from; the streams of its draws are bound to it.
    """

    classes: tuple[ClassLaw, ...]
    class_of: IntArray
    scale_kw: FloatArray
    tan_theta: FloatArray
    q_size: FloatArray | None = None
    base_mva: float = PER_UNIT_BASE_MVA
    positions: IntArray | None = None
    truncated: bool = False
    identity: str = ""
    shares: ClassVar[None] = None  # loads are drawn where they are solved for

    def __post_init__(self) -> None:
        n = len(self.class_of)
        if n == 0:
            raise PrivacyError("nothing to sample: name at least one node")
        if np.shape(self.scale_kw) != (n,) or np.any(self.scale_kw <= 0.0):
            raise PrivacyError("the public scales must be one per node, and positive")
        if self.q_size is not None and all(part.q_covariance is None for part in self.classes):
            raise PrivacyError("random reactive load needs both its size per node and its covariance")

    @property
    def n(self) -> int:
        """Number of nodes."""
        return len(self.class_of)

    @property
    def steps(self) -> int:
        """T."""
        return int(self.classes[0].components[0].mean.size)

    @cached_property
    def scale(self) -> FloatArray:
        """(node,) public scale [p.u.]."""
        return np.asarray(kw_to_pu(self.scale_kw, self.base_mva))

    @cached_property
    def q_sigma(self) -> FloatArray | None:
        """(node,) size of the random part of q [p.u.], None at a fixed power factor."""
        return None if self.q_size is None else np.asarray(self.scale * self.q_size)

    @cached_property
    def mean(self) -> FloatArray:
        """(class, step) of log(p/scale); refuses mixtures."""
        return np.array([part.mean for part in self._gaussians])

    @cached_property
    def covariance(self) -> FloatArray:
        """(class, step, step) of log(p/scale); refuses mixtures."""
        return np.array([part.covariance for part in self._gaussians])

    @cached_property
    def std(self) -> FloatArray:
        """(class, step) standard deviation of log(p/scale)."""
        return np.sqrt(np.diagonal(self.covariance, axis1=1, axis2=2))

    @cached_property
    def q_covariance(self) -> FloatArray | None:
        """Σ_ζ (step, step), which all classes must share; None at a fixed power factor."""
        if self.q_size is None:
            return None
        shared = self.classes[0].q_covariance
        for part in self.classes:
            if shared is None or part.q_covariance is None or not np.array_equal(part.q_covariance, shared):
                raise PrivacyError(
                    "the reactive load of all classes must have one covariance for this certificate"
                )
        return shared

    @property
    def p_min(self) -> FloatArray:
        """(class,) lower margin of p/scale."""
        return np.array([part.p_min_max[0] for part in self.classes])

    @property
    def p_max(self) -> FloatArray:
        """(class,) upper margin of p/scale."""
        return np.array([part.p_min_max[1] for part in self.classes])

    @cached_property
    def log_accept(self) -> FloatArray:
        """(class,) log of the probability that one node's untruncated day keeps the margins.

        The estimate (minimax tilting) is lowered by four standard errors: τ only grows with that.
        """
        alone = zip(self.classes, self._gaussians, strict=True)
        least = np.array([part.acceptance[0].least for part, _ in alone])
        if not np.all(least > 0.0):
            name = self.classes[int(np.argmin(least))].name
            raise PrivacyError(
                f"hardly a day of class '{name}' stays within the margins; widen [p_min, p_max]"
            )
        return np.asarray(np.log(least))

    @property
    def mean_load(self) -> ComplexArray:
        """Complex (step, node) [p.u.]: expected load, untruncated."""
        p = self.scale * np.exp(self.mean + self.std**2 / 2.0)[self.class_of].T
        return np.asarray(p * (1.0 + 1j * self.tan_theta))

    def lowest_load(self, delta: float) -> FloatArray:
        """(node,) [p.u.] below which any load of the day falls with probability at most δ (union bound)."""
        from scipy.special import ndtri  # slow to import

        quantile = -float(ndtri(delta / (self.n * self.steps)))
        lowest = np.exp((self.mean - quantile * self.std).min(axis=1))
        return np.asarray(self.scale * lowest[self.class_of])

    def at_step(self, t: int) -> LoadLaw:
        """The law of one step by itself (T = 1).

        Of a law truncated over the day this is the step's Gaussian truncated by itself, which is what the
        paper's formula speaks of but not what a day's draw has at that step.
        """

        def one(part: GaussianComponent) -> GaussianComponent:
            return replace(part, mean=part.mean[[t]], covariance=part.covariance[[t], :][:, [t]])

        def alone(part: ClassLaw) -> ClassLaw:
            q = part.q_covariance
            return replace(part.changed(one), q_covariance=None if q is None else q[[t], :][:, [t]])

        return replace(self, classes=tuple(alone(part) for part in self.classes))

    def with_floor(self, floor: float) -> LoadLaw:
        """Σ + floor·I, the log mean lowered by floor/2 so that the mean load stays (paper correction 14)."""
        if floor < 0.0:
            raise PrivacyError("a covariance floor cannot be negative")
        wide = self.covariance + floor * np.eye(self.steps)
        return self.with_gaussians(self.mean - floor / 2.0, wide)

    def with_gaussians(self, mean: FloatArray, covariance: FloatArray) -> LoadLaw:
        """The same nodes with other Gaussians: (class, step), (class, step, step); untruncated."""
        classes = tuple(
            replace(part, components=(GaussianComponent(1.0, m, c),))
            for part, m, c in zip(self.classes, mean, covariance, strict=True)
        )
        return replace(self, classes=classes, truncated=False)

    def with_random_q(self, q_size: FloatArray, q_covariance: FloatArray) -> LoadLaw:
        """Reactive load with its own randomness: size (node,) per public scale, Σ_ζ (step, step)."""
        classes = tuple(replace(part, q_covariance=q_covariance) for part in self.classes)
        return replace(self, classes=classes, q_size=q_size)

    def within(self, margins: tuple[float, float] | None = None) -> LoadLaw:
        """The law truncated to its classes' margins, or to these [p/scale], at a fixed power factor."""
        classes = self.classes
        if margins is not None:
            classes = tuple(replace(part, margins=margins) for part in classes)
        if any(part.margins is None for part in classes):
            raise PrivacyError(_NO_MARGINS)
        return replace(self, classes=classes, q_size=None, truncated=True)

    @cached_property
    def _gaussians(self) -> tuple[GaussianComponent, ...]:
        if any(len(part.components) > 1 for part in self.classes):
            raise PrivacyError("Theorem 1 is for one Gaussian per class; give a law without mixtures")
        return tuple(part.components[0] for part in self.classes)


def nominal_law(nominal: ComplexArray, of_class: ClassLaw, q_size: float | None = None) -> LoadLaw:
    """One class at nodes of known nominal power: scales and power factors are the nodes' own.

    Parameters
    ----------
    nominal
        Complex (node,) load [p.u.].
    of_class
        Law of p over nominal p.
    q_size
        Size of the random part of q as a share of nominal p; None for fixed power factors.
    """
    return LoadLaw(
        classes=(of_class,),
        class_of=np.zeros(len(nominal), dtype=np.int64),
        scale_kw=np.ascontiguousarray(nominal.real),
        tan_theta=nominal.imag / nominal.real,
        q_size=None if q_size is None else np.full(len(nominal), q_size),
    )


@dataclass(frozen=True, eq=False)
class ReactiveModel:
    """Reactive load of a class: q = p·tan θ + c·p̄·ξ, ξ ~ N(0, Σ_ξ) over the day.

    Parameters
    ----------
    tan_theta
        tan θ of the class, public or fitted under differential privacy.
    spread
        c; 0 keeps the power factor fixed (the paper's mode).
    reference
        p̄ [kW, or per public scale], the released mean load of the class.
    covariance
        Σ_ξ (step, step), or None if the power factor is fixed.
    """

    tan_theta: float
    spread: float = 0.0
    reference: float = 0.0
    covariance: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class ClassModel:
    """The loads of one class.

    Parameters
    ----------
    name
        Class: a public label, or "class 1", … if the partition was private.
    weight
        Share of the load points: public, or released under differential privacy.
    components
        The mixture; one Gaussian by default.
    bounds
        Declared public (p_min, p_max) [kW, or per public scale].
    reactive
        Law of the reactive load.
    """

    name: str
    weight: float
    components: tuple[GaussianComponent, ...]
    bounds: tuple[float, float]
    reactive: ReactiveModel

    @cached_property
    def law(self) -> ClassLaw:
        """Law of the class's loads over a day, whatever node draws from it."""
        return ClassLaw(self.name, self.components, self.bounds, self.reactive.covariance)

    @property
    def mean_load(self) -> FloatArray:
        """Expected load (step,) [kW, or per public scale]."""
        load = np.zeros_like(self.components[0].mean)
        for part in self.components:
            load += part.weight * part.mean_load
        return load
