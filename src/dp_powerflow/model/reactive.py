"""Reactive load: q = p·tan θ + c·p̄·ξ with ξ ~ N(0, Σ_ξ) over the day (paper correction 4).

p̄ is the released mean load of the class, so it costs nothing. tan θ of a class is declared public or
fitted; Σ_ξ is a public constant, fitted, or absent (fixed power factor, the paper's mode). Either way the
expected q given p stays p·tan θ: the spread moves no mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dp_powerflow._bits.elementary import arctan, exp, tan1
from dp_powerflow._bits.linear import product
from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.estimators import Contribution, Records, ask_averages, positive_part
from dp_powerflow.model.estimators.structured import (
    Frame,
    band_energy,
    bands_contribution,
    log_energy_contribution,
    log_energy_error,
    whitening_widths,
)
from dp_powerflow.model.law import ReactiveModel
from dp_powerflow.model.spectrum import StructuredPlan, synthesis_matrix
from dp_powerflow.privacy.queries import Query, Region, Session
from dp_powerflow.units import FloatArray


def tan_theta_of(power_factor: float) -> float:
    """tan θ = √(1 − cos² θ)/cos θ of an inductive power factor cos θ."""
    return math.sqrt((1 - power_factor) * (1 + power_factor)) / power_factor


DEFAULT_TAN_THETA = tan_theta_of(0.95)
MAX_ANGLE = math.radians(60)  # a fitted angle lies within ± this
FITTED_SPREAD = 0.3  # c when Σ_ξ is fitted; Σ_ξ then is of order one
TAIL = 3.5  # times the expected energy a record may have before it is clipped
_SHARES = {"angle": 0.2, "log energy": 0.3, "energy": 0.5}
_MIN_VARIANCE = 1e-6


@dataclass(frozen=True)
class FixedPowerFactor:
    """q = p·tan θ, θ declared public per class: the paper's mode.

    Parameters
    ----------
    tan_theta_of
        Class → tan θ.
    default
        tan θ of classes not listed.
    """

    tan_theta_of: Mapping[str, float] = field(default_factory=dict)
    default: float = DEFAULT_TAN_THETA

    def tan_theta(self, name: str) -> float:
        return self.tan_theta_of.get(name, self.default)


@dataclass(frozen=True)
class PublicSpread:
    """Full support with public constants: spread c, correlation exp(−|Δt|/τ), part of it white.

    Parameters
    ----------
    power_factor
        Declared angles.
    spread
        c, as a share of the class's mean load.
    correlation_minutes
        τ [min].
    white
        Share of the variance without memory; keeps Σ_ξ well conditioned.
    """

    power_factor: FixedPowerFactor = field(default_factory=FixedPowerFactor)
    spread: float = 0.15
    correlation_minutes: float = 120.0
    white: float = 0.2

    def __post_init__(self) -> None:
        if not (self.spread > 0 and self.correlation_minutes > 0 and 0 < self.white <= 1):
            raise PrivacyError(
                "the reactive spread needs c > 0, a correlation time > 0 and a white share in (0, 1]"
            )

    def covariance(self, n_steps: int, step_minutes: int) -> FloatArray:
        """Σ_ξ (step, step)."""
        lag = np.abs(np.subtract.outer(np.arange(n_steps), np.arange(n_steps))) * step_minutes
        correlation = exp(-lag / self.correlation_minutes)
        return (1 - self.white) * correlation + self.white * np.eye(n_steps)


@dataclass(frozen=True)
class FittedReactive:
    """Full support with tan θ and Σ_ξ fitted under differential privacy from metered kvar.

    Parameters
    ----------
    share
        Of the budget.
    """

    share: float = 0.15

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise PrivacyError("the share of the budget for reactive load must lie between 0 and 1")


ReactiveChoice = FixedPowerFactor | PublicSpread | FittedReactive


def angle_contribution(n_steps: int, bound: float) -> Contribution:
    """A record's own angle atan(Σq/Σp) over all days, within ± the largest angle; BALL in one dimension."""

    def contribution(pair: FloatArray) -> FloatArray:
        clipped = np.clip(pair, -bound, bound)
        active = clipped[..., :n_steps].sum(axis=(1, 2))
        reactive = clipped[..., n_steps:].sum(axis=(1, 2))
        angle = arctan(reactive / np.maximum(active, 1e-300))
        return np.clip(angle, -MAX_ANGLE, MAX_ANGLE)[:, None]

    return contribution


def fit_reactive(
    pairs: Sequence[Records],
    references: Sequence[float],
    bound: float,
    records: float,
    rho: float,
    session: Session,
) -> list[ReactiveModel]:
    """tan θ and Σ_ξ of each class, in lockstep; spends ρ.

    Parameters
    ----------
    pairs
        PRIVATE. p and q of the same records side by side (record, day, 2·step) [kW, kvar, or per scale],
        not their logs.
    references
        p̄ of each class, released.
    bound
        Public bound of |p| and |q| [kW, or per public scale].
    records
        Public number of records per class.
    """
    n_steps = pairs[0].n_steps // 2
    angles, _ = ask_averages(
        session,
        Query("power-factor angle", 1, MAX_ANGLE, Region.BALL, rho * _SHARES["angle"], "rad"),
        pairs,
        [angle_contribution(n_steps, bound)] * len(pairs),
    )
    tangents = [tan1(float(np.clip(angle[0], -MAX_ANGLE, MAX_ANGLE))) for angle in angles]
    residuals = [
        _residual(n_steps, tangent, FITTED_SPREAD * reference)
        for tangent, reference in zip(tangents, references, strict=True)
    ]
    # The bounds of the plan only matter for means, which have none here.
    plan = StructuredPlan(records, n_steps, rho, -1.0, 1.0, block=0)
    covariances = _spectra(pairs, residuals, plan, session)
    return [
        ReactiveModel(tangent, FITTED_SPREAD, reference, covariance)
        for tangent, reference, covariance in zip(tangents, references, covariances, strict=True)
    ]


def _residual(n_steps: int, tangent: float, scale: float) -> Contribution:
    """ξ (record, day, step) = (q − p·tan θ)/(c·p̄)."""
    return lambda pair: (pair[..., n_steps:] - tangent * pair[..., :n_steps]) / scale


def _spectra(
    pairs: Sequence[Records],
    residuals: Sequence[Contribution],
    plan: StructuredPlan,
    session: Session,
) -> list[FloatArray]:
    """Σ_ξ of each class from band energies: first their logs, then their means in the frame of those."""
    flat, zero = np.ones(plan.n_steps), np.zeros(plan.n_steps)
    logs, noise = ask_averages(
        session,
        plan.log_energy_query("reactive log band energies", plan.rho * _SHARES["log energy"]),
        pairs,
        [_after(residual, log_energy_contribution(plan, zero)) for residual in residuals],
    )
    widths = [whitening_widths(log, variance, plan) for log, variance in zip(logs, noise, strict=True)]
    frames = [
        Frame(zero, np.zeros(plan.coarse_mean), flat, width, log_energy_error(variance))
        for width, variance in zip(widths, noise, strict=True)
    ]
    rho, radius = plan.rho * _SHARES["energy"], plan.radius_bands(TAIL)
    energies, noise = ask_averages(
        session,
        Query("reactive band energies", plan.n_bands, radius, Region.ORTHANT, rho, "whitened"),
        pairs,
        [_after(f, bands_contribution(plan, frame)) for f, frame in zip(residuals, frames, strict=True)],
    )
    covariances = []
    for energy, error, frame in zip(energies, noise, frames, strict=True):
        variance = band_energy(energy, error, frame, plan)
        synthesis = synthesis_matrix(plan.n_steps) * frame.width
        covariances.append(positive_part(product(synthesis * variance, synthesis.T), _MIN_VARIANCE))
    return covariances


def _after(first: Contribution, then: Contribution) -> Contribution:
    return lambda values: then(first(values))
