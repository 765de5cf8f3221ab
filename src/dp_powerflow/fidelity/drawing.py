"""PRIVATE. The customers of the meters that a release is compared with, and the resolution of the meters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.fit import ONE_CLASS
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.drawing import days_off
from dp_powerflow.units import BoolArray, FloatArray

MOST_DIGITS = 4
_EXACT = 1e-3  # of a quantum
_NEARLY_ALL = 0.99
_COMMON = 0.1  # share of the customers


@dataclass(frozen=True, eq=False, repr=False)
class Customers:
    """PRIVATE. Some customers and days of a history, with what the release's model says of them.

    Attributes
    ----------
    history : the meters.
    off : (day,) whether it is a day off.
    floor_kw : (customer,) lowest load that the model knows [kW].
    """

    history: LoadHistory
    off: BoolArray
    floor_kw: FloatArray

    @property
    def load_kw(self) -> FloatArray:
        """(customer, day, step) raised to the floor, as the fit does [kW]."""
        return np.maximum(self.history.load_kw, self.floor_kw[:, None, None])


def some_customers(
    model: LoadModel, history: LoadHistory, most: tuple[int, int], rng: np.random.Generator
) -> Customers:
    """PRIVATE. At most so many customers, drawn at random, and so many first days.

    Parameters
    ----------
    most : customers and days.
    """
    chosen = np.sort(rng.permutation(history.n_load_points)[: most[0]])
    names = [history.load_points[k] for k in chosen]
    part = history.select(names, history.days[: most[1]])
    return Customers(part, days_off(model, part), _floors(model, part))


def quantum_of(history: LoadHistory) -> float | None:
    """INTERNAL. Resolution of the meters [kW], None where none is seen.

    Energies of an interval with up to four digits, or powers: the coarsest of which, for one customer in ten
    or more, nearly all readings are multiples. A lowest reading, such as a floor, does not count.
    """
    per_hour = 60.0 / history.step_minutes
    grids = {scale * 10.0**-digits for digits in range(MOST_DIGITS + 1) for scale in (1.0, per_hour)}
    some = history.load_kw[:: max(1, history.n_load_points // 200)]
    some = some.reshape(len(some), -1)
    thin = max(1, some.shape[1] // 1000)
    for quantum in sorted(grids, reverse=True):
        fitting = [_multiples(own[::thin], quantum) for own in some]
        if np.mean(fitting) >= _COMMON:
            return quantum
    return None


def _multiples(values: FloatArray, quantum: float) -> bool:
    """Whether nearly all values above the lowest are multiples of a quantum, and not one and the same."""
    above = values[values > values.min()]
    if np.unique(above).size < 2:
        return False
    return bool(np.mean(np.abs(above / quantum - np.round(above / quantum)) < _EXACT) > _NEARLY_ALL)


def _floors(model: LoadModel, history: LoadHistory) -> FloatArray:
    low = {part.name: part.bounds[0] for part in model.classes}
    lowest = min(low.values())
    each = np.array([low.get(label or ONE_CLASS, lowest) for label in history.class_label])
    return each * history.scale_kw if model.scaled and history.scale_kw is not None else each
