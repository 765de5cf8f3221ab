"""The paper's Wasserstein experiment: every mechanism at every ε, 20 runs each, resumable.

The data are public. The search over ε_load and the margins looks at the true voltages, which a producer
may not do: there every fit is paid for and no score against the true data is free (paper correction 11).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dp_powerflow.lowlevel import cores, plain, run_on_pool
from dp_powerflow_paper.datasets import ExperimentOptions, open_dataset, silent
from dp_powerflow_paper.mechanisms.gaussian import noise_free
from dp_powerflow_paper.run import Written, write_report
from dp_powerflow_paper.wasserstein.evaluation import Outcome, distance, evaluate, new_lab
from dp_powerflow_paper.wasserstein.lab import Lab, Scale
from dp_powerflow_paper.wasserstein.search import Configuration, configurations
from dp_powerflow_paper.wasserstein.tables import WARNING, draw_two_birds, draw_wasserstein, to_markdown

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
    fits = missing_fits(lab, missing, lab.scale.runs)
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
    share_out(tuple(partial(_fit, load=load, run=run, bounds=bounds) for load, run, bounds in fits))
    _ = lab.operating
    share_out(tuple(partial(_evaluate, configs=configs) for configs in _together(missing)))


def _together(configs: Sequence[Configuration]) -> list[tuple[Configuration, ...]]:
    """Configurations that one process should do, because they share voltages."""
    groups: dict[str, list[Configuration]] = {}
    for config in configs:
        groups.setdefault(config.voltages_name or config.name, []).append(config)
    return [tuple(group) for group in groups.values()]


Fit = tuple[float, int, float]
"""ε_load, run, and factor on the upper margin that is declared to the fit."""


def missing_fits(lab: Lab, plan: Sequence[Configuration], runs: int) -> list[Fit]:
    """Fits that so many runs of a plan need and the store lacks."""
    wanted = {
        (config.epsilon_load, config.bounds)
        for config in plan
        if config.epsilon_load is not None and config.variant.fitted
    }
    every = [(load, run, bounds) for load, bounds in sorted(wanted) for run in range(runs)]
    return [fit for fit in every if lab.store.get(lab.fit_name(*fit)) is None]


def _fit(lab: Lab, load: float, run: int, bounds: float) -> int:
    lab.law(load, run, bounds)
    return 1


def _evaluate(lab: Lab, configs: tuple[Configuration, ...]) -> int:
    for config in configs:
        evaluate(lab, config)
    return len(configs)


EPSILONS = (25.0, 30.0, 50.0, 100.0, 200.0)
LITERAL_LOADS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""ε_load that the paper's recipe is searched over."""


def scale_of(options: ExperimentOptions) -> Scale:
    """The full run, or a small one for a look."""
    if options.quick:
        days = min(options.calibration_days, 60)
        return Scale(2, 4, (25.0, 50.0, 200.0), (1.0, 10.0), (1.0, 1.5), (), days, (0.1, 1.0, 10.0))
    return Scale(
        runs=20,
        days=14,
        epsilons=EPSILONS,
        epsilons_load=(1.0, 3.0, 10.0),
        p_max_factors=(1.0, 1.5),
        radii_of_y_noise=(1e-4, 1e-3, 1e-2, 1e-1, 1.0),
        calibration_days=options.calibration_days,
        literal_loads=LITERAL_LOADS,
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
    free = noise_free(lab.setting).release(lab.generator("noise-free", 0), lab.scale.days)
    days = lab.data.spread_days(lab.scale.days)
    gap = max(1, lab.data.n_days // (2 * len(days)))
    after = (days + gap) % lab.data.n_days
    others = replace(lab.setting, generation=lab.data.sun(after)).solve(lab.data.true_load(after))
    return {
        "noise-free": distance(free, lab.true_voltages).pooled,
        "other true days": distance(others, lab.true_voltages).pooled,
    }


def write_all(
    options: ExperimentOptions, lab: Lab, references: dict[str, float], outcomes: tuple[Outcome, ...]
) -> Written:
    """Write Markdown, JSON, PNG and SVG."""
    stem = f"wasserstein-{lab.data.name}{'-quick' if options.quick else ''}"
    facts = {
        "data": lab.data.words,
        "warning": WARNING,
        "insecure_seed": True,
        "scale": lab.scale,
        "radius": lab.data.radius,
        "delta": lab.delta,
        "operating": lab.operating,
        "sensitivities": lab.sensitivities,
        "proved sensitivities": lab.proved,
        "references": references,
        "outcomes": outcomes,
    }
    figures: dict[str, Callable[[str], bytes]] = {
        stem: partial(draw_wasserstein, lab, outcomes, references["other true days"]),
        f"{stem}-two-birds": partial(draw_two_birds, lab, outcomes),
    }
    text = to_markdown(lab, references, outcomes)
    return write_report(options.out, stem, text, plain(facts), figures)
