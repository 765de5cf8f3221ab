"""Load laws of the tests, and days of loads: drawn by the sampler, or given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.law import ClassLaw, ClassModel, LoadLaw, nominal_law
from dp_powerflow.model.sample import LoadSampler, LoadSource
from dp_powerflow.privacy.budget import PrivacyUnit
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.studies.study import GivenDays


def days_of(source: LoadSource) -> tuple[np.ndarray, np.ndarray]:
    """(load, day, step) active and reactive power of all blocks of a source."""
    blocks = [source.block(number) for number in range(source.n_blocks)]
    kw, kvar = ([getattr(block, name) for block in blocks] for name in ("load_kw", "load_kvar"))
    return np.concatenate(kw, axis=1), np.concatenate(kvar, axis=1)


def alike(
    part: ClassLaw, n: int, *, scale: float = 2.0, tan_theta: float = 0.3, q: float | None = None
) -> LoadLaw:
    """The law of n nodes of one class."""
    return LoadLaw(
        classes=(part,),
        class_of=np.zeros(n, dtype=np.int64),
        scale_kw=np.full(n, scale),
        tan_theta=np.full(n, tan_theta),
        q_size=None if q is None else np.full(n, q),
    )


def sampler(law: LoadLaw, days: int, seed: int) -> LoadSampler:
    """Days drawn from a law, all in one block."""
    return LoadSampler(law, StreamKey.from_insecure_seed(seed), days, block_days=days)


def draw(law: LoadLaw, days: int, rng: np.random.Generator) -> np.ndarray:
    """Complex (day, step, node) loads [p.u.] from the sampler that releases."""
    block = sampler(law, days, int(rng.integers(2**31))).block(0)
    per_unit = (block.load_kw + 1j * block.load_kvar) / (1000.0 * law.base_mva)
    return np.ascontiguousarray(per_unit.transpose(1, 2, 0))


def given_days(law: LoadLaw, load: np.ndarray, block_days: int | None = None) -> GivenDays:
    """Loads, complex (day, step, node) [p.u.], as a source of days."""
    of_node = load.transpose(2, 0, 1) * (1000.0 * law.base_mva)
    return GivenDays(law, of_node.real.copy(), of_node.imag.copy(), block_days or len(load))


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


def nominal_days(feeder: Feeder, steps: int, spread: float = 0.3) -> LoadLaw:
    """Loads about the nominal ones of a feeder, with margins for a truncated law and random q."""
    nominal = -feeder.nominal_injection[feeder.retained]
    lag = np.abs(np.subtract.outer(np.arange(steps), np.arange(steps)))
    mean, covariance = np.full(steps, -(spread**2) / 2.0), spread**2 * 0.8**lag
    of_class = ClassLaw.gaussian(mean, covariance, margins=(0.2, 4.0), q_covariance=0.8**lag)
    return nominal_law(nominal, of_class, 0.15)


def load_model(*classes: ClassModel, steps: int, scaled: bool = True) -> LoadModel:
    """A model that nobody fitted."""
    return LoadModel(
        classes=classes,
        step_minutes=1440 // steps,
        scaled=scaled,
        unit=PrivacyUnit.LOAD_POINT,
        epsilon=1.0,
        delta=1e-5,
        costs=(),
        n_load_points=10,
        n_days=10,
        public_labels=True,
        estimator="none",
        insecure_seed=True,
        simulated=True,
    )
