"""The three kinds of account: what a cost is, how costs add up, and what the sum promises.

| kind | quantity that adds up | promise |
|---|---|---|
| loads | ρ of zCDP | (ε, δ)-differential privacy of one load record |
| network, per-instance | ε and δ, each by itself (basic composition) | evidence about this network, not DP |
| network, twin | ε of pure DP and μ² of Gaussian DP, per element | (ε, δ)-DP of one element |

Every cap and every cost states its unit: the record, or the neighbours a network is compared with. Figures
of different units are never added. Sums are exact rationals of the recorded floating-point numbers, so
neither the order of the spends nor rounding can stretch a cap.

**Twins.** Costs are of pure or Gaussian DP, each of all elements or of some.
The secret is one element (a line, a transformer, …), so an account promises what holds for its worst
element. A twin costs all elements that exist when it is drawn. A later change of the feeder gives fresh noise
to the elements that were replaced or added, and costs these alone:

- an element that no cost names has the costs of scope "all";
- a replaced element has these and the costs that name it;
- an added element has the cost that added it and what came later: no earlier twin has seen it;
- elements that may be parts of one another under other names have one past: everything that touched any of
  them. What they cost at once is for the caller to count.

The costs of one element compose as `budget.composed_epsilon` says: pure ε adds up, μ² adds up, both together
compose by their privacy-loss distributions.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from functools import reduce
from typing import Any, ClassVar

from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.budget import (
    Budget,
    Neighbours,
    PrivacyUnit,
    QueryCost,
    composed_epsilon,
    epsilon_to_rho,
    gdp_epsilon,
    gdp_mu,
    rho_to_epsilon,
    total_rho,
)

Amounts = Mapping[str, Fraction]
"""Exact quantities by name: rho; epsilon and delta; or the epsilon of the worst element."""

TOLERANCE = Fraction(1, 10**12)
"""By how much, relative to the cap, a sum may pass it: ten spends of 0.1 fit a cap of 1."""


class AccountKind(StrEnum):
    """What an account protects, and by which arithmetic."""

    LOADS = "loads"
    NETWORK_INSTANCE = "network, per-instance"
    NETWORK_TWIN = "network, twin"

    @property
    def stem(self) -> str:
        """How names of accounts of this kind begin."""
        return self.value.replace(", ", "-").replace("per-", "")


@dataclass(frozen=True)
class Promised:
    """What an amount means, as (ε, δ) for one unit."""

    epsilon: float
    delta: float
    unit: str
    definition: str


@dataclass(frozen=True)
class Balance:
    """Where an account stands.

    Attributes
    ----------
    cap : the most that may ever be spent.
    spent, left : by quantity: rho; epsilon and delta; or the epsilon of the worst element of twins.
    promise : what all spends together promise. Built from policy constants and query costs only.
    available : what a single further spend could be.
    composed : of an account of twins, everything that touched the worst element.
    """

    cap: Cap
    spent: dict[str, float]
    left: dict[str, float]
    promise: Promised
    available: Promised
    composed: ComposedCosts | None = None


@dataclass(frozen=True)
class Totals:
    """Exact sums of costs, kept up cost by cost: neither their order nor their number plays a part."""

    amounts: Amounts

    def plus(self, cost: Cost) -> Totals:
        """The sums with one further cost."""
        more = cost.amounts()
        return Totals({name: amount + more[name] for name, amount in self.amounts.items()})


def left_of(spent: Fraction, limit: Fraction) -> Fraction:
    """What may still be spent; the last 10⁻¹² of a cap counts as nothing."""
    return limit - spent if limit - spent > limit * TOLERANCE else Fraction(0)


class Amounting:
    """A cap or cost, whose figures are finite and at least 0."""

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta", "mu", "rho"):
            value = getattr(self, name, 0.0)
            if not (math.isfinite(value) and value >= 0):
                raise PrivacyError(f"{name} of an account of the ledger must be a number of at least 0")


@dataclass(frozen=True)
class Scope:
    """Whom a cost touches: all elements, or those that were replaced or added.

    Parameters
    ----------
    replaced, added
        Names of elements, such as ``"line.l115"``. With neither, all elements bear the cost.
    joined
        Names that share one past from now on, also of elements that are gone.
    """

    replaced: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("replaced", "added", "joined"):
            object.__setattr__(self, name, tuple(sorted(getattr(self, name))))
        names = self.replaced + self.added
        if len(set(names)) < len(names) or not all(name.strip() for name in names):
            raise PrivacyError("the scope of a cost names an element twice or by a blank; name each once")

    @property
    def all_elements(self) -> bool:
        return not (self.replaced or self.added)


@dataclass(frozen=True)
class PureCost(Amounting):
    """What noise of pure ε-DP costs an element, such as Laplace or K-norm noise of a twin."""

    epsilon: float
    unit: Neighbours
    scope: Scope = Scope()

    def amounts(self) -> Amounts:
        return {"epsilon": Fraction(self.epsilon)}


@dataclass(frozen=True)
class GdpCost(Amounting):
    """What Gaussian noise of a twin costs an element; everything computed from that twin is free."""

    mu: float
    unit: Neighbours
    scope: Scope = Scope()

    def amounts(self) -> Amounts:
        return {"mu_squared": Fraction(self.mu) ** 2}


TwinCost = PureCost | GdpCost


@dataclass(frozen=True)
class ComposedCosts:
    """Everything that touched one element.

    Attributes
    ----------
    pure : ε of every pure cost, ascending.
    mu_squared : exact sum of μ² of the Gaussian ones.
    """

    pure: tuple[float, ...] = ()
    mu_squared: Fraction = Fraction(0)

    @classmethod
    def of(cls, costs: Iterable[TwinCost]) -> ComposedCosts:
        return reduce(cls.plus, costs, cls())

    def plus(self, cost: TwinCost) -> ComposedCosts:
        """With one further cost."""
        if isinstance(cost, GdpCost):
            return ComposedCosts(self.pure, self.mu_squared + Fraction(cost.mu) ** 2)
        if cost.epsilon == 0:
            return self
        at = bisect_right(self.pure, cost.epsilon)
        return ComposedCosts((*self.pure[:at], cost.epsilon, *self.pure[at:]), self.mu_squared)

    def covering(self, other: ComposedCosts) -> ComposedCosts:
        """The least that is at least as much as both: the largest pure costs one by one, the larger μ²."""
        longest = max(len(self.pure), len(other.pure))
        pairs = ((0.0,) * (longest - len(one.pure)) + one.pure for one in (self, other))
        pure = tuple(max(pair) for pair in zip(*pairs, strict=True))
        return ComposedCosts(pure, max(self.mu_squared, other.mu_squared))

    def epsilon(self, delta: float) -> float:
        """ε of all of it at δ; Gaussian costs need a δ above 0."""
        return composed_epsilon(self.pure, math.sqrt(self.mu_squared), delta)

    @property
    def words(self) -> str:
        if self.mu_squared == 0:
            return "differential privacy; pure epsilons add up"
        if not self.pure:
            return "differential privacy, composed in Gaussian DP"
        return "differential privacy, pure and Gaussian costs composed by privacy-loss distributions"


@dataclass(frozen=True)
class Elements:
    """What touched every element of a network, kept up cost by cost.

    Attributes
    ----------
    others : of all elements that no cost names, together.
    named : of every element that a cost names.
    """

    others: ComposedCosts = ComposedCosts()
    named: Mapping[str, ComposedCosts] = field(default_factory=dict)

    def plus(self, cost: TwinCost) -> Elements:
        """With one further cost, made after the others."""
        pasts = (self.named.get(name, self.others) for name in cost.scope.joined)
        past = reduce(ComposedCosts.covering, pasts, ComposedCosts())
        joined = dict.fromkeys(cost.scope.joined, past.plus(cost))
        if cost.scope.all_elements:
            after = {composed: composed.plus(cost) for composed in {*self.named.values()}}
            named = {name: after[composed] for name, composed in self.named.items()}
            return Elements(self.others.plus(cost), named | joined)
        # An added element was seen by no earlier twin; a replaced one, and one with a history, was.
        before = dict.fromkeys(cost.scope.added, ComposedCosts())
        before |= dict.fromkeys(cost.scope.replaced, self.others)
        touched = {name: self.named.get(name, start).plus(cost) for name, start in before.items()}
        return Elements(self.others, {**self.named, **touched, **joined})

    def worst(self, delta: float) -> ComposedCosts:
        """What touched the element with the largest ε at δ."""
        kept: list[ComposedCosts] = []  # without those that have less of everything: few are left to convert
        for item in sorted(
            {self.others, *self.named.values()},
            key=lambda item: (len(item.pure), sum(item.pure), item.mu_squared),
            reverse=True,
        ):
            if not any(other.covering(item) == other for other in kept):
                kept.append(item)
        return max(kept, key=lambda found: (found.epsilon(delta), found.pure, found.mu_squared))


@dataclass(frozen=True)
class LoadsCost(Amounting):
    """What fitting one load model costs; sampling from it afterwards is free.

    Make it with `of` (the exact queries, as a plan or a `LoadModel` lists them) or with `reserve` (all that
    a fit within a budget may spend).
    """

    rho: float
    unit: PrivacyUnit
    queries: tuple[QueryCost, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
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
class InstanceCost(Amounting):
    """What a corpus on the true network is allowed: the policy's ε* and δ*.

    Charge the policy, never the measured loss: the ledger's sums are published, and measured figures are
    functions of the secret network.
    """

    epsilon: float
    delta: float
    unit: Neighbours

    def amounts(self) -> Amounts:
        return {"epsilon": Fraction(self.epsilon), "delta": Fraction(self.delta)}


@dataclass(frozen=True)
class Cap(Amounting, ABC):
    """The most that an account may ever spend.

    Parameters
    ----------
    epsilon, delta
        Policy constants; what they are of depends on the kind of account.
    unit
        The record, or the networks compared, such as one line with its admittance scaled by up to 1 %.
    """

    kind: ClassVar[AccountKind]
    costs: ClassVar[tuple[type, ...]]
    """What can be charged."""
    epsilon: float
    delta: float
    unit: PrivacyUnit | Neighbours

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon == 0 or self.delta >= 1:
            raise PrivacyError("the cap of a network needs a positive epsilon and a delta below 1")

    @abstractmethod
    def limits(self) -> Amounts:
        """The most of each quantity."""

    @abstractmethod
    def nothing(self) -> Any:
        """The tally of an account without a charge."""

    @abstractmethod
    def spent_by(self, tally: Any) -> Amounts:
        """What costs come to, to be compared with the limits."""

    @abstractmethod
    def statement(self, spent: Any) -> Promised:
        """What exact sums promise, or all that touched an element."""

    @abstractmethod
    def balance(self, tally: Any) -> Balance:
        """Where an account stands after costs that come to a tally."""

    def tally(self, costs: Iterable[Cost]) -> Any:
        """What costs come to, in the order they were made."""
        return reduce(lambda tally, cost: tally.plus(cost), costs, self.nothing())

    def promised(self, costs: Iterable[Cost]) -> Promised:
        """What costs promise together."""
        return self.balance(self.tally(costs)).promise

    def holds(self, tally: Any) -> bool:
        """Whether costs that come to a tally stay within the cap, to one part in 10¹²."""
        spent = self.spent_by(tally)
        return all(spent[name] <= limit * (1 + TOLERANCE) for name, limit in self.limits().items())

    def accepts(self, cost: Cost) -> bool:
        """Whether a cost can be charged to an account with this cap at all."""
        return isinstance(cost, self.costs) and cost.unit == self.unit


@dataclass(frozen=True)
class TwinCap(Cap):
    """The most that all twins of the same network may spend: (ε, δ)-DP of the worst element.

    At δ = 0 there is room for pure costs only.
    """

    kind: ClassVar[AccountKind] = AccountKind.NETWORK_TWIN
    costs: ClassVar[tuple[type, ...]] = (PureCost, GdpCost)
    unit: Neighbours

    def limits(self) -> Amounts:
        return {"epsilon": Fraction(self.epsilon)}

    def nothing(self) -> Elements:
        return Elements()

    def statement(self, spent: ComposedCosts) -> Promised:
        return Promised(spent.epsilon(self.delta), self.delta, str(self.unit), spent.words)

    def spent_by(self, tally: Elements) -> Amounts:
        return {"epsilon": Fraction(tally.worst(self.delta).epsilon(self.delta))}

    def balance(self, tally: Elements) -> Balance:
        """What may still be spent is pure, or Gaussian where all so far is."""
        composed = tally.worst(self.delta)
        promise = self.statement(composed)
        left = float(left_of(Fraction(promise.epsilon), Fraction(self.epsilon)))
        available = left
        if composed.mu_squared and not composed.pure:
            mu_squared = left_of(composed.mu_squared, Fraction(gdp_mu(self.epsilon, self.delta)) ** 2)
            available = gdp_epsilon(math.sqrt(mu_squared), self.delta)
        spent, rest = {"epsilon": promise.epsilon}, {"epsilon": left}
        return Balance(self, spent, rest, promise, replace(promise, epsilon=available), composed)


@dataclass(frozen=True)
class AdditiveCap(Cap):
    """A cap whose quantities add up, whatever the order and the element."""

    def nothing(self) -> Totals:
        return Totals(dict.fromkeys(self.limits(), Fraction(0)))

    def spent_by(self, tally: Totals) -> Amounts:
        return tally.amounts

    def balance(self, tally: Totals) -> Balance:
        spent = tally.amounts
        left = {name: left_of(spent[name], limit) for name, limit in self.limits().items()}
        was, rest = ({name: float(amount) for name, amount in each.items()} for each in (spent, left))
        return Balance(self, was, rest, self.statement(spent), self.statement(left))


@dataclass(frozen=True)
class LoadsCap(AdditiveCap):
    """The most that all releases from the same customers may spend: (ε, δ)-DP of one record."""

    kind: ClassVar[AccountKind] = AccountKind.LOADS
    costs: ClassVar[tuple[type, ...]] = (LoadsCost,)
    unit: PrivacyUnit = PrivacyUnit.LOAD_POINT

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta, self.unit)  # the same ranges
        object.__setattr__(self, "unit", PrivacyUnit(self.unit))

    def limits(self) -> Amounts:
        return {"rho": Fraction(epsilon_to_rho(self.epsilon, self.delta))}

    def statement(self, spent: Amounts) -> Promised:
        epsilon = rho_to_epsilon(float(spent["rho"]), self.delta)
        return Promised(epsilon, self.delta, str(self.unit), "differential privacy, composed in zCDP")


@dataclass(frozen=True)
class InstanceCap(AdditiveCap):
    """The most that all releases from the same true network may be allowed: sums of ε* and of δ*."""

    kind: ClassVar[AccountKind] = AccountKind.NETWORK_INSTANCE
    costs: ClassVar[tuple[type, ...]] = (InstanceCost,)
    unit: Neighbours

    def limits(self) -> Amounts:
        return {"epsilon": Fraction(self.epsilon), "delta": Fraction(self.delta)}

    def statement(self, spent: Amounts) -> Promised:
        words = "per-instance evidence, basic composition; not differential privacy"
        return Promised(float(spent["epsilon"]), float(spent["delta"]), str(self.unit), words)


Cost = LoadsCost | InstanceCost | GdpCost | PureCost
_CAPS: dict[AccountKind, Callable[..., Cap]] = {cap.kind: cap for cap in (LoadsCap, InstanceCap, TwinCap)}


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
    unit = fields["unit"] if kind is AccountKind.LOADS else Neighbours(fields["unit"])
    return _CAPS[kind](**{**fields, "unit": unit})


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
