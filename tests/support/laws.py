"""Load laws of the tests, and days of loads: drawn by the sampler, or given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dp_powerflow.model.law import ClassLaw, LoadLaw
from dp_powerflow.model.sample import LoadBlock, LoadSampler
from dp_powerflow.privacy.random import StreamKey


def sampler(law: LoadLaw, days: int, seed: int) -> LoadSampler:
    """Days drawn from a law, all in one block."""
    return LoadSampler(law, StreamKey.from_insecure_seed(seed), days, block_days=days)


def draw(law: LoadLaw, days: int, rng: np.random.Generator) -> np.ndarray:
    """Complex (day, step, node) loads [p.u.] from the sampler that releases."""
    block = sampler(law, days, int(rng.integers(2**31))).block(0)
    per_unit = (block.load_kw + 1j * block.load_kvar) / (1000.0 * law.base_mva)
    return np.ascontiguousarray(per_unit.transpose(1, 2, 0))


@dataclass(frozen=True, eq=False)
class GivenDays:
    """Loads, complex (day, step, node) [p.u.], as a source of days."""

    law: LoadLaw
    load: np.ndarray
    block_days: int | None = None

    @property
    def n_days(self) -> int:
        return len(self.load)

    @property
    def n_blocks(self) -> int:
        return -(-self.n_days // (self.block_days or self.n_days))

    def block(self, index: int) -> LoadBlock:
        size = self.block_days or self.n_days
        part = self.load[index * size : (index + 1) * size].transpose(2, 0, 1) * (1000.0 * self.law.base_mva)
        return LoadBlock(index * size, part.real.copy(), part.imag.copy())


def gaussian_classes(
    means: Sequence[np.ndarray],
    covariances: Sequence[np.ndarray],
    q_covariance: np.ndarray | None = None,
    margins: tuple[float, float] | None = None,
) -> tuple[ClassLaw, ...]:
    """One Gaussian per class; all with the same random part of q."""
    return tuple(
        ClassLaw.gaussian(mean, covariance, q_covariance=q_covariance, margins=margins, name=f"class {k}")
        for k, (mean, covariance) in enumerate(zip(means, covariances, strict=True))
    )


def with_spread(law: LoadLaw, factor: float) -> LoadLaw:
    """Variances of log p and of q times a factor."""
    changed = law.with_gaussians(law.mean, factor * law.covariance)
    if law.q_size is None or law.q_covariance is None:
        return changed
    return changed.with_random_q(law.q_size, factor * law.q_covariance)
