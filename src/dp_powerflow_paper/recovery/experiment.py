"""The recovery experiment as it is asked for: voltages from the mechanisms, trained on, written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dp_powerflow.errors import require
from dp_powerflow.lowlevel import cores, run_on_pool
from dp_powerflow_paper.datasets import ExperimentOptions, silent
from dp_powerflow_paper.recovery.columns import (
    CHOICE_RUNS,
    Bench,
    Fits,
    best_points,
    folder_of,
    open_bench,
    points_of,
    search,
    source_at,
)
from dp_powerflow_paper.recovery.methods import QUICK, Plan, run_recovery
from dp_powerflow_paper.recovery.report import Part, write_all
from dp_powerflow_paper.run import Written
from dp_powerflow_paper.wasserstein.evaluation import Outcome
from dp_powerflow_paper.wasserstein.experiment import missing_fits

EPSILONS = (25.0, 30.0, 50.0, 100.0, 200.0)
"""Per step, the paper's grid; it does not say where its figure was made."""


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
    outcomes = _searched(options, bench, plan, workers)
    parts = []
    for number, epsilon in enumerate(epsilons):
        source, chosen = source_at(bench, outcomes, epsilon)

        def advance(done: int, total: int, before: int = number) -> None:
            options.progress(before * total + done, len(epsilons) * total)

        found = run_recovery(
            source, plan, folder / "runs", seed=options.seed, workers=workers, progress=advance
        )
        parts.append(Part(epsilon, found, chosen))
    return write_all(bench.data.words, parts, folder)


def _searched(options: ExperimentOptions, bench: Bench, plan: Plan, workers: int) -> Sequence[Outcome]:
    """All points that are chosen from; fits are made by several processes before they are asked for."""
    lab, epsilons = bench.lab, bench.lab.scale.epsilons

    def prepare(fits: Sequence[tuple[float, int, float]]) -> None:
        if workers > 1:
            job = Fits(replace(options, progress=silent), plan, epsilons, tuple(fits))
            run_on_pool(workers, job, range(len(fits)), lambda task: None)

    prepare(missing_fits(lab, points_of(lab), min(CHOICE_RUNS, plan.runs)))
    outcomes = search(lab)
    prepare(missing_fits(lab, best_points(outcomes, epsilons), plan.runs))
    return outcomes
