"""Public choices of a fit."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.estimators import Estimator, Structured
from dp_powerflow.model.partition import PrivateClasses, PublicLabels
from dp_powerflow.model.reactive import FixedPowerFactor, ReactiveChoice
from dp_powerflow.privacy.budget import PrivacyBudget

Bounds = tuple[float, float]


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
        if self.n_components < 1 or self.variance_floor <= 0:
            raise PrivacyError("a class needs at least one component and a positive variance floor")

    def sha256(self, budget: PrivacyBudget) -> str:
        """Hash of all choices; the noise is bound to it."""
        return hashlib.sha256(f"{self!r}{budget!r}".encode()).hexdigest()
