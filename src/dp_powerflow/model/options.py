"""Public facts of the days that meters were read on: dates, days off, and covariates such as the weather.

What a fit knows before it asks: the public size of the history and the public choices.

Reactive load: q = p·tan θ + c·p̄·ξ with ξ ~ N(0, Σ_ξ) over the day (paper correction 4).

p̄ is the released mean load of the class, so it costs nothing. tan θ of a class is declared public; Σ_ξ is
a public constant or absent (fixed power factor, the paper's mode). Either way the expected q given p stays
p·tan θ: the spread moves no mean.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, TypeVar

import numpy as np
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from dp_powerflow._bits.elementary import exp
from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.estimators import Bounds, Estimator
from dp_powerflow.model.partition import PrivateClasses, PublicLabels
from dp_powerflow.model.single_days import Structured
from dp_powerflow.privacy.budget import Budget
from dp_powerflow.privacy.random import canonical_bytes
from dp_powerflow.units import FloatArray

_LARGEST = 1e100  # whose squares can still be added up
_NEW_INFORMATION = 0.01  # of a covariate's variance that those before it must leave


@dataclass(frozen=True)
class DayFacts:
    """PUBLIC. The days of a history: dates, days off, and covariates such as the weather.

    Parameters
    ----------
    dates
        Of the days, ISO 8601.
    off
        Whether each is a day off.
    covariates
        Names with one value for every day; empty without any.
    """

    dates: tuple[str, ...]
    off: tuple[bool, ...]
    covariates: tuple[tuple[str, tuple[float, ...]], ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(self.dates), len(self.off), *(len(values) for _, values in self.covariates)}
        if len(lengths) > 1 or not self.dates:
            raise PrivacyError(
                "facts of days need one date, one kind and one of each covariate for every day"
            )
        try:
            days = [dt.date.fromisoformat(date) for date in self.dates]
        except ValueError:
            days = []
        if not days or any(later <= earlier for earlier, later in pairwise(days)):
            raise PrivacyError(
                "the dates of a history must be ISO dates such as 2024-01-31, in order, each once"
            )
        names = [name for name, _ in self.covariates]
        numbers = np.array([values for _, values in self.covariates], dtype=np.float64)
        if len(set(names)) < len(names) or not np.all(np.abs(numbers) < _LARGEST):
            raise PrivacyError(
                f"covariates of days need a name each and finite values below {_LARGEST:g}; fill the gaps, "
                "or leave the covariate out"
            )

    @cached_property
    def _basis(self) -> list[tuple[int, float, FloatArray, float]]:
        """Covariates made orthogonal in their order: number, mean, shares of those before, size."""
        found: list[tuple[int, float, FloatArray, float]] = []
        columns: list[FloatArray] = []
        for index, (_, values) in enumerate(self.covariates):
            column = np.array(values)
            mean = float(column.mean())
            column = column - mean
            before = np.array([float(np.mean(column * other)) for other in columns])
            whole = float(np.mean(column * column))
            for share, other in zip(before.tolist(), columns, strict=True):
                column = column - share * other
            size = float(np.sqrt(np.mean(column * column)))
            if size * size > _NEW_INFORMATION * max(whole, 1e-12):
                found.append((index, mean, before, size))
                columns.append(column / size)
        return found

    @cached_property
    def orthonormal(self) -> FloatArray:
        """(day, covariate) with mean zero, mean square one and no correlation; repetitions are left out."""
        return self.orthonormal_at({name: np.array(v) for name, v in self.covariates}, len(self.dates))

    def orthonormal_at(self, values: Mapping[str, FloatArray], n_days: int) -> FloatArray:
        """The same combinations of values on other days; each is cut to what the history has seen, and half
        as much again."""
        columns: list[FloatArray] = []
        for index, mean, before, size in self._basis:
            name, seen = self.covariates[index]
            if name not in values:
                raise PrivacyError(
                    f"the load model follows '{name}', which is not given for the days to be drawn"
                )
            low, high = min(seen), max(seen)
            reach = (high - low) / 2
            column = np.clip(np.asarray(values[name], dtype=np.float64), low - reach, high + reach) - mean
            for share, other in zip(before.tolist(), columns, strict=True):
                column = column - share * other
            columns.append(column / size)
        return np.column_stack(columns) if columns else np.empty((n_days, 0))


def tan_theta_of(power_factor: float) -> float:
    """tan θ = √(1 − cos² θ)/cos θ of a power factor cos θ; negative for a negative one, which is leading."""
    return math.sqrt((1 - power_factor) * (1 + power_factor)) / power_factor


DEFAULT_TAN_THETA = tan_theta_of(0.95)


@dataclass(frozen=True)
class FixedPowerFactor:
    """q = p·tan θ, θ declared public per class: the paper's mode.

    Parameters
    ----------
    tan_theta_of
        Class → tan θ.
    default
        tan θ of classes not listed.
    """

    tan_theta_of: Mapping[str, float] = field(default_factory=dict)
    default: float = DEFAULT_TAN_THETA
    spread: ClassVar[float] = 0.0

    def tan_theta(self, name: str) -> float:
        """tan θ of a class."""
        return self.tan_theta_of.get(name, self.default)

    def covariance(self, n_steps: int, step_minutes: int) -> None:
        """There is no random part."""
        return


@dataclass(frozen=True)
class PublicSpread:
    """Full support with public constants: spread c, correlation exp(−|Δt|/τ), part of it white.

    Parameters
    ----------
    power_factor
        Declared angles.
    spread
        c, as a share of the class's mean load.
    correlation_minutes
        τ [min].
    white
        Share of the variance without memory; keeps Σ_ξ well conditioned.
    """

    power_factor: FixedPowerFactor = field(default_factory=FixedPowerFactor)
    spread: float = 0.15
    correlation_minutes: float = 120.0
    white: float = 0.2

    def __post_init__(self) -> None:
        if not (self.spread > 0 and self.correlation_minutes > 0 and 0 < self.white <= 1):
            raise PrivacyError(
                "the reactive spread needs c > 0, a correlation time > 0 and a white share in (0, 1]"
            )

    def tan_theta(self, name: str) -> float:
        """tan θ of a class."""
        return self.power_factor.tan_theta(name)

    def covariance(self, n_steps: int, step_minutes: int) -> FloatArray:
        """Σ_ξ (step, step)."""
        lag = np.abs(np.subtract.outer(np.arange(n_steps), np.arange(n_steps))) * step_minutes
        correlation = exp(-lag / self.correlation_minutes)
        return (1 - self.white) * correlation + self.white * np.eye(n_steps)


ReactiveChoice = FixedPowerFactor | PublicSpread
Estimators = Mapping[str, type[Estimator]]
"""By the names that a model states."""
_MINUTES_PER_DAY = 1440


@dataclass(frozen=True)
class HistoryFacts:
    """Public size of a history.

    Parameters
    ----------
    step_minutes
        Length of a step [min].
    load_points_of_class
        Public classes with their numbers of load points; one class if classes are private.
    n_days
        Public number of days.
    days
        Public facts of every day; None where days are alike to the estimator.
    """

    step_minutes: int
    load_points_of_class: tuple[tuple[str, int], ...]
    n_days: int
    days: DayFacts | None = None

    @property
    def n_steps(self) -> int:
        """T, steps per day."""
        return _MINUTES_PER_DAY // self.step_minutes

    @property
    def n_load_points(self) -> int:
        """Of all classes together."""
        return sum(count for _, count in self.load_points_of_class)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        found = {name: value for name, value in to_jsonable_python(self).items() if value is not None}
        return found | {"days_of_type": [[None, found.pop("n_days")]]}  # days had types once

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> HistoryFacts:
        """Inverse of `to_dict`."""
        ((_, n_days),) = fields["days_of_type"]
        return _read(cls, fields | {"n_days": n_days})


@dataclass(frozen=True)
class FitOptions:
    """Public choices of a fit; none may be tuned on the data.

    Parameters
    ----------
    bounds
        Declared (p_min, p_max) [kW, or per public scale], for all classes or per class. Loads are cut to
        them before the log; of private classes to the widest pair, because a load's class is not known yet.
    estimator
        `Structured()`, `Plain()` or `History()`.
    classes
        `PublicLabels()` or `PrivateClasses(L)`.
    use_scale
        Divide loads by the public scale of their load point.
    reactive
        Law of the reactive load.
    variance_floor
        Public floor of the eigenvalues of Σ̃; what it adds is taken out of the log mean.
    days
        Public facts of the days of the history, for `History()`; without them, its dates and weekends.
    """

    bounds: Bounds | Mapping[str, Bounds]
    estimator: Estimator = field(default_factory=Structured)
    classes: PublicLabels | PrivateClasses = field(default_factory=PublicLabels)
    day_types: None = field(default=None, init=False, repr=False)  # the noise is bound to every field
    use_scale: bool = False
    n_components: int = field(default=1, init=False, repr=False)  # a class was a mixture once
    reactive: ReactiveChoice = field(default_factory=FixedPowerFactor)
    variance_floor: float = 1e-3
    days: DayFacts | None = None

    def bounds_of(self, name: str) -> Bounds:
        """Bounds of a class; sorted out here so that nothing downstream can see a bad pair."""
        bounds = self.bounds.get(name) if isinstance(self.bounds, Mapping) else self.bounds
        if bounds is None:
            raise PrivacyError(f"no load bounds are declared for the class '{name}'; add them to the bounds")
        low, high = bounds
        if not (0 < low < high and math.isfinite(high)):
            raise PrivacyError(f"the load bounds of the class '{name}' must satisfy 0 < p_min < p_max")
        return float(low), float(high)

    def widest(self, names: Sequence[str]) -> Bounds:
        """The bounds that hold the bounds of all these classes."""
        pairs = [self.bounds_of(name) for name in names]
        return min(low for low, _ in pairs), max(high for _, high in pairs)

    def __post_init__(self) -> None:
        if not self.variance_floor > 0:
            raise PrivacyError("a law of days needs a positive variance floor")

    def sha256(self, budget: Budget) -> str:
        """Hash of all choices; the noise is bound to it.

        Raises
        ------
        PrivacyError
            If a choice is an object whose content cannot be told, such as an estimator that is no dataclass.
        """
        return hashlib.sha256(canonical_bytes((self, budget))).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: what the post-processing needs; facts of days are elsewhere."""
        choice, private = self.estimator, isinstance(self.classes, PrivateClasses)
        return {
            "bounds": to_jsonable_python(self.bounds),
            "estimator": {"name": choice.name, "block": getattr(choice, "block", None)},
            "private_classes": to_jsonable_python(self.classes) if private else None,
            "use_scale": self.use_scale,
            "n_components": self.n_components,
            "reactive": {"kind": type(self.reactive).__name__, **to_jsonable_python(self.reactive)},
            "variance_floor": self.variance_floor,
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any], estimators: Estimators) -> FitOptions:
        """Inverse of `to_dict`; values are converted, so that one of another type differs from `to_dict`.

        Parameters
        ----------
        fields
            As `to_dict` made them.
        estimators
            What the names of estimators stand for.
        """
        kind, classes = estimators[fields["estimator"]["name"]], fields["private_classes"]
        return cls(
            bounds=_BOUNDS.validate_python(fields["bounds"]),
            estimator=kind(fields["estimator"]["block"]) if issubclass(kind, Structured) else kind(),
            classes=PublicLabels() if classes is None else _read(PrivateClasses, classes),
            use_scale=bool(fields["use_scale"]),
            reactive=_read(_REACTIVE[fields["reactive"]["kind"]], fields["reactive"]),
            variance_floor=float(fields["variance_floor"]),
        )


_BOUNDS: TypeAdapter[Bounds | dict[str, Bounds]] = TypeAdapter(Bounds | dict[str, Bounds])
_REACTIVE: Mapping[str, type[FixedPowerFactor] | type[PublicSpread]] = {
    "FixedPowerFactor": FixedPowerFactor,
    "PublicSpread": PublicSpread,
}
_Kind = TypeVar("_Kind")


def _read(kind: type[_Kind], fields: Any) -> _Kind:
    """Plain values as what they were; converted, so that one of another type differs when written again."""
    return TypeAdapter(kind).validate_python(fields)
