"""The mechanisms that training sets come from: each in the units of noise it is shown in, at its best point.

Days held out for evaluation and test are taken out of the history before anything is fitted to it. ε_load and
the margins are those with the smallest W1 to true training days over a few runs, as the paper chooses them;
on private data a producer may not do that. The points are those of the Wasserstein experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow import __version__
from dp_powerflow.units import FloatArray, IntArray
from dp_powerflow_paper.datasets import Dataset, ExperimentOptions, open_dataset
from dp_powerflow_paper.mechanisms import solve_loads
from dp_powerflow_paper.mechanisms.noise import DAY, PAPER_DAY, STEP, NoiseUnit
from dp_powerflow_paper.recovery.methods import Plan, Release, Source, Split, split_days
from dp_powerflow_paper.run import Store, fingerprint_of
from dp_powerflow_paper.sources.composition import Composition
from dp_powerflow_paper.sources.loads import GaussianLoads, TrueLoads
from dp_powerflow_paper.wasserstein.evaluation import Outcome, best, evaluate
from dp_powerflow_paper.wasserstein.experiment import LITERAL_LOADS, Fit
from dp_powerflow_paper.wasserstein.lab import Lab, Scale
from dp_powerflow_paper.wasserstein.search import VARIANTS, Configuration, configurations

CHOICE_RUNS = 3
"""Runs that a point is chosen by."""
_CODE = 4
"""Raised whenever a change of the code makes stored distances worthless."""


@dataclass(frozen=True)
class Column:
    """A mechanism of the tables, in one unit of noise."""

    mechanism: str
    unit: NoiseUnit = STEP

    @property
    def label(self) -> str:
        """In tables and figures."""
        variant = VARIANTS[self.mechanism]
        return variant.label if len(variant.units) == 1 else f"{variant.label}; {self.unit.title}"


AS_PRINTED = (
    Column("literal"),
    Column("literal-classes"),
    Column("literal-noise", PAPER_DAY),
    Column("joint-noise", PAPER_DAY),
    Column("noisy-loads", PAPER_DAY),
)
"""The paper's comparison as it is printed."""
A_DAY = (Column("gmm-noise", PAPER_DAY), Column("gmm-noise", DAY))
"""Loads of ours with the noise of a day: the paper's σ, and the exact one."""
ONE_STEP = (
    Column("dp-powerflow"),
    Column("full-support"),
    Column("gmm-noise", STEP),
    Column("classes-noise", STEP),
    Column("mixture-noise", STEP),
    Column("kmeans-noise", STEP),
    Column("joint-noise", STEP),
    Column("noisy-loads", STEP),
)
"""Every claim for one step, σ by the exact calibration."""
COLUMNS = (*AS_PRINTED, *A_DAY, *ONE_STEP)
"""In the order of the tables. To train one more mechanism, add its column."""


@dataclass(frozen=True)
class Chosen:
    """A column's point of the search, and what its mechanism claims for the network there.

    Attributes
    ----------
    outcome : of the runs it was chosen by.
    epsilon : smallest and largest ε that the runs of training claim.
    """

    outcome: Outcome
    epsilon: tuple[float, float]

    @property
    def configuration(self) -> Configuration:
        """The point."""
        return self.outcome.configuration

    @property
    def network(self) -> dict[str, Any]:
        """The claim in plain values, of the first run."""
        assert self.outcome.claim is not None
        found: dict[str, Any] = self.outcome.claim["network"]
        return found


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
    true = solve_loads(data.solver(), load, data.generation)
    return Bench(data, split, np.abs(true), _lab(data, split, options, _scale(options, plan, epsilons)))


def _lab(data: Dataset, split: Split, options: ExperimentOptions, scale: Scale) -> Lab:
    days = np.sort(split.train)
    facts = {"version": __version__, "code": _CODE, "data": data.identity, "scale": asdict(scale)}
    facts |= {"seed": options.seed, "days": days.tolist(), "choice": CHOICE_RUNS}
    store = Store(folder_of(options) / "fits", fingerprint_of(facts))
    return Lab(data.of_days(days), scale, options.seed, store)


def folder_of(options: ExperimentOptions) -> Path:
    """Where results go."""
    return options.out / f"recovery-{options.label}{'-quick' if options.quick else ''}"


def _scale(options: ExperimentOptions, plan: Plan, epsilons: Sequence[float]) -> Scale:
    if options.quick:
        days = min(options.calibration_days, 60)
        return Scale(plan.runs, 4, tuple(epsilons), (10.0,), (1.5,), (), days, (0.03,))
    return Scale(
        runs=plan.runs,
        days=14,
        epsilons=tuple(epsilons),
        epsilons_load=(1.0, 3.0, 10.0, 25.0),
        p_max_factors=(1.0, 1.5),
        radii_of_y_noise=(),
        calibration_days=options.calibration_days,
        literal_loads=LITERAL_LOADS,
    )


def points_of(lab: Lab, columns: Sequence[Column] = COLUMNS) -> list[Configuration]:
    """Points of the search of some columns."""
    wanted = {(column.mechanism, column.unit) for column in columns}
    return [point for point in configurations(lab.scale) if (point.mechanism, point.unit) in wanted]


def search(lab: Lab, columns: Sequence[Column] = COLUMNS) -> list[Outcome]:
    """W1 to true training days of every point of some columns, over a few runs; stored ones are read."""
    _ = lab.operating  # calibrates: what goes wrong there is not one mechanism's refusal
    few = replace(lab, scale=replace(lab.scale, runs=min(CHOICE_RUNS, lab.scale.runs)))
    return [evaluate(few, point) for point in points_of(lab, columns)]


def best_points(outcomes: Sequence[Outcome], epsilons: Sequence[float]) -> list[Configuration]:
    """Points of all columns that are trained at any ε."""
    found = (
        best(outcomes, column.mechanism, epsilon, column.unit) for column in COLUMNS for epsilon in epsilons
    )
    return [outcome.configuration for outcome in found if outcome is not None]


@dataclass(frozen=True)
class Fits:
    """Fits for other processes, each with a lab of its own; the store is what they share."""

    options: ExperimentOptions
    plan: Plan
    epsilons: tuple[float, ...]
    fits: tuple[Fit, ...]

    def start(self, threads: int | None) -> Callable[[int], int]:
        """The function that makes one fit and says its number."""
        lab = open_bench(self.options, self.plan, self.epsilons).lab

        def fit(task: int) -> int:
            lab.law(*self.fits[task])
            return task

        return fit


def source_at(
    bench: Bench, outcomes: Sequence[Outcome], epsilon: float
) -> tuple[Source, dict[str, Chosen | str]]:
    """Voltages of every column at ε per step, and what was chosen; one that cannot reach ε says why."""
    chosen = {column.label: choose(bench.lab, outcomes, column, epsilon) for column in COLUMNS}
    releases = {
        label: _release(bench, found.configuration)
        for label, found in chosen.items()
        if isinstance(found, Chosen)
    }
    return Source(bench.true, bench.split, releases, epsilon, bench.lab.delta), chosen


def choose(lab: Lab, outcomes: Sequence[Outcome], column: Column, epsilon: float) -> Chosen | str:
    """The point with the smallest pooled W1 among those within ε, or why there is none."""
    found = best(outcomes, column.mechanism, epsilon, column.unit)
    if found is None:
        tried = [one for one in outcomes if one.configuration.mechanism == column.mechanism]
        refused = [one.refused for one in tried if one.refused is not None]
        least = min((one.epsilon for one in tried), default=np.inf)
        return refused[0] if refused else f"its smallest ε is {least:.3g}"
    point = found.configuration
    if point.epsilon is not None:
        return Chosen(found, (point.epsilon, point.epsilon))
    claims = [point.variant.build(lab, point, run).cost().network for run in range(lab.scale.runs)]
    reached = [claim.epsilon for claim in claims if claim is not None]
    return Chosen(found, (min(reached), max(reached)))


def _release(bench: Bench, point: Configuration) -> Release:
    def release(run: int, generator: np.random.Generator, days: IntArray) -> FloatArray:
        made = on_days(point.variant.build(bench.lab, point, run), bench.data, days)
        return np.asarray(np.abs(made.release(generator, len(days))))

    return release


def on_days(mechanism: Composition, data: Dataset, days: IntArray) -> Composition:
    """The mechanism with the true loads and the generation of some days; all else stays."""
    true, loads = data.true_load(days), mechanism.loads
    if isinstance(loads, TrueLoads | GaussianLoads):
        loads = replace(loads, load=true)
    setting = replace(mechanism.setting, true_load=true, generation=data.sun(days))
    return replace(mechanism, setting=setting, loads=loads)
