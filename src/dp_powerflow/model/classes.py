"""The parts of a load model: the loads of one class, active and reactive."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dp_powerflow.model.law import ClassLaw, GaussianComponent
from dp_powerflow.units import FloatArray


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
