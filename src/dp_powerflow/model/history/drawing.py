"""From a released history model to a population, and to the shared factor of the days it lives through.

Nothing here sees meter data: it is all post-processing of the model, by the secret key of a release.
Traits of the customers of a class are a systematic sample in random order: each customer's is distributed as
released, and the corpus as a whole follows the released distribution closely.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

import numpy as np

from dp_powerflow._bits.elementary import log1
from dp_powerflow._bits.linear import product, standard_normal
from dp_powerflow.almanac.calendar import Calendar
from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.day_facts import DayFacts
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.history.calibrate import last_map
from dp_powerflow.model.history.factor import MARGIN, path
from dp_powerflow.model.history.individuals import Individuals
from dp_powerflow.model.history.law import ClassPath, HistoryClass, Population
from dp_powerflow.model.history.numbers import systematic
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import BoolArray, FloatArray, IntArray

MOST_TAN_DEVIATIONS = 2.0
"""A customer's tan θ lies within so many standard deviations of its class's."""


def population_of(
    classes: Sequence[HistoryClass],
    identity: str,
    names: Sequence[str],
    load_of: IntArray,
    scale_kw: FloatArray | None,
    tan_theta: FloatArray,
    key: StreamKey,
) -> Population:
    """Draw the customers of a corpus.

    Parameters
    ----------
    classes
        Of the model.
    identity
        Hash of the model.
    names
        Class of every customer.
    load_of
        (customer,) number of the load that the customer is part of, ascending.
    scale_kw
        (customer,) public scale [kW]; None where the model is relative to none.
    tan_theta
        (customer,) declared tangents; NaN where that of the class holds.
    key
        Secret of the draws.
    """
    known = {part.name: part for part in classes}
    missing = sorted(set(names) - known.keys())
    if missing:
        raise PrivacyError(f"the load model has no class '{missing[0]}'; it has {', '.join(known)}")
    used = [part for part in classes if part.name in set(names)]
    index = {part.name: k for k, part in enumerate(used)}
    class_of = np.array([index[name] for name in names], dtype=np.int64)
    n, n_steps = len(names), used[0].law.n_steps
    scale = np.ones(n) if scale_kw is None else np.asarray(scale_kw, dtype=np.float64)
    mean_day, log_map = np.empty((n, n_steps)), np.empty((n, used[0].law.score_map.size))
    shared, own, tangent = (np.empty(n) for _ in range(3))
    bound = key.bind("model", identity)
    for ell, part in enumerate(used):
        chosen, law = np.flatnonzero(class_of == ell), part.law
        people = _people(part, chosen.size, bound)
        offsets = people.offsets(law, law.score_map)
        low, high = log1(part.bounds[0]), log1(part.bounds[1])
        mean_day[chosen] = people.shape + offsets[:, None]
        log_map[chosen] = np.clip(people.maps(law, offsets) + people.traits[:, :1], low, high)
        shared[chosen] = people.spread * people.loading
        own[chosen] = people.spread * people.own(law)
        tangent[chosen] = _tangents(part, chosen.size, bound)
    declared = np.isfinite(tan_theta)
    return Population(
        classes=tuple(_path_of(part) for part in used),
        class_of=class_of,
        load_of=load_of,
        scale_kw=scale,
        tan_theta=np.where(declared, tan_theta, tangent),
        mean_day=mean_day,
        shared=shared,
        own=own,
        log_map=log_map,
        reactive_kvar=_reactive_kvar(used, class_of, load_of, scale),
        identity=identity,
    )


def _people(part: HistoryClass, count: int, key: StreamKey) -> Individuals:
    law = part.law
    coefficients = len(law.shape_block) + law.shape_variance.size
    # The class comes last in the names of streams: no label makes two of them, or those of days, the same.
    trait = systematic(key.stream(f"traits/{part.name}").generator.random((count, 4)))
    shape = standard_normal(key.stream(f"shapes/{part.name}").generator, (count, coefficients))
    loading = systematic(key.stream(f"loadings/{part.name}").generator.random((count, 1)))[:, 0]
    return Individuals.draw(law, trait, shape, loading)


def _tangents(part: HistoryClass, count: int, key: StreamKey) -> FloatArray:
    normal = standard_normal(key.stream(f"angles/{part.name}").generator, (count,))
    away = np.clip(normal, -MOST_TAN_DEVIATIONS, MOST_TAN_DEVIATIONS)
    found: FloatArray = part.reactive.tan_theta + part.reactive.tan_std * away
    return found


def _path_of(part: HistoryClass) -> ClassPath:
    law = part.law
    return ClassPath(
        name=part.name,
        contrast=law.contrast,
        own_profile=np.sqrt(law.profile),
        ladder=law.ladder,
        amplitudes=law.amplitudes,
        bounds=part.bounds,
        last_map=last_map(law, (log1(part.bounds[0]), log1(part.bounds[1]))),
        reactive_amplitudes=part.reactive.amplitudes,
    )


def _reactive_kvar(
    used: Sequence[HistoryClass], class_of: IntArray, load_of: IntArray, scale_kw: FloatArray
) -> FloatArray:
    """(class, load) standard deviation of the sum of the customers' random parts [kvar]."""
    size = np.array(
        [p.reactive.spread * p.reactive.reference if p.reactive.amplitudes is not None else 0.0 for p in used]
    )
    variance = (scale_kw * size[class_of]) ** 2
    loads = int(load_of[-1]) + 1
    own = [np.where(class_of == ell, variance, 0.0) for ell in range(len(used))]
    return np.sqrt([np.bincount(load_of, each, minlength=loads) for each in own])


def path_of(
    classes: Sequence[HistoryClass],
    facts: DayFacts,
    days: Sequence[dt.date],
    off: BoolArray,
    covariates: Mapping[str, FloatArray],
    key: StreamKey,
) -> tuple[FloatArray, FloatArray]:
    """Weight of the contrast (day,), and shared factor (class, day + 2), of consecutive days.

    On days of the history the factor is the released one. On others it is what the covariates of the day
    explain, and a draw of the rest that all classes share.

    Parameters
    ----------
    facts
        Of the days of the history.
    days
        Of the corpus.
    off
        (day,) whether a day is a day off.
    covariates
        Name → (day,) values on the days of the corpus, for the covariates of the facts.
    key
        Secret of the draws, bound to the model.
    """
    normal = standard_normal(key.stream("shared factor").generator, (MARGIN + len(days) + 2,))
    explained = facts.orthonormal_at(covariates, len(days))
    before, after = (days[0] - dt.timedelta(1)).isoformat(), (days[-1] + dt.timedelta(1)).isoformat()
    dates = [before, *(day.isoformat() for day in days), after]
    place = {date: k for k, date in enumerate(facts.dates)}
    metered = np.array([place.get(date, -1) for date in dates])
    factor = np.empty((len(classes), len(dates)))
    for ell, part in enumerate(classes):
        law = part.law
        drawn = path(law.factor_variance, law.factor_memory, normal)
        if explained.shape[1]:
            # The covariates of the day before and of the day after are taken to be those of their neighbours.
            drawn += product(explained[[0, *range(len(days)), -1]], law.covariates)
        factor[ell] = np.where(metered >= 0, law.factor[np.maximum(metered, 0)], drawn)
    share = classes[0].law.off_share
    return np.asarray(off - share, dtype=np.float64), factor


def draw_population(
    model: LoadModel,
    names: Sequence[str],
    load_of: IntArray,
    scale_kw: FloatArray | None,
    tan_theta: FloatArray,
    key: StreamKey,
) -> Population:
    """Draw the customers of a corpus from a released model; see `population_of`.

    Raises
    ------
    PrivacyError
        If a class is unknown, or scales are missing or not wanted.
    """
    if model.scaled != (scale_kw is not None):
        raise PrivacyError("give a public scale for every customer if, and only if, the model is scaled")
    return population_of(model.histories, model.sha256, names, load_of, scale_kw, tan_theta, key)


def shared_path(
    model: LoadModel,
    population: Population,
    calendar: Calendar,
    covariates: Mapping[str, FloatArray],
    key: StreamKey,
) -> tuple[FloatArray, FloatArray]:
    """Weight of the contrast, and shared factor of the classes of a population, on the days of a calendar."""
    if model.origin is None or model.origin.facts.days is None:
        raise PrivacyError("this load model does not say what days it was fitted on; use one of a release")
    used = {part.name for part in population.classes}
    classes = [part for part in model.histories if part.name in used]
    bound = key.bind("model", model.sha256)
    return path_of(classes, model.origin.facts.days, calendar.days, calendar.off, covariates, bound)
