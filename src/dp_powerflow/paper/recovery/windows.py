"""Windows of one node's voltage magnitude with a hidden block: the samples of the recovery task.

Windows lie within one day: two synthetic days are independent draws, so a window across midnight would have
a jump in it that no true window has. A day of 96 steps holds two windows, at steps 0 and 36; its last 12
steps are in none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import LoadDataError
from dp_powerflow.units import BoolArray, FloatArray

LENGTH = 48
"""12 hours of 15 minutes."""
STRIDE = 36
"""A window shares 12 steps, 3 hours, with the next one."""
HIDDEN = 24
"""⌊√0.25 · 48⌋."""


@dataclass(frozen=True)
class Samples:
    """Windows and what is hidden of each.

    Attributes
    ----------
    values : array (sample, 48) [p.u.]
        Voltage magnitude of one node over one window.
    hidden : bool array (sample, 48)
        True in one contiguous block of 24 steps per sample.
    """

    values: FloatArray
    hidden: BoolArray

    def __len__(self) -> int:
        return len(self.values)


def windows_per_day(steps: int) -> int:
    """Windows of one node in a day of so many steps."""
    if steps < LENGTH:
        raise LoadDataError(
            f"the recovery task has windows of {LENGTH} steps, and a day of the data has {steps}; "
            "use data of 15 minutes"
        )
    return (steps - LENGTH) // STRIDE + 1


def cut_windows(vm_pu: FloatArray) -> FloatArray:
    """All windows of voltage magnitudes (day, step, node) → (day × window × node, 48), in that order."""
    starts = [STRIDE * number for number in range(windows_per_day(vm_pu.shape[1]))]
    parts = np.stack([vm_pu[:, start : start + LENGTH] for start in starts], axis=1)
    return np.ascontiguousarray(parts.transpose(0, 1, 3, 2).reshape(-1, LENGTH))


def hide_blocks(count: int, generator: np.random.Generator) -> BoolArray:
    """(sample, 48) with one block of 24 steps per sample, every position as likely as any other."""
    first = generator.integers(0, LENGTH - HIDDEN + 1, size=count)
    step = np.arange(LENGTH)
    return np.asarray((step >= first[:, None]) & (step < first[:, None] + HIDDEN))


def draw_samples(vm_pu: FloatArray, count: int, generator: np.random.Generator) -> Samples:
    """`count` different windows of the days, each with a block of its own; vm_pu: (day, step, node)."""
    windows = cut_windows(vm_pu)
    if count > len(windows):
        raise LoadDataError(
            f"{len(vm_pu)} days hold {len(windows)} windows, and {count} are needed; use more days"
        )
    chosen = generator.choice(len(windows), size=count, replace=False)
    return Samples(windows[chosen], hide_blocks(count, generator))


def hidden_mse(guess: FloatArray, samples: Samples) -> float:
    """Mean squared error over the hidden entries [p.u.²]; guess: (sample, 48) [p.u.]."""
    return float(np.mean((guess - samples.values)[samples.hidden] ** 2))


def observed_mean(samples: Samples) -> FloatArray:
    """Guess without learning: the mean of what is seen, at every step. (sample, 48) [p.u.]"""
    seen = np.where(samples.hidden, 0.0, samples.values).sum(axis=1) / (LENGTH - HIDDEN)
    return np.repeat(seen[:, None], LENGTH, axis=1)


def interpolated(samples: Samples) -> FloatArray:
    """Guess without learning: a straight line across the block, its near edge held if it has one only."""
    step = np.arange(LENGTH)
    rows = zip(samples.values, samples.hidden, strict=True)
    return np.stack([np.interp(step, step[~hidden], values[~hidden]) for values, hidden in rows])
