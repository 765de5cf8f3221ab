"""The paper's Wasserstein experiment: every mechanism at every ε, 20 runs each, resumable.

The data are public. The search over ε_load and the margins looks at the true voltages, which a producer
may not do: there every fit is paid for and no score against the true data is free (paper correction 11).
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dp_powerflow._parallel import cores, run_on_pool
from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.collect import plain, radius_in_lines
from dp_powerflow.evidence.printed import with_exact_kappa
from dp_powerflow.evidence.theorem import paper_bound
from dp_powerflow.paper.datasets import ExperimentOptions, open_dataset, silent
from dp_powerflow.paper.mechanisms.gaussian import GaussianNoise, NoiseFree
from dp_powerflow.paper.run import Written, csv_text, write_results
from dp_powerflow.paper.wasserstein.lab import DELTA_LOAD, DELTA_TAIL, Lab, Scale
from dp_powerflow.paper.wasserstein.search import (
    STEP,
    TABLE,
    VARIANTS,
    Configuration,
    Outcome,
    configurations,
    distance,
    evaluate,
    new_lab,
    paper_mechanism,
)
from dp_powerflow.privacy.budget import gdp_epsilon, gdp_mu
from dp_powerflow.report.figures import figure_bytes, new_figure

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
    gap = max(1, lab.data.n_days // (2 * len(days)))
    after = (days + gap) % lab.data.n_days
    others = replace(lab.setting, generation=lab.data.sun(after)).solve(lab.data.true_load(after))
    return {
        "noise-free": distance(free, lab.true_voltages).pooled,
        "other true days": distance(others, lab.true_voltages).pooled,
    }


Curves = Mapping[str, list[tuple[float, float, float]]]

_TITLES = {"step": "every claim for one step", "table": "noise as in the paper's table (√T; loads √(n_L·T))"}
_STYLES = ("o-", "s--", "^-", "v-", "D-", "x:", "+:")


def draw_wasserstein(curves: Mapping[str, Curves], other_days: float, words: str, form: str) -> bytes:
    """W1 against ε, one panel per unit of the noise, as the bytes of an SVG or PNG file."""
    figure = new_figure((11.0, 5.2))
    panels: Any = figure.subplots(1, len(curves), sharey=True)
    for axes, (unit, of_unit) in zip(panels, curves.items(), strict=True):
        for style, (label, points) in zip(_STYLES, of_unit.items(), strict=True):
            if points:
                epsilon, mean, error = zip(*points, strict=True)
                axes.errorbar(epsilon, mean, yerr=error, fmt=style, markersize=4, capsize=2, label=label)
        axes.axhline(other_days, color="0.6", linewidth=0.8, linestyle=":", label="other true days")
        axes.set_xscale("log")
        axes.set_yscale("log")
        ticks = sorted({epsilon for points in of_unit.values() for epsilon, _, _ in points})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("ε, target for the network")
        axes.set_title(_TITLES[unit], fontsize=10)
        axes.grid(True, which="major", color="0.92")
    panels[0].set_ylabel("W1 of voltage magnitudes, pooled [p.u.]")
    figure.legend(*panels[-1].get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=7)
    note = (
        f"{words}. Mean ± standard error. DP-Powerflow's ε is the paper's formula for one step, not a proved "
        "bound. Its curves, that of noise on Y and that of the twin are the same in both panels. The twin's "
        "neighbours differ by 5 % of a line, those of all others by r."
    )
    figure.supxlabel("\n".join(textwrap.wrap(note, 150)), fontsize=7, color="0.35")
    return figure_bytes(figure, form)


WARNING = (
    "ε of DP-Powerflow is the paper's formula for one step with the exact κ and a Monte Carlo calibration. "
    "It is NOT a proved bound on this feeder (docs/theorem.md). The paper's variant speaks only of networks "
    "with the same manifold of voltages, which no change of a line has."
)


def best(outcomes: Sequence[Outcome], mechanism: str, target: float, unit: str = STEP) -> Outcome | None:
    """The configuration with the smallest pooled W1 among those whose claim is within the target.

    One that was made for a smaller ε is within a larger one too.
    """
    fitting = [
        outcome
        for outcome in outcomes
        if outcome.configuration.mechanism == mechanism
        and outcome.configuration.unit == unit
        and outcome.configuration.radius is None
        and outcome.configuration.epsilon <= target
        and math.isfinite(outcome.pooled[0])
    ]
    return min(fitting, key=lambda outcome: outcome.pooled[0], default=None)


def write_all(
    options: ExperimentOptions, lab: Lab, references: dict[str, float], outcomes: tuple[Outcome, ...]
) -> Written:
    """Write CSV, JSON, Markdown, PNG and SVG."""
    stem = f"wasserstein-{lab.data.name}{'-quick' if options.quick else ''}"
    text = to_markdown(lab, references, outcomes)
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
    contents: dict[str, str | bytes] = {
        f"{stem}.csv": to_csv(outcomes),
        f"{stem}.json": json.dumps(plain(facts), indent=1, allow_nan=False),
        f"{stem}.md": text,
    }
    curves = {unit: curves_of(lab.scale.epsilons, outcomes, unit) for unit in (STEP, TABLE)}
    for form in ("png", "svg"):
        contents[f"{stem}.{form}"] = draw_wasserstein(
            curves, references["other true days"], lab.data.words, form
        )
    return write_results(options.out, text, contents)


def curves_of(
    epsilons: Sequence[float], outcomes: Sequence[Outcome], unit: str
) -> dict[str, list[tuple[float, float, float]]]:
    """Label → (ε, mean, standard error) of the best; what has no unit `TABLE` is as in `STEP`."""
    curves = {}
    for mechanism, variant in VARIANTS.items():
        own = unit if variant.by_unit else STEP
        found = [(epsilon, best(outcomes, mechanism, epsilon, own)) for epsilon in epsilons]
        curves[variant.label] = [
            (epsilon, *outcome.pooled) for epsilon, outcome in found if outcome is not None
        ]
    return curves


def to_csv(outcomes: Sequence[Outcome]) -> str:
    """One row per configuration."""
    rows = []
    for outcome in outcomes:
        config = outcome.configuration
        network = (outcome.claim or {}).get("network") or {}
        rows.append(
            {
                "mechanism": config.variant.label,
                "epsilon_target": config.epsilon,
                "epsilon_load": config.epsilon_load,
                "p_max_factor": config.p_max,
                "radius": config.radius,
                "noise_covers": "one step"
                if config.unit == STEP
                else "a day, sqrt(T), as in the paper's table",
                "w1_pooled_mean": outcome.pooled[0],
                "w1_pooled_standard_error": outcome.pooled[1],
                "w1_per_node_mean": outcome.per_node[0],
                "w1_per_node_standard_error": outcome.per_node[1],
                "share_of_snapshots_failed": outcome.failed,
                "epsilon_claimed": network.get("epsilon"),
                "delta_claimed": network.get("delta"),
                "claim_covers": network.get("unit"),
                "claim_is_proved": network.get("proved"),
                "neighbours": network.get("adjacency"),
                "remark": network.get("remark"),
                "sigma_of_voltage_noise": outcome.noise.get("voltage_noise", outcome.noise.get("noise")),
                "sigma_of_load_noise": outcome.noise.get("load_noise"),
                "covariance_floor": outcome.floor,
                "refused": outcome.refused,
            }
        )
    return csv_text(list(rows[0]), (list(row.values()) for row in rows))


def to_markdown(lab: Lab, references: dict[str, float], outcomes: Sequence[Outcome]) -> str:
    """The tables of docs/experiments.md."""
    scale, bound = lab.scale, lab.proved
    proved = "none" if bound is None else f"network {bound.network:.4g}, load {bound.load:.4g} p.u."
    share = radius_in_lines(lab.data.feeder, lab.data.radius).median
    lines = [
        f"{lab.data.words}. {scale.runs} runs of {scale.days} days, every run with fits of its own; pooled "
        "W1 in 10⁻³ p.u., mean ± standard error over the runs. "
        f"r = {lab.data.radius:g} ({share or math.nan:.2g} of the median line), common δ = {lab.delta:.3g}, "
        f"δ of the loads {DELTA_LOAD:g}. Sensitivities of one step as printed: network "
        f"{lab.sensitivities.network:.4g}, load {lab.sensitivities.load:.4g} p.u.; proved over the load box: "
        f"{proved}.",
        "",
        WARNING,
        "",
        f"Noise-free: {1e3 * references['noise-free']:.3g}. Other true days against these: "
        f"{1e3 * references['other true days']:.3g}.",
    ]
    for unit, title in (
        (STEP, "Every claim for one step"),
        (TABLE, "Noise as in the paper's table: √T on voltages, √(n_L·T) on loads"),
    ):
        lines += ["", f"{title}:", "", *_table(scale.epsilons, outcomes, unit)]
    lines += ["", "Configurations chosen (one step):", "", *_choices(scale.epsilons, outcomes)]
    lines += ["", f"The same for a day of {lab.setting.steps} steps:", "", *_days(lab, outcomes)]
    lines += ["", "Noise on the entries of Y:", "", *_y_noise(outcomes)]
    lines += ["", "The twin network:", "", *_twins(outcomes)]
    lines += ["", "Gaussian calibration per unit of sensitivity:", "", *_calibrations(lab)]
    return "\n".join(lines) + "\n"


def _days(lab: Lab, outcomes: Sequence[Outcome]) -> list[str]:
    """What a claim for one step comes to over a day, for the configurations chosen."""
    lines = ["| target ε of one step | DP-Powerflow (paper's formula) | Gaussian noise |", "|---|---|---|"]
    steps = lab.setting.steps
    for epsilon in lab.scale.epsilons:
        chosen = best(outcomes, "dp-powerflow", epsilon)
        formula = "—"
        if chosen is not None:
            mechanism = paper_mechanism(lab, chosen.configuration, 0)
            facts = with_exact_kappa(lab.facts)
            bound = paper_bound(facts, mechanism.law, lab.operating, lab.data.radius, DELTA_TAIL)
            formula = f"{bound.terms.formula:.4g}"
        day = gdp_epsilon(math.sqrt(steps) * gdp_mu(epsilon, lab.delta), lab.delta)
        lines.append(f"| {epsilon:g} | {formula} | {day:.4g} |")
    return lines


def _table(epsilons: Sequence[float], outcomes: Sequence[Outcome], unit: str) -> list[str]:
    lines = ["| mechanism | " + " | ".join(f"ε = {e:g}" for e in epsilons) + " |"]
    lines.append("|---" * (len(epsilons) + 1) + "|")
    for mechanism, variant in VARIANTS.items():
        own = unit if variant.by_unit else STEP
        cells = [_cell(best(outcomes, mechanism, epsilon, own)) for epsilon in epsilons]
        lines.append(f"| {variant.label} | " + " | ".join(cells) + " |")
    return lines


def _cell(outcome: Outcome | None) -> str:
    if outcome is None:
        return "—"
    mean, error = outcome.pooled
    failed = f" ({100 * outcome.failed:.2g} % failed)" if outcome.failed > 0.0 else ""
    return f"{1e3 * mean:.2f} ± {1e3 * error:.2f}{failed}"


def _choices(epsilons: Sequence[float], outcomes: Sequence[Outcome]) -> list[str]:
    lines = [
        "| mechanism | target ε | made for ε | ε_load | p_max factor | floor | W1 per node | σ of voltages |",
        "|---" * 8 + "|",
    ]
    for mechanism, variant in VARIANTS.items():
        for epsilon in epsilons:
            chosen = best(outcomes, mechanism, epsilon)
            if chosen is None:
                continue
            config = chosen.configuration
            sigma = chosen.noise.get("voltage_noise", chosen.noise.get("noise"))
            values = (config.epsilon, config.epsilon_load, config.p_max, chosen.floor)
            cells = ["—" if value is None else f"{value:.3g}" for value in values]
            cells.append(f"{1e3 * chosen.per_node[0]:.2f} ± {1e3 * chosen.per_node[1]:.2f}")
            cells.append("—" if sigma is None else f"{sigma:.3g}")
            lines.append(f"| {variant.label} | {epsilon:g} | " + " | ".join(cells) + " |")
    return lines


def _y_noise(outcomes: Sequence[Outcome]) -> list[str]:
    lines = ["| r | ε | σ of an entry | snapshots failed | W1 of the rest |", "|---|---|---|---|---|"]
    for outcome in outcomes:
        config = outcome.configuration
        if config.mechanism == "y-noise":
            radius = "of the table" if config.radius is None else f"{config.radius:g}"
            mean, error = outcome.pooled
            lines.append(
                f"| {radius} | {config.epsilon:g} | {outcome.noise.get('noise', math.nan):.3g} | "
                f"{100 * outcome.failed:.3g} % | {1e3 * mean:.3g} ± {1e3 * error:.2g} |"
            )
    return lines


def _twins(outcomes: Sequence[Outcome]) -> list[str]:
    lines = ["| ε (any number of days) | η of a line's length | W1 | W1 per node |", "|---|---|---|---|"]
    for outcome in outcomes:
        if outcome.configuration.mechanism == "twin-network":
            eta = outcome.noise.get("log_length", math.nan)
            node = f"{1e3 * outcome.per_node[0]:.2f} ± {1e3 * outcome.per_node[1]:.2f}"
            lines.append(f"| {outcome.configuration.epsilon:g} | {eta:.3g} | {_cell(outcome)} | {node} |")
    return lines


def _calibrations(lab: Lab) -> list[str]:
    lines = ["| ε | δ | σ analytic | σ classical | true δ of the classical |", "|---|---|---|---|---|"]
    for delta in (lab.delta, 1e-5):
        for epsilon in lab.scale.epsilons:
            classical = GaussianNoise(1.0, epsilon, delta, "classical")
            try:
                exact = f"{GaussianNoise(1.0, epsilon, delta).sigma:.4g}"
            except PrivacyError:
                exact = "—"
            lines.append(
                f"| {epsilon:g} | {delta:.2g} | {exact} | {classical.sigma:.4g} | "
                f"{classical.true_delta:.3g} |"
            )
    return lines
