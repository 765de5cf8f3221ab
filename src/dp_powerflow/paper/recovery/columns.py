"""The mechanisms that training sets come from: each in the units of noise it is shown in, at its best point.

Days held out for evaluation and test are taken out of the history before anything is fitted to it. ε_load and
the upper margin are those with the smallest W1 to true training days, as the paper chooses them; on private
data a producer may not do that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow._names import __version__
from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.collect import plain
from dp_powerflow.paper.datasets import Dataset, ExperimentOptions, open_dataset
from dp_powerflow.paper.mechanisms import Guarantee, Mechanism, solve_loads
from dp_powerflow.paper.recovery.methods import Plan, Release, Source, Split, split_days
from dp_powerflow.paper.run import Store, fingerprint_of
from dp_powerflow.paper.wasserstein.evaluation import distance
from dp_powerflow.paper.wasserstein.lab import Lab, Scale
from dp_powerflow.paper.wasserstein.search import VARIANTS, Configuration
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.units import FloatArray, IntArray

_CHOICE_RUNS = 3
_CODE = 2
"""Raised whenever a change of the code makes stored distances worthless."""


@dataclass(frozen=True)
class Column:
    """A mechanism of the tables."""

    mechanism: str

    @property
    def label(self) -> str:
        """In tables and figures."""
        return VARIANTS[self.mechanism].label

    def points(self, scale: Scale, epsilon: float) -> list[Configuration]:
        """Where it is looked for at ε per step."""
        if self.mechanism == "joint-noise":  # calibrated to min(ε_load, ε)
            return [Configuration(self.mechanism, epsilon, epsilon)]
        margins = scale.p_max_factors if VARIANTS[self.mechanism].has_margins else (None,)
        return [
            Configuration(self.mechanism, epsilon, load, factor)
            for load in scale.epsilons_load
            for factor in margins
        ]


COLUMNS = tuple(
    Column(name) for name in ("dp-powerflow", "full-support", "gmm-noise", "joint-noise", "noisy-loads")
)
"""In the order of the tables. To train one more mechanism, add its column."""


@dataclass(frozen=True)
class Chosen:
    """A column's point of the search, and what its mechanism claims for the network there in the first run.

    Attributes
    ----------
    pooled_w1 : mean over the runs it was chosen by [p.u.].
    noise : standard deviations of the Gaussian noise, by what it is on [p.u.].
    floor : variance added to the log loads, None where the mechanism has no such figure.
    """

    configuration: Configuration
    pooled_w1: float
    claim: Guarantee
    noise: dict[str, float]
    floor: float | None


@dataclass(frozen=True, eq=False)
class Bench:
    """What the sources of all ε share."""

    data: Dataset
    split: Split
    true: FloatArray
    lab: Lab


def open_bench(options: ExperimentOptions, plan: Plan, epsilons: Sequence[float]) -> Bench:
    """The data set, its days held out, and a lab that knows the other days only."""
    data = open_dataset(options)
    split = split_days(data.n_days, plan.held_out_days, np.random.default_rng([options.seed, 0]))
    load = data.true_load(np.arange(data.n_days))
    true = solve_loads(BatchSolver(data.feeder, voltvar=data.voltvar), load, data.generation)
    days = np.sort(split.train)
    scale = _scale(options, plan, epsilons)
    facts = {"version": __version__, "code": _CODE, "data": data.identity, "scale": asdict(scale)}
    facts |= {"seed": options.seed, "days": days.tolist()}
    store = Store(folder_of(options) / "fits", fingerprint_of(facts))
    return Bench(data, split, np.abs(true), Lab(data.of_days(days), scale, options.seed, store))


def folder_of(options: ExperimentOptions) -> Path:
    """Where results go."""
    return options.out / f"recovery-{options.label}{'-quick' if options.quick else ''}"


def source_at(bench: Bench, epsilon: float) -> tuple[Source, dict[str, Chosen | str]]:
    """Voltages of every column at ε per step, and what was chosen; one that cannot reach ε says why."""
    delta = bench.lab.delta  # calibrates: what goes wrong there is not one mechanism's refusal
    chosen = {column.label: choose(bench.lab, column, epsilon) for column in COLUMNS}
    releases = {
        label: _release(bench, found.configuration)
        for label, found in chosen.items()
        if isinstance(found, Chosen)
    }
    return Source(bench.true, bench.split, releases, epsilon, delta), chosen


def choose(lab: Lab, column: Column, epsilon: float) -> Chosen | str:
    """The point with the smallest pooled W1 to true training days, or why no point reaches ε."""
    scored: list[tuple[float, Configuration]] = []
    refused = ""
    for point in column.points(lab.scale, epsilon):
        try:
            scored.append((_score(lab, point), point))
        except PrivacyError as error:
            refused = str(error)
    if not scored:
        return refused
    best, point = min(scored, key=lambda pair: pair[0])
    made = point.variant.build(lab, point, 0)
    claim = made.cost().network
    assert claim is not None
    return Chosen(point, best, claim, made.noise_std, getattr(made, "floor", None))


def _scale(options: ExperimentOptions, plan: Plan, epsilons: Sequence[float]) -> Scale:
    if options.quick:
        days = min(options.calibration_days, 60)
        return Scale(plan.runs, 4, tuple(epsilons), (10.0,), (1.5,), (), days)
    return Scale(
        runs=plan.runs,
        days=14,
        epsilons=tuple(epsilons),
        epsilons_load=(1.0, 3.0, 10.0, 25.0),
        p_max_factors=(1.0, 1.5),
        radii_of_y_noise=(),
        calibration_days=options.calibration_days,
    )


def _score(lab: Lab, point: Configuration) -> float:
    """Mean pooled W1 over a few runs, stored; infinite where no snapshot of a run has a power flow."""

    def measured() -> dict[str, Any]:
        runs = range(min(_CHOICE_RUNS, lab.scale.runs))
        made = [point.variant.build(lab, point, run) for run in runs]
        released = (
            one.release(lab.generator(f"choice {point.name}", run), lab.scale.days)
            for run, one in enumerate(made)
        )
        return {"w1": plain([distance(days, lab.true_voltages).pooled for days in released])}

    found = lab.store.get_or(f"w1-{point.name}", measured)["w1"]
    return math.inf if None in found else float(np.mean(found))


def _release(bench: Bench, point: Configuration) -> Release:
    def release(run: int, generator: np.random.Generator, days: IntArray) -> FloatArray:
        made = on_days(point.variant.build(bench.lab, point, run), bench.data, days)
        return np.asarray(np.abs(made.release(generator, len(days))))

    return release


def on_days(mechanism: Any, data: Dataset, days: IntArray) -> Mechanism:
    """The mechanism with the true loads and the generation of some days; all else stays."""
    setting = replace(mechanism.setting, true_load=data.true_load(days), generation=data.sun(days))
    moved: Mechanism = replace(mechanism, setting=setting)
    return moved
