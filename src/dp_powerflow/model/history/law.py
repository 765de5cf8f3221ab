"""What is released of the histories of a class: few numbers, all from noisy integers or public constants."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from dp_powerflow.model.history.ladder import Ladder
from dp_powerflow.units import FloatArray

LEVEL, PEAK, SPREAD, BASE = range(4)
"""Order of the traits of a customer."""


@dataclass(frozen=True, eq=False)
class HistoryLaw:
    """Law of the histories of one class. Scores are normal; what they mean in kW is `score_map`'s business.

    Parameters
    ----------
    mean_day
        (step,) scores of the mean day of all customers, about their own mean.
    shape_block
        (K, K) covariance of the lowest Fourier coefficients of a customer's mean day about it.
    shape_variance
        (coefficient,) variance of the others, in order.
    level_edges, level_shares
        Histogram of log level [log kW, or log of kW per scale].
    trait_mean, trait_std, trait_correlation
        (4,), (4,), (4, 4) of log level, log of peak over mean, log size of the own process, log of base over
        mean. The mean and spread of the level are those of the histogram.
    contrast
        (step,) scores of days off less other days.
    off_share
        Share of days off in the history.
    profile
        (step,) variance of the own process over the day; its mean is one.
    factor
        (day,) shared factor on the days of the history, drawn from its posterior.
    factor_variance, factor_memory
        Of the part of the factor that covariates do not explain: variance, and correlation from day to day.
    covariates
        (covariate,) what one standard deviation of each adds to the factor, in the order of the facts, made
        orthogonal in that order.
    loading_std
        Spread of the loadings around one.
    amplitudes
        (level,) of the ladder of the own process.
    score_map
        (score,) log of load over mean at the scores of `population`.
    quantiles, corrected
        (time of day, quantile) log loads of the model at `calibrate.PROBABILITIES`, and what takes their
        place.
    """

    mean_day: FloatArray
    shape_block: FloatArray
    shape_variance: FloatArray
    level_edges: FloatArray
    level_shares: FloatArray
    trait_mean: FloatArray
    trait_std: FloatArray
    trait_correlation: FloatArray
    contrast: FloatArray
    off_share: float
    profile: FloatArray
    factor: FloatArray
    factor_variance: float
    factor_memory: float
    covariates: FloatArray
    loading_std: float
    amplitudes: FloatArray
    score_map: FloatArray
    quantiles: FloatArray
    corrected: FloatArray

    @property
    def n_steps(self) -> int:
        """T."""
        return int(self.mean_day.size)

    @property
    def n_days(self) -> int:
        """Days of the history."""
        return int(self.factor.size)

    @property
    def ladder(self) -> Ladder:
        return Ladder.of(self.n_steps, self.n_days)

    @property
    def factor_energy(self) -> float:
        """Mean square of the factor over the history."""
        return float(np.sum(self.factor * self.factor)) / self.n_days

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value if isinstance(value, float) else value.tolist() for name, value in found.items()}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> HistoryLaw:
        """Inverse of `to_dict`."""
        names = {field.name for field in fields(cls)}
        if plain.keys() != names:
            raise ValueError("not the fields of a history law")
        found: dict[str, Any] = {
            name: value if isinstance(value, float) else np.array(value, dtype=np.float64)
            for name, value in plain.items()
        }
        return cls(**found)


@dataclass(frozen=True, eq=False)
class HistoryReactive:
    """Reactive load of a class: q = p·tan θ_i + c·p̄·ξ_i, θ_i persistent, ξ_i a process of its own.

    Parameters
    ----------
    tan_theta
        tan θ of the class.
    tan_std
        Its spread across customers.
    spread
        c; 0 without a random part.
    reference
        p̄ [kW, or per public scale], the mean load of the class.
    amplitudes
        (level,) of the ladder of ξ; None without a random part.
    """

    tan_theta: float
    tan_std: float = 0.0
    spread: float = 0.0
    reference: float = 0.0
    amplitudes: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class HistoryClass:
    """The histories of one class.

    Parameters
    ----------
    name
        Class: a public label, or "class 1", … if the partition was private.
    weight
        Share of the load points: public, or released under differential privacy.
    bounds
        Declared public (p_min, p_max) [kW, or per public scale].
    law
        Of active load.
    reactive
        Of reactive load.
    """

    name: str
    weight: float
    bounds: tuple[float, float]
    law: HistoryLaw
    reactive: HistoryReactive

    @property
    def day_type(self) -> None:
        """Days differ by the calendar, not by types."""
        return

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        reactive = self.reactive
        return {
            "kind": "history",
            "name": self.name,
            "weight": self.weight,
            "bounds": list(self.bounds),
            "law": self.law.to_dict(),
            "reactive": {
                "tan_theta": reactive.tan_theta,
                "tan_std": reactive.tan_std,
                "spread": reactive.spread,
                "reference": reactive.reference,
                "amplitudes": None if reactive.amplitudes is None else reactive.amplitudes.tolist(),
            },
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> HistoryClass:
        """Inverse of `to_dict`."""
        reactive = dict(plain["reactive"])
        if reactive["amplitudes"] is not None:
            reactive["amplitudes"] = np.array(reactive["amplitudes"])
        low, high = plain["bounds"]
        law = HistoryLaw.from_dict(plain["law"])
        return cls(plain["name"], plain["weight"], (low, high), law, HistoryReactive(**reactive))
