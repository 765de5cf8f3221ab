"""The recovery experiment as it is asked for: voltages from the mechanisms, trained on, written down.

Days held out for evaluation and test are taken out of the history before anything is fitted to it. ε_load and
the upper margin are those with the smallest W1 to true training days, as the paper chooses them; on private
data a producer may not do that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow._names import __version__
from dp_powerflow._parallel import cores
from dp_powerflow.errors import PrivacyError, require
from dp_powerflow.evidence.collect import plain
from dp_powerflow.paper.datasets import Dataset, ExperimentOptions, open_dataset
from dp_powerflow.paper.mechanisms import Guarantee, solve_loads
from dp_powerflow.paper.recovery.methods import (
    DP_SGD,
    NOISE_FREE,
    QUICK,
    Plan,
    Recovery,
    Release,
    Source,
    Split,
    run_recovery,
    split_days,
)
from dp_powerflow.paper.recovery.training import Curves
from dp_powerflow.paper.run import Store, Written, csv_text, fingerprint_of, write_results
from dp_powerflow.paper.wasserstein.lab import Lab, Scale
from dp_powerflow.paper.wasserstein.search import VARIANTS, Configuration, distance
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.report.figures import figure_bytes, new_figure
from dp_powerflow.units import FloatArray

COMPARED = ("dp-powerflow", "full-support", "gmm-noise")
_CHOICE_RUNS = 3


@dataclass(frozen=True)
class Chosen:
    """A mechanism's point of the search, and what it claims for the network there."""

    name: str
    configuration: Configuration
    pooled_w1: float
    claim: Guarantee


@dataclass(frozen=True, eq=False)
class Bench:
    """What the sources of all ε share."""

    data: Dataset
    split: Split
    true: FloatArray
    lab: Lab


def open_bench(options: ExperimentOptions, plan: Plan, epsilons: Sequence[float]) -> Bench:
    """The data set, its days held out, and a lab that knows the other days only."""
    data = open_dataset(options)
    split = split_days(data.n_days, plan.held_out_days, np.random.default_rng([options.seed, 0]))
    load = data.true_load(np.arange(data.n_days))
    true = solve_loads(BatchSolver(data.feeder, voltvar=data.voltvar), load, data.generation)
    days = np.sort(split.train)
    scale = _scale(options, plan, epsilons)
    facts = {"version": __version__, "data": data.identity, "seed": options.seed, "scale": asdict(scale)}
    store = Store(folder_of(options) / "fits", fingerprint_of(facts | {"days": days.tolist()}))
    lab = Lab(data.of_days(days), scale, options.seed, store)
    return Bench(data, split, np.abs(true), lab)


def folder_of(options: ExperimentOptions) -> Path:
    """Where results go."""
    return options.out / f"recovery-{options.label}{'-quick' if options.quick else ''}"


def source_at(bench: Bench, epsilon: float) -> tuple[Source, dict[str, Chosen]]:
    """Voltages of every mechanism at ε per step, and what was chosen; one that cannot reach ε is left out."""
    delta = bench.lab.delta  # calibrates: what goes wrong there is not one mechanism's refusal
    chosen: dict[str, Chosen] = {}
    releases: dict[str, Release] = {}
    for mechanism in COMPARED:
        found = choose(bench.lab, mechanism, epsilon)
        if found is not None:
            chosen[found.name] = found
            releases[found.name] = _release(bench.lab, found.configuration)
    return Source(bench.true, bench.split, releases, epsilon, delta), chosen


def choose(lab: Lab, mechanism: str, epsilon: float) -> Chosen | None:
    """The point of the search with the smallest pooled W1 to true training days; None if none reaches ε."""
    p_max = lab.scale.p_max_factors if VARIANTS[mechanism].has_margins else (None,)
    points = [
        Configuration(mechanism, epsilon, load, factor)
        for load in lab.scale.epsilons_load
        for factor in p_max
    ]
    scored = [(score, point) for point in points if (score := _score(lab, point)) is not None]
    if not scored:
        return None
    best, point = min(scored, key=lambda pair: pair[0])
    made = point.variant.build(lab, point, 0)
    claim = made.cost().network
    assert claim is not None
    return Chosen(made.name, point, best, claim)


def claims_of(chosen: Mapping[str, Chosen]) -> dict[str, Any]:
    """Plain values of the claims, for the tables."""
    return {
        name: {
            "words": f"ε = {one.claim.epsilon:.4g}, δ = {one.claim.delta:.2g} per {one.claim.unit}; "
            f"{one.claim.remark}",
            "proved": one.claim.proved,
            "epsilon_load": one.configuration.epsilon_load,
            "p_max_factor": one.configuration.p_max,
            "pooled_w1": one.pooled_w1,
        }
        for name, one in chosen.items()
    }


def _scale(options: ExperimentOptions, plan: Plan, epsilons: Sequence[float]) -> Scale:
    if options.quick:
        days = min(options.calibration_days, 60)
        return Scale(plan.runs, 4, tuple(epsilons), (10.0,), (1.5,), (), days)
    return Scale(
        runs=plan.runs,
        days=14,
        epsilons=tuple(epsilons),
        epsilons_load=(1.0, 3.0, 10.0, 25.0),
        p_max_factors=(1.0, 1.5),
        radii_of_y_noise=(),
        calibration_days=options.calibration_days,
    )


def _score(lab: Lab, point: Configuration) -> float | None:
    """Mean pooled W1 over a few runs, stored; None if the mechanism refuses the point."""
    stored = lab.store.get(f"w1-{point.name}")
    if stored is None:
        try:
            made = [point.variant.build(lab, point, run) for run in range(min(_CHOICE_RUNS, lab.scale.runs))]
        except PrivacyError:
            return None
        streams = (lab.generator(f"choice {point.name}", run) for run in range(len(made)))
        released = (one.release(stream, lab.scale.days) for one, stream in zip(made, streams, strict=True))
        stored = {"w1": [distance(days, lab.true_voltages).pooled for days in released]}
        lab.store.put(f"w1-{point.name}", stored)
    return float(np.mean(stored["w1"]))


def _release(lab: Lab, point: Configuration) -> Release:
    def release(run: int, generator: np.random.Generator, days: int) -> FloatArray:
        return np.asarray(np.abs(point.variant.build(lab, point, run).release(generator, days)))

    return release


EPSILONS = (50.0, 200.0)
"""Per step, the middle and the top of the paper's grid; it does not say where its figure was made."""


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


COLOURS = {NOISE_FREE: "0.25", DP_SGD: "C3"}


@dataclass(frozen=True)
class MeanCurve:
    """Mean over runs and its standard error (epoch,) [p.u.²]."""

    mean: FloatArray
    error: FloatArray


def mean_curve(runs: tuple[Curves, ...], which: str) -> MeanCurve:
    """Over the runs of one method; `which` is "train", "evaluation" or "test"."""
    stacked = np.stack([getattr(run, which) for run in runs])
    return MeanCurve(stacked.mean(axis=0), _standard_error(stacked))


def kept(runs: tuple[Curves, ...], which: str) -> tuple[float, float]:
    """Mean and standard error over runs of the error of the model that is kept [p.u.²]."""
    values = np.array([getattr(run, which)[run.best] for run in runs])
    return float(values.mean()), float(_standard_error(values))


@dataclass(frozen=True, eq=False)
class Part:
    """The experiment at one ε per step, and plain values of what the mechanisms claim there."""

    epsilon_step: float
    found: Recovery
    claims: dict[str, Any]


def write_all(dataset: str, parts: Sequence[Part], folder: Path) -> Written:
    """Write tables and figures."""
    text = to_markdown(dataset, parts)
    contents: dict[str, str | bytes] = {
        "recovery.md": text,
        "recovery.csv": to_csv(parts),
        "recovery.json": json.dumps(to_json(dataset, parts), indent=1, allow_nan=False),
    }
    for part in parts:
        for form in ("png", "svg"):
            contents[f"recovery-e{part.epsilon_step:g}.{form}"] = draw(dataset, part, form)
    return write_results(folder, text, contents)


def to_markdown(dataset: str, parts: Sequence[Part]) -> str:
    """Result and budget at every ε."""
    plan = parts[0].found.plan
    lines = [
        f"{dataset}. {plan.runs} runs per method, mean ± standard error; {parts[0].found.days} days and "
        f"{plan.samples} windows of training each."
    ]
    for part in parts:
        lines += ["", f"### ε = {part.epsilon_step:g} per step", "", *_result_lines(part.found), ""]
        lines += [
            *_dp_sgd_lines(part.found),
            "",
            "| mechanism | claim for the network | proved | ε_load | W1 |",
        ]
        lines.append("|---|---|---|---|---|")
        lines += [
            f"| {name} | {claim['words']} | {'yes' if claim['proved'] else 'no'} | "
            f"{claim['epsilon_load']:g} | {claim['pooled_w1']:.3g} |"
            for name, claim in part.claims.items()
        ]
    return "\n".join(lines) + "\n"


def _result_lines(found: Recovery) -> list[str]:
    baseline = kept(found.curves[NOISE_FREE], "test")[0]
    lines = [
        "| method | test MSE [1e-6 p.u.²] | over noise-free | training MSE | best epoch (median) |",
        "|---|---|---|---|---|",
    ]
    for name, runs in found.curves.items():
        (test, error), (train, _) = kept(runs, "test"), kept(runs, "train")
        epoch = int(np.median([run.best + 1 for run in runs]))
        lines.append(
            f"| {name} | {1e6 * test:.3g} ± {1e6 * error:.2g} | {test / baseline:.3g} | {1e6 * train:.3g} | "
            f"{epoch} |"
        )
    for name, value in found.guesses.items():
        lines.append(f"| guess: {name} | {1e6 * value:.3g} | {value / baseline:.3g} | — | — |")
    return lines


def _dp_sgd_lines(found: Recovery) -> list[str]:
    c = found.calibration
    schedule, privacy = found.dp_sgd
    return [
        f"DP-SGD at the network's ε = {c.epsilon:.6g} ({found.days} days, basic composition), "
        f"δ = {c.delta:.3g}: one window has ε = {c.sample.epsilon:.4g}, "
        f"ln(1/δ) = {c.sample.log_inverse_delta:.6g}, ρ = {c.rho:.4g}; {c.steps} steps; "
        f"clip norm {privacy.clip:g}, learning rate {schedule.learning_rate:g}.",
        "",
        "| how the sampling rate enters | noise multiplier | a bound |",
        "|---|---|---|",
        f"| first term, S·q²/2σ² = ρ (used: the paper's words) | {c.leading_order:.4g} | no |",
        f"| none, S/2σ² = ρ | {c.without_sampling:.4g} | yes |",
        f"| exact Rényi divergence for one window's (ε, δ) | {c.exact:.4g} | yes |",
        f"| no group privacy: all windows of a batch change | {c.whole_batch:.4g} | yes |",
    ]


def to_csv(parts: Sequence[Part]) -> str:
    """One row per ε, method and epoch."""
    sets = ("train", "evaluation", "test")
    columns = [f"{which}_mse_{what}" for which in sets for what in ("mean", "standard_error")]
    rows: list[list[object]] = []
    for part in parts:
        for name, runs in part.found.curves.items():
            proved = part.claims[name]["proved"] if name in part.claims else ""
            curves = [mean_curve(runs, which) for which in sets]
            values = np.stack([line for curve in curves for line in (curve.mean, curve.error)], axis=1)
            for epoch, row in enumerate(values, start=1):
                cells = [f"{value:.9g}" for value in row]
                rows.append([f"{part.epsilon_step:g}", proved, name, epoch, len(runs), *cells])
    return csv_text(["epsilon_step", "claim_proved", "method", "epoch", "runs", *columns], rows)


def to_json(dataset: str, parts: Sequence[Part]) -> dict[str, Any]:
    """Everything, with the kept model's error of every run."""
    return {
        "dataset": dataset,
        "unit": "p.u.^2",
        "insecure_seed": True,
        "plan": asdict(parts[0].found.plan),
        "training_days": parts[0].found.days,
        "epsilons": [_part_json(part) for part in parts],
    }


def _part_json(part: Part) -> dict[str, Any]:
    found = part.found
    methods = {
        name: {
            "test_mse": plain([run.test[run.best] for run in runs]),
            "train_mse": plain([run.train[run.best] for run in runs]),
            "best_epoch": [run.best + 1 for run in runs],
            "last_epoch": [run.stopped + 1 for run in runs],
        }
        for name, runs in found.curves.items()
    }
    schedule, privacy = found.dp_sgd
    return {
        "epsilon_step": part.epsilon_step,
        "claims": part.claims,
        "methods": methods,
        "guesses": dict(found.guesses),
        "dp_sgd": {
            "calibration": asdict(found.calibration),
            "schedule": asdict(schedule),
            "privacy": asdict(privacy),
            "search": [
                {"clip": clip, "rate": rate, "evaluation_mse": value if math.isfinite(value) else None}
                for (clip, rate), value in found.searched.items()
            ],
        },
    }


def draw(dataset: str, part: Part, form: str) -> bytes:
    """Training and test error against the epoch, as the bytes of an SVG or PNG file."""
    found = part.found
    figure = new_figure((10.0, 4.4))
    panels: Any = figure.subplots(1, 2, sharey=True)
    for axes, which, title in zip(panels, ("train", "test"), ("Training set", "True test set"), strict=True):
        for number, (name, runs) in enumerate(found.curves.items()):
            curve = mean_curve(runs, which)
            epoch = np.arange(1, len(curve.mean) + 1)
            colour = COLOURS.get(name, f"C{(number - 1) % 3}")
            axes.plot(epoch, curve.mean, color=colour, linewidth=1.5, label=name)
            low = np.maximum(curve.mean - curve.error, curve.mean / 10)  # a logarithm follows
            axes.fill_between(epoch, low, curve.mean + curve.error, color=colour, alpha=0.2, linewidth=0)
        axes.set_yscale("log")
        axes.set_xlabel("epoch")
        axes.set_title(title, fontsize=11)
        axes.grid(True, which="major", color="0.92")
    styles = (":", "--")
    for (name, value), style in zip(found.guesses.items(), styles, strict=True):
        panels[1].axhline(value, color="0.6", linestyle=style, linewidth=1.0, label=f"guess: {name}")
    panels[0].set_ylabel("MSE of hidden entries [p.u.²]")
    panels[1].legend(fontsize=8, frameon=False)
    figure.suptitle(
        f"Recovery of 24 hidden of 48 steps at ε = {part.epsilon_step:g} per step: mean of "
        f"{found.plan.runs} runs ± standard error\n{dataset}",
        fontsize=10,
    )
    return figure_bytes(figure, form)


def _standard_error(values: FloatArray) -> FloatArray:
    """Over the first axis; 0 of a single run, of which nothing can be said."""
    if len(values) < 2:
        return np.zeros(values.shape[1:])
    return np.asarray(values.std(axis=0, ddof=1) / math.sqrt(len(values)))
