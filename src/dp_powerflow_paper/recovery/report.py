"""Tables and figures of the recovery experiment, ready to be pasted into a page."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow.lowlevel import figure_bytes, new_figure, plain
from dp_powerflow_paper.mechanisms.noise import GaussianNoise
from dp_powerflow_paper.recovery.columns import AS_PRINTED, ONE_STEP, Chosen, Column
from dp_powerflow_paper.recovery.methods import DP_SGD, NOISE_FREE, Holes, Recovery
from dp_powerflow_paper.recovery.training import Curves
from dp_powerflow_paper.run import Written, block, table, write_report


@dataclass(frozen=True, eq=False)
class Part:
    """The experiment at one ε per step.

    Attributes
    ----------
    chosen : of every column by its label, or why no point of it reaches ε.
    """

    epsilon_step: float
    found: Recovery
    chosen: Mapping[str, Chosen | str]

    @property
    def methods(self) -> list[str]:
        """In the order of the tables."""
        return [NOISE_FREE, *self.chosen, DP_SGD]


def kept(runs: tuple[Curves, ...], which: str) -> tuple[float, float]:
    """Mean and standard error over runs, 0 of a single one, of the error of the kept model [p.u.²]."""
    values = np.array([getattr(run, which)[run.best] for run in runs])
    error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(values.mean()), float(error)


@dataclass(frozen=True)
class Picture:
    """A figure: its file's name, its title, and the columns that are drawn beside noise-free and DP-SGD."""

    name: str
    title: str
    columns: tuple[Column, ...]


_TWO_COLUMNS = 9.0
"""Width from which two columns of the legend fit [inches]."""
PICTURES = (
    Picture("recovery-paper", "the paper's comparison as printed", AS_PRINTED),
    Picture("recovery-step", "every claim for one step, exact calibration", ONE_STEP),
)


def write_all(dataset: str, parts: Sequence[Part], folder: Path) -> Written:
    """Write tables and figures."""
    figures = {picture.name: partial(draw, dataset, parts, picture) for picture in PICTURES}
    text, content = to_markdown(dataset, parts), to_json(dataset, parts)
    return write_report(folder, "recovery", text, content, figures)


def to_markdown(dataset: str, parts: Sequence[Part]) -> str:
    """What was found, what was trained on, and the budget of DP-SGD."""
    plan, first, targets = parts[0].found.plan, parts[0].found, _targets(parts)
    lines = [
        f"{dataset}. {plan.runs} runs per method; {first.days} days and {plan.samples} windows of training "
        f"each. Common δ = {first.calibration.delta:.3g}.",
        "",
        *block(
            "Test MSE of hidden entries [1e-6 p.u.²], mean ± standard error over the runs (over noise-free):",
            ["method", *targets],
            _result_rows(parts),
        ),
        *block(
            "Training MSE of the model that is kept [1e-6 p.u.²]; median of its epoch:",
            ["method", *targets],
            _training_rows(parts),
        ),
        *_hole_lines(parts),
        *block(
            "Points chosen by W1 to true training days, and what is claimed for the network:",
            _CHOICE_HEADER,
            [row for part in parts for row in _choice_rows(part)],
        ),
        *block("The paper's classical σ and what it gives:", ["", *targets], _calibration_rows(parts)),
        *_dp_sgd_lines(parts),
    ]
    return "\n".join(lines) + "\n"


def _targets(parts: Sequence[Part]) -> list[str]:
    return [f"ε = {part.epsilon_step:g}" for part in parts]


def _result_rows(parts: Sequence[Part]) -> list[list[str]]:
    rows = [[name, *(_result(part, name) for part in parts)] for name in parts[0].methods]
    for name in parts[0].found.guesses:
        values = [(part.found.guesses[name], _baseline(part)) for part in parts]
        rows.append([f"guess: {name}", *(f"{1e6 * v:.3g} ({v / base:.2f})" for v, base in values)])
    return rows


def _result(part: Part, name: str) -> str:
    runs = part.found.curves.get(name)
    if runs is None:
        return "ε not reached" if isinstance(part.chosen[name], str) else _no_set(part.found.holes[name])
    mean, error = kept(runs, "test")
    text = f"{1e6 * mean:.3g} ± {1e6 * error:.2g} ({mean / _baseline(part):.2f})"
    return text if len(runs) == part.found.plan.runs else f"{text}, {len(runs)} runs"


def _no_set(holes: Holes) -> str:
    return f"no training set: {100 * holes.failed:.2g} % of the snapshots have no power flow"


def _baseline(part: Part) -> float:
    return kept(part.found.curves[NOISE_FREE], "test")[0]


def _training_rows(parts: Sequence[Part]) -> list[list[str]]:
    def cell(part: Part, name: str) -> str:
        runs = part.found.curves.get(name)
        if runs is None:
            return "—"
        return f"{1e6 * kept(runs, 'train')[0]:.3g}; {int(np.median([run.best + 1 for run in runs]))}"

    return [[name, *(cell(part, name) for part in parts)] for name in parts[0].methods]


def _hole_lines(parts: Sequence[Part]) -> list[str]:
    rows = [
        [
            name,
            f"{part.epsilon_step:g}",
            f"{100 * holes.failed:.2g} %",
            f"{holes.left_out}",
            f"{holes.without} of {part.found.plan.runs}",
        ]
        for part in parts
        for name, holes in part.found.holes.items()
        if holes.failed
    ]
    if not rows:
        return ["Every snapshot that was trained on has a power flow.", ""]
    header = ["method", "ε", "snapshots without power flow", "days left out", "runs without training set"]
    return block(
        "Power flow failed; a day with a failed snapshot is left out whole, and another is drawn for it:",
        header,
        rows,
    )


_CHOICE_HEADER = ["method", "ε", "claim", "a bound", "ε_load", "p_max (of the fit)", "floor", "σ [p.u.]"]
_CHOICE_HEADER += ["W1 [1e-3 p.u.]"]


def _choice_rows(part: Part) -> list[list[str]]:
    rows = []
    for name, found in part.chosen.items():
        start = [name, f"{part.epsilon_step:g}"]
        if isinstance(found, str):
            rows.append([*start, f"none: {found}", *["—"] * 6])
            continue
        point, outcome, (low, high) = found.configuration, found.outcome, found.epsilon
        reached = f"{high:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
        rows.append(
            [
                *start,
                f"ε = {reached} per {found.network['unit']}",
                "yes" if found.network["proved"] else "no",
                _number(point.epsilon_load),
                "—" if point.p_max is None else f"{point.p_max:g} ({point.bounds:g})",
                _number(outcome.floor),
                " / ".join(f"{value:.3g}" for value in outcome.noise.values()) or "—",
                f"{1e3 * outcome.pooled[0]:.3g}",
            ]
        )
    return rows


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:.3g}"


def _calibration_rows(parts: Sequence[Part]) -> list[list[str]]:
    pairs = [(part.epsilon_step, part.found.calibration.delta) for part in parts]
    exact, classical = (
        [GaussianNoise(1.0, epsilon, delta, kind) for epsilon, delta in pairs]
        for kind in ("analytic", "classical")
    )
    return [
        ["σ per unit of sensitivity, exact", *(f"{noise.sigma:.4g}" for noise in exact)],
        ["σ per unit of sensitivity, classical", *(f"{noise.sigma:.4g}" for noise in classical)],
        ["true δ of the classical σ", *(_true_delta(noise) for noise in classical)],
    ]


def _true_delta(noise: GaussianNoise) -> str:
    return "above 0.999" if noise.true_delta > 0.999 else f"{noise.true_delta:.3g}"


def _dp_sgd_lines(parts: Sequence[Part]) -> list[str]:
    found = [part.found for part in parts]
    of = [one.calibration for one in found]
    first, privacy = of[0], found[0].dp_sgd[1]
    figures: dict[str, list[float]] = {
        "ε of the network": [c.epsilon for c in of],
        "ε of one window": [c.sample.epsilon for c in of],
        "ln(1/δ) of one window": [c.sample.log_inverse_delta for c in of],
        "ρ": [c.rho for c in of],
        "σ/C: first term, S·q²/2σ² = ρ (used, the paper's words; no bound)": [c.leading_order for c in of],
        "σ/C: all windows of a batch change, no group privacy (a bound)": [c.whole_batch for c in of],
        "σ/C: exact Rényi divergence at one window's (ε, δ) (a bound)": [c.exact for c in of],
        "σ/C: no help from sampling, S/2σ² = ρ (a bound)": [c.without_sampling for c in of],
        "σ/C: first term, were ε that of a day (not trained)": [one.of_a_day for one in found],
        "learning rate · C": [one.dp_sgd[0].learning_rate * one.dp_sgd[1].clip for one in found],
    }
    rows = [
        [name, *(f"{value:.6g}" if value > 1e4 else f"{value:.3g}" for value in values)]
        for name, values in figures.items()
    ]
    return [
        f"DP-SGD at ε per step composed over {found[0].days} days, δ = {first.delta:.3g}; {first.steps} "
        f"steps, clip norm C = {privacy.clip:g}:",
        "",
        *table(["", *_targets(parts)], rows),
    ]


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
        "chosen": {name: one if isinstance(one, str) else plain(one) for name, one in part.chosen.items()},
        "methods": methods,
        "power_flow": {name: asdict(holes) for name, holes in found.holes.items()},
        "guesses": dict(found.guesses),
        "dp_sgd": {
            "calibration": asdict(found.calibration),
            "noise_multiplier_of_a_day": found.of_a_day,
            "schedule": asdict(schedule),
            "privacy": asdict(privacy),
            "search": [
                {"clip": clip, "rate": rate, "evaluation_mse": value if math.isfinite(value) else None}
                for (clip, rate), value in found.searched.items()
            ],
        },
    }


def draw(dataset: str, parts: Sequence[Part], picture: Picture, form: str) -> bytes:
    """Training and test error against the epoch at every ε, as the bytes of an SVG or PNG file."""
    width = max(1.8 * len(parts) + 1.0, 8.2)
    legend_columns = 2 if width > _TWO_COLUMNS else 1
    figure = new_figure((width, 5.0 + 0.2 * len(picture.columns) / legend_columns))
    panels: Any = figure.subplots(2, len(parts), sharex=True, sharey="row", squeeze=False)
    colours = {NOISE_FREE: "0.25", DP_SGD: "C3"}
    free = ("C0", "C2", "C1", "C4", "C5", "C6", "C8", "C9", "C7")
    colours |= {column.label: colour for column, colour in zip(picture.columns, free, strict=False)}
    for column, part in enumerate(parts):
        for row, which in enumerate(("train", "test")):
            axes = panels[row, column]
            for name in (name for name in colours if name in part.found.curves):
                curve = np.mean([getattr(run, which) for run in part.found.curves[name]], axis=0)
                axes.plot(np.arange(1, len(curve) + 1), curve, color=colours[name], linewidth=1.3, label=name)
            axes.set_yscale("log")
            axes.grid(True, which="major", color="0.92")
        line = part.found.guesses["straight line"]
        panels[1, column].axhline(
            line, color="0.6", linestyle=":", linewidth=1.0, label="guess: straight line"
        )
        panels[0, column].set_title(f"ε = {part.epsilon_step:g} per step", fontsize=10)
        panels[1, column].set_xlabel("epoch")
    panels[0, 0].set_ylabel("training MSE [p.u.²]")
    panels[1, 0].set_ylabel("test MSE [p.u.²]")
    lines = {line.get_label(): line for axes in panels[1] for line in axes.get_lines()}
    figure.legend(
        lines.values(),
        lines.keys(),
        loc="outside lower center",
        ncols=legend_columns,
        fontsize=8,
        frameon=False,
    )
    runs = parts[0].found.plan.runs
    words = (f"Recovery of hidden entries, mean of {runs} runs: {picture.title}", dataset)
    figure.suptitle("\n".join(textwrap.fill(line, int(12 * width)) for line in words), fontsize=10)
    return figure_bytes(figure, form)
