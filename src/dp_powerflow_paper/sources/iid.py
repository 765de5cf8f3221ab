"""Independent noise on readings: per meter, in shares that add up to Laplace, or with zero mean.

- `LaplaceLoads`: every meter's reading with Laplace noise of its own.
- `DivisibleLaplace`: the total of all meters, each of which adds a share of the noise (Ács and Castelluccia,
  DREAM). A public envelope instead of one range makes the sensitivity point-wise (Eibl and Engel).
- `ZeroMeanNoise`: noise per meter that leaves totals as they are on average (Barbosa et al.); a guarantee
  only where it is Laplace.

Readings are cut to a public range first: without one there is no sensitivity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.units import ComplexArray, FloatArray
from dp_powerflow_paper.sources import Guarantee, LoadMechanism
from dp_powerflow_paper.sources.entries import LoadEntry, Occasion
from dp_powerflow_paper.sources.meters import DAY, SLOT, Meters, ReadingUnit


def _check(epsilon: float) -> None:
    if not (math.isfinite(epsilon) and epsilon > 0.0):
        raise PrivacyError("noise on readings needs a finite, positive ε")


@dataclass(frozen=True, eq=False)
class LaplaceLoads:
    """Every reading with Laplace noise of its own, cut to the public range again.

    Attributes
    ----------
    epsilon : of `unit`; the readings of a day share it equally, each at its own sensitivity.
    """

    meters: Meters
    epsilon: float
    unit: ReadingUnit = DAY
    name: str = "Laplace on loads"
    unlimited: bool = False

    def __post_init__(self) -> None:
        _check(self.epsilon)

    @property
    def scale(self) -> FloatArray:
        """(step,) λ of a relative reading: k·Δ_t/ε for k readings that share ε."""
        return self.unit.readings(self.meters.steps) * self.meters.width / self.epsilon

    @property
    def guarantee(self) -> Guarantee:
        """Proved: Σ_t Δ_t/λ_t = ε over the readings of the unit; cutting is post-processing."""
        return self.unit.guarantee(self.epsilon, proved=True, remark="Laplace on readings in a public range")

    @property
    def noise_std(self) -> Mapping[str, float]:
        """Of the largest meter's reading at the step with the widest range [p.u.]."""
        return {"load_noise": math.sqrt(2.0) * float(self.scale.max() * self.meters.nominal.max())}

    def noisy(self, generator: np.random.Generator, days: int) -> FloatArray:
        """(meter, day, step) relative readings with noise, before they are cut again."""
        true = self.meters.first_days(days)
        return np.asarray(true + generator.laplace(size=true.shape) * self.scale)

    def draw(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Noisy loads of the first days."""
        return self.meters.nodal(self.meters.cut(self.noisy(generator, days)))


@dataclass(frozen=True, eq=False)
class DivisibleLaplace:
    """The noisy total of all meters, split among them by their public nominal loads.

    Meter i sends X_i + G − G′ with G, G′ ~ Gamma(1/h, λ), h the number of meters that keep to it. Their sum
    is the total plus noise that contains Laplace(λ); more of it where more than h take part. Only the total
    is protected: what one meter sends must be encrypted, since its share of the noise alone hides nothing.

    Attributes
    ----------
    epsilon : of `unit`.
    honest_share : share of meters that are sure to add their noise; the claim fails if fewer do.
    taking_part : share of meters that add their noise in these draws, to see what happens.
    smoothing : odd number of steps that a moving average of the noisy total spans; 1 for none.
    """

    meters: Meters
    epsilon: float
    unit: ReadingUnit = SLOT
    honest_share: float = 1.0
    taking_part: float = 1.0
    smoothing: int = 1
    name: str = "divisible Laplace"
    unlimited: bool = False

    def __post_init__(self) -> None:
        _check(self.epsilon)
        if not (0.0 < self.honest_share <= 1.0 and 0.0 < self.taking_part <= 1.0):
            raise PrivacyError("shares of meters lie above 0 and at most at 1")
        if self.smoothing < 1 or self.smoothing % 2 == 0:
            raise PrivacyError("a moving average spans an odd number of steps")

    @property
    def honest(self) -> int:
        """h, number of meters that the noise is divided among."""
        return self._count(self.honest_share)

    @property
    def scale(self) -> FloatArray:
        """(step,) λ of the total [p.u.]: k·max_i Δ_it/ε, for the largest meter."""
        largest = self.meters.nominal.max() * self.meters.width
        return np.asarray(self.unit.readings(self.meters.steps) * largest / self.epsilon)

    @property
    def guarantee(self) -> Guarantee:
        """Proved for the total, as long as the honest meters are as many as was said."""
        kept = self._taking >= self.honest
        remark = "the total only: what one meter sends is protected by encryption alone"
        if not kept:
            remark = f"{self.taking_part:.0%} of the meters add noise made for {self.honest_share:.0%}"
        return self.unit.guarantee(self.epsilon, proved=kept, remark=remark)

    @property
    def shape(self) -> float:
        """Of the sum of all shares: 1 is Laplace, more is more noise."""
        return self._taking / self.honest

    @property
    def _taking(self) -> int:
        return self._count(self.taking_part)

    def _count(self, share: float) -> int:
        """Meters of a share; a product such as 0.07·100 is not rounded up."""
        return math.ceil(share * self.meters.n - 1e-9)

    @property
    def noise_std(self) -> Mapping[str, float]:
        """Of the total at the step with the widest range [p.u.]."""
        return {"total_noise": math.sqrt(2.0 * self.shape) * float(self.scale.max())}

    def shares_of_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
        """(meter that takes part, ...) what each adds, over λ."""
        size = (self._taking, *shape)
        plus, minus = (generator.standard_gamma(1.0 / self.honest, size) for _ in range(2))
        return np.asarray(plus - minus)

    def total(self, generator: np.random.Generator, days: int) -> FloatArray:
        """(day, step) noisy total [p.u.], before smoothing."""
        true = np.tensordot(self.meters.nominal, self.meters.first_days(days), axes=1)
        noise = np.zeros_like(true)
        for day in range(days):
            # One day at a time: shares of thousands of meters need not be held for all days.
            noise[day] = self.shares_of_noise(generator, true.shape[1:]).sum(axis=0)
        return np.asarray(true + noise * self.scale)

    def draw(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Every meter has the share of the total that its nominal load has; cut to the public range."""
        relative = _smoothed(self.total(generator, days), self.smoothing) / self.meters.nominal.sum()
        each = np.broadcast_to(self.meters.cut(relative), (self.meters.n, *relative.shape))
        return self.meters.nodal(each)


def _smoothed(values: FloatArray, span: int) -> FloatArray:
    """(day, step) moving average within each day; shorter windows at its ends."""
    if span == 1:
        return values
    steps, half = values.shape[1], span // 2
    sums = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
    first = np.maximum(np.arange(steps) - half, 0)
    last = np.minimum(np.arange(steps) + half + 1, steps)
    return np.asarray((sums[:, last] - sums[:, first]) / (last - first))


@dataclass(frozen=True)
class Uniform:
    """Uniform on ±width·nominal load: no ε, as the ends of the interval rule loads out.

    Attributes
    ----------
    width : relative to the nominal load.
    """

    width: float

    @property
    def std(self) -> float:
        """Of a relative reading."""
        return self.width / math.sqrt(3.0)

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
        """Relative noise."""
        return np.asarray(generator.uniform(-self.width, self.width, shape))

    def guarantee(self, unit: ReadingUnit) -> Guarantee:
        """None in truth: ε is infinite."""
        remark = "bounded noise: a reading at the end of its interval rules other loads out, no ε is finite"
        return unit.guarantee(math.inf, proved=False, remark=remark)


@dataclass(frozen=True, eq=False)
class ZeroMeanNoise:
    """Every reading with noise of mean zero, so that totals survive on average.

    Power flow takes no negative load, so `draw` cuts the noisy loads to the public range; `noisy` does not.

    Attributes
    ----------
    noise : `Uniform`, without a guarantee, or `ZeroMeanLaplace`.
    """

    meters: Meters
    noise: Uniform
    unit: ReadingUnit = SLOT
    name: str = "zero-mean noise"
    unlimited: bool = False

    @property
    def guarantee(self) -> Guarantee:
        """What the law of the noise gives."""
        return self.noise.guarantee(self.unit)

    @property
    def noise_std(self) -> Mapping[str, float]:
        """Of the largest meter's reading [p.u.]."""
        return {"load_noise": self.noise.std * float(self.meters.nominal.max())}

    def draw(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Noisy loads of the first days, cut to the public range."""
        return self.meters.nodal(self.meters.cut(self.noisy(generator, days)))

    def noisy(self, generator: np.random.Generator, days: int) -> FloatArray:
        """(meter, day, step) relative readings as the meters send them; some may be negative."""
        true = self.meters.first_days(days)
        return np.asarray(true + self.noise.draw(generator, true.shape))


NIGHT_SHARE = 0.6
"""Of the public range, declared for the hours before six: the point-wise envelope of the registry."""
SMOOTHING = 5
"""Steps of the moving average after the point-wise envelope."""
UNIFORM_WIDTH = 0.5


def night_envelope(meters: Meters) -> Meters:
    """Meters whose public range is narrower at night; a declared figure, not one of the data."""
    width = meters.width
    width[: meters.steps // 4] *= NIGHT_SHARE
    return meters.within(meters.low, meters.low + width)


def _entry(
    kind: str, title: str, paper: str, unit: ReadingUnit, make: Callable[[Occasion], LoadMechanism]
) -> LoadEntry:
    return LoadEntry(key=f"{kind}-{unit.key}", title=title, paper=paper, matched=unit is DAY, make=make)


def _laplace(unit: ReadingUnit) -> LoadEntry:
    def make(occasion: Occasion) -> LoadMechanism:
        return LaplaceLoads(Meters.of(occasion.data, occasion.days), occasion.target.epsilon, unit)

    return _entry("laplace", f"Laplace on loads, per {unit.key}", "barbosa2014", unit, make)


def _dream(unit: ReadingUnit) -> LoadEntry:
    def make(occasion: Occasion) -> LoadMechanism:
        return DivisibleLaplace(Meters.of(occasion.data, occasion.days), occasion.target.epsilon, unit)

    title = f"DREAM total, per {unit.key}, split by nominal load"
    return _entry("dream", title, "gergelyDream", unit, make)


def _envelope(unit: ReadingUnit) -> LoadEntry:
    def make(occasion: Occasion) -> LoadMechanism:
        meters = night_envelope(Meters.of(occasion.data, occasion.days))
        return DivisibleLaplace(
            meters, occasion.target.epsilon, unit, smoothing=SMOOTHING, name="point-wise envelope"
        )

    title = f"total with point-wise envelope, per {unit.key}, smoothed"
    return _entry("envelope", title, "eibl2017", unit, make)


def _zero_mean(occasion: Occasion) -> LoadMechanism:
    return ZeroMeanNoise(Meters.of(occasion.data, occasion.days), Uniform(UNIFORM_WIDTH))


LOADS = (
    *(make(unit) for make in (_laplace, _dream, _envelope) for unit in (SLOT, DAY)),
    LoadEntry(
        key="zero-mean-uniform",
        title="zero-mean noise, ±50 % of nominal load",
        paper="barbosa2014",
        matched=False,
        make=_zero_mean,
    ),
)
