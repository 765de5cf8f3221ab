"""The paper's Wasserstein experiment: every mechanism at every ε, 20 runs each, resumable.

The data are public. The search over ε_load and the margins looks at the true voltages, which a producer
may not do: there every fit is paid for and no score against the true data is free (paper correction 11).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dp_powerflow._parallel import cores, run_on_pool
from dp_powerflow.paper.datasets import ExperimentOptions, open_dataset, silent
from dp_powerflow.paper.mechanisms.gaussian import NoiseFree
from dp_powerflow.paper.results import Written
from dp_powerflow.paper.wasserstein.lab import Lab, Scale
from dp_powerflow.paper.wasserstein.report import write_all
from dp_powerflow.paper.wasserstein.search import Configuration, configurations, distance, evaluate, new_lab

Work = Callable[[Lab], int]
"""Does some of the work and says how many of the counted items it was."""


@dataclass(frozen=True)
class _Job:
    """Work for other processes, each with a lab of its own; the store is what they share."""

    options: ExperimentOptions
    scale: Scale
    work: tuple[Work, ...]

    def start(self, threads: int | None) -> Callable[[int], int]:
        lab = new_lab(self.options, self.scale, open_dataset(self.options))
        return lambda task: self.work[task](lab)


def run_missing(options: ExperimentOptions, lab: Lab, plan: Sequence[Configuration], workers: int) -> None:
    """Compute every fit and configuration that the store lacks; progress counts both."""
    missing = [config for config in plan if lab.store.get(config.name) is None]
    if not missing:
        return
    every = [(load, run) for load in lab.scale.epsilons_load for run in range(lab.scale.runs)]
    fits = [fit for fit in every if lab.store.get(lab.fit_name(*fit)) is None]
    total, done = len(fits) + len(missing), 0
    options.progress(done, total)

    def advance(counted: int) -> None:
        nonlocal done
        done += counted
        options.progress(done, total)

    def share_out(work: tuple[Work, ...]) -> None:
        if workers == 1:
            for one in work:
                advance(one(lab))
        elif work:
            job = _Job(replace(options, progress=silent), lab.scale, work)
            run_on_pool(workers, job, range(len(work)), advance)

    # Fits come first, then the calibration, so that no two processes do the same one.
    share_out(tuple(partial(_fit, load=load, run=run) for load, run in fits))
    _ = lab.operating
    share_out(tuple(partial(_evaluate, configs=configs) for configs in _together(missing)))


def _together(configs: Sequence[Configuration]) -> list[tuple[Configuration, ...]]:
    """Configurations that one process should do, because they draw from one law."""
    groups: dict[tuple[object, ...], list[Configuration]] = {}
    for config in configs:
        shared = (config.mechanism, config.epsilon_load, config.p_max)
        key = shared if config.variant.shares_law else (*shared, config.name)
        groups.setdefault(key, []).append(config)
    return [tuple(group) for group in groups.values()]


def _fit(lab: Lab, load: float, run: int) -> int:
    lab.law(load, run)
    return 1


def _evaluate(lab: Lab, configs: tuple[Configuration, ...]) -> int:
    for config in configs:
        evaluate(lab, config)
    return len(configs)


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


def run(options: ExperimentOptions, workers: int | None = None) -> Written:
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
    return write_all(options, lab, references(lab), outcomes)


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
