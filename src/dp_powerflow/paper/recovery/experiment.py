"""The recovery experiment as it is asked for: voltages from the mechanisms, trained on, written down.

Days held out for evaluation and test are taken out of the history before anything is fitted to it. ε_load and
the upper margin are those with the smallest W1 to true training days, as the paper chooses them; on private
data a producer may not do that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow._names import __version__
from dp_powerflow._parallel import cores
from dp_powerflow.errors import PrivacyError, require
from dp_powerflow.paper.datasets import Dataset, ExperimentOptions, open_dataset
from dp_powerflow.paper.mechanisms.interface import Guarantee, Mechanism
from dp_powerflow.paper.recovery.methods import QUICK, Plan, Release, Source, Split, run_recovery, split_days
from dp_powerflow.paper.recovery.report import Part, write_all
from dp_powerflow.paper.results import Store, Written, fingerprint_of
from dp_powerflow.paper.wasserstein.lab import Lab, Scale
from dp_powerflow.paper.wasserstein.search import VARIANTS, Configuration, distance
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.units import FloatArray

COMPARED = ("dp-powerflow", "full-support", "gmm-noise")
_CHOICE_RUNS = 3


@dataclass(frozen=True)
class Chosen:
    """A mechanism's point of the search, and what it claims for the network there."""

    name: str
    configuration: Configuration
    pooled_w1: float
    claim: Guarantee


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
    solved = BatchSolver(data.feeder).solve(load.reshape(-1, load.shape[-1]))
    days = np.sort(split.train)
    history = data.history.select(days=[data.history.days[day] for day in days])
    known = replace(data, history=history, relative=data.relative[:, days])
    scale = _scale(options, plan, epsilons)
    facts = {"version": __version__, "data": data.words, "seed": options.seed, "scale": asdict(scale)}
    facts |= {"days": days.tolist(), "margins": data.margins, "radius": data.radius}
    store = Store(folder_of(options) / "fits", fingerprint_of(facts))
    lab = Lab(known, scale, options.seed, store)
    return Bench(data, split, np.abs(solved.v).reshape(load.shape), lab)


def folder_of(options: ExperimentOptions) -> Path:
    """Where results go."""
    return options.out / f"recovery-{options.dataset}{'-quick' if options.quick else ''}"


def source_at(bench: Bench, epsilon: float) -> tuple[Source, dict[str, Chosen]]:
    """Voltages of every mechanism at ε per step, and what was chosen; one that cannot reach ε is left out."""
    delta = bench.lab.delta  # calibrates: what goes wrong there is not one mechanism's refusal
    chosen: dict[str, Chosen] = {}
    releases: dict[str, Release] = {}
    for mechanism in COMPARED:
        found = choose(bench.lab, mechanism, epsilon)
        if found is not None:
            chosen[found.name] = found
            releases[found.name] = _release(bench.lab, found.configuration)
    return Source(bench.true, bench.split, releases, epsilon, delta), chosen


def choose(lab: Lab, mechanism: str, epsilon: float) -> Chosen | None:
    """The point of the search with the smallest pooled W1 to true training days; None if none reaches ε."""
    p_max = lab.scale.p_max_factors if VARIANTS[mechanism].has_margins else (None,)
    points = [
        Configuration(mechanism, epsilon, load, factor)
        for load in lab.scale.epsilons_load
        for factor in p_max
    ]
    scored = [(score, point) for point in points if (score := _score(lab, point)) is not None]
    if not scored:
        return None
    best, point = min(scored, key=lambda pair: pair[0])
    made = point.variant.build(lab, point, 0)
    claim = made.cost().network
    assert claim is not None
    return Chosen(made.name, point, best, claim)


def claims_of(chosen: Mapping[str, Chosen]) -> dict[str, Any]:
    """Plain values of the claims, for the tables."""
    return {
        name: {
            "words": f"ε = {one.claim.epsilon:.4g}, δ = {one.claim.delta:.2g} per {one.claim.unit}; "
            f"{one.claim.remark}",
            "proved": one.claim.proved,
            "epsilon_load": one.configuration.epsilon_load,
            "p_max_factor": one.configuration.p_max,
            "pooled_w1": one.pooled_w1,
        }
        for name, one in chosen.items()
    }


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


def _score(lab: Lab, point: Configuration) -> float | None:
    """Mean pooled W1 over a few runs, stored; None if the mechanism refuses the point."""
    stored = lab.store.get(f"w1-{point.name}")
    if stored is None:
        try:
            made = [point.variant.build(lab, point, run) for run in range(_runs(lab))]
        except PrivacyError:
            return None
        stored = {"w1": [_w1(lab, mechanism, point, run) for run, mechanism in enumerate(made)]}
        lab.store.put(f"w1-{point.name}", stored)
    return float(np.mean(stored["w1"]))


def _runs(lab: Lab) -> int:
    return min(_CHOICE_RUNS, lab.scale.runs)


def _w1(lab: Lab, mechanism: Mechanism, point: Configuration, run: int) -> float:
    released = mechanism.release(lab.generator(f"choice {point.name}", run), lab.scale.days)
    return distance(released, lab.true_voltages).pooled


def _release(lab: Lab, point: Configuration) -> Release:
    def release(run: int, generator: np.random.Generator, days: int) -> FloatArray:
        return np.asarray(np.abs(point.variant.build(lab, point, run).release(generator, days)))

    return release


EPSILONS = (50.0, 200.0)
"""Per step, the middle and the top of the paper's grid; it does not say where its figure was made."""


def run(options: ExperimentOptions) -> Written:
    """Train what is not stored yet, then write tables and figures."""
    for package in ("torch", "opacus"):
        require(package, "ml")  # before an hour of work, not after it
    plan = QUICK if options.quick else Plan()
    epsilons = (50.0,) if options.quick else EPSILONS
    bench = open_bench(options, plan, epsilons)
    folder = folder_of(options)
    # A worker spends longer importing torch than on its share of a quick run.
    workers = 1 if options.quick else min(2, cores())
    parts = []
    for number, epsilon in enumerate(epsilons):
        source, chosen = source_at(bench, epsilon)

        def advance(done: int, total: int, before: int = number) -> None:
            options.progress(before * total + done, len(epsilons) * total)

        found = run_recovery(
            source, plan, folder / "runs", seed=options.seed, workers=workers, progress=advance
        )
        parts.append(Part(epsilon, found, claims_of(chosen)))
    return write_all(bench.data.words, parts, folder)
