"""The recovery experiment as it is asked for on the command line."""

from __future__ import annotations

from pathlib import Path

from dp_powerflow._extras import require
from dp_powerflow.paper.datasets import ExperimentOptions
from dp_powerflow.paper.recovery.experiment import QUICK, Plan, run_recovery
from dp_powerflow.paper.recovery.report import Part, write_all
from dp_powerflow.paper.recovery.runs import default_workers
from dp_powerflow.paper.recovery.sources import claims_of, folder_of, open_bench, source_at

EPSILONS = (50.0, 200.0)
"""Per step, the middle and the top of the paper's grid; it does not say where its figure was made."""


def run_recovery_experiment(options: ExperimentOptions) -> tuple[str, list[Path]]:
    """Train what is not stored yet, then write tables and figures."""
    for package in ("torch", "opacus"):
        require(package, "ml")  # before an hour of work, not after it
    plan = QUICK if options.quick else Plan()
    epsilons = (50.0,) if options.quick else EPSILONS
    bench = open_bench(options, plan, epsilons)
    folder = folder_of(options)
    # A worker spends longer importing torch than on its share of a quick run.
    workers = 1 if options.quick else default_workers()
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
