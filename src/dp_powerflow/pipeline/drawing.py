"""Customers drawn from a load model, one for every meter of a history, on the days of the meters.

Drawing is post-processing of the model: anybody who has the release can do it. Classes, scales, days off and
weather are those that are declared of the meters, so that both sides can be compared.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import numpy as np

from dp_powerflow.errors import LoadDataError, ServiceMapError
from dp_powerflow.loads.history import SATURDAY, LoadHistory
from dp_powerflow.model.fit import ONE_CLASS
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.history.sample import HistorySampler, PlacedPopulation, path_of, population_of
from dp_powerflow.model.law import LoadNodes
from dp_powerflow.model.options import DayFacts
from dp_powerflow.model.sample import CustomerLaw, CustomerSampler, LoadSource, draw_node_classes
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import BoolArray, FloatArray


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
        raise ServiceMapError(
            "the model of the release divides by public scales, which this history does not have; give the "
            "history that the release was made from"
        )
    source = _histories(model, history, classes, key) if model.is_history else None
    if source is None:
        count = history.n_load_points
        each = model.at(LoadNodes(classes, scale_kw, 1.0))
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


def _histories(
    model: LoadModel, history: LoadHistory, classes: tuple[str, ...], key: StreamKey
) -> LoadSource:
    """Customers who persist, through the days of the meters."""
    count, used = history.n_load_points, set(classes)
    scale_kw = history.scale_kw if model.scaled else None
    people = population_of(
        model.histories, model.sha256, classes, np.arange(count), scale_kw, np.zeros(count), key
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
