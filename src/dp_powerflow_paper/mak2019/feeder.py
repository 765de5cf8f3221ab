"""Obfuscated loads of a feeder without generators: every reading and the total with noise, then a projection.

There the cost of dispatch is that of what is imported, the total. It is no public figure, so a part of ε pays
for it; the rest pays for the readings. `nearest_with_total` then is the exact program within a program.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.units import ComplexArray, FloatArray
from dp_powerflow_paper.mak2019.restoration import TotalBand, nearest_with_total
from dp_powerflow_paper.sources import Guarantee, LoadMechanism
from dp_powerflow_paper.sources.entries import LoadEntry, Occasion
from dp_powerflow_paper.sources.meters import DAY, SLOT, Meters, ReadingUnit

BAND = 0.01
"""β of the published experiments."""


@dataclass(frozen=True, eq=False)
class NoisyReadings:
    """What is asked of the meters.

    Attributes
    ----------
    relative : (meter, day, step) readings with noise, over nominal loads.
    total : (day, step) total with noise of its own [p.u.].
    """

    relative: FloatArray
    total: FloatArray


@dataclass(frozen=True, eq=False)
class ObfuscatedLoads:
    """Readings nearest to noisy ones whose total is a noisy one, within a share.

    Attributes
    ----------
    epsilon : of `unit`, for readings and totals together.
    for_total : share of ε that pays for the totals.
    share : β, by which the restored total may differ from the noisy one.
    """

    meters: Meters
    epsilon: float
    unit: ReadingUnit = DAY
    for_total: float = 0.5
    share: float = BAND
    name: str = "obfuscated loads"
    unlimited: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0.0 and 0.0 < self.for_total < 1.0):
            raise PrivacyError("obfuscated loads need a finite, positive ε and a part of it for the total")

    @property
    def scales(self) -> tuple[FloatArray, FloatArray]:
        """(step,) λ of a relative reading, and of the total for the largest meter [p.u.]."""
        each = self.unit.readings(self.meters.steps) * self.meters.width / self.epsilon
        largest = float(self.meters.nominal.max())
        return np.asarray(each / (1.0 - self.for_total)), np.asarray(each * largest / self.for_total)

    @property
    def guarantee(self) -> Guarantee:
        """Proved: Σ_t Δ_t/λ_t over the readings of the unit is (1 − s)·ε, that of the totals s·ε."""
        remark = "Laplace on readings in a public range, and on their total"
        return self.unit.guarantee(self.epsilon, proved=True, remark=remark)

    @property
    def noise_std(self) -> Mapping[str, float]:
        """Of the largest meter's reading and of the total, at the step with the widest range [p.u.]."""
        reading, total = (math.sqrt(2.0) * float(scale.max()) for scale in self.scales)
        return {"load_noise": reading * float(self.meters.nominal.max()), "total_noise": total}

    def noisy(self, generator: np.random.Generator, days: int) -> NoisyReadings:
        """All that is asked of the first days."""
        true = self.meters.first_days(days)
        on_reading, on_total = self.scales
        total = np.tensordot(self.meters.nominal, true, axes=1)
        return NoisyReadings(
            np.asarray(true + generator.laplace(size=true.shape) * on_reading),
            np.asarray(total + generator.laplace(size=total.shape) * on_total),
        )

    def restored(self, noisy: NoisyReadings) -> FloatArray:
        """(meter, day, step) relative readings; reads the noisy figures and public ones alone."""
        band = TotalBand(noisy.total, self.meters.nominal, self.share)
        low, high = (edge[None, :, None] for edge in (self.meters.low, self.meters.high))
        return np.moveaxis(nearest_with_total(np.moveaxis(noisy.relative, 0, -1), band, low, high), -1, 0)

    def draw(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Restored loads of the first days."""
        return self.meters.nodal(np.ascontiguousarray(self.restored(self.noisy(generator, days))))


def _entry(unit: ReadingUnit) -> LoadEntry:
    def make(occasion: Occasion) -> LoadMechanism:
        return ObfuscatedLoads(Meters.of(occasion.data, occasion.days), occasion.target.epsilon, unit)

    return LoadEntry(
        key=f"obfuscated-{unit.key}",
        title=f"Laplace on loads, restored to a noisy total, per {unit.key}",
        paper="mak2019privacy",
        matched=unit is DAY,
        audited_by="tests/paper/test_mak2019.py",
        make=make,
    )


LOADS = (_entry(SLOT), _entry(DAY))
