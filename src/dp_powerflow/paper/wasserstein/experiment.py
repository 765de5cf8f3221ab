"""The paper's Wasserstein experiment: every mechanism at every ε, 20 runs each, resumable.

The data are public. The search over ε_load and the margins looks at the true voltages, which a producer
may not do: there every fit is paid for and no score against the true data is free (PAPER_NOTES 11).
"""

from __future__ import annotations

from pathlib import Path

from dp_powerflow.paper.datasets import ExperimentOptions, open_dataset
from dp_powerflow.paper.mechanisms.noise_free import NoiseFree
from dp_powerflow.paper.wasserstein.evaluate import evaluate, new_lab
from dp_powerflow.paper.wasserstein.lab import Lab, Scale
from dp_powerflow.paper.wasserstein.measure import distance
from dp_powerflow.paper.wasserstein.plan import configurations
from dp_powerflow.paper.wasserstein.report import write_results
from dp_powerflow.paper.wasserstein.workers import cores, run_missing

EPSILONS = (25.0, 30.0, 50.0, 100.0, 200.0)


def scale_of(options: ExperimentOptions) -> Scale:
    """The full run, or a small one for a look."""
    if options.quick:
        days = min(options.calibration_days, 60)
        return Scale(2, 4, (25.0, 50.0, 200.0), (1.0, 10.0), (1.0, 1.5), (), days)
    return Scale(
        runs=20,
        days=14,
        epsilons=EPSILONS,
        epsilons_load=(1.0, 3.0, 10.0),
        p_max_factors=(1.0, 1.5),
        radii_of_y_noise=(1e-4, 1e-3, 1e-2, 1e-1, 1.0),
        calibration_days=options.calibration_days,
    )


def run_wasserstein(options: ExperimentOptions, workers: int | None = None) -> tuple[str, list[Path]]:
    """Run what is not stored yet, then write tables and figures.

    Parameters
    ----------
    workers : processes; None for one per core. Results do not depend on it.
    """
    scale = scale_of(options)
    lab = new_lab(options, scale, open_dataset(options))
    plan = configurations(scale)
    run_missing(options, lab, plan, workers or cores())
    outcomes = tuple(evaluate(lab, config) for config in plan)
    return write_results(options, lab, references(lab), outcomes)


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
