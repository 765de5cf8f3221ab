"""What a release may spend, and the record of what each query spent.

Neighbours are *replace-one*: two histories with the same public number of load points, one record of which
holds different values. The record is the unit of privacy:

- `load-point` (default): all days of one load point. A load point sums the customers of one service, so
  replacing one customer changes one load point and the guarantee covers every customer behind it.
- `load-point-day`: one day of one load point, the paper's unit. A customer with d days is d records; his
  whole history is protected d² times less in ρ.

Public facts (class labels, scales, calendar days) belong to a record's slot and are equal in neighbours.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from dp_powerflow.errors import PrivacyError

ADJACENCY = "replace-one, public number of load points"


class PrivacyUnit(StrEnum):
    """What one record is."""

    LOAD_POINT = "load-point"
    LOAD_POINT_DAY = "load-point-day"


@dataclass(frozen=True)
class Neighbours:
    """The networks that a promise makes hard to tell apart, in words of public constants.

    Figures about different neighbours are never added up or compared. What the ledger and the manifest keep
    are the words, so neighbours are the same if their words are.

    Parameters
    ----------
    words
        What changes by how much, such as ``"one line, admittance scaled by up to 1 %"``.
    """

    words: str

    def __post_init__(self) -> None:
        if not self.words.strip():
            raise PrivacyError("neighbours need words; say what changes by how much")

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class Budget:
    """The most a fit may spend: (ε, δ)-differential privacy for one unit.

    Parameters
    ----------
    epsilon, delta
        Total over everything the fit releases.
    unit
        The record that is protected.
    """

    epsilon: float
    delta: float = 1e-5
    unit: PrivacyUnit = PrivacyUnit.LOAD_POINT

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise PrivacyError(
                "epsilon of the privacy budget must be positive and finite; 1 is a common choice"
            )
        if not 0 < self.delta < 1:
            raise PrivacyError(
                "delta of the privacy budget must lie between 0 and 1; 1e-5 is a common choice"
            )
        object.__setattr__(self, "unit", PrivacyUnit(self.unit))


@dataclass(frozen=True)
class QueryCost:
    """The cost of one noisy sum: discrete Gaussian noise on integers, ρ = Δ²/2σ² of zCDP.

    Parameters
    ----------
    query
        What was asked, such as ``"mean, round 1"``.
    unit
        The record whose replacement is bounded.
    cohort
        Public class the query was restricted to, or None if every record entered. Costs of different
        cohorts do not add (see `accounting.total_rho`), because a record's cohort is public and fixed.
    dimension
        Number of integers released.
    region
        Where one record's contribution lies; decides the sensitivity (see `contributions.Region`).
    sensitivity_squared
        Bound on the squared L2 change of the integer sum, rounding included; an exact integer.
    grid_step
        Size of one grid unit in the natural unit of the query.
    natural_unit
        Unit of the query, such as ``"log kW"``.
    sigma
        Noise scale in grid units, an integer.
    """

    query: str
    unit: PrivacyUnit
    cohort: str | None
    dimension: int
    region: str
    sensitivity_squared: int
    grid_step: float
    natural_unit: str
    sigma: int

    @property
    def sensitivity_grid(self) -> float:
        """L2 sensitivity in grid units."""
        return math.sqrt(self.sensitivity_squared)

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity in the natural unit of the sum."""
        return self.sensitivity_grid * self.grid_step

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each released sum, in the natural unit."""
        return self.sigma * self.grid_step

    @property
    def rho(self) -> float:
        """ρ of zero-concentrated differential privacy (CKS, Theorem 14 in v4)."""
        return self.sensitivity_squared / (2 * self.sigma**2)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a manifest: the fields and the figures derived from them."""
        return asdict(self) | {
            "unit": str(self.unit),
            "sensitivity_grid": self.sensitivity_grid,
            "sensitivity": self.sensitivity,
            "noise_std": self.noise_std,
            "rho": self.rho,
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> QueryCost:
        """Inverse of `to_dict`; derived figures are recomputed, not trusted."""
        names = cls.__dataclass_fields__
        kept = {name: fields[name] for name in names}
        return cls(**(kept | {"unit": PrivacyUnit(kept["unit"])}))
