"""Runs of training: spread over processes, kept in files, taken up again.

Each has a file with a hash of everything the run depends on (samples, schedule, noise, versions). A file with
another hash is of another experiment.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from dp_powerflow.errors import ConfigError, require
from dp_powerflow.lowlevel import plain, run_on_pool
from dp_powerflow_paper.recovery.training import Curves, Privacy, Samples, Schedule, train_adam, train_dp_sgd
from dp_powerflow_paper.run import Store


@dataclass(frozen=True, eq=False)
class Run:
    """One training: what, on what, how.

    Attributes
    ----------
    method, seed : name of the run.
    train : the method's own samples.
    schedule : epochs, patience, batch, learning rate.
    privacy : of DP-SGD; None for Adam.
    """

    method: str
    seed: int
    train: Samples
    schedule: Schedule
    privacy: Privacy | None = None


@dataclass(frozen=True, eq=False)
class Shared:
    """True samples that all methods share."""

    evaluation: Samples
    test: Samples


TOGETHER = 20
"""Runs of Adam that are trained at once: a step of 20 costs far less than 20 steps."""


def execute(runs: Sequence[Run], shared: Shared) -> list[Curves]:
    """Train runs of one method together, or a single one of DP-SGD."""
    first = runs[0]
    if first.privacy is None:
        trains, seeds = [run.train for run in runs], [run.seed for run in runs]
        return train_adam(trains, shared.evaluation, shared.test, first.schedule, seeds)
    return [
        train_dp_sgd(run.train, shared.evaluation, shared.test, run.schedule, first.privacy, run.seed)
        for run in runs
    ]


def run_all(
    runs: Sequence[Run], shared: Shared, folder: Path, *, workers: int, progress: Callable[[int, int], None]
) -> list[Curves]:
    """Curves of every run, in order; what the folder holds already is not trained again."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made ({error.strerror}); name another folder") from None
    stores = [Store(folder, _hash(run, shared)) for run in runs]
    found = [_stored(store, run) for store, run in zip(stores, runs, strict=True)]
    missing = [index for index, curves in enumerate(found) if curves is None]
    done = len(runs) - len(missing)
    progress(done, len(runs))
    jobs = _jobs(runs, missing)

    def keep(trained: tuple[int, list[Curves]]) -> None:
        nonlocal done
        job = jobs[trained[0]]
        for index, curves in zip(job, trained[1], strict=True):
            stores[index].put(_name(runs[index]), {"unit": "p.u.^2", **plain(curves)})
            found[index] = curves
        done += len(job)
        progress(done, len(runs))

    training = _Training(tuple(tuple(runs[index] for index in job) for job in jobs), shared)
    if workers == 1 or len(jobs) < 2:
        for task in range(len(jobs)):
            keep(training.train(task))
    else:
        run_on_pool(workers, training, range(len(jobs)), keep)
    return [curves for curves in found if curves is not None]


@dataclass(frozen=True, eq=False)
class _Training:
    """Groups of runs that are trained together, for this process or others."""

    groups: tuple[tuple[Run, ...], ...]
    shared: Shared

    def start(self, threads: int | None) -> Callable[[int], tuple[int, list[Curves]]]:
        return self.train

    def train(self, task: int) -> tuple[int, list[Curves]]:
        """Number of a group, and its curves."""
        return task, execute(self.groups[task], self.shared)


def _jobs(runs: Sequence[Run], missing: Sequence[int]) -> list[list[int]]:
    """Indices of runs to train together: neighbours of one method with Adam, others by themselves."""
    jobs: list[list[int]] = []
    for index in missing:
        run, before = runs[index], runs[jobs[-1][0]] if jobs else None
        alike = before is not None and (before.method, before.privacy) == (run.method, None)
        if alike and run.privacy is None and len(jobs[-1]) < TOGETHER:
            jobs[-1].append(index)
        else:
            jobs.append([index])
    return jobs


def _name(run: Run) -> str:
    """Of its file."""
    words = re.findall(r"[\w.]+", run.method.lower())
    return "-".join([*words, str(run.seed)])


def _hash(run: Run, shared: Shared) -> str:
    digest = hashlib.sha256()
    for samples in (run.train, shared.evaluation, shared.test):
        digest.update(np.ascontiguousarray(samples.values).tobytes())
        digest.update(np.ascontiguousarray(samples.hidden).tobytes())
    facts = {
        "schedule": asdict(run.schedule),
        "privacy": None if run.privacy is None else asdict(run.privacy),
        "seed": run.seed,
        "torch": require("torch", "ml").__version__,
        "opacus": None if run.privacy is None else require("opacus", "ml").__version__,
    }
    digest.update(json.dumps(facts, sort_keys=True).encode())
    return digest.hexdigest()


def _stored(store: Store, run: Run) -> Curves | None:
    """Curves of a file of this very run; None if there is none."""
    try:
        stored = store.get(_name(run))
    except ConfigError:
        return None  # not whole: a run is quickly made again
    if stored is None:
        return None
    # JSON has no NaN: a run that diverged is stored as null.
    train, evaluation, test = (np.array(stored[name], np.float64) for name in ("train", "evaluation", "test"))
    return Curves(train, evaluation, test, best=stored["best"], stopped=stored["stopped"])
