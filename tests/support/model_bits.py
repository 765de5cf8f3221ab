"""Prints, as JSON, hashes of simulated meters, noisy integers, models and draws; for several processors."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import sys
import warnings
from dataclasses import replace

import numpy as np

from dp_powerflow.loads.simulate import simulate_load_history
from dp_powerflow.model.day_facts import DayFacts
from dp_powerflow.model.estimators.plain import Plain
from dp_powerflow.model.fit import WeakBudgetWarning, fit
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.history.drawing import draw_population, path_of
from dp_powerflow.model.history.plan import History
from dp_powerflow.model.history.sample import HistorySampler, PlacedPopulation
from dp_powerflow.model.law import LoadNodes
from dp_powerflow.model.options import FitOptions, FittedReactive, PublicSpread
from dp_powerflow.model.partition import PrivateClasses, PublicLabels
from dp_powerflow.model.sample import LoadSampler, draw_node_classes
from dp_powerflow.privacy.budget import Budget, gdp_mu
from dp_powerflow.privacy.random import StreamKey
from support.populations import days_off, population, shared_factor

KEY = StreamKey.from_insecure_seed(5)
N_NODES = 20
WIDE, NARROW = (1e-3, 10.0), (0.02, 0.2)
CASES = {
    "structured": FitOptions(WIDE, use_scale=True, reactive=PublicSpread()),
    "plain": FitOptions(WIDE, Plain(), use_scale=True),
    "mixture": FitOptions(WIDE, use_scale=True, n_components=3),
    "private classes": FitOptions(WIDE, use_scale=True, classes=PrivateClasses(3)),
    "reactive": FitOptions(WIDE, use_scale=True, reactive=FittedReactive()),
    "narrow": FitOptions(NARROW, use_scale=True),
}


def digest(*arrays: np.ndarray) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def draws(model: LoadModel, *, truncated: bool) -> dict[str, str]:
    nodes = LoadNodes(draw_node_classes(model, N_NODES, KEY), np.full(N_NODES, 7.0))
    law = model.at(nodes, truncated=truncated)
    block = LoadSampler(law, KEY, 30).block(0)
    found = {f"draws, truncated {truncated}": digest(block.load_kw, block.load_kvar)}
    if truncated:
        accepted = [each for part in law.classes for each in part.acceptance]
        found["acceptance"] = digest(np.array([each.probability.value for each in accepted]))
        found["rejection"] = str([each.rejection for each in accepted])
    return found


def persistent() -> str:
    """Draws of persistent customers; the population itself is only as good as NumPy's functions."""
    people = population(np.array([1, 70, 300]), days=30)
    rounded = {
        name: np.round(getattr(people, name), 6)
        for name in ("mean_day", "shared", "own", "log_map", "scale_kw")
    }
    paths = tuple(
        replace(
            each,
            **{name: np.round(getattr(each, name), 6) for name in ("contrast", "own_profile", "last_map")},
        )
        for each in people.classes
    )
    people = replace(people, classes=paths, **rounded)
    law = PlacedPopulation(people, 1.0, np.arange(3))
    sampler = HistorySampler(law, KEY, 40, days_off(40), np.round(shared_factor(2, 40), 6), 10)
    blocks = [sampler.block(number) for number in (0, 3)]
    return digest(*(load for block in blocks for load in (block.load_kw, block.load_kvar)))


def histories() -> dict[str, str]:
    """A model of whole histories with everything fitted, its customers and their days."""
    history = simulate_load_history(60, n_days=15, step_minutes=60, seed=3, reactive=True)
    dates = tuple(day.isoformat() for day in history.days)
    facts = DayFacts(dates, (False, True, False) * 5, (("temperature", (1.5, -2.25, 7.0) * 5),))
    found: dict[str, str] = {}
    for name, classes in (("public", PublicLabels()), ("private", PrivateClasses(2))):
        options = FitOptions(WIDE, History(), classes, reactive=FittedReactive(), days=facts)
        model = fit(history, budget=Budget(10.0), options=options, key=KEY)
        assert model.origin is not None
        names = [part.name for part in model.histories for _ in range(5)]
        nobody = np.full(len(names), np.nan)
        people = draw_population(model, names, np.arange(len(names)), None, nobody, KEY)
        calendar = [dt.date(2030, 1, 1) + dt.timedelta(day) for day in range(9)]
        warmth = {"temperature": np.arange(9.0)}
        off, factor = path_of(model.histories, facts, calendar, np.arange(9) % 2 == 0, warmth, KEY)
        law = PlacedPopulation(people, 1.0, np.arange(len(names)))
        block = HistorySampler(law, KEY, 9, off, factor).block(0)
        found |= {
            f"histories, {name}: integers": digest(*model.origin.integers),
            f"histories, {name}: model": model.sha256,
            f"histories, {name}: draws": digest(block.load_kw, block.load_kvar),
        }
    return found


def hashes() -> dict[str, str]:
    history = simulate_load_history(300, n_days=8, seed=2, reactive=True)
    assert history.load_kvar is not None
    found = {"history": digest(history.load_kw, history.load_kvar), "mu": gdp_mu(1.0, 1e-6).hex()}
    found["persistent customers"] = persistent()
    found |= histories()
    for name, options in CASES.items():
        model = fit(history, budget=Budget(10.0), options=options, key=KEY)
        assert model.origin is not None
        of_case = {"integers": digest(*model.origin.integers), "model": model.sha256}
        of_case |= draws(model, truncated=False)
        if name != "plain":  # its noise leaves hardly a day within the bounds
            of_case |= draws(model, truncated=True)
        found |= {f"{name}: {what}": value for what, value in of_case.items()}
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore", WeakBudgetWarning)
    json.dump(hashes(), sys.stdout)
