"""The configurations of the Wasserstein experiment on several processes; the store is what they share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from multiprocessing import get_context

from dp_powerflow.paper.datasets import ExperimentOptions, open_dataset, silent
from dp_powerflow.paper.wasserstein.evaluate import evaluate, new_lab
from dp_powerflow.paper.wasserstein.lab import Lab, Scale
from dp_powerflow.paper.wasserstein.plan import Configuration

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Work = Callable[[Lab], int]
"""Does some of the work and says how many of the counted items it was."""


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_missing(options: ExperimentOptions, lab: Lab, plan: Sequence[Configuration], workers: int) -> None:
    """Compute every fit and configuration that the store lacks; progress counts both."""
    missing = [config for config in plan if lab.store.get(config.name) is None]
    if not missing:
        return
    every = [(load, run) for load in lab.scale.epsilons_load for run in range(lab.scale.runs)]
    fits = [fit for fit in every if lab.store.get(lab.fit_name(*fit)) is None]
    total, done = len(fits) + len(missing), 0
    options.progress(done, total)
    # Fits come first, then the calibration, so that no two processes do the same one.
    for counted in _shared_out(
        options, lab, [partial(_fit, load=load, run=run) for load, run in fits], workers
    ):
        done += counted
        options.progress(done, total)
    _ = lab.operating
    groups = [partial(_evaluate, configs=configs) for configs in _together(missing)]
    for counted in _shared_out(options, lab, groups, workers):
        done += counted
        options.progress(done, total)


def _shared_out(options: ExperimentOptions, lab: Lab, work: Sequence[Work], workers: int) -> Iterator[int]:
    if workers == 1:
        for one in work:
            yield one(lab)
        return
    quiet = replace(options, progress=silent)
    with _one_thread_each(), ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(_in_child, quiet, lab.scale, one) for one in work]
        for future in as_completed(futures):
            yield future.result()


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Children that start meanwhile run linear algebra on one thread: two processes with two each take twice
    the time. What the user has set stays."""
    added = [name for name in _THREADS if name not in os.environ]
    os.environ.update(dict.fromkeys(added, "1"))
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _together(configs: Sequence[Configuration]) -> list[tuple[Configuration, ...]]:
    groups: dict[tuple[object, ...], list[Configuration]] = {}
    for config in configs:
        # Only DP-GMM + noise reuses a law; everything else is shared out one by one.
        shared = (config.mechanism, config.epsilon_load, config.p_max)
        key = shared if config.mechanism == "gmm-noise" else (*shared, config.name)
        groups.setdefault(key, []).append(config)
    return [tuple(group) for group in groups.values()]


def _fit(lab: Lab, load: float, run: int) -> int:
    lab.law(load, run)
    return 1


def _evaluate(lab: Lab, configs: tuple[Configuration, ...]) -> int:
    for config in configs:
        evaluate(lab, config)
    return len(configs)


def _in_child(options: ExperimentOptions, scale: Scale, work: Work) -> int:
    return work(_lab_of_child(options, scale))


@cache
def _lab_of_child(options: ExperimentOptions, scale: Scale) -> Lab:
    """The lab of this process; the data set is opened once."""
    return new_lab(options, scale, open_dataset(options))
