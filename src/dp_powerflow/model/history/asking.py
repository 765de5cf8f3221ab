"""What a fit of histories knows before it asks, and how it asks: with radius one, classes in lockstep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dp_powerflow._bits.linear import eigh, product
from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.estimators import ask_averages
from dp_powerflow.model.history import plan
from dp_powerflow.model.history.ladder import Ladder
from dp_powerflow.model.records import Customers, OfCustomers, Records
from dp_powerflow.privacy.queries import Query, Region, Session
from dp_powerflow.units import BoolArray, FloatArray

OfCustomer = Callable[[Customers], FloatArray]
"""Customers → what each adds to a sum (customer, dimension), over the radius."""
_LEAST_EIGENVALUE = 1e-5
_LEAST_SHARE = 1e-10  # of the largest eigenvalue: what rounding cannot turn negative


@dataclass(frozen=True, eq=False)
class Setting:
    """PUBLIC. What a fit of histories knows before it asks.

    Parameters
    ----------
    n_steps, n_days
        Of the history.
    rho
        Budget.
    log_bounds
        Declared bounds [log kW, or log of kW per scale].
    off
        (day,) whether the day is a day off.
    covariates
        (day, covariate) public, mean zero and orthonormal over the days.
    """

    n_steps: int
    n_days: int
    rho: float
    log_bounds: tuple[float, float]
    off: BoolArray
    covariates: FloatArray

    def __post_init__(self) -> None:
        if not len(self.off) == len(self.covariates) == self.n_days:
            raise PrivacyError("there are facts of more or fewer days than the history has; make them anew")

    @property
    def off_share(self) -> float:
        """Share of days off."""
        return float(np.sum(self.off)) / self.n_days

    @property
    def off_weight(self) -> FloatArray:
        """(day,) weight of the contrast."""
        return np.asarray(self.off - self.off_share, dtype=np.float64)

    @property
    def two_kinds(self) -> bool:
        """Whether there are days off and others."""
        return 0.0 < self.off_share < 1.0

    @property
    def shares(self) -> dict[str, float]:
        """Share of the budget of every query that is asked."""
        left_out = {"covariates"} if not self.covariates.shape[1] else set()
        if not self.two_kinds:
            left_out.add("days off")
        asked = {name: share for name, share in plan.SHARES.items() if name not in left_out}
        whole = sum(asked.values())
        return {name: share / whole for name, share in asked.items()}

    @property
    def coefficients(self) -> int:
        """Fourier coefficients of a mean day about its mean."""
        return 2 * ((self.n_steps - 1) // 2)

    @property
    def ladder(self) -> Ladder:
        return plan.ladder_of(self.n_steps, self.n_days)


@dataclass(frozen=True, eq=False)
class Seen:
    """Average of a class and the standard deviation of its noise."""

    value: FloatArray
    noise: float


class Asker:
    """Asks queries of radius one; a class has its own scale."""

    def __init__(self, groups: Sequence[Records], setting: Setting, session: Session) -> None:
        self.groups, self.setting, self.session = groups, setting, session

    def ask(
        self,
        name: str,
        dimension: int,
        region: Region,
        of: Sequence[OfCustomer],
        radii: Sequence[float] | None = None,
    ) -> list[Seen]:
        """Averages; `of` gives vectors over the radius."""
        query = Query(name, dimension, 1.0, region, self.setting.rho * self.setting.shares[name], "radius")
        made = [OfCustomers(each) for each in of]
        averages, variances = ask_averages(self.session, query, self.groups, made)
        radii = [1.0] * len(of) if radii is None else radii
        return [
            Seen(average * radius, float(np.sqrt(variance)) * radius)
            for average, variance, radius in zip(averages, variances, radii, strict=True)
        ]


def scaled(value: Callable[..., FloatArray], radius: float, *known: object) -> OfCustomer:
    return lambda days: value(days, *known) / radius


def shrunk(seen: Seen, prior_std: FloatArray | float) -> FloatArray:
    """Posterior mean around zero."""
    prior = np.multiply(prior_std, prior_std)  # a power of one number is not the same on every processor
    result: FloatArray = seen.value * (prior / (prior + seen.noise * seen.noise))
    return result


def positive(matrix: FloatArray) -> FloatArray:
    """Nearest symmetric matrix that has a Cholesky factor, however large noise has made it."""
    values, vectors = eigh((matrix + matrix.T) / 2)
    least = max(_LEAST_EIGENVALUE, _LEAST_SHARE * float(np.max(np.abs(values))))
    found = product(vectors * np.maximum(values, least), vectors.T)
    return (found + found.T) / 2
