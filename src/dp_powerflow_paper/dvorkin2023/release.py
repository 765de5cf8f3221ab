"""Synthetic data sets of a grid as rows of a comparison: capacities of its lines, records of its PV."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dp_powerflow import Feeder
from dp_powerflow.lowlevel import clear_sky
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.dvorkin2020.case import case_of
from dp_powerflow_paper.dvorkin2023.capacities import CapacityMechanism, infeasible_share
from dp_powerflow_paper.dvorkin2023.cases import radial_case
from dp_powerflow_paper.dvorkin2023.records import PowerRecords, RecordMechanism, solar_records
from dp_powerflow_paper.dvorkin2023.restored import DispatchCase
from dp_powerflow_paper.sources import Guarantee
from dp_powerflow_paper.sources.entries import Occasion, OtherEntry

CHANGE = 0.05
"""α: share of the median capacity, and of the rating of a PV system, by which neighbours differ."""
ROUNDS = 5
DERS = 6
_LATITUDE, _DAYS, _STEPS = 40.0, 14, 96


@dataclass(frozen=True, eq=False)
class ReleasedCapacities:
    """Capacities of the lines of one feeder.

    Attributes
    ----------
    capacity : (line,) the true ones.
    """

    case: DispatchCase
    capacity: FloatArray
    mechanism: CapacityMechanism
    name: str = "capacities of lines"
    kind: str = "capacities of lines, and the cost of dispatch within them"

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """For the capacities."""
        return (self.mechanism.guarantee,)

    def measure(self, generator: np.random.Generator) -> Mapping[str, float]:
        """What dispatch makes of the released capacities, and of those with plain noise of all of ε."""
        *_, released = self.mechanism.release(self.case, self.capacity, generator)
        price = self.mechanism.overload_price
        alone = CapacityMechanism(self.mechanism.epsilon, self.mechanism.change, 0, price)
        noisy = next(alone.release(self.case, self.capacity, generator))
        true = self.case.costs(self.capacity, price)
        apart = [np.mean(np.abs(self.case.costs(each, price) / true - 1.0)) for each in (released, noisy)]
        return {
            "records without a dispatch [share]": infeasible_share(self.case, released),
            "the same, Laplace noise alone [share]": infeasible_share(self.case, noisy),
            "error of costs [%]": 100.0 * float(apart[0]),
            "the same, Laplace noise alone [%]": 100.0 * float(apart[1]),
        }


@dataclass(frozen=True, eq=False)
class ReleasedRecords:
    """Power records of one PV system."""

    records: PowerRecords
    mechanism: RecordMechanism
    name: str = "records of a PV system"
    kind: str = "records of weather and power of a plant"

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """For the records."""
        return (self.mechanism.guarantee,)

    def measure(self, generator: np.random.Generator) -> Mapping[str, float]:
        """How far the regression of the released records is from that of the true ones."""
        regression = self.records.regression
        true = regression.features @ regression.weights(self.records.power)
        found = {}
        for name, power in (
            ("", self.mechanism.release(self.records, generator)),
            (", Laplace noise alone", self.mechanism.laplace(self.records, generator)),
        ):
            curve = regression.features @ regression.weights(power)
            found[f"loss over the true one{name}"] = regression.loss(power) / regression.loss(
                self.records.power
            )
            found[f"largest error of the curve{name} [share of rating]"] = float(np.abs(curve - true).max())
        return found


def feeder_case(feeder: Feeder) -> tuple[DispatchCase, FloatArray]:
    """A feeder with generators at some of its buses with load, and ampacities by a public rule."""
    own = case_of(feeder)
    loaded = np.flatnonzero(own.load_p > 0.0)
    return radial_case(own.network, own.load_p, loaded[:: max(1, len(loaded) // DERS)][:DERS])


def feeder_capacities(occasion: Occasion, rounds: int = ROUNDS) -> ReleasedCapacities:
    """Those of an occasion's feeder."""
    case, capacity = feeder_case(occasion.data.feeder)
    change = CHANGE * float(np.median(capacity))
    mechanism = CapacityMechanism(occasion.target.epsilon, change, rounds, case.dearest)
    return ReleasedCapacities(case, capacity, mechanism)


def pv_records(occasion: Occasion) -> ReleasedRecords:
    """A PV system under two weeks of clear sky."""
    records = solar_records(clear_sky(_LATITUDE, _DAYS, _STEPS))
    return ReleasedRecords(records, RecordMechanism(occasion.target.epsilon, CHANGE))


_PAPER = "dvorkin2023differentially"
OTHERS = (
    OtherEntry(
        key="capacities",
        title="capacities of lines, TCO",
        paper=_PAPER,
        extra="opf",
        audited_by="tests/paper/test_dvorkin2023.py",
        make=feeder_capacities,
    ),
    OtherEntry(
        key="pv-records",
        title="records of a PV system, WPO",
        paper=_PAPER,
        extra="opf",
        audited_by="tests/paper/test_dvorkin2023.py",
        make=pv_records,
    ),
)
