"""The law of the loads at the nodes, and of a class: samplers draw from it, the evidence is about it.

Active load of node k in class ℓ: p_k = scale_k·exp(ξ_k), ξ_k a mixture of Gaussians N(μ⁽ˡ⁾, Σ⁽ˡ⁾) over the
steps of a day, independent over nodes and days.  # Eq. loadclasses
Reactive load: q_k = tanθ_k·p_k at a fixed power factor (the paper, Eq. powerfactor), or with randomness of
its own, q_k = tanθ_k·p_k + scale_k·c_k·ζ_k, ζ_k ~ N(0, Σ_ζ) (full support, paper correction 4).

A law is public: the load model is released. Nothing here sees meter data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dp_powerflow._bits.elementary import exp, log1
from dp_powerflow._bits.linear import cholesky
from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.truncated import REJECTION_ABOVE, BoxProbability, TruncatedGaussian, truncate
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import ComplexArray, FloatArray, IntArray, kw_to_pu

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


@dataclass(frozen=True)
class Acceptance:
    """How much of a component lies within its class's margins; the certificate needs it.

    Parameters
    ----------
    probability
        P(day within [p_min, p_max]^T), with its standard error.
    rejection
        True if draws are by plain rejection, False if by minimax tilting; both are exact.
    """

    probability: BoxProbability
    rejection: bool


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
    day_type
        Public type of day, None if all days are alike.
    """

    name: str
    components: tuple[GaussianComponent, ...]
    margins: tuple[float, float] | None = None
    q_covariance: FloatArray | None = None
    day_type: str | None = None

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
    def acceptance(self) -> tuple[Acceptance, ...]:
        """Probability of the margins for every component: a function of the law alone, so public."""
        found = []
        for index, prepared in enumerate(self.truncations):
            purpose = f"acceptance/{self.name}/{self.day_type}/{index}"
            probability = prepared.probability(_PUBLIC_KEY.stream(purpose).generator)
            found.append(Acceptance(probability, probability.value >= REJECTION_ABOVE))
        return tuple(found)

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

    def __post_init__(self) -> None:
        n = len(self.class_of)
        if n == 0:
            raise PrivacyError("nothing to sample: name at least one node")
        if np.shape(self.scale_kw) != (n,) or np.any(self.scale_kw <= 0.0):
            raise PrivacyError("the public scales must be one per node, and positive")
        if self.tan_theta.shape != (n,) or (self.q_size is not None and self.q_size.shape != (n,)):
            raise PrivacyError("a load law needs one power factor, and one size of random q, per node")
        if self.positions is not None and len(self.positions) != n:
            raise PrivacyError("a load law needs one position per node")
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

    @property
    def shares(self) -> None:
        """Loads are drawn where they are solved for, and not spread over other nodes."""
        return

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
        least = np.array([_least(part.acceptance[0].probability) for part, _ in alone])
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
        """Reactive load with randomness of its own: size (node,) per public scale, Σ_ζ (step, step)."""
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
            raise PrivacyError("Theorem 1 is for one Gaussian per class; fit the model with components = 1")
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


def _least(probability: BoxProbability) -> float:
    return probability.value - _STANDARD_ERRORS * probability.standard_error


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
    """The loads of one class, on days of one type.

    Parameters
    ----------
    name
        Class: a public label, or "class 1", … if the partition was private.
    day_type
        Public type of day, or None if all days are alike.
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
    day_type: str | None
    weight: float
    components: tuple[GaussianComponent, ...]
    bounds: tuple[float, float]
    reactive: ReactiveModel

    @cached_property
    def law(self) -> ClassLaw:
        """Law of the class's loads over a day, whatever node draws from it."""
        return ClassLaw(self.name, self.components, self.bounds, self.reactive.covariance, self.day_type)

    @property
    def mean_load(self) -> FloatArray:
        """Expected load (step,) [kW, or per public scale]."""
        load = np.zeros_like(self.components[0].mean)
        for part in self.components:
            load += part.weight * part.mean_load
        return load
