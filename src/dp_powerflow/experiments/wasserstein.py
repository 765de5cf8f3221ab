"""The paper's Wasserstein experiment: every mechanism at every ε, 20 runs each, resumable.

The data are public. The search over ε_load and the margins looks at the true voltages, which a producer
may not do: there every fit is paid for and no score against the true data is free (PAPER_NOTES 11).
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow import __version__
from dp_powerflow.certificate.plain import plain
from dp_powerflow.errors import PrivacyError
from dp_powerflow.experiments.datasets import Dataset, ExperimentOptions, open_dataset
from dp_powerflow.experiments.resume import Store, fingerprint_of
from dp_powerflow.experiments.wasserstein_lab import Lab, Scale
from dp_powerflow.experiments.wasserstein_measure import Outcome, distance, mean_and_error
from dp_powerflow.experiments.wasserstein_plan import MECHANISMS, Configuration, configurations
from dp_powerflow.experiments.wasserstein_report import write_results
from dp_powerflow.mechanisms.noise import GaussianNoise
from dp_powerflow.mechanisms.noise_free import NoiseFree

EPSILONS = (25.0, 30.0, 50.0, 100.0, 200.0)
_CODE = 1
"""Raised whenever a change of the code makes stored results worthless."""


def scale_of(options: ExperimentOptions) -> Scale:
    """The full run, or a small one for a look."""
    if options.quick:
        days = min(options.calibration_days, 60)
        return Scale(2, 4, (25.0, 50.0, 200.0), (1.0, 10.0), (1.0, 1.5), (), days)
    return Scale(
        runs=20,
        days=14,
        epsilons=EPSILONS,
        epsilons_load=(1.0, 3.0, 10.0, 25.0),
        p_max_factors=(1.0, 1.5),
        radii_of_y_noise=(1e-4, 1e-3, 1e-2, 1e-1, 1.0),
        calibration_days=options.calibration_days,
    )


def run_wasserstein(options: ExperimentOptions) -> tuple[str, list[Path]]:
    """Run what is not stored yet, then write tables and figures."""
    scale = scale_of(options)
    data = open_dataset(options)
    lab = new_lab(options, scale, data)
    plan = configurations(scale)
    outcomes = []
    for done, config in enumerate(plan):
        options.progress(done, len(plan))
        outcomes.append(evaluate(lab, config))
    options.progress(len(plan), len(plan))
    return write_results(options, lab, references(lab), tuple(outcomes))


def new_lab(options: ExperimentOptions, scale: Scale, data: Dataset) -> Lab:
    """The lab with a store that knows what its results depend on."""
    facts = {
        "version": __version__,
        "code": _CODE,
        "data": data.words,
        "margins": data.margins,
        "radius": data.radius,
        "seed": options.seed,
        "scale": asdict(scale),
    }
    folder = options.out / f"wasserstein-{data.name}{'-quick' if options.quick else ''}"
    return Lab(data, scale, options.seed, Store(folder, fingerprint_of(facts)))


def evaluate(lab: Lab, config: Configuration) -> Outcome:
    """The outcome of one configuration, stored or computed."""
    stored = lab.store.get(config.name)
    if stored is None:
        stored = _compute(lab, config)
        lab.store.put(config.name, stored)
    runs = {
        name: [math.nan if value is None else value for value in values]
        for name, values in stored["runs"].items()
    }
    return Outcome(
        config,
        mean_and_error(runs["pooled"]),
        mean_and_error(runs["per_node"]),
        float(np.mean(runs["failed"])) if runs["failed"] else math.nan,
        stored["claim"],
        stored["noise"],
        stored["floor"],
        stored["refused"],
        runs,
    )


def references(lab: Lab) -> dict[str, float]:
    """Pooled W1 of the noise-free release, and of other true days: what sampling days alone does."""
    free = NoiseFree(lab.setting).release(lab.generator("noise-free", 0), lab.scale.days)
    days = lab.data.spread_days(lab.scale.days)
    gap = int(days[1] - days[0]) // 2 if len(days) > 1 else 1
    others = lab.setting.solve(lab.data.true_load((days + gap) % lab.data.n_days))
    return {
        "noise-free": distance(free, lab.true_voltages).pooled,
        "other true days": distance(others, lab.true_voltages).pooled,
    }


def _compute(lab: Lab, config: Configuration) -> dict[str, Any]:
    runs: dict[str, list[float]] = {"pooled": [], "per_node": [], "failed": []}
    claim, refused = None, None
    noise: dict[str, float] = {}
    floors: list[float] = []
    for run in range(lab.scale.runs):
        try:
            mechanism = MECHANISMS[config.mechanism](lab, config, run)
            claim = claim or plain(mechanism.cost())
        except PrivacyError as error:
            refused = str(error)
            break
        noise = noise or _noise_of(mechanism)
        if hasattr(mechanism, "floor"):
            floors.append(mechanism.floor)
        released = mechanism.release(lab.generator(config.name, run), lab.scale.days)
        found = distance(released, lab.true_voltages)
        runs["pooled"].append(found.pooled)
        runs["per_node"].append(float(found.per_node.mean()))
        runs["failed"].append(found.failed)
    floor = float(np.mean(floors)) if floors else None
    return {"runs": plain(runs), "claim": claim, "noise": noise, "floor": floor, "refused": refused}


def _noise_of(mechanism: object) -> dict[str, float]:
    """Standard deviation of every Gaussian noise that a mechanism adds."""
    names = ("noise", "load_noise", "voltage_noise")
    found = {name: getattr(mechanism, name, None) for name in names}
    return {name: noise.sigma for name, noise in found.items() if isinstance(noise, GaussianNoise)}
