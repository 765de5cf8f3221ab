"""The account of twins: costs of pure or Gaussian DP, each of all elements or of some, and how they compose.

The secret is one element (a line, a transformer, …), so the promise of an account is that of its worst
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
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache, reduce
from typing import ClassVar

from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.budget import Neighbours, composed_epsilon, gdp_epsilon, gdp_mu
from dp_powerflow.privacy.ledger.kinds import AccountKind, Amounts, Standing, Statement, check_amount, left_of


@dataclass(frozen=True)
class Scope:
    """Whom a cost touches: all elements, or those that were replaced or added.

    Parameters
    ----------
    replaced, added
        Names of elements, such as ``"line.l115"``. With neither, the cost is that of all elements.
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

    @property
    def named(self) -> frozenset[str]:
        return frozenset(self.replaced + self.added)


ALL_ELEMENTS = Scope()


@dataclass(frozen=True)
class PureCost:
    """What noise of pure ε-DP costs an element, such as Laplace or K-norm noise of a twin."""

    epsilon: float
    unit: Neighbours
    scope: Scope = ALL_ELEMENTS

    def __post_init__(self) -> None:
        check_amount(self.epsilon, "epsilon")

    def amounts(self) -> Amounts:
        return {"epsilon": Fraction(self.epsilon)}


@dataclass(frozen=True)
class GdpCost:
    """What Gaussian noise of a twin costs an element; everything computed from that twin is free."""

    mu: float
    unit: Neighbours
    scope: Scope = ALL_ELEMENTS

    def __post_init__(self) -> None:
        check_amount(self.mu, "mu")

    def amounts(self) -> Amounts:
        return {"mu_squared": Fraction(self.mu) ** 2}


TwinCost = PureCost | GdpCost


@dataclass(frozen=True)
class Composed:
    """Everything that touched one element.

    Attributes
    ----------
    pure : ε of every pure cost, ascending.
    mu_squared : exact sum of μ² of the Gaussian ones.
    """

    pure: tuple[float, ...] = ()
    mu_squared: Fraction = Fraction(0)

    @classmethod
    def of(cls, costs: Iterable[TwinCost]) -> Composed:
        return reduce(cls.plus, costs, cls())

    def plus(self, cost: TwinCost) -> Composed:
        """With one further cost."""
        if isinstance(cost, GdpCost):
            return Composed(self.pure, self.mu_squared + Fraction(cost.mu) ** 2)
        if cost.epsilon == 0:
            return self
        at = bisect_right(self.pure, cost.epsilon)
        return Composed((*self.pure[:at], cost.epsilon, *self.pure[at:]), self.mu_squared)

    def covering(self, other: Composed) -> Composed:
        """The least that is at least as much as both: the largest pure costs one by one, the larger μ²."""
        longest = max(len(self.pure), len(other.pure))
        pairs = ((0.0,) * (longest - len(one.pure)) + one.pure for one in (self, other))
        pure = tuple(max(pair) for pair in zip(*pairs, strict=True))
        return Composed(pure, max(self.mu_squared, other.mu_squared))

    def epsilon(self, delta: float) -> float:
        """ε of all of it at δ; Gaussian costs need a δ above 0."""
        return _epsilon(self, delta)

    @property
    def words(self) -> str:
        if self.mu_squared == 0:
            return "differential privacy; pure epsilons add up"
        if not self.pure:
            return "differential privacy, composed in Gaussian DP"
        return "differential privacy, pure and Gaussian costs composed by privacy-loss distributions"


@lru_cache(maxsize=1024)
def _epsilon(composed: Composed, delta: float) -> float:
    """Remembered, since an account is asked several times and distributions are slow to compose."""
    return composed_epsilon(composed.pure, math.sqrt(composed.mu_squared), delta)


@dataclass(frozen=True)
class Elements:
    """What touched every element of a network, kept up cost by cost.

    Attributes
    ----------
    others : of all elements that no cost names, together.
    named : of every element that a cost names.
    """

    others: Composed = Composed()
    named: Mapping[str, Composed] = field(default_factory=dict)

    def plus(self, cost: TwinCost) -> Elements:
        """With one further cost, made after the others."""
        pasts = (self.named.get(name, self.others) for name in cost.scope.joined)
        joined = dict.fromkeys(cost.scope.joined, reduce(Composed.covering, pasts, Composed()).plus(cost))
        if cost.scope.all_elements:
            after = {composed: composed.plus(cost) for composed in {*self.named.values()}}
            named = {name: after[composed] for name, composed in self.named.items()}
            return Elements(self.others.plus(cost), named | joined)
        # An added element was seen by no earlier twin; a replaced one, and one with a history, was.
        before = dict.fromkeys(cost.scope.added, Composed()) | dict.fromkeys(cost.scope.replaced, self.others)
        touched = {name: self.named.get(name, start).plus(cost) for name, start in before.items()}
        return Elements(self.others, {**self.named, **touched, **joined})

    def worst(self, delta: float) -> Composed:
        """What touched the element with the largest ε at δ."""
        return max(
            _undominated({self.others, *self.named.values()}),
            key=lambda found: (found.epsilon(delta), found.pure, found.mu_squared),
        )


@dataclass(frozen=True)
class TwinCap:
    """The most that all twins of the same network may spend: (ε, δ)-DP of one element.

    Parameters
    ----------
    epsilon
        Of the worst element.
    delta
        Where the promise is stated; 0 leaves room for pure costs only.
    unit
        The networks compared, such as one line with its length changed by a factor up to 1.05.
    """

    kind: ClassVar[AccountKind] = AccountKind.NETWORK_TWIN
    epsilon: float
    delta: float
    unit: Neighbours

    def __post_init__(self) -> None:
        check_amount(self.epsilon, "epsilon")
        check_amount(self.delta, "delta")
        if self.epsilon == 0 or self.delta >= 1:
            raise PrivacyError("the cap of twins needs a positive epsilon and a delta below 1")

    def limits(self) -> Amounts:
        return {"epsilon": Fraction(self.epsilon)}

    def nothing(self) -> Elements:
        """What an account without a charge has spent."""
        return Elements()

    def tally(self, costs: Iterable[TwinCost]) -> Elements:
        """What touched every element, by the costs in the order they were made."""
        return reduce(Elements.plus, costs, Elements())

    def composed(self, tally: Elements) -> Composed:
        """What touched the worst element."""
        return tally.worst(self.delta)

    def statement(self, composed: Composed) -> Statement:
        """What everything that touched an element promises."""
        return Statement(composed.epsilon(self.delta), self.delta, str(self.unit), composed.words)

    def spent_by(self, tally: Elements) -> Amounts:
        """ε of the worst element, to be compared with the limit."""
        return {"epsilon": Fraction(self.composed(tally).epsilon(self.delta))}

    def promised(self, costs: Iterable[TwinCost]) -> Statement:
        """What the costs promise together."""
        return self.statement(self.composed(self.tally(costs)))

    def standing(self, tally: Elements) -> Standing:
        """What the costs promise, and what one further cost may be: pure, or Gaussian where all so far is."""
        composed = self.composed(tally)
        promise = self.statement(composed)
        spent = {"epsilon": Fraction(promise.epsilon)}
        if composed.mu_squared and not composed.pure:
            limit = {"mu_squared": Fraction(gdp_mu(self.epsilon, self.delta)) ** 2}
            left = left_of({"mu_squared": composed.mu_squared}, limit)["mu_squared"]
            epsilon = gdp_epsilon(math.sqrt(max(left, Fraction(0))), self.delta)
        else:
            epsilon = float(left_of(spent, self.limits())["epsilon"])
        return Standing(spent, promise, replace(promise, epsilon=epsilon))


def _undominated(lists: set[Composed]) -> list[Composed]:
    """Without those that have less of everything than another one: few are left to convert."""

    def covers(one: Composed, other: Composed) -> bool:
        """Whether the largest pure costs of `one` are at least those of `other`, one by one."""
        pairs = zip(reversed(one.pure), reversed(other.pure), strict=False)
        enough = len(one.pure) >= len(other.pure) and one.mu_squared >= other.mu_squared
        return enough and all(mine >= theirs for mine, theirs in pairs)

    kept: list[Composed] = []
    for item in sorted(
        lists, key=lambda item: (len(item.pure), sum(item.pure), item.mu_squared), reverse=True
    ):
        if not any(covers(other, item) for other in kept):
            kept.append(item)
    return kept
