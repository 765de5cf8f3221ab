"""What all accounts have in common: kinds, exact amounts, and what an amount means."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Protocol

from dp_powerflow.errors import PrivacyError

Amounts = Mapping[str, Fraction]
"""Exact quantities by name: rho; epsilon and delta; mu_squared; or the epsilon of the worst element."""

TOLERANCE = Fraction(1, 10**12)
"""By how much, relative to the cap, a sum may pass it: ten spends of 0.1 fit a cap of 1."""


class AccountKind(StrEnum):
    """What an account protects, and by which arithmetic."""

    LOADS = "loads"
    NETWORK_INSTANCE = "network, per-instance"
    NETWORK_GDP = "network, gdp"
    NETWORK_TWIN = "network, twin"

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
class Standing:
    """What costs come to under a cap.

    Attributes
    ----------
    spent : exact, by quantity.
    promise : what all of it promises.
    available : what one further cost may be.
    """

    spent: Amounts
    promise: Statement
    available: Statement


class Addend(Protocol):
    """A cost whose quantities add up."""

    def amounts(self) -> Amounts: ...


@dataclass(frozen=True)
class Totals:
    """Exact sums of costs, kept up cost by cost: neither their order nor their number plays a part."""

    amounts: Amounts

    def plus(self, cost: Addend) -> Totals:
        """The sums with one further cost."""
        more = cost.amounts()
        return Totals({name: amount + more[name] for name, amount in self.amounts.items()})


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


def check_amount(value: float, name: str) -> None:
    """Refuse what cannot be an amount."""
    if not (math.isfinite(value) and value >= 0):
        raise PrivacyError(f"{name} of an account of the ledger must be a number of at least 0")
