"""The four kinds of account: what a cost is, how costs add up, and what the sum promises.

| kind | quantity that adds up | promise |
|---|---|---|
| loads | ρ of zCDP | (ε, δ)-differential privacy of one load record |
| network, per-instance | ε and δ, each by itself (basic composition) | evidence about this network, not DP |
| network, twin | ε of pure DP and μ² of Gaussian DP, per element (`twins`) | (ε, δ)-DP of one element |
| network, gdp | μ² of Gaussian DP | (ε, δ)-DP of one line; twins of versions up to 0.2 |

Every cap and every cost states its unit: the record, or the neighbours a network is compared with. Figures
of different units are never added. Sums are exact rationals of the recorded floating-point numbers, so
neither the order of the spends nor rounding can stretch a cap.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import reduce
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
from dp_powerflow.privacy.ledger.kinds import (
    AccountKind,
    Amounts,
    Standing,
    Statement,
    Totals,
    check_amount,
    fits,
    left_of,
    total,
)
from dp_powerflow.privacy.ledger.twins import Elements, GdpCost, PureCost, Scope, TwinCap

__all__ = [
    "AccountKind",
    "Amounts",
    "Cap",
    "Cost",
    "GdpCap",
    "GdpCost",
    "InstanceCap",
    "InstanceCost",
    "LoadsCap",
    "LoadsCost",
    "PureCost",
    "Scope",
    "Statement",
    "Tally",
    "TwinCap",
    "accepts",
    "cap_from_plain",
    "cost_from_plain",
    "fits",
    "to_plain",
    "total",
]


class Additive(ABC):
    """A cap whose quantities add up, whatever the order and whoever is touched."""

    quantities: ClassVar[tuple[str, ...]]

    @abstractmethod
    def limits(self) -> Amounts:
        """The most of each quantity."""

    @abstractmethod
    def statement(self, amounts: Amounts) -> Statement:
        """What an amount promises."""

    def nothing(self) -> Totals:
        """What an account without a charge has spent."""
        return Totals(dict.fromkeys(self.quantities, Fraction(0)))

    def tally(self, costs: Iterable[Cost]) -> Totals:
        """Exact sums of the costs."""
        return reduce(Totals.plus, costs, self.nothing())

    def standing(self, tally: Totals) -> Standing:
        """What the sums promise, and what is left."""
        spent = tally.amounts
        return Standing(spent, self.statement(spent), self.statement(left_of(spent, self.limits())))

    def spent_by(self, tally: Totals) -> Amounts:
        """The sums, to be compared with the limits."""
        return tally.amounts

    def promised(self, costs: Iterable[Cost]) -> Statement:
        """What the costs promise together."""
        return self.statement(self.tally(costs).amounts)


@dataclass(frozen=True)
class LoadsCap(Additive):
    """The most that all releases from the same customers may spend: (ε, δ)-DP of one record."""

    kind: ClassVar[AccountKind] = AccountKind.LOADS
    quantities: ClassVar[tuple[str, ...]] = ("rho",)
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
class InstanceCap(Additive):
    """The most that all releases from the same true network may be allowed: sums of ε* and of δ*.

    Parameters
    ----------
    epsilon, delta
        Policy constants; delta may be 0.
    unit
        The networks compared, such as one line with its admittance scaled by up to 1 %.
    """

    kind: ClassVar[AccountKind] = AccountKind.NETWORK_INSTANCE
    quantities: ClassVar[tuple[str, ...]] = ("epsilon", "delta")
    epsilon: float
    delta: float
    unit: Neighbours

    def __post_init__(self) -> None:
        check_amount(self.epsilon, "epsilon")
        check_amount(self.delta, "delta")
        if self.epsilon == 0 or self.delta >= 1:
            raise PrivacyError("the cap of a network needs a positive epsilon and a delta below 1")

    def limits(self) -> Amounts:
        return {"epsilon": Fraction(self.epsilon), "delta": Fraction(self.delta)}

    def statement(self, amounts: Amounts) -> Statement:
        words = "per-instance evidence, basic composition; not differential privacy"
        return Statement(float(amounts["epsilon"]), float(amounts["delta"]), str(self.unit), words)


@dataclass(frozen=True)
class GdpCap(Additive):
    """The most that twins of the same network may spend, as versions up to 0.2 opened it: μ-GDP of one line.

    New twins have a `TwinCap`; an account of this kind stays readable, and its twins resume.

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
    quantities: ClassVar[tuple[str, ...]] = ("mu_squared",)
    mu: float
    delta: float
    unit: Neighbours

    def __post_init__(self) -> None:
        check_amount(self.mu, "mu")
        gdp_epsilon(self.mu, self.delta)  # the ranges of both

    @classmethod
    def from_epsilon(cls, epsilon: float, delta: float, unit: Neighbours) -> GdpCap:
        """The largest μ that is (ε, δ)-differentially private."""
        return cls(gdp_mu(epsilon, delta), delta, unit)

    @property
    def epsilon(self) -> float:
        """What the cap promises at its δ."""
        return gdp_epsilon(self.mu, self.delta)

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

    rho: float
    unit: PrivacyUnit
    queries: tuple[QueryCost, ...] = ()

    def __post_init__(self) -> None:
        check_amount(self.rho, "rho")
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

    epsilon: float
    delta: float
    unit: Neighbours

    def __post_init__(self) -> None:
        check_amount(self.epsilon, "epsilon")
        check_amount(self.delta, "delta")

    def amounts(self) -> Amounts:
        return {"epsilon": Fraction(self.epsilon), "delta": Fraction(self.delta)}


Cap = LoadsCap | InstanceCap | GdpCap | TwinCap
Cost = LoadsCost | InstanceCost | GdpCost | PureCost
Tally = Totals | Elements
"""What all costs of an account come to; kept up cost by cost."""

_COSTS: dict[AccountKind, tuple[type, ...]] = {
    AccountKind.LOADS: (LoadsCost,),
    AccountKind.NETWORK_INSTANCE: (InstanceCost,),
    AccountKind.NETWORK_GDP: (GdpCost,),
    AccountKind.NETWORK_TWIN: (PureCost, GdpCost),
}
_NETWORK_CAPS: dict[AccountKind, Callable[..., Cap]] = {
    AccountKind.NETWORK_INSTANCE: InstanceCap,
    AccountKind.NETWORK_GDP: GdpCap,
    AccountKind.NETWORK_TWIN: TwinCap,
}


def accepts(cap: Cap, cost: Cost) -> bool:
    """Whether a cost can be charged to an account with this cap at all."""
    whole = not isinstance(cost, GdpCost) or isinstance(cap, TwinCap) or cost.scope.all_elements
    return isinstance(cost, _COSTS[cap.kind]) and cost.unit == cap.unit and whole


def to_plain(record: Cap | Cost) -> dict[str, Any]:
    """Plain values for JSON; floats come back to the bit."""
    fields = asdict(record) | {"unit": str(record.unit)}
    if isinstance(record, LoadsCost):
        fields["queries"] = [query.to_dict() for query in record.queries]
    if isinstance(record, PureCost | GdpCost):
        scope = {name: list(names) for name, names in fields.pop("scope").items() if names}
        fields |= {"scope": scope} if scope else {}
    return fields


def cap_from_plain(kind: AccountKind, fields: Mapping[str, Any]) -> Cap:
    """Inverse of `to_plain` for a cap."""
    if kind is AccountKind.LOADS:
        return LoadsCap(**fields)
    return _NETWORK_CAPS[kind](**{**fields, "unit": Neighbours(fields["unit"])})


def cost_from_plain(kind: AccountKind, fields: Mapping[str, Any]) -> Cost:
    """Inverse of `to_plain` for a cost."""
    if kind is AccountKind.LOADS:
        queries = tuple(QueryCost.from_dict(query) for query in fields["queries"])
        return LoadsCost(fields["rho"], PrivacyUnit(fields["unit"]), queries)
    unit = Neighbours(fields["unit"])
    if kind is AccountKind.NETWORK_INSTANCE:
        return InstanceCost(fields["epsilon"], fields["delta"], unit)
    scope = Scope(**{name: tuple(names) for name, names in fields.get("scope", {}).items()})
    return GdpCost(fields["mu"], unit, scope) if "mu" in fields else PureCost(fields["epsilon"], unit, scope)
