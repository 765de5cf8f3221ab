"""Figures of the Wasserstein experiment: W1 against ε in every unit, and two birds with one stone."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from dp_powerflow.lowlevel import figure_bytes, new_figure
from dp_powerflow_paper.mechanisms.noise import UNITS, NoiseUnit
from dp_powerflow_paper.wasserstein.evaluation import BEST, WORST, Outcome, best, mean_and_error
from dp_powerflow_paper.wasserstein.lab import Lab
from dp_powerflow_paper.wasserstein.search import VARIANTS

Curves = dict[str, list[tuple[float, float, float]]]
"""Label → (ε, mean, standard error)."""

_STYLES = ("D-", "o--", "o:", "s-", "s--", "D:", "h-", "*-", "d-", "P-", "^-", "v-", "x:", "+:")


def curves_of(epsilons: Sequence[float], outcomes: Sequence[Outcome], unit: NoiseUnit) -> Curves:
    """The best of every mechanism at every ε in one unit."""
    curves = {}
    for mechanism, variant in VARIANTS.items():
        found = [(epsilon, best(outcomes, mechanism, epsilon, variant.own(unit))) for epsilon in epsilons]
        curves[variant.label] = [
            (epsilon, *outcome.pooled) for epsilon, outcome in found if outcome is not None
        ]
    return curves


def draw_wasserstein(lab: Lab, outcomes: Sequence[Outcome], other_days: float, form: str) -> bytes:
    """W1 against ε, one panel per unit of the noise, as the bytes of an SVG or PNG file."""
    figure = new_figure((11.0, 9.0))
    panels: Any = figure.subplots(2, 2, sharex=True, sharey=True)
    for axes, unit in zip(panels.T.ravel(), UNITS, strict=True):
        for style, (label, points) in zip(
            _STYLES, curves_of(lab.scale.epsilons, outcomes, unit).items(), strict=True
        ):
            epsilon, mean, error = zip(*points, strict=True) if points else ((), (), ())
            axes.errorbar(epsilon, mean, yerr=error, fmt=style, markersize=4, capsize=2, label=label)
        axes.axhline(other_days, color="0.6", linewidth=0.8, linestyle=":", label="other true days")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(lab.scale.epsilons, [f"{tick:g}" for tick in lab.scale.epsilons])
        axes.minorticks_off()
        axes.set_title(f"noise covers {unit.title}", fontsize=10)
        axes.grid(True, which="major", color="0.92")
    for axes in panels[1]:
        axes.set_xlabel("ε, target for the network")
    for axes in panels[:, 0]:
        axes.set_ylabel("W1 of voltage magnitudes, pooled [p.u.]")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=7)
    note = (
        f"{lab.data.words}. Mean ± standard error. DP-Powerflow's ε is the paper's formula for one step, "
        "not a proved bound. Its curves and that of the twin are the same in all panels. The twin's "
        "neighbours differ by 5 % of a line, those of all others by r. With the paper's σ the δ that "
        "is claimed does not hold; the tables print the true one."
    )
    return _finished(figure, note, form)


def draw_two_birds(lab: Lab, outcomes: Sequence[Outcome], form: str) -> bytes:
    """Network ε and W1 of the literal recipe against ε_load, one curve per choice of margins."""
    figure = new_figure((7.5, 7.5))
    panels: Any = figure.subplots(2, 1, sharex=True)
    literal = [outcome for outcome in outcomes if outcome.configuration.mechanism == "literal"]
    margins = sorted({(o.configuration.bounds, o.configuration.p_max) for o in literal}, key=str)
    for number, chosen in enumerate(margins):
        points = [o for o in literal if (o.configuration.bounds, o.configuration.p_max) == chosen]
        points = [o for o in points if o.refused is None]
        loads = [o.configuration.epsilon_load for o in points]
        worst, least = ([mean_and_error(o.runs[name])[0] for o in points] for name in (WORST, BEST))
        label = "p_max × {1:g} in the draws, × {0:g} declared to the fit".format(*chosen)
        panels[0].plot(loads, worst, "o-", color=f"C{number}", markersize=4, label=label)
        panels[0].fill_between(loads, least, worst, color=f"C{number}", alpha=0.15, linewidth=0)
        means, errors = ([o.pooled[k] for o in points] for k in (0, 1))
        panels[1].errorbar(loads, means, yerr=errors, fmt="o-", color=f"C{number}", markersize=4, capsize=2)
    for target in lab.scale.epsilons:
        panels[0].axhline(target, color="0.7", linewidth=0.8, linestyle=":")
    for axes, words in zip(
        panels, ("ε of the network, one step", "W1 of voltage magnitudes, pooled [p.u.]"), strict=True
    ):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylabel(words)
        axes.grid(True, which="major", color="0.92")
    panels[0].set_yticks(lab.scale.epsilons, [f"{tick:g}" for tick in lab.scale.epsilons])
    panels[0].minorticks_off()
    panels[1].set_xlabel("ε_load of the fit")
    panels[0].legend(fontsize=7, frameon=False)
    note = (
        f"{lab.data.words}. DP-Powerflow as the paper writes it: a noisier fit (smaller ε_load) is wider, "
        "which makes the network's ε smaller. Line: worst step of the day, mean over the runs; band: down "
        "to the best step; dotted: the paper's targets. ε is the paper's formula, not a proved bound."
    )
    return _finished(figure, note, form)


def _finished(figure: Any, note: str, form: str) -> bytes:
    width = int(13.5 * figure.get_figwidth())
    figure.supxlabel("\n".join(textwrap.wrap(note, width)), fontsize=7, color="0.35")
    return figure_bytes(figure, form)
