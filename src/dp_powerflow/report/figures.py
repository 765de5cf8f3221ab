"""Figures, as files; no window is ever opened."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dp_powerflow.evidence.collect import Evidence

_STYLES = {"corrected": "--", "full-support": "-", "paper": ":"}


def draw_epsilon_against_radius(evidence: Evidence, marking: str | None, form: str = "svg") -> bytes:
    """ε of one day against r, one curve per mode and public floor, as the bytes of an SVG or PNG file."""
    figure = Figure(figsize=(7.5, 5.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot()
    floors = sorted({curve.floor for curve in evidence.curves})
    drawn = False
    for curve in evidence.curves:
        points = [(r, e) for r, e in zip(curve.radius, curve.epsilon, strict=True) if e is not None]
        if not points:
            continue
        drawn = True
        axes.plot(
            *zip(*points, strict=True),
            _STYLES[curve.mode],
            color=f"C{floors.index(curve.floor)}",
            label=f"{curve.mode}, floor {curve.floor:g}",
        )
    axes.axhline(
        evidence.policy.epsilon / evidence.policy.days, color="0.6", linewidth=0.8, label="policy, per day"
    )
    axes.axvline(evidence.policy.radius, color="0.8", linewidth=0.8, label="policy's r")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("r, Frobenius radius of a change of lines [p.u.]")
    axes.set_ylabel("ε of one day (lines end where there is no bound)")
    axes.set_title("Theorem 1 on this network" + ("" if drawn else ": no bound at any r shown"), fontsize=11)
    axes.grid(True, which="major", color="0.92")
    axes.legend(fontsize=7, frameon=False)
    if marking:
        figure.suptitle(marking, color="firebrick", fontsize=8, x=0.01, ha="left")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, metadata={"Date": None} if form == "svg" else None)
    return buffer.getvalue()
