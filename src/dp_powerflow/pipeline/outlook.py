"""What releases like this one cost if they are made every year: for the customers and for the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dp_powerflow.privacy.ledger.accounts import Cap, Cost, Statement

YEARS = (1, 5, 10)


@dataclass(frozen=True)
class YearlyCost:
    """What has been spent after some yearly releases, the first of which is this one.

    Attributes
    ----------
    releases : how many, of the same customers and the same network.
    customers : (ε, δ) of one record, composed; a new load model every year.
    network : of the network, if it is charged every year.
    kept_network : of the network, if what it was charged for once is used again; None where that cannot be.
    """

    releases: int
    customers: Statement
    network: Statement
    kept_network: Statement | None


def yearly_costs(
    customers: tuple[Cap, Cost], network: tuple[Cap, Cost], *, kept: bool, years: Sequence[int] = YEARS
) -> tuple[YearlyCost, ...]:
    """The cost of yearly releases.

    Parameters
    ----------
    customers, network : the arithmetic of each account, and what one release asks of it.
    kept : whether later releases can use what the network paid for once.
    """
    return tuple(
        YearlyCost(
            releases=count,
            customers=_after(*customers, count),
            network=_after(*network, count),
            kept_network=_after(*network, 1) if kept else None,
        )
        for count in years
    )


def _after(cap: Cap, cost: Any, count: int) -> Statement:
    return cap.promised([cost] * count)
