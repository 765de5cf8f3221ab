"""What is released of the histories of a class: few numbers, all from noisy integers or public constants."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.history.one_pass import Ladder
from dp_powerflow.units import FloatArray, IntArray

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


LOWEST_SCORE, HIGHEST_SCORE, SCORES = -7.0, 7.0, 141
"""Normal scores at which the map of a customer is tabulated."""
LOADS = 257
"""Loads at which the last map of a class is tabulated, evenly in the log between the bounds."""


@dataclass(frozen=True, eq=False)
class ClassPath:
    """What the customers of one class share from day to day.

    Parameters
    ----------
    name
        Of the class; part of the names of its streams.
    contrast
        (step,) added to the scores on a day off, in part.
    own_profile
        (step,) √v: spread of a customer's own process over the day.
    ladder
        Of the process.
    amplitudes
        (level,) of the ladder; their squares add up to one.
    bounds
        (p_min, p_max) [kW, or per public scale].
    last_map
        (time of day, `LOADS`) [kW, or per public scale]: the load that takes the place of the one tabulated,
        by times of day of equal length.
    reactive_amplitudes
        (level,) of the random part of the reactive load; their squares add up to one. None at a fixed power
        factor.
    """

    name: str
    contrast: FloatArray
    own_profile: FloatArray
    ladder: Ladder
    amplitudes: FloatArray
    bounds: tuple[float, float]
    last_map: FloatArray
    reactive_amplitudes: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class Population:
    """Customers and all that is needed to draw their days; made from a released model and a key.

    Parameters
    ----------
    classes
        What the customers of each class share.
    class_of
        (customer,) index into `classes`.
    load_of
        (customer,) number of the load that the customer is part of, ascending, none left out.
    scale_kw
        (customer,) public scale [kW]; 1 where the model is relative to none.
    tan_theta
        (customer,) tangent of the power-factor angle.
    mean_day
        (customer, step) scores of the mean day.
    shared
        (customer,) s·w, what the shared factor is multiplied by.
    own
        (customer,) s·a, what the customer's own process is multiplied by, beside the profile of the class.
    log_map
        (customer, `SCORES`) log of the load [log kW, or log of kW per scale] at evenly spaced scores from
        `LOWEST_SCORE` to `HIGHEST_SCORE`; within the bounds of the class.
    reactive_kvar
        (class, load) standard deviation of the random part of q [kvar]; 0 at a fixed power factor.
    identity
        Hash of the model; the streams of the draws are bound to it.
    """

    classes: tuple[ClassPath, ...]
    class_of: IntArray
    load_of: IntArray
    scale_kw: FloatArray
    tan_theta: FloatArray
    mean_day: FloatArray
    shared: FloatArray
    own: FloatArray
    log_map: FloatArray
    reactive_kvar: FloatArray
    identity: str = ""

    def __post_init__(self) -> None:
        numbers = np.unique(self.load_of)
        if not np.all(np.diff(self.load_of) >= 0) or not np.array_equal(numbers, np.arange(len(numbers))):
            raise PrivacyError("a sum of customers needs the load of every customer, in ascending order")

    @property
    def n_customers(self) -> int:
        return len(self.load_of)

    @property
    def n_loads(self) -> int:
        return int(self.load_of[-1]) + 1

    @property
    def steps(self) -> int:
        """T."""
        return int(self.mean_day.shape[1])

    @property
    def most_kw(self) -> FloatArray:
        """(load,) [kW] that no draw passes."""
        highest = np.array([part.bounds[1] for part in self.classes])[self.class_of] * self.scale_kw
        return np.asarray(np.bincount(self.load_of, highest, minlength=self.n_loads), dtype=np.float64)
