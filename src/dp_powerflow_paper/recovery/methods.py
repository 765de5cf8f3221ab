"""Recovery of missing data, the paper's machine-learning experiment: models trained on what is released.

Every method trains the same network on N windows and is judged on the same true windows of days that nobody
trains on. Mechanisms train on days they release; the noise-free baseline and DP-SGD on true days. All methods
of one run stand for the same days of the year: they have the same generation, and mechanisms that read true
loads read those of these days. The evaluation set that stops the training, and picks DP-SGD's learning
rate and clip norm, is true data and is not paid for: as in the paper, and nothing a producer may do.

A day with a snapshot that has no power flow is left out whole, and another day of the year is drawn for it,
up to `MOST_DRAWS` times as many days as a training set needs. A run that still lacks days has no training
set; both are counted and told.

How much noise DP-SGD needs to protect the network as a release of voltages does.

A change of the network changes every one of the N windows a model is trained on, so a guarantee for one
window has to be carried over to a group of N. The paper does it through (ε, δ) and then zCDP; it does not say
how the sampling rate q enters. Four answers are worked out here, and the results page shows all of them:

- `leading_order`: ρ = S·q²/2σ², the first term of the Rényi divergence of the sampled Gaussian. It is what
  the paper's words suggest and the most favourable to DP-SGD, but the first term alone is no bound;
- `without_sampling`: ρ = S/2σ². zCDP asks for all orders, and at high orders sampling helps no more;
- `exact`: the Rényi divergence of the sampled Gaussian at the order that is best for (ε, δ) of one window;
- `whole_batch`: no group privacy. If all N windows change, a sum over a batch of B clipped gradients moves by
  2·B·C at the most, so S steps are S·(2B)²/2σ²-zCDP for the network itself, a plain Gaussian mechanism. It
  needs batches of exactly B.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import numpy as np
from scipy import optimize, special

from dp_powerflow.errors import LoadDataError, PrivacyError
from dp_powerflow.lowlevel import epsilon_to_rho
from dp_powerflow.units import FloatArray, IntArray
from dp_powerflow_paper.recovery.runs import Run, Shared, run_all
from dp_powerflow_paper.recovery.training import (
    Curves,
    Privacy,
    Samples,
    Schedule,
    draw_samples,
    hidden_mse,
    interpolated,
    observed_mean,
    steps_per_epoch,
    windows_per_day,
)


@dataclass(frozen=True)
class SampleBudget:
    """(ε, δ) of one window; δ is far below the smallest float, so ln(1/δ) is kept."""

    epsilon: float
    log_inverse_delta: float


@dataclass(frozen=True)
class Calibration:
    """Noise multipliers σ/C of every answer above for one (ε, δ) of the network."""

    epsilon: float
    delta: float
    sample: SampleBudget
    rho: float
    steps: int
    leading_order: float
    without_sampling: float
    exact: float
    whole_batch: float


def per_sample(epsilon: float, delta: float, group: int) -> SampleBudget:
    """What one window must meet so that a group of windows meets (ε, δ).

    (ε′, δ′) for one is (N·ε′, N·e^((N−1)ε′)·δ′) for N of them (Dwork and Roth 2014; Vadhan 2017, Lemma 2.2).
    """
    if not (math.isfinite(epsilon) and epsilon > 0 and 0 < delta < 1 and group >= 1):
        raise PrivacyError("group privacy needs epsilon > 0, delta between 0 and 1 and a group of 1 or more")
    one = epsilon / group
    return SampleBudget(one, -math.log(delta) + math.log(group) + (group - 1) * one)


def zcdp(budget: SampleBudget) -> float:
    """ρ = (√(ln 1/δ + ε) − √(ln 1/δ))², the paper's conversion (Bun and Steinke 2016, Proposition 1.3)."""
    high, low = math.sqrt(budget.log_inverse_delta + budget.epsilon), math.sqrt(budget.log_inverse_delta)
    return (budget.epsilon / (high + low)) ** 2  # the same, without the cancellation


def sampled_divergence(noise_multiplier: float, rate: float, order: int) -> float:
    """Rényi divergence of whole order α ≥ 2 of one step of the Poisson-sampled Gaussian.

    Mironov, Talwar and Zhang (arXiv 1908.10530v1), Section 3.3. `dp_accounting` and Opacus have it too, but
    the group of N windows needs orders in the thousands, where Opacus's binomials overflow.
    """
    k = np.arange(order + 1.0)
    binomial = special.gammaln(order + 1) - special.gammaln(k + 1) - special.gammaln(order - k + 1)
    chosen = k * math.log(rate) + special.xlog1py(order - k, -rate)
    moment = special.logsumexp(binomial + chosen + (k * k - k) / (2 * noise_multiplier**2))
    return float(moment) / (order - 1)


def sampled_epsilon(noise_multiplier: float, rate: float, steps: int, log_inverse_delta: float) -> float:
    """ε of so many steps of the Poisson-sampled Gaussian, by its Rényi divergence at the best order.

    The conversion is Proposition 12 of Canonne, Kamath and Steinke (arXiv 2004.00010v4) with ln(1/δ) in place
    of δ. Any set of orders gives a valid ε; this one is dense where the best order lies.
    """
    orders = _orders(noise_multiplier, rate, steps, log_inverse_delta)
    divergence = np.array([sampled_divergence(noise_multiplier, rate, int(order)) for order in orders])
    values = steps * divergence + np.log1p(-1 / orders) + (log_inverse_delta - np.log(orders)) / (orders - 1)
    return float(max(0.0, np.min(values)))


def leading_order(epsilon: float, delta: float, *, samples: int, batch: int, steps: int) -> float:
    """Noise multiplier of the first term alone: ρ = S·q²/2σ²."""
    return batch / samples * math.sqrt(steps / (2 * zcdp(per_sample(epsilon, delta, samples))))


def calibrate(epsilon: float, delta: float, *, samples: int, batch: int, steps: int) -> Calibration:
    """Noise multipliers for S steps on N windows in batches of B at (ε, δ) of the network."""
    budget = per_sample(epsilon, delta, samples)
    rho, rate = zcdp(budget), batch / samples
    plain = math.sqrt(steps / (2 * rho))
    whole = 2 * batch * math.sqrt(steps / (2 * epsilon_to_rho(epsilon, delta)))
    exact = _exact(budget, rate, steps, between=(rate * plain / 8, plain * 8))
    return Calibration(epsilon, delta, budget, rho, steps, rate * plain, plain, exact, whole)


def _exact(budget: SampleBudget, rate: float, steps: int, between: tuple[float, float]) -> float:
    """Smallest noise multiplier, to a thousandth, that meets the budget of one window."""

    def excess(log_noise: float) -> float:
        return sampled_epsilon(math.exp(log_noise), rate, steps, budget.log_inverse_delta) - budget.epsilon

    low, high = math.log(between[0]), math.log(between[1])
    if excess(high) > 0:
        raise PrivacyError("no noise multiplier meets the budget of one window; raise epsilon")
    if excess(low) < 0:
        return between[0]
    root = float(optimize.brentq(excess, low, high, xtol=1e-4))
    return math.exp(root + 1e-3)  # the root is known to its tolerance: stay on the safe side


def _orders(noise_multiplier: float, rate: float, steps: int, log_inverse_delta: float) -> FloatArray:
    """Whole orders, close together at small values."""
    plain = math.sqrt(2 * log_inverse_delta / steps) * noise_multiplier
    top = max(64.0, 2 * plain / rate)
    spaced = np.unique(np.round(np.geomspace(64, top, 40))) if top > 64 else np.array([])
    return np.unique(np.concatenate([np.arange(2.0, 65.0), spaced]))


NOISE_FREE, DP_SGD = "noise-free", "DP-SGD"
Release = Callable[[int, np.random.Generator, IntArray], FloatArray]
"""Run, generator and numbers of days → voltage magnitudes (day, step, node) [p.u.], NaN where power flow
fails; every run has a fit of its own."""
MOST_DRAWS = 4
"""Days drawn at the most for every day of a training set."""

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
    epsilon_step, delta : the target ε for the network and one step, and the common δ.
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

    @property
    def dp_sgd_steps(self) -> int:
        """S."""
        return self.dp_sgd.epochs * steps_per_epoch(self.samples, self.batch)


QUICK = Plan(
    runs=3,
    held_out_samples=500,
    adam=replace(ADAM, epochs=25),
    dp_sgd=replace(SGD, epochs=25, learning_rate=0.027),
    rates=(),
    clips=(),
)


@dataclass(frozen=True)
class Holes:
    """What power flow left of a method's training sets.

    Attributes
    ----------
    failed : share of snapshots without a solution, of all that were drawn in all runs.
    left_out : days left out for them, over the runs.
    without : runs that have no training set.
    """

    failed: float
    left_out: int
    without: int


@dataclass(frozen=True, eq=False)
class Recovery:
    """What was found.

    Attributes
    ----------
    curves : of every run that has a training set, by method; a method without any is missing.
    holes : of every mechanism, by name.
    guesses : mean squared error [p.u.²] on the test set of guesses that learn nothing, by name.
    days : of one training set.
    calibration : noise multipliers of DP-SGD at ε of one step, composed over the days.
    of_a_day : the one that is used, were ε that of a day, as the paper's table of noise has it.
    dp_sgd : schedule and noise that DP-SGD was run with.
    searched : evaluation error [p.u.²] by (clip norm, learning rate · clip norm); empty without a search.
    """

    plan: Plan
    curves: Mapping[str, tuple[Curves, ...]]
    holes: Mapping[str, Holes]
    guesses: Mapping[str, float]
    days: int
    calibration: Calibration
    of_a_day: float
    dp_sgd: tuple[Schedule, Privacy]
    searched: Mapping[tuple[float, float], float]


@dataclass(frozen=True, eq=False)
class Drawn:
    """A run's training set, None where power flow left too few days; snapshots drawn and failed, days left
    out."""

    samples: Samples | None
    snapshots: int
    failed: int
    left_out: int


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
    sizes = {"samples": plan.samples, "batch": plan.batch, "steps": plan.dp_sgd_steps}
    calibration = calibrate(source.epsilon_step * steps * days, source.delta, **sizes)
    of_a_day = leading_order(source.epsilon_step * days, source.delta, **sizes)
    tag = f"e{source.epsilon_step:g}"  # of the files; the noise-free runs serve every ε
    truth = [_true_samples(source, plan, days, seed, run) for run in range(plan.runs)]
    drawn = {
        name: [_drawn(source, name, plan, days, (seed, run)) for run in range(plan.runs)]
        for name in source.releases
    }
    trainings = {NOISE_FREE: [Run(NOISE_FREE, run, truth[run], plan.adam) for run in range(plan.runs)]}
    for name, sets in drawn.items():
        runs = [
            Run(f"{name} {tag}", run, found.samples, plan.adam)
            for run, found in enumerate(sets)
            if found.samples is not None
        ]
        trainings |= {name: runs} if runs else {}
    pairs = [(clip, rate) for clip in plan.clips for rate in plan.rates]
    tried = len(pairs) * plan.searched_runs
    total = tried + sum(len(runs) for runs in trainings.values()) + plan.runs

    def train(runs: list[Run], before: int) -> list[Curves]:
        def advance(done: int, _: int) -> None:
            progress(before + done, total)

        return run_all(runs, shared, folder, workers=workers, progress=advance)

    searched = _scores(pairs, train(_search(plan, calibration, pairs, truth, tag), 0), plan.searched_runs)
    best = min(searched, key=lambda pair: searched[pair], default=(plan.clip, plan.dp_sgd.learning_rate))
    schedule, privacy = _private(plan, calibration, *best)
    trainings[DP_SGD] = [
        Run(f"{DP_SGD} {tag}", run, truth[run], schedule, privacy) for run in range(plan.runs)
    ]
    results = iter(train([run for runs in trainings.values() for run in runs], tried))
    curves = {name: tuple(next(results) for _ in runs) for name, runs in trainings.items()}
    holes = {name: _holes(sets) for name, sets in drawn.items()}
    guesses = {
        "mean of what is seen": hidden_mse(observed_mean(shared.test), shared.test),
        "straight line": hidden_mse(interpolated(shared.test), shared.test),
    }
    return Recovery(plan, curves, holes, guesses, days, calibration, of_a_day, (schedule, privacy), searched)


def training_days(split: Split, seed: int, run: int) -> IntArray:
    """Training days in the order in which a run takes them, for every method alike."""
    return np.random.default_rng([seed, 1, run]).permutation(split.train)


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
    chosen = training_days(source.split, seed, run)[:days]
    return draw_samples(source.true[chosen], plan.samples, np.random.default_rng([seed, 4, run]))


def _drawn(source: Source, name: str, plan: Plan, days: int, seed_and_run: tuple[int, int]) -> Drawn:
    """A run's training set of a mechanism, from whole days only."""
    seed, run = seed_and_run
    generator = np.random.default_rng([seed, 2, crc32(name.encode()), run])
    order = training_days(source.split, seed, run)[: MOST_DRAWS * days]
    whole: list[FloatArray] = []
    snapshots = failed = left_out = 0
    for start in range(0, len(order), days):
        missing = days - len(whole)
        vm = source.releases[name](run, generator, order[start : start + days])
        solved = np.asarray(np.isfinite(vm).all(axis=2))
        good = np.asarray(solved.all(axis=1))
        snapshots, failed = snapshots + solved.size, failed + int(np.count_nonzero(~solved))
        left_out += int(np.count_nonzero(~good))
        whole += list(vm[good][:missing])
        if len(whole) == days:
            return Drawn(draw_samples(np.stack(whole), plan.samples, generator), snapshots, failed, left_out)
    return Drawn(None, snapshots, failed, left_out)


def _holes(sets: Sequence[Drawn]) -> Holes:
    return Holes(
        sum(found.failed for found in sets) / sum(found.snapshots for found in sets),
        sum(found.left_out for found in sets),
        sum(found.samples is None for found in sets),
    )


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
