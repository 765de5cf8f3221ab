"""The figure of the Wasserstein experiment; no window is ever opened."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

Curves = Mapping[str, list[tuple[float, float, float]]]

_TITLES = {
    "step": "every claim for one step",
    "table": "noise as in the paper's table (√T; loads √(n_L·T))",
}
_STYLES = ("o-", "s--", "^-", "v-", "D-", "x:", "+:")


def draw_wasserstein(curves: Mapping[str, Curves], other_days: float, words: str, form: str) -> bytes:
    """W1 against ε, one panel per unit of the noise, as the bytes of an SVG or PNG file."""
    figure = Figure(figsize=(11.0, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
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
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, dpi=150, metadata={"Date": None} if form == "svg" else None)
    return buffer.getvalue()
