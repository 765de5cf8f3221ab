"""Prints, as JSON, hashes of simulated meters, noisy integers, models and draws; for several processors.

Run as `python -m support.model_bits [--fused]`, which hashes only what multiplies and adds in one
instruction, and the functions that everything is made of: little is compiled for that.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import warnings
from dataclasses import replace

import numpy as np

from dp_powerflow._bits import elementary, linear
from dp_powerflow.almanac.calendar import Calendar
from dp_powerflow.loads.simulate import simulate_load_history
from dp_powerflow.model.fit import WeakBudgetWarning, fit
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.history.estimate import History
from dp_powerflow.model.history.sample import HistorySampler
from dp_powerflow.model.law import ClassLaw, LoadLaw, LoadNodes
from dp_powerflow.model.options import FitOptions, PublicSpread
from dp_powerflow.model.partition import PrivateClasses
from dp_powerflow.model.sample import LoadSampler, draw_node_classes
from dp_powerflow.model.single_days import Plain
from dp_powerflow.privacy.budget import Budget, gdp_mu
from dp_powerflow.privacy.random import StreamKey
from support.histories import day_facts
from support.populations import course, days_off, drawn, population, shared_factor

KEY = StreamKey.from_insecure_seed(5)
N_NODES = 20
WIDE, NARROW = (1e-3, 10.0), (0.02, 0.2)
CASES = {
    "structured": FitOptions(WIDE, use_scale=True, reactive=PublicSpread()),
    "plain": FitOptions(WIDE, Plain(), use_scale=True),
    "private classes": FitOptions(WIDE, use_scale=True, classes=PrivateClasses(3)),
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
        found["acceptance"] = digest(np.array([each.value for each in accepted]))
        found["rejection"] = str([each.rejection for each in accepted])
    return found


def persistent() -> str:
    """Draws of persistent customers; the population itself is only as good as NumPy's functions."""
    people = population(np.array([1, 70, 300]), days=30)
    rounded = {
        name: np.round(getattr(people, name), 6) for name in ("mean_day", "own", "log_map", "scale_kw")
    }
    paths = tuple(
        replace(
            each,
            **{name: np.round(getattr(each, name), 6) for name in ("contrast", "own_profile", "last_map")},
        )
        for each in people.classes
    )
    people = replace(people, classes=paths, **rounded, shared=np.round(people.shared, 6))
    sampler = HistorySampler(people, KEY, 40, days_off(40), np.round(shared_factor(2, 40), 6), block_days=10)
    blocks = [sampler.block(number) for number in (0, 3)]
    return digest(*(load for block in blocks for load in (block.load_kw, block.load_kvar)))


def histories() -> dict[str, str]:
    """Fits of whole histories, customers drawn from them, and their days."""
    found = {}
    load = simulate_load_history(60, n_days=21, step_minutes=60, seed=3)
    warm = np.arange(21, dtype=np.float64) % 8
    facts = day_facts(load, temperature=warm)
    cases = {
        "history": FitOptions(WIDE, History(), use_scale=True, days=facts, reactive=PublicSpread()),
        "history, private": FitOptions(
            NARROW, History(), use_scale=True, classes=PrivateClasses(2), reactive=PublicSpread()
        ),
    }
    calendar = Calendar.starting(load.days[10], 30)
    for name, options in cases.items():
        model = fit(load, budget=Budget(10.0), options=options, key=KEY)
        assert model.origin is not None
        found[f"{name}: integers"] = digest(*model.origin.integers)
        found[f"{name}: model"] = model.sha256
        names = [model.class_names[i % len(model.class_names)] for i in range(N_NODES)]
        scale, declared = np.full(N_NODES, 7.0), np.where(np.arange(N_NODES) % 3 == 0, 0.25, np.nan)
        people = drawn(model, names, np.arange(N_NODES) // 2, scale, declared, KEY)
        found[f"{name}: population"] = digest(
            people.mean_day, people.shared, people.own, people.log_map, people.tan_theta, people.reactive_kvar
        )
        known = {"temperature": np.resize(warm, calendar.n_days)}
        off, factor = course(model, people, calendar, known if options.days else {}, KEY)
        found[f"{name}: factor"] = digest(off, factor)
        sampler = HistorySampler(people, KEY, calendar.n_days, off, factor)
        block = sampler.block(0)
        found[f"{name}: days"] = digest(block.load_kw, block.load_kvar)
    return found


def fused() -> dict[str, str]:
    """Days of a law that is not fitted, and elementary functions."""
    root = elementary.cos(np.outer(np.arange(25.0), np.arange(1.0, 26.0)) * 0.37)
    law = ClassLaw.gaussian(
        0.3 * root[0], linear.product(root, root.T.copy()) / 25 + 0.05 * np.eye(25), margins=(1e-30, 1e30)
    )
    nodes = np.arange(N_NODES)
    on_nodes = LoadLaw(
        classes=(law,),
        class_of=0 * nodes,
        scale_kw=np.arange(1.0, N_NODES + 1),
        tan_theta=np.full(N_NODES, 0.3),
        q_size=None,
    )
    block = LoadSampler(on_nodes, KEY, 70).block(0)
    at = np.arange(-4000, 4000) / 401.0
    functions = (elementary.exp, elementary.sin, elementary.cos)
    return {
        "days of a law": digest(block.load_kw, block.load_kvar),
        "functions": digest(*(function(at) for function in functions), elementary.log(at[at > 0])),
    }


def hashes() -> dict[str, str]:
    history = simulate_load_history(300, n_days=8, seed=2)
    found = {"history": digest(history.load_kw), "mu": gdp_mu(1.0, 1e-6).hex()}
    found |= {"persistent customers": persistent(), **histories(), **fused()}
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
    parser = argparse.ArgumentParser()
    parser.add_argument("--fused", action="store_true")
    warnings.simplefilter("ignore", WeakBudgetWarning)
    json.dump(fused() if parser.parse_args().fused else hashes(), sys.stdout)
