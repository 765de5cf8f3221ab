"""The three kinds of account: what a cost is, how costs add up, and what the sum promises.

| kind | quantity that adds up | promise |
|---|---|---|
| loads | ρ of zCDP | (ε, δ)-differential privacy of one load record |
| network, per-instance | ε and δ, each by itself (basic composition) | evidence about this network, not DP |
| network, gdp | μ² of Gaussian DP | (ε, δ)-differential privacy of one line |

Every cap and every cost states its unit: the record, or the neighbours a network is compared with. Figures
of different units are never added. Sums are exact rationals of the recorded floating-point numbers, so
neither the order of the spends nor rounding can stretch a cap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any, ClassVar

from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.budget import (
    Budget,
    Neighbours,
    PrivacyUnit,
    QueryCost,
    epsilon_to_rho,
    gdp_epsilon,
    gdp_mu,
    rho_to_epsilon,
    total_rho,
)

Amounts = Mapping[str, Fraction]
"""Exact quantities that add up, by name: rho; epsilon and delta; or mu_squared."""

TOLERANCE = Fraction(1, 10**12)
"""By how much, relative to the cap, a sum may pass it: ten spends of 0.1 fit a cap of 1."""


class AccountKind(StrEnum):
    """What an account protects, and by which arithmetic."""

    LOADS = "loads"
    NETWORK_INSTANCE = "network, per-instance"
    NETWORK_GDP = "network, gdp"

    @property
    def stem(self) -> str:
        """How names of accounts of this kind begin."""
        return self.value.replace(", ", "-").replace("per-", "")


@dataclass(frozen=True)
class Statement:
    """What an amount means, as (ε, δ) for one unit."""

    epsilon: float
    delta: float
    unit: str
    definition: str


@dataclass(frozen=True)
class LoadsCap:
    """The most that all releases from the same customers may spend: (ε, δ)-DP of one record."""

    kind: ClassVar[AccountKind] = AccountKind.LOADS
    epsilon: float
    delta: float
    unit: PrivacyUnit = PrivacyUnit.LOAD_POINT

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta, self.unit)  # the same ranges
        object.__setattr__(self, "unit", PrivacyUnit(self.unit))

    def limits(self) -> Amounts:
        return {"rho": Fraction(epsilon_to_rho(self.epsilon, self.delta))}

    def statement(self, amounts: Amounts) -> Statement:
        epsilon = rho_to_epsilon(float(amounts["rho"]), self.delta)
        return Statement(epsilon, self.delta, str(self.unit), "differential privacy, composed in zCDP")


@dataclass(frozen=True)
class InstanceCap:
    """The most that all releases from the same true network may be allowed: sums of ε* and of δ*.

    Parameters
    ----------
    epsilon, delta
        Policy constants; delta may be 0.
    unit
        The networks compared, such as one line with its admittance scaled by up to 1 %.
    """

    kind: ClassVar[AccountKind] = AccountKind.NETWORK_INSTANCE
    epsilon: float
    delta: float
    unit: Neighbours

    def __post_init__(self) -> None:
        _check_amount(self.epsilon, "epsilon")
        _check_amount(self.delta, "delta")
        if self.epsilon == 0 or self.delta >= 1:
            raise PrivacyError("the cap of a network needs a positive epsilon and a delta below 1")

    def limits(self) -> Amounts:
        return {"epsilon": Fraction(self.epsilon), "delta": Fraction(self.delta)}

    def statement(self, amounts: Amounts) -> Statement:
        words = "per-instance evidence, basic composition; not differential privacy"
        return Statement(float(amounts["epsilon"]), float(amounts["delta"]), str(self.unit), words)


@dataclass(frozen=True)
class GdpCap:
    """The most that all twins of the same network may spend: μ-GDP of one line.

    Parameters
    ----------
    mu
        Parameter of Gaussian DP of everything together.
    delta
        Where the guarantee is stated as (ε, δ); the cap is μ, for every δ at once.
    unit
        The networks compared, such as one line with its length changed by a factor up to 1.05.
    """

    kind: ClassVar[AccountKind] = AccountKind.NETWORK_GDP
    mu: float
    delta: float
    unit: Neighbours

    def __post_init__(self) -> None:
        _check_amount(self.mu, "mu")
        gdp_epsilon(self.mu, self.delta)  # the ranges of both

    @classmethod
    def from_epsilon(cls, epsilon: float, delta: float, unit: Neighbours) -> GdpCap:
        """The largest μ that is (ε, δ)-differentially private."""
        return cls(gdp_mu(epsilon, delta), delta, unit)

    def limits(self) -> Amounts:
        return {"mu_squared": Fraction(self.mu) ** 2}

    def statement(self, amounts: Amounts) -> Statement:
        epsilon = gdp_epsilon(math.sqrt(amounts["mu_squared"]), self.delta)
        return Statement(epsilon, self.delta, str(self.unit), "differential privacy, composed in Gaussian DP")


@dataclass(frozen=True)
class LoadsCost:
    """What fitting one load model costs; sampling from it afterwards is free.

    Make it with `of` (the exact queries, as a plan or a `LoadModel` lists them) or with `reserve` (all that
    a fit within a budget may spend).
    """

    kind: ClassVar[AccountKind] = AccountKind.LOADS
    rho: float
    unit: PrivacyUnit
    queries: tuple[QueryCost, ...] = ()

    def __post_init__(self) -> None:
        _check_amount(self.rho, "rho")
        object.__setattr__(self, "unit", PrivacyUnit(self.unit))
        if any(query.unit is not self.unit for query in self.queries):
            raise PrivacyError("a cost has queries about another unit of privacy; fit one unit at a time")
        if total_rho(self.queries) > self.rho:
            raise PrivacyError("a cost is below the sum of its queries; make it with LoadsCost.of")

    @classmethod
    def of(cls, queries: Iterable[QueryCost]) -> LoadsCost:
        """The cost of these queries together."""
        queries = tuple(queries)
        if not queries:
            raise PrivacyError("a load model without queries costs nothing; do not charge it")
        return cls(total_rho(queries), queries[0].unit, queries)

    @classmethod
    def reserve(cls, budget: Budget) -> LoadsCost:
        """Everything a fit within this budget may spend."""
        return cls(epsilon_to_rho(budget.epsilon, budget.delta), budget.unit)

    def amounts(self) -> Amounts:
        return {"rho": Fraction(self.rho)}


@dataclass(frozen=True)
class InstanceCost:
    """What a corpus on the true network is allowed: the policy's ε* and δ*.

    Charge the policy, never the measured loss: the ledger's sums are published, and measured figures are
    functions of the secret network.
    """

    kind: ClassVar[AccountKind] = AccountKind.NETWORK_INSTANCE
    epsilon: float
    delta: float
    unit: Neighbours

    def __post_init__(self) -> None:
        _check_amount(self.epsilon, "epsilon")
        _check_amount(self.delta, "delta")

    def amounts(self) -> Amounts:
        return {"epsilon": Fraction(self.epsilon), "delta": Fraction(self.delta)}


@dataclass(frozen=True)
class GdpCost:
    """What drawing one twin costs; everything computed from that twin is free."""

    kind: ClassVar[AccountKind] = AccountKind.NETWORK_GDP
    mu: float
    unit: Neighbours

    def __post_init__(self) -> None:
        _check_amount(self.mu, "mu")

    def amounts(self) -> Amounts:
        return {"mu_squared": Fraction(self.mu) ** 2}


Cap = LoadsCap | InstanceCap | GdpCap
Cost = LoadsCost | InstanceCost | GdpCost


def to_plain(record: Cap | Cost) -> dict[str, Any]:
    """Plain values for JSON; floats come back to the bit."""
    fields = asdict(record) | {"unit": str(record.unit)}
    if isinstance(record, LoadsCost):
        fields["queries"] = [query.to_dict() for query in record.queries]
    return fields


def cap_from_plain(kind: AccountKind, fields: Mapping[str, Any]) -> Cap:
    """Inverse of `to_plain` for a cap."""
    if kind is AccountKind.LOADS:
        return LoadsCap(**fields)
    cap: Callable[..., Cap] = InstanceCap if kind is AccountKind.NETWORK_INSTANCE else GdpCap
    return cap(**{**fields, "unit": Neighbours(fields["unit"])})


def cost_from_plain(kind: AccountKind, fields: Mapping[str, Any]) -> Cost:
    """Inverse of `to_plain` for a cost."""
    if kind is AccountKind.LOADS:
        queries = tuple(QueryCost.from_dict(query) for query in fields["queries"])
        return LoadsCost(fields["rho"], PrivacyUnit(fields["unit"]), queries)
    cost: Callable[..., Cost] = InstanceCost if kind is AccountKind.NETWORK_INSTANCE else GdpCost
    return cost(**{**fields, "unit": Neighbours(fields["unit"])})


def total(parts: Iterable[Amounts], names: Iterable[str]) -> dict[str, Fraction]:
    """Exact sums by name."""
    parts = tuple(parts)
    return {name: sum((part[name] for part in parts), Fraction(0)) for name in names}


def fits(amounts: Amounts, limits: Amounts) -> bool:
    """Whether every sum stays within its limit, to one part in 10¹²."""
    return all(amounts[name] <= limit * (1 + TOLERANCE) for name, limit in limits.items())


def left_of(amounts: Amounts, limits: Amounts) -> dict[str, Fraction]:
    """What may still be spent; the last 10⁻¹² of a cap counts as nothing."""
    return {
        name: limit - amounts[name] if limit - amounts[name] > limit * TOLERANCE else Fraction(0)
        for name, limit in limits.items()
    }


def _check_amount(value: float, name: str) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise PrivacyError(f"{name} of an account of the ledger must be a number of at least 0")
