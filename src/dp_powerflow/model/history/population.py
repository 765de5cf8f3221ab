"""Customers who persist: drawn once per corpus, then alive through all of its days."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.history.ladder import Ladder
from dp_powerflow.units import FloatArray, IntArray

LOWEST_SCORE, HIGHEST_SCORE, SCORES = -7.0, 7.0, 141
"""Normal scores at which the map of a customer is tabulated."""
LOADS = 257
"""Loads at which the last map of a class is tabulated, evenly in the log between the bounds."""


@dataclass(frozen=True, eq=False)
class ClassPath:
    """What the customers of one class share from day to day.

    Parameters
    ----------
    name
        Of the class; part of the names of its streams.
    contrast
        (step,) added to the scores on a day off, in part.
    own_profile
        (step,) √v: spread of a customer's own process over the day.
    ladder
        Of the process.
    amplitudes
        (level,) of the ladder; their squares add up to one.
    bounds
        (p_min, p_max) [kW, or per public scale].
    last_map
        (time of day, `LOADS`) [kW, or per public scale]: the load that takes the place of the one tabulated,
        by times of day of equal length.
    reactive_amplitudes
        (level,) of the random part of the reactive load; their squares add up to one. None at a fixed power
        factor.
    """

    name: str
    contrast: FloatArray
    own_profile: FloatArray
    ladder: Ladder
    amplitudes: FloatArray
    bounds: tuple[float, float]
    last_map: FloatArray
    reactive_amplitudes: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class Population:
    """Customers and all that is needed to draw their days; made from a released model and a key.

    Parameters
    ----------
    classes
        What the customers of each class share.
    class_of
        (customer,) index into `classes`.
    load_of
        (customer,) number of the load that the customer is part of, ascending, none left out.
    scale_kw
        (customer,) public scale [kW]; 1 where the model is relative to none.
    tan_theta
        (customer,) tangent of the power-factor angle.
    mean_day
        (customer, step) scores of the mean day.
    shared
        (customer,) s·w, what the shared factor is multiplied by.
    own
        (customer,) s·a, what the customer's own process is multiplied by, beside the profile of the class.
    log_map
        (customer, `SCORES`) log of the load [log kW, or log of kW per scale] at evenly spaced scores from
        `LOWEST_SCORE` to `HIGHEST_SCORE`; within the bounds of the class.
    reactive_kvar
        (class, load) standard deviation of the random part of q [kvar]; 0 at a fixed power factor.
    identity
        Hash of the model; the streams of the draws are bound to it.
    """

    classes: tuple[ClassPath, ...]
    class_of: IntArray
    load_of: IntArray
    scale_kw: FloatArray
    tan_theta: FloatArray
    mean_day: FloatArray
    shared: FloatArray
    own: FloatArray
    log_map: FloatArray
    reactive_kvar: FloatArray
    identity: str = ""

    def __post_init__(self) -> None:
        numbers = np.unique(self.load_of)
        if not np.all(np.diff(self.load_of) >= 0) or not np.array_equal(numbers, np.arange(len(numbers))):
            raise PrivacyError("a sum of customers needs the load of every customer, in ascending order")

    @property
    def n_customers(self) -> int:
        return len(self.load_of)

    @property
    def n_loads(self) -> int:
        return int(self.load_of[-1]) + 1

    @property
    def steps(self) -> int:
        """T."""
        return int(self.mean_day.shape[1])

    @property
    def most_kw(self) -> FloatArray:
        """(load,) [kW] that no draw passes."""
        highest = np.array([part.bounds[1] for part in self.classes])[self.class_of] * self.scale_kw
        return np.asarray(np.bincount(self.load_of, highest, minlength=self.n_loads), dtype=np.float64)
