"""A wider load law whose truncated draws keep the mean load, as far as the theorem's tail allows.

Widening Σ and then truncating to the margins moves the mean load (PAPER_NOTES 14). The log mean is free
post-processing and no term of the formula depends on it, but its tail term takes the whitened draw z to be
no longer than a standard normal. So the log mean of a step is moved only while E[z²] ≤ 1 there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dp_powerflow.evidence.law import NodeLaw
from dp_powerflow.model.truncated import truncate
from dp_powerflow.units import FloatArray

_ROUNDS = 4
_DRAWS = 400
_DAMPING = 0.7
_SMALLEST_VARIANCE = 1e-12


def with_restored_mean(
    law: NodeLaw, floor: float, margins: tuple[float, float], generator: np.random.Generator
) -> NodeLaw:
    """The law with Σ + floor·I and log means moved so that truncation to the margins keeps the mean load."""
    wide = law.with_floor(floor)
    means = np.empty_like(wide.mean)
    for ell, (mean, covariance) in enumerate(zip(wide.mean, wide.covariance, strict=True)):
        target = np.exp(law.mean[ell] + law.std[ell] ** 2 / 2.0)
        means[ell] = _moved(mean, covariance, np.clip(target, *margins), margins, generator)
    return replace(wide, mean=means)


def _moved(
    mean: FloatArray,
    covariance: FloatArray,
    target: FloatArray,
    margins: tuple[float, float],
    generator: np.random.Generator,
) -> FloatArray:
    """Log mean (step,) at which truncated draws have the mean `target`, or as near as E[z²] ≤ 1 lets it."""
    steps = len(mean)
    low, high = np.full(steps, np.log(margins[0])), np.full(steps, np.log(margins[1]))
    variance = np.diag(covariance)
    for _ in range(_ROUNDS):
        draws = truncate(mean, covariance, low, high).draw(generator, _DRAWS, rejection=False)
        centre = draws.mean(axis=0)
        left = np.maximum(draws.var(axis=0), _SMALLEST_VARIANCE)
        # Newton on an exponential family: moving μ by δ moves the truncated mean by δ·(variance left)/σ².
        wanted = mean + _DAMPING * np.log(target / np.exp(draws).mean(axis=0)) * variance / left
        room = np.sqrt(np.maximum(variance - left, 0.0))
        mean = np.clip(wanted, centre - room, centre + room)
    return np.asarray(mean)
