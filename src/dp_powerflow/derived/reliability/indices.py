"""Indices in closed form: a sum over every element that can fail.

With λ_e faults of element e in a year, E[R_e] its mean repair time and S_e = E[min(R_e, s)] the mean time
until switches have acted, a customer has Σ λ_e interruptions over the elements whose fault reaches him, and
Σ λ_e·S_e + Σ λ_e·E[R_e] hours over those that switching and repair end. Two faults at once count twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow.derived.reliability.repair import mean_cut_short
from dp_powerflow.derived.reliability.settings import ReliabilitySettings
from dp_powerflow.derived.reliability.tree import Sections, Tree, rates_of
from dp_powerflow.units import FloatArray, IntArray

HOURS_PER_YEAR = 8760.0


@dataclass(frozen=True)
class Indices:
    """Of a system, a year.

    Attributes
    ----------
    saifi : interruptions per customer.
    saidi_hours : hours of interruption per customer.
    ens_kwh : energy not served [kWh].
    customers : number of them.
    """

    saifi: float
    saidi_hours: float
    ens_kwh: float
    customers: int

    @property
    def caidi_hours(self) -> float:
        """Hours per interruption; 0 without any."""
        return self.saidi_hours / self.saifi if self.saifi > 0.0 else 0.0

    @property
    def asai(self) -> float:
        """Share of the time that customers are served."""
        return 1.0 - self.saidi_hours / HOURS_PER_YEAR

    @property
    def aens_kwh(self) -> float:
        """Energy not served per customer [kWh]."""
        return self.ens_kwh / self.customers


@dataclass(frozen=True, eq=False)
class ClosedForm:
    """Expected figures of a year.

    Attributes
    ----------
    system : of all customers.
    interruptions, hours : (section,) of a customer there.
    of_element : (element, 3) what its faults add to SAIFI, SAIDI [h] and energy not served [kWh].
    """

    system: Indices
    interruptions: FloatArray
    hours: FloatArray
    of_element: FloatArray


def closed_form(
    tree: Tree, sections: Sections, settings: ReliabilitySettings, customers: IntArray, mean_kw: FloatArray
) -> ClosedForm:
    """Indices by enumeration.

    Parameters
    ----------
    customers, mean_kw : (section,) customers and mean drawn load [kW].
    """
    rate = rates_of(tree.elements)
    repair = np.array([element.repair_hours for element in tree.elements])
    switching = mean_cut_short(repair, settings.switching_hours, settings)
    of, total = sections.of_element, int(customers.sum())
    faults, repairs, switchings = (
        np.asarray(np.bincount(of, weights=each, minlength=sections.count), dtype=np.float64)
        for each in (rate, rate * repair, rate * switching)
    )
    switched, repaired = sections.switched.astype(np.float64), sections.repaired.astype(np.float64)
    interruptions = _weighted(faults, switched + repaired)
    hours: FloatArray = _weighted(switchings, switched) + _weighted(repairs, repaired)
    reached = _weighted(customers.astype(np.float64), (switched + repaired).T)
    shares: tuple[FloatArray, FloatArray] = (np.asarray(customers / total, dtype=np.float64), mean_kw)
    added = [rate * reached[of] / total]
    for weight in shares:
        until_switched, until_repaired = _weighted(weight, switched.T)[of], _weighted(weight, repaired.T)[of]
        added.append(rate * (switching * until_switched + repair * until_repaired))
    system = Indices(
        saifi=float(np.sum(customers * interruptions)) / total,
        saidi_hours=float(np.sum(customers * hours)) / total,
        ens_kwh=float(np.sum(mean_kw * hours)),
        customers=total,
    )
    return ClosedForm(system, interruptions, hours, np.stack(added, axis=1))


def _weighted(weights: FloatArray, matrix: FloatArray) -> FloatArray:
    """Sum of the rows of a matrix, each times its weight, in their order: the same bits everywhere."""
    return np.asarray((weights[:, None] * matrix).sum(axis=0))
