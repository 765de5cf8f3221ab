"""Recovery of missing data, the paper's machine-learning experiment: models trained on what is released.

Every method trains the same network on N windows and is judged on the same true windows of days that nobody
trains on. Mechanisms train on days they release; the noise-free baseline and DP-SGD on true days. The
evaluation set that stops the training, and picks DP-SGD's learning rate and clip norm, is true data and
is not paid for: as in the paper, and nothing a producer may do.

Runs are spread over several processes and taken up again: each has a file with a hash of everything the run
depends on (samples, schedule, noise, versions). A file with another hash is of another experiment.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from dp_powerflow._parallel import run_on_pool
from dp_powerflow.errors import ConfigError, LoadDataError, PowerFlowError, require
from dp_powerflow.evidence.collect import plain
from dp_powerflow.paper.recovery.budget import Calibration, calibrate
from dp_powerflow.paper.recovery.training import (
    Curves,
    Privacy,
    Samples,
    Schedule,
    draw_samples,
    hidden_mse,
    interpolated,
    observed_mean,
    steps_per_epoch,
    train_adam,
    train_dp_sgd,
    windows_per_day,
)
from dp_powerflow.paper.run import Store
from dp_powerflow.units import FloatArray, IntArray


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


NOISE_FREE, DP_SGD = "noise-free", "DP-SGD"
Release = Callable[[int, np.random.Generator, int], FloatArray]
"""Run, generator and days → voltage magnitudes (day, step, node) [p.u.]; every run has a fit of its own."""

ADAM = Schedule(epochs=150, patience=30, batch=64, learning_rate=3e-3)
SGD = Schedule(epochs=60, patience=60, batch=64, learning_rate=0.012)
"""Fewer epochs, less noise: with noise ∝ √steps and a rate ∝ 1/steps the two cancel."""


@dataclass(frozen=True)
class Split:
    """Days by number: nothing is fitted to those held out."""

    train: IntArray
    evaluation: IntArray
    test: IntArray


@dataclass(frozen=True, eq=False)
class Source:
    """Voltages to learn from.

    Attributes
    ----------
    true : (day, step, node) [p.u.] voltage magnitudes of the history.
    split : which of its days are for what.
    releases : mechanisms by name.
    epsilon_step, delta : claim of every mechanism for the network and one step.
    """

    true: FloatArray
    split: Split
    releases: Mapping[str, Release]
    epsilon_step: float
    delta: float


@dataclass(frozen=True)
class Plan:
    """Sizes of the experiment.

    Attributes
    ----------
    runs : seeds per method.
    samples, batch : N and B.
    held_out_days : days of the evaluation set, and as many of the test set.
    held_out_samples : windows of each of them.
    adam, dp_sgd : schedules; of DP-SGD with learning rate · clip norm, or one of `rates` if there are any.
    clip : norm, or one of `clips` if there are any.
    searched_runs : seeds that a pair of (learning rate, clip norm) is tried on.
    """

    runs: int = 20
    samples: int = 1000
    batch: int = 64
    held_out_days: int = 60
    held_out_samples: int = 2000
    adam: Schedule = ADAM
    dp_sgd: Schedule = SGD
    clip: float = 0.1
    rates: tuple[float, ...] = (0.008, 0.012, 0.018, 0.027)
    clips: tuple[float, ...] = (0.1,)
    searched_runs: int = 1

    def days(self, steps: int, nodes: int) -> int:
        """d: fewest days that hold N windows."""
        return math.ceil(self.samples / (windows_per_day(steps) * nodes))


QUICK = Plan(
    runs=3,
    held_out_samples=500,
    adam=replace(ADAM, epochs=25),
    dp_sgd=replace(SGD, epochs=25, learning_rate=0.027),
    rates=(),
    clips=(),
)


@dataclass(frozen=True, eq=False)
class Recovery:
    """What was found.

    Attributes
    ----------
    curves : of every run, by method.
    guesses : mean squared error [p.u.²] on the test set of guesses that learn nothing, by name.
    days : of one training set.
    calibration : noise multipliers of DP-SGD.
    dp_sgd : schedule and noise that DP-SGD was run with.
    searched : evaluation error [p.u.²] by (clip norm, learning rate · clip norm); empty without a search.
    """

    plan: Plan
    curves: Mapping[str, tuple[Curves, ...]]
    guesses: Mapping[str, float]
    days: int
    calibration: Calibration
    dp_sgd: tuple[Schedule, Privacy]
    searched: Mapping[tuple[float, float], float]


def split_days(days: int, held_out: int, generator: np.random.Generator) -> Split:
    """Days at random into evaluation, test and the rest."""
    if days < 3 * held_out:
        raise LoadDataError(
            f"the recovery experiment holds out 2 × {held_out} days, and the history has {days}; "
            f"give at least {3 * held_out}"
        )
    order = generator.permutation(days)
    return Split(order[2 * held_out :], order[:held_out], order[held_out : 2 * held_out])


def run_recovery(
    source: Source, plan: Plan, folder: Path, *, seed: int, workers: int, progress: Callable[[int, int], None]
) -> Recovery:
    """Train every method on every seed; files of single runs are kept in the folder."""
    shared = _hold_out(source, plan, seed)
    _, steps, nodes = source.true.shape
    days = plan.days(steps, nodes)
    budget = source.epsilon_step * steps * days
    count = plan.dp_sgd.epochs * steps_per_epoch(plan.samples, plan.batch)
    calibration = calibrate(budget, source.delta, samples=plan.samples, batch=plan.batch, steps=count)
    tag = f"e{source.epsilon_step:g}"  # of the files; the noise-free runs serve every ε
    truth = [_true_samples(source, plan, days, seed, run) for run in range(plan.runs)]
    pairs = [(clip, rate) for clip in plan.clips for rate in plan.rates]
    tried = len(pairs) * plan.searched_runs
    total = tried + plan.runs * (len(source.releases) + 2)

    def train(runs: list[Run], before: int) -> list[Curves]:
        def advance(done: int, _: int) -> None:
            progress(before + done, total)

        return run_all(runs, shared, folder, workers=workers, progress=advance)

    searched = _scores(pairs, train(_search(plan, calibration, pairs, truth, tag), 0), plan.searched_runs)
    best = min(searched, key=lambda pair: searched[pair], default=(plan.clip, plan.dp_sgd.learning_rate))
    schedule, privacy = _private(plan, calibration, *best)
    trainings = {NOISE_FREE: [Run(NOISE_FREE, run, truth[run], plan.adam) for run in range(plan.runs)]}
    for number, (name, release) in enumerate(source.releases.items()):
        trainings[name] = [
            Run(
                f"{name} {tag}",
                run,
                _released_samples(name, release, run, plan, days, [seed, 2, number, run]),
                plan.adam,
            )
            for run in range(plan.runs)
        ]
    trainings[DP_SGD] = [
        Run(f"{DP_SGD} {tag}", run, truth[run], schedule, privacy) for run in range(plan.runs)
    ]
    results = iter(train([run for runs in trainings.values() for run in runs], tried))
    curves = {name: tuple(next(results) for _ in runs) for name, runs in trainings.items()}
    guesses = {
        "mean of what is seen": hidden_mse(observed_mean(shared.test), shared.test),
        "straight line": hidden_mse(interpolated(shared.test), shared.test),
    }
    return Recovery(plan, curves, guesses, days, calibration, (schedule, privacy), searched)


def _hold_out(source: Source, plan: Plan, seed: int) -> Shared:
    generator = np.random.default_rng([seed, 3])
    held_out = (source.split.evaluation, source.split.test)
    return Shared(*(draw_samples(source.true[days], plan.held_out_samples, generator) for days in held_out))


def _search(
    plan: Plan, calibration: Calibration, pairs: list[tuple[float, float]], truth: list[Samples], tag: str
) -> list[Run]:
    """Runs of DP-SGD that try every pair of clip norm and rate."""
    return [
        Run(f"search {tag} {clip:g} {rate:g}", run, truth[run], *_private(plan, calibration, clip, rate))
        for clip, rate in pairs
        for run in range(plan.searched_runs)
    ]


def _true_samples(source: Source, plan: Plan, days: int, seed: int, run: int) -> Samples:
    generator = np.random.default_rng([seed, 1, run])
    chosen = generator.choice(source.split.train, size=days, replace=False)
    return draw_samples(source.true[chosen], plan.samples, generator)


def _released_samples(
    name: str, release: Release, run: int, plan: Plan, days: int, key: list[int]
) -> Samples:
    generator = np.random.default_rng(key)
    vm = release(run, generator, days)
    if not np.isfinite(vm).all():
        raise PowerFlowError(
            f"power flow failed on days of '{name}', so its training set has holes; lower the loads' spread"
        )
    return draw_samples(vm, plan.samples, generator)


def _private(plan: Plan, calibration: Calibration, clip: float, rate: float) -> tuple[Schedule, Privacy]:
    """The step is rate/clip: gradients are nearly all clipped, so the rate alone sets the pace."""
    schedule = replace(plan.dp_sgd, learning_rate=rate / clip)
    return schedule, Privacy(calibration.leading_order, clip)


def _scores(
    pairs: list[tuple[float, float]], found: list[Curves], repeats: int
) -> dict[tuple[float, float], float]:
    """Mean best evaluation error of every pair; a run that diverged counts as infinite."""
    scores = {}
    for number, pair in enumerate(pairs):
        runs = found[number * repeats : (number + 1) * repeats]
        mean = float(np.mean([run.evaluation[run.best] for run in runs]))
        scores[pair] = mean if math.isfinite(mean) else math.inf
    return scores
