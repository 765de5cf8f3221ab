"""The inverse question: per line, the largest x that the policy protects.

A pilot (losses at one x, on draws of their own) guesses a candidate per line; fresh draws then test it. The
guess needs no proof, the test is a confidence bound, and a line that fails is tested at smaller x again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import norm

from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.lines.confidence import smallest_share, upper_mean
from dp_powerflow.evidence.lines.evidence import CONFIDENCE
from dp_powerflow.evidence.lines.losses import Draw, LineLoss, LineLosses, Progress
from dp_powerflow.evidence.lines.neighbours import scaled_both_ways
from dp_powerflow.grid.feeder import Line
from dp_powerflow.units import FloatArray

SIZES = tuple(float(f"{m}e{k}") for k in range(-6, 0) for m in (1, 2, 5))
"""x that may be tested."""
_STEPS_DOWN = (0, 1, 3)
"""How far below its candidate a line is tested, attempt by attempt."""
_SLACK = 1.3
"""δ tested over the smallest supported one: leaves room for a few losses just above ε."""
_SAFETY = 0.5
"""Expected number of exceedances in all draws that a candidate may have where none is allowed for."""


def protected_sizes(
    engine: LineLoss,
    pilot: LineLosses,
    draw: Draw,
    days: int,
    epsilon: float,
    delta: float,
    *,
    horizon: int = 1,
    confidence: float = CONFIDENCE,
    progress: Progress | None = None,
) -> tuple[dict[str, float | None], float]:
    """Per line of the pilot the largest x tested that is (ε, δ)-indistinguishable, and the δ used.

    Parameters
    ----------
    pilot : losses of lines scaled both ways, on draws that `draw` does not repeat.
    days : drawn per attempt.
    horizon : released days that ε and δ are for; losses add up over disjoint groups of the drawn days.
    """
    groups = days // horizon
    if groups < 1:
        raise PrivacyError("the protected x needs at least as many drawn days as are released")
    lines = tuple({item.line.name: item.line for item in pilot.neighbours}.values())
    each = (1.0 - confidence) / (4 * len(lines) * len(_STEPS_DOWN))
    supported = supported_delta(len(lines), days, horizon, confidence)
    used = max(delta, supported)
    candidate = _candidates(
        pilot, lines, epsilon, _SAFETY / groups / 4.0 if used == supported else used / 4.0, horizon
    )
    found: dict[str, float | None] = dict.fromkeys(candidate)
    open_lines: Sequence[Line] = lines
    for down in _STEPS_DOWN:
        position = [max(0, candidate[line.name] - down) for line in open_lines]
        neighbours = [
            item
            for line, at in zip(open_lines, position, strict=True)
            for item in scaled_both_ways([line], SIZES[at])
        ]
        losses = engine.losses(neighbours, draw, groups * horizon, progress).by_direction
        sums = losses.reshape(*losses.shape[:2], groups, horizon).sum(axis=-1)
        excess = -np.expm1(np.minimum(epsilon - sums, 0.0)).mean(axis=-1)
        worst = upper_mean(excess, groups, each).reshape(len(open_lines), 4).max(axis=1)
        failed = []
        for line, at, bound in zip(open_lines, position, worst, strict=True):
            if bound <= used * (1.0 + 1e-12):
                found[line.name] = SIZES[at]
            elif at > 0:
                failed.append(line)
        open_lines = failed
        if not open_lines:
            break
    return found, used


def supported_delta(lines: int, days: int, horizon: int, confidence: float = CONFIDENCE) -> float:
    """Smallest δ at which a protected x can be tested with so many days."""
    each = (1.0 - confidence) / (4 * lines * len(_STEPS_DOWN))
    return min(1.0, _SLACK * smallest_share(max(1, days // horizon), each))


def _candidates(
    pilot: LineLosses, lines: Sequence[Line], epsilon: float, tail: float, horizon: int
) -> dict[str, int]:
    """Index into SIZES per line: Λ of a day taken as N(s²/2, s²) with s in proportion to x."""
    z = float(norm.isf(tail))
    wanted = (-z + np.sqrt(z**2 + 2.0 * epsilon)) / np.sqrt(horizon)
    spread = _spread(pilot.by_direction)
    chosen = {}
    for line in lines:
        own = [k for k, item in enumerate(pilot.neighbours) if item.line.name == line.name]
        size = max(abs(pilot.neighbours[k].size or 0.0) for k in own)
        x = size * wanted / max(float(spread[own].max()), 1e-12)
        chosen[line.name] = max(0, int(np.searchsorted(SIZES, x, side="right")) - 1)
    return chosen


def _spread(losses: FloatArray) -> FloatArray:
    """(neighbour,) s such that the finite losses look like N(s²/2, s²), the larger of two ways to say it."""
    finite = np.isfinite(losses)
    values, count = np.where(finite, losses, 0.0), np.maximum(1, finite.sum(axis=-1))
    mean = values.sum(axis=-1) / count
    deviation = np.where(finite, values - mean[..., None], 0.0)
    by_std = np.sqrt((deviation**2).sum(axis=-1) / count)
    spread = np.fmax(by_std, np.sqrt(2.0 * np.clip(mean, 0.0, None))).max(axis=1)
    # A line whose day is impossible under the neighbour needs a far smaller change.
    return np.asarray(np.where(finite.all(axis=(1, 2)), spread, 10.0 * np.fmax(spread, 1.0)))
