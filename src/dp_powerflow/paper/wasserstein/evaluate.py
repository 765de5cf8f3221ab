"""One configuration of the Wasserstein experiment over all its runs, stored or computed."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np

from dp_powerflow import __version__
from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.plain import plain
from dp_powerflow.paper.datasets import Dataset, ExperimentOptions
from dp_powerflow.paper.mechanisms.noise import GaussianNoise
from dp_powerflow.paper.mechanisms.twin_network import TwinNetwork
from dp_powerflow.paper.resume import Store, fingerprint_of
from dp_powerflow.paper.wasserstein.lab import Lab, Scale
from dp_powerflow.paper.wasserstein.measure import Outcome, distance, mean_and_error
from dp_powerflow.paper.wasserstein.plan import MECHANISMS, Configuration

_CODE = 1
"""Raised whenever a change of the code makes stored results worthless."""


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
    """Standard deviation of every Gaussian noise that a mechanism adds; of a twin, η of a line's length."""
    if isinstance(mechanism, TwinNetwork):
        return {} if mechanism.spread.length is None else {"log_length": mechanism.spread.length}
    names = ("noise", "load_noise", "voltage_noise")
    found = {name: getattr(mechanism, name, None) for name in names}
    return {name: noise.sigma for name, noise in found.items() if isinstance(noise, GaussianNoise)}
