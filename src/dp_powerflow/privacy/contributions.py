"""One record's contribution as bounded integers, their exact sum, and the noisy release of it.

The argument for every query of the package is the one below, so that it can be read, and attacked, once.

1. A record's contribution is a vector c that is a function of that record and of public or released values.
2. It is scaled so that the public clip radius is R = 2²⁴ grid units, clipped to that radius, rounded towards
   zero, and its norm is checked in integer arithmetic: Σ z² ≤ R² holds exactly, whatever floating point did.
   A contribution that is not finite counts as zero.
3. Contributions are summed in int64 (n·R is checked to fit). Integer sums are exact, so neighbours' sums
   differ by exactly z − z′, or by z in one class's block and z′ in another's if the class is private.
4. ‖z − z′‖ is bounded by the region the contributions lie in:
   `BALL` any direction: ‖z − z′‖ ≤ 2R;
   `ORTHANT` all entries ≥ 0: ⟨z, z′⟩ ≥ 0, so ‖z − z′‖² ≤ 2R²;
   `PSD` vectorised positive semidefinite matrices A, B: ⟨A, B⟩ = tr(AB) ≥ 0, so ‖A − B‖ ≤ √2·R before
   rounding; rounding moves each by at most √d, floating point by less than ½: √2·R + 2√d + 1.
   In two different blocks ‖z‖² + ‖z′‖² ≤ 2R², which is below each of the three.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from dp_powerflow._bits.linear import norms
from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.budget import PrivacyUnit, QueryCost
from dp_powerflow.privacy.noise import MAX_SIGMA, discrete_gaussian
from dp_powerflow.privacy.random import Stream
from dp_powerflow.units import FloatArray, IntArray

GRID_RADIUS = 2**24
MAX_DIMENSION = 2**14  # squares of an unclipped row still fit 64 bits
_MAX_RECORDS = 2**36


class Region(StrEnum):
    """Where contributions lie inside the ball of radius R."""

    BALL = "ball"
    ORTHANT = "orthant"
    PSD = "psd"


@dataclass(frozen=True)
class Query:
    """A sum to be released: public constants only.

    Parameters
    ----------
    name
        For the cost record.
    dimension
        Length of one record's contribution.
    radius
        Public L2 clip radius of a contribution, in the natural unit.
    region
        Where contributions lie.
    rho
        Budget for this query.
    natural_unit
        Unit of the contribution, for the cost record.
    """

    name: str
    dimension: int
    radius: float
    region: Region
    rho: float
    natural_unit: str = "1"

    def __post_init__(self) -> None:
        if not 1 <= self.dimension <= MAX_DIMENSION:
            raise PrivacyError(
                f"the query '{self.name}' releases {self.dimension} numbers; "
                f"at most {MAX_DIMENSION} are supported"
            )
        if not (self.radius > 0 and self.rho > 0):
            raise PrivacyError(f"the query '{self.name}' needs a positive clip radius and a positive budget")

    @property
    def grid_step(self) -> float:
        """One grid unit in the natural unit."""
        return self.radius / GRID_RADIUS

    def cost(self, unit: PrivacyUnit, cohort: str | None) -> QueryCost:
        """The record of what the query will spend on records of a public cohort; at most its budget."""
        squared = sensitivity_squared(self.region, self.dimension)
        sigma = math.ceil(math.sqrt(squared / (2 * self.rho)))
        while squared > 2 * self.rho * sigma**2:
            sigma += 1
        if sigma > MAX_SIGMA:
            raise PrivacyError(f"the budget of the query '{self.name}' is too small; raise epsilon")
        return QueryCost(
            query=self.name,
            unit=unit,
            cohort=cohort,
            dimension=self.dimension,
            region=str(self.region),
            sensitivity_squared=squared,
            grid_step=self.grid_step,
            natural_unit=self.natural_unit,
            sigma=sigma,
        )


def sensitivity_squared(region: Region, dimension: int, radius: int = GRID_RADIUS) -> int:
    """Bound on ‖z − z′‖² in squared grid units, as an exact integer (argument in the module's docstring)."""
    if region is Region.BALL:
        return 4 * radius**2
    if region is Region.ORTHANT:
        return 2 * radius**2
    # (√2·R + 2√d + 1)², with each square root rounded up
    bound = math.isqrt(2 * radius**2) + 1 + math.isqrt(4 * dimension) + 1 + 1
    return bound**2


def quantise(values: FloatArray, query: Query) -> IntArray:
    """Contributions (record, dimension) as integers with Σ z² ≤ R², in the query's region."""
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.asarray(values, dtype=np.float64) / query.grid_step
        norm = norms(scaled)
        scaled *= (GRID_RADIUS / np.maximum(norm, GRID_RADIUS))[:, None]
        scaled[~np.isfinite(scaled).all(axis=1)] = 0.0
    if query.region is Region.ORTHANT:
        np.maximum(scaled, 0.0, out=scaled)
    # Rounding towards zero cannot lengthen a vector.
    grid = np.clip(np.trunc(scaled), -GRID_RADIUS, GRID_RADIUS).astype(np.int64)
    _enforce_norm(grid)
    return grid


def _enforce_norm(grid: IntArray) -> None:
    """Shrink, in place, the rows that floating point left longer than R; exact integer arithmetic."""
    while True:
        long = np.flatnonzero(np.einsum("nd,nd->n", grid, grid) > GRID_RADIUS**2)
        if not long.size:
            return
        grid[long] -= np.sign(grid[long])


def exact_sum(chunks: Iterable[FloatArray], query: Query) -> IntArray:
    """Exact sum (dimension,) of the quantised contributions of all records, chunk by chunk."""
    total = np.zeros(query.dimension, dtype=np.int64)
    records = 0
    for chunk in chunks:
        records += chunk.shape[0]
        if records > _MAX_RECORDS:
            raise PrivacyError("too many records for exact 64-bit sums; fit on fewer load points or days")
        total += quantise(chunk, query).sum(axis=0)
    return total


def add_noise(total: IntArray, sigma: int, stream: Stream) -> IntArray:
    """The integer sum plus independent discrete Gaussian noise on every entry."""
    return total + discrete_gaussian(stream, sigma, total.size)


def release_sum(chunks: Iterable[FloatArray], query: Query, sigma: int, stream: Stream) -> IntArray:
    """Clip, quantise, sum exactly and add noise: the only way data reach a released number.

    Parameters
    ----------
    chunks
        Contributions (record, dimension) in the natural unit, in pieces that fit in memory.
    query
        What is asked.
    sigma
        Noise scale in grid units, from the cost that was recorded.
    stream
        Noise.

    Returns
    -------
    array (dimension,) of int64
        In grid units.
    """
    return add_noise(exact_sum(chunks, query), sigma, stream)
