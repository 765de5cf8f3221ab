"""What a fit knows before it asks: the public size of the history and the public choices."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.estimators import Estimator
from dp_powerflow.model.estimators.plain import Plain
from dp_powerflow.model.estimators.structured import Structured
from dp_powerflow.model.partition import PrivateClasses, PublicLabels
from dp_powerflow.model.reactive import FittedReactive, FixedPowerFactor, PublicSpread, ReactiveChoice
from dp_powerflow.privacy.budget import Budget
from dp_powerflow.privacy.queries import MAX_DIMENSION

Bounds = tuple[float, float]
_MINUTES_PER_DAY = 1440
_ESTIMATORS: dict[str, type[Plain | Structured]] = {"plain": Plain, "structured": Structured}


@dataclass(frozen=True)
class HistoryFacts:
    """Public size of a history.

    Parameters
    ----------
    step_minutes
        Length of a step [min].
    load_points_of_class
        Public classes with their numbers of load points; one class if classes are private.
    days_of_type
        Public types of day with their numbers of days; one type, None, if all days are alike.
    """

    step_minutes: int
    load_points_of_class: tuple[tuple[str, int], ...]
    days_of_type: tuple[tuple[str | None, int], ...]

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
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> HistoryFacts:
        """Inverse of `to_dict`."""
        return cls(
            int(fields["step_minutes"]),
            tuple((str(name), int(count)) for name, count in fields["load_points_of_class"]),
            tuple((name, int(count)) for name, count in fields["days_of_type"]),
        )


@dataclass(frozen=True)
class FitOptions:
    """Public choices of a fit; none may be tuned on the data.

    Parameters
    ----------
    bounds
        Declared (p_min, p_max) [kW, or per public scale], for all classes or per class. Loads are cut to
        them before the log.
    estimator
        `Structured()` or `Plain()`.
    classes
        `PublicLabels()` or `PrivateClasses(L)`.
    day_types
        Public type of every day of the history, such as "weekday", or None.
    use_scale
        Divide loads by the public scale of their load point.
    n_components
        M, Gaussians per class.
    reactive
        Law of the reactive load.
    variance_floor
        Public floor of the eigenvalues of Σ̃; what it adds is taken out of the log mean.
    """

    bounds: Bounds | Mapping[str, Bounds]
    estimator: Estimator = field(default_factory=Structured)
    classes: PublicLabels | PrivateClasses = field(default_factory=PublicLabels)
    day_types: Sequence[str] | None = None
    use_scale: bool = False
    n_components: int = 1
    reactive: ReactiveChoice = field(default_factory=FixedPowerFactor)
    variance_floor: float = 1e-3

    def bounds_of(self, name: str) -> Bounds:
        """Bounds of a class; sorted out here so that nothing downstream can see a bad pair."""
        bounds = self.bounds.get(name) if isinstance(self.bounds, Mapping) else self.bounds
        if bounds is None:
            raise PrivacyError(f"no load bounds are declared for the class '{name}'; add them to the bounds")
        low, high = bounds
        if not (0 < low < high and math.isfinite(high)):
            raise PrivacyError(f"the load bounds of the class '{name}' must satisfy 0 < p_min < p_max")
        return float(low), float(high)

    def __post_init__(self) -> None:
        if not (1 <= self.n_components <= MAX_DIMENSION and self.variance_floor > 0):
            raise PrivacyError(
                f"a class needs at least one component, at most {MAX_DIMENSION}, and a positive variance "
                "floor"
            )

    def sha256(self, budget: Budget) -> str:
        """Hash of all choices; the noise is bound to it."""
        return hashlib.sha256(f"{self!r}{budget!r}".encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: all that the post-processing needs, so without the type of every day."""
        bounds = self.bounds
        return {
            "bounds": {name: list(pair) for name, pair in bounds.items()}
            if isinstance(bounds, Mapping)
            else list(bounds),
            "estimator": {"name": self.estimator.name, "block": getattr(self.estimator, "block", None)},
            "private_classes": asdict(self.classes) if isinstance(self.classes, PrivateClasses) else None,
            "use_scale": self.use_scale,
            "n_components": self.n_components,
            "reactive": {"kind": type(self.reactive).__name__, **asdict(self.reactive)},
            "variance_floor": self.variance_floor,
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> FitOptions:
        """Inverse of `to_dict`."""
        bounds, classes = fields["bounds"], fields["private_classes"]
        estimator = _ESTIMATORS[fields["estimator"]["name"]]
        return cls(
            bounds={name: tuple(pair) for name, pair in bounds.items()}
            if isinstance(bounds, dict)
            else (bounds[0], bounds[1]),
            estimator=Structured(fields["estimator"]["block"]) if estimator is Structured else estimator(),
            classes=PublicLabels() if classes is None else PrivateClasses(**classes),
            use_scale=fields["use_scale"],
            n_components=fields["n_components"],
            reactive=_reactive_from_dict(dict(fields["reactive"])),
            variance_floor=fields["variance_floor"],
        )


def _reactive_from_dict(fields: dict[str, Any]) -> ReactiveChoice:
    kind = fields.pop("kind")
    if kind == FittedReactive.__name__:
        return FittedReactive(**fields)
    if kind == PublicSpread.__name__:
        return PublicSpread(**fields | {"power_factor": FixedPowerFactor(**fields["power_factor"])})
    if kind == FixedPowerFactor.__name__:
        return FixedPowerFactor(**fields)
    raise ValueError("unknown law of reactive load")
