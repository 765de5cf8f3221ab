"""INTERNAL. Customers drawn from a released load model, one for every meter, on the days of the meters.

Drawing is post-processing of the published model: whoever has the release can do it. Classes, scales, days
off and weather are those that are declared of the meters, so that both sides can be compared.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace

import numpy as np

from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.history import SATURDAY, LoadHistory
from dp_powerflow.model.customers import CustomerLaw, CustomerSampler
from dp_powerflow.model.day_facts import DayFacts
from dp_powerflow.model.fit import ONE_CLASS
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.history.drawing import path_of, population_of
from dp_powerflow.model.history.sample import HistorySampler, PlacedPopulation
from dp_powerflow.model.law import LoadNodes
from dp_powerflow.model.sample import LoadSource, draw_node_classes
from dp_powerflow.privacy.random import StreamKey
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


def days_off(model: LoadModel, history: LoadHistory) -> BoolArray:
    """(day,) days off: those that the model publishes, else weekends."""
    facts = None if model.origin is None else model.origin.facts.days
    known = {} if facts is None else dict(zip(facts.dates, facts.off, strict=True))
    return np.array([known.get(day.isoformat(), day.weekday() >= SATURDAY) for day in history.days])


def draw_customers(model: LoadModel, history: LoadHistory, key: StreamKey) -> FloatArray:
    """(customer, day, step) [kW]: one customer for every meter, with its class and scale, on its days.

    Raises
    ------
    LoadDataError
        The model was not fitted to meters of this kind.
    """
    classes = classes_of(model, history, key)
    scale_kw = history.scale_kw if model.scaled else None
    if model.scaled and scale_kw is None:
        raise LoadDataError(
            "the model of the release divides by public scales, which this history does not have; give the "
            "history that the release was made from"
        )
    source = _histories(model, history, classes, key) if model.is_history else None
    if source is None:
        count = history.n_load_points
        each = model.at(LoadNodes(classes, scale_kw, 1.0), day_type=model.classes[0].day_type)
        law = CustomerLaw(replace(each, q_size=None), np.arange(count), np.arange(count))
        source = CustomerSampler(law, key, history.n_days)
    return np.concatenate([source.block(k).load_kw for k in range(source.n_blocks)], axis=1)


def classes_of(model: LoadModel, history: LoadHistory, key: StreamKey) -> tuple[str, ...]:
    """Class of every customer: its label, or drawn from the released weights where classes are private."""
    if not model.public_labels:
        return draw_node_classes(model, history.n_load_points, key)
    labels = tuple(label or ONE_CLASS for label in history.class_label)
    strange = sorted(set(labels) - set(model.class_names))
    if strange:
        raise LoadDataError(
            "the meters have a class that the load model of the release does not know; give the history that "
            "the release was made from"
        )
    return labels


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


def _histories(
    model: LoadModel, history: LoadHistory, classes: tuple[str, ...], key: StreamKey
) -> LoadSource:
    """Customers who persist, through the days of the meters."""
    count, used = history.n_load_points, set(classes)
    people = population_of(
        model.histories,
        model.sha256,
        classes,
        np.arange(count),
        history.scale_kw if model.scaled else None,
        np.zeros(count),
        key,
    )
    facts = None if model.origin is None else model.origin.facts.days
    assert facts is not None  # no model of histories is fitted without the facts of its days
    off, factor = path_of(
        [part for part in model.histories if part.name in used],
        facts,
        history.days,
        days_off(model, history),
        _covariates(facts, history.days),
        key.bind("model", model.sha256),
    )
    law = PlacedPopulation(people, 1.0, np.arange(count))
    return HistorySampler(law, key, history.n_days, off, factor)


def _covariates(facts: DayFacts, days: tuple[dt.date, ...]) -> dict[str, FloatArray]:
    """Name → (day,) covariates that the model publishes of days of its meters."""
    place = {date: k for k, date in enumerate(facts.dates)}
    wanted = [place.get(day.isoformat(), -1) for day in days]
    if facts.covariates and min(wanted) < 0:
        raise LoadDataError(
            "the load model of the release knows the weather of other days than these meters have; give the "
            "history that the release was made from"
        )
    return {name: np.array(values)[wanted] for name, values in facts.covariates}
