"""Training runs of the recovery experiment: one file per (method, seed), several processes, taken up again.

A run's file carries a hash of everything the run depends on (samples, schedule, noise, versions). A file with
another hash is of another experiment and is made anew.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow._extras import require
from dp_powerflow._parallel import run_on_pool
from dp_powerflow.errors import ConfigError
from dp_powerflow.paper.recovery.training import Curves, Privacy, Schedule, train_adam, train_dp_sgd
from dp_powerflow.paper.recovery.windows import Samples
from dp_powerflow.units import FloatArray


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
    runs: Sequence[Run],
    shared: Shared,
    folder: Path,
    *,
    workers: int,
    progress: Callable[[int, int], None],
) -> list[Curves]:
    """Curves of every run, in order; what the folder holds already is not trained again."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made ({error.strerror}); name another folder") from None
    marks = [_hash(run, shared) for run in runs]
    found = [_read(_path(folder, run), mark) for run, mark in zip(runs, marks, strict=True)]
    missing = [index for index, curves in enumerate(found) if curves is None]
    done = len(runs) - len(missing)
    progress(done, len(runs))

    def keep(result: tuple[Sequence[int], list[Curves]]) -> None:
        nonlocal done
        group, curves = result
        for index, found_now in zip(group, curves, strict=True):
            _write(_path(folder, runs[index]), marks[index], found_now)
            found[index] = found_now
        done += len(group)
        progress(done, len(runs))

    job = _Job(_groups(runs, missing), runs, shared)
    tasks = range(len(job.groups))
    if workers == 1 or len(tasks) < 2:
        for task in tasks:
            keep(job.train(task))
    else:
        run_on_pool(workers, job, tasks, keep)
    return [curves for curves in found if curves is not None]


def _groups(runs: Sequence[Run], missing: Sequence[int]) -> list[list[int]]:
    """Indices of runs to train together: neighbours of one method with Adam, others by themselves."""
    groups: list[list[int]] = []
    for index in missing:
        run, before = runs[index], runs[groups[-1][0]] if groups else None
        alike = before is not None and (before.method, before.privacy) == (run.method, None)
        if alike and run.privacy is None and len(groups[-1]) < TOGETHER:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


@dataclass(frozen=True, eq=False)
class _Job:
    """Trainings in other processes; a task is the number of a group of runs."""

    groups: Sequence[Sequence[int]]
    runs: Sequence[Run]
    shared: Shared

    def start(self, threads: int | None) -> Callable[[int], tuple[Sequence[int], list[Curves]]]:
        return self.train

    def train(self, task: int) -> tuple[Sequence[int], list[Curves]]:
        group = self.groups[task]
        return group, execute([self.runs[index] for index in group], self.shared)


def default_workers() -> int:
    """Two at the most: a run uses one core and lasts seconds."""
    return min(2, os.cpu_count() or 1)


def _path(folder: Path, run: Run) -> Path:
    name = "-".join(re.findall(r"[\w.]+", run.method.lower()))
    return folder / f"{name}-{run.seed}.json"


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


def _read(path: Path, mark: str) -> Curves | None:
    """Curves of a file of this very run; None if there is none."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["inputs"] != mark:
            return None
        train, evaluation, test = (_from_plain(stored[name]) for name in ("train", "evaluation", "test"))
        return Curves(train, evaluation, test, best=int(stored["best"]), stopped=int(stored["stopped"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not there, or not whole: a run is quickly made again


def _write(path: Path, mark: str, curves: Curves) -> None:
    content: dict[str, Any] = {
        "inputs": mark,
        "unit": "p.u.^2",
        "best": curves.best,
        "stopped": curves.stopped,
        "train": to_plain(curves.train),
        "evaluation": to_plain(curves.evaluation),
        "test": to_plain(curves.test),
    }
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(content), encoding="utf-8")
    unfinished.replace(path)  # whole or not at all


def to_plain(values: FloatArray) -> list[float | None]:
    """For JSON, which has no NaN: a run that diverged shows as null."""
    return [float(value) if math.isfinite(value) else None for value in values]


def _from_plain(values: list[float | None]) -> FloatArray:
    return np.array([math.nan if value is None else value for value in values])
