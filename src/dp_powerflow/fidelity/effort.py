"""How much work a comparison does: numbers of customers, days, splits and fits, never seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """PUBLIC. Sizes of a comparison; memory and time follow from them alone.

    Attributes
    ----------
    splits : how often real customers are split into halves.
    customers : of a half, at most.
    days : of histories, at most.
    network_splits : how often the meters of a half are solved on the true feeder.
    network_days : of voltages and loads, at most.
    fits_per_kind : fits per kind of planted customer, half of them with it.
    membership_fits : fits on half of the customers.
    attacked : customers of an attacked fit, at most.
    attacked_days : days of it, at most.
    """

    splits: int
    customers: int
    days: int
    network_splits: int
    network_days: int
    fits_per_kind: int
    membership_fits: int
    attacked: int
    attacked_days: int


FULL = Effort(
    splits=6,
    customers=256,
    days=56,
    network_splits=4,
    network_days=28,
    fits_per_kind=60,
    membership_fits=6,
    attacked=48,
    attacked_days=28,
)
QUICK = Effort(
    splits=3,
    customers=96,
    days=28,
    network_splits=2,
    network_days=4,
    fits_per_kind=12,
    membership_fits=2,
    attacked=24,
    attacked_days=14,
)
