"""The distance of released voltages from true ones, and a configuration's over all runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import wasserstein_distance

from dp_powerflow import __version__
from dp_powerflow.errors import PrivacyError
from dp_powerflow.lowlevel import plain
from dp_powerflow.units import ComplexArray, FloatArray
from dp_powerflow_paper.datasets import Dataset, ExperimentOptions
from dp_powerflow_paper.mechanisms.dp_powerflow import DpPowerflow
from dp_powerflow_paper.mechanisms.noise import STEP, NoiseUnit
from dp_powerflow_paper.run import store_of
from dp_powerflow_paper.sources.composition import Composition
from dp_powerflow_paper.wasserstein.lab import Lab, Scale
from dp_powerflow_paper.wasserstein.search import Configuration


@dataclass(frozen=True)
class Distance:
    """W1 of one release [p.u.].

    Attributes
    ----------
    pooled : of all nodes, days and steps flattened; NaN if no snapshot was solved.
    per_node : (node,) of each node by itself.
    failed : share of snapshots without a power-flow solution; they are left out of the distance.
    """

    pooled: float
    per_node: FloatArray
    failed: float


WORST, MEDIAN, BEST = "epsilon of the worst step", "epsilon of the median step", "epsilon of the best step"


@dataclass(frozen=True)
class Outcome:
    """One configuration over all runs.

    Attributes
    ----------
    pooled, per_node : mean W1 over the runs [p.u.] and its standard error; `per_node` is the mean over nodes.
    failed : mean share of snapshots without a solution.
    claim : what the mechanism claims, or None with `refused` saying why it could not be built.
    noise : standard deviations of the Gaussian noise by what it is on, first run.
    true_delta : δ that the noise really gives at its ε, by what it is on; empty where there is none.
    floor : variance added to the log loads, mean over the runs.
    """

    configuration: Configuration
    pooled: tuple[float, float]
    per_node: tuple[float, float]
    failed: float
    claim: dict[str, Any] | None
    noise: dict[str, float]
    true_delta: dict[str, float]
    floor: float | None
    refused: str | None
    runs: dict[str, list[float]]

    @property
    def epsilon(self) -> float:
        """ε for the network: the target it was made for, or the largest that any run's fit gave."""
        made_for = self.configuration.epsilon
        return max(self.runs[WORST], default=math.inf) if made_for is None else made_for


def distance(released: ComplexArray, true: ComplexArray) -> Distance:
    """W1 between |v| of two sets of snapshots, complex (day, step, node)."""
    n = true.shape[-1]
    found = np.abs(released).reshape(-1, n)
    solved = np.isfinite(found).all(axis=1)
    found, wanted = found[solved], np.abs(true).reshape(-1, n)
    failed = 1.0 - float(solved.mean())
    if not len(found):
        return Distance(math.nan, np.full(n, math.nan), failed)
    if len(found) == len(wanted):
        # Of samples of one size W1 is the mean distance of the sorted values; a fifth of scipy's time.
        per_node = np.abs(np.sort(found, axis=0) - np.sort(wanted, axis=0)).mean(axis=0)
        pooled = float(np.abs(np.sort(found, axis=None) - np.sort(wanted, axis=None)).mean())
        return Distance(pooled, np.asarray(per_node), failed)
    per_node = np.array([wasserstein_distance(found[:, k], wanted[:, k]) for k in range(n)])
    return Distance(float(wasserstein_distance(found.ravel(), wanted.ravel())), per_node, failed)


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Mean and its standard error over the runs; runs without a value are left out."""
    known = np.array([value for value in values if math.isfinite(value)])
    if not len(known):
        return math.nan, math.nan
    error = float(known.std(ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else math.nan
    return float(known.mean()), error


_CODE = 4
"""Raised whenever a change of the code makes stored results worthless."""


def new_lab(options: ExperimentOptions, scale: Scale, data: Dataset) -> Lab:
    """The lab with a store that knows what its results depend on; a short history has fewer days."""
    scale = replace(scale, days=min(scale.days, data.n_days))
    folder = f"wasserstein-{data.name}{'-quick' if options.quick else ''}"
    facts = {"version": __version__, "code": _CODE, "data": data.identity, "scale": asdict(scale)}
    return Lab(data, scale, options.seed, store_of(options, folder, **facts))


def evaluate(lab: Lab, config: Configuration) -> Outcome:
    """The outcome of one configuration, stored or computed."""
    stored = lab.store.get_or(config.name, lambda: _compute(lab, config))
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
        stored["true_delta"],
        stored["floor"],
        stored["refused"],
        runs,
    )


def _compute(lab: Lab, config: Configuration) -> dict[str, Any]:
    runs: dict[str, list[float]] = {
        "pooled": [],
        "per_node": [],
        "failed": [],
        WORST: [],
        MEDIAN: [],
        BEST: [],
    }
    claim, refused = None, None
    noise: dict[str, float] = {}
    true_delta: dict[str, float] = {}
    floors: list[float] = []
    for run in range(lab.scale.runs):
        try:
            mechanism = config.variant.build(lab, config, run)
            claim = claim or plain(mechanism.cost())
        except PrivacyError as error:
            refused = str(error)
            break
        noise = noise or mechanism.noise_std
        if isinstance(mechanism, DpPowerflow):
            floors.append(mechanism.floor)
            for name, of_steps in ((WORST, np.max), (MEDIAN, np.median), (BEST, np.min)):
                runs[name].append(float(of_steps(mechanism.step_epsilon)))
        true_delta = mechanism.true_delta
        found = distance(_released(lab, config, run, mechanism), lab.true_voltages)
        runs["pooled"].append(found.pooled)
        runs["per_node"].append(float(found.per_node.mean()))
        runs["failed"].append(found.failed)
    floor = float(np.mean(floors)) if floors else None
    return {
        "runs": plain(runs),
        "claim": claim,
        "noise": noise,
        "true_delta": true_delta,
        "floor": floor,
        "refused": refused,
    }


def _released(lab: Lab, config: Configuration, run: int, mechanism: Composition) -> ComplexArray:
    """One release; voltages before noise are drawn once for all configurations that share them."""
    days, shared = lab.scale.days, config.voltages_name
    if shared is None:
        return mechanism.release(lab.generator(config.name, run), days)
    if mechanism.noise is None:
        return lab.voltages(shared, run, lambda stream: mechanism.release(stream, days))
    clean = lab.voltages(shared, run, lambda stream: mechanism.clean(stream, days))
    return mechanism.noise.add(clean, lab.generator(config.name, run))


def best(
    outcomes: Sequence[Outcome], mechanism: str, target: float, unit: NoiseUnit = STEP
) -> Outcome | None:
    """The configuration with the smallest pooled W1 among those whose claim is within the target.

    One that was made for a smaller ε is within a larger one too.
    """
    fitting = [
        outcome
        for outcome in outcomes
        if outcome.configuration.mechanism == mechanism
        and outcome.configuration.unit == unit
        and outcome.configuration.radius is None
        and outcome.epsilon <= target
        and math.isfinite(outcome.pooled[0])
    ]
    return min(fitting, key=lambda outcome: outcome.pooled[0], default=None)
