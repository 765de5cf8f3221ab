"""Errors of derived figures for a reader: Markdown and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata

from dp_powerflow.lowlevel import figure_bytes, new_figure
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.derived.studies import Case, Compared, Measure
from dp_powerflow_paper.run import block

Values = Mapping[str, FloatArray]
"""Figure → its values in one study."""


@dataclass(frozen=True)
class Row:
    """Errors of one figure in one case, over runs and, for a figure of nodes, over nodes.

    Attributes
    ----------
    true : the true figure, its median over nodes.
    median, low, high : of the error: the middle 95 % lie between the last two.
    size : median of its modulus.
    runs, failed : runs, and how many of them gave no figures.
    left_out : nodes whose true figure is 0, which have no relative error.
    order : Spearman's rank correlation of the nodes with their true figures, median over runs; NaN for a
        figure of the system.
    """

    kind: str
    figure: str
    unit: str
    relative: bool
    case: str
    true: float
    median: float
    low: float
    high: float
    size: float
    runs: int
    failed: int
    left_out: int
    order: float

    @property
    def words(self) -> str:
        """Median and range: per cent, or a difference in the unit of the figure."""
        if not np.isfinite(self.median):
            return "none"
        if not self.relative:
            return f"{self.median:+.3g} ({self.low:+.3g} … {self.high:+.3g})"
        ranked = f", ρ {self.order:.2f}" if np.isfinite(self.order) else ""
        return f"{100 * self.median:+.1f} % ({100 * self.low:+.1f} … {100 * self.high:+.1f}){ranked}"


def row_of(
    compared: Compared, measure: Measure, case: Case, true: Values, found: Sequence[Values | None]
) -> Row:
    """Errors of a figure over the runs of a case; None is a run without figures."""
    exact = true[measure.name]
    kept = [values[measure.name] for values in found if values is not None]
    some = exact != 0.0 if measure.relative else np.ones(len(exact), dtype=np.bool_)
    errors = np.array([each[some] - exact[some] for each in kept]).reshape(len(kept), -1)
    if measure.relative:
        errors = errors / exact[some]
    low, median, high = np.quantile(errors, (0.025, 0.5, 0.975)) if errors.size else [float("nan")] * 3
    return Row(
        kind=compared.words,
        figure=measure.name,
        unit=measure.unit,
        relative=measure.relative,
        case=case.words,
        true=float(np.median(exact)),
        median=float(median),
        low=float(low),
        high=float(high),
        size=float(np.median(np.abs(errors))) if errors.size else float("nan"),
        runs=len(found),
        failed=len(found) - len(kept),
        left_out=int(np.sum(~some)),
        order=float(np.median([_order(exact, each) for each in kept])) if kept else float("nan"),
    )


def _order(true: FloatArray, found: FloatArray) -> float:
    """Spearman's rank correlation; NaN of a single figure, or of figures that are all the same."""
    ranks = [rankdata(values) for values in (true, found)]
    if any(np.ptp(each) == 0.0 for each in ranks):
        return float("nan")
    return float(np.corrcoef(*ranks)[0, 1])


def to_markdown(words: str, rows: Sequence[Row], runs: int, days: int) -> str:
    """One table per kind."""
    lines = [
        f"Derived figures against those of the true loads on the true network. {words}; {days} days, {runs} "
        "runs.",
        "",
        "Error, median (middle 95 %), over runs and, for figures of nodes, over nodes; ρ is Spearman's rank",
        "correlation of the nodes with their true figures. Errors without a per cent sign are differences.",
        "ε of the loads is for one customer-day (δ = 1e-6), ε of the twin for R and X of one line changed by",
        "5 %.",
        "",
    ]
    for kind in dict.fromkeys(row.kind for row in rows):
        own = [row for row in rows if row.kind == kind]
        cases = list(dict.fromkeys(row.case for row in own))
        table = []
        for figure in dict.fromkeys(row.figure for row in own):
            of = {row.case: row for row in own if row.figure == figure}
            first = of[cases[0]]
            table.append(
                [f"{figure} [{first.unit}]", f"{first.true:.4g}", *(of[case].words for case in cases)]
            )
        lines += block(f"**{kind}**", ["figure", "true", *cases], table)
        lines += [
            f"{row.case}: {row.failed} of {row.runs} runs gave no figures."
            for row in own
            if row.failed and row.figure == own[0].figure
        ]
        lines += [
            f"{row.figure}: {row.left_out} nodes whose true figure is 0 are left out."
            for row in own
            if row.left_out and row.case == cases[0]
        ]
        lines.append("")
    return "\n".join(lines)


def draw_figure(rows: Sequence[Row], form: str) -> bytes:
    """Median and middle 95 % of every relative error, one panel per kind."""
    shown = [row for row in rows if row.relative and np.isfinite(row.median)]
    kinds = list(dict.fromkeys(row.kind for row in shown))
    drawn = new_figure((5.0 * len(kinds), 5.0))
    panels: Any = drawn.subplots(1, len(kinds), squeeze=False)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        own = [row for row in shown if row.kind == kind]
        figures = list(dict.fromkeys(row.figure for row in own))
        cases = list(dict.fromkeys(row.case for row in own))
        for number, case in enumerate(cases):
            mine = [row for row in own if row.case == case]
            at = [figures.index(row.figure) + 0.8 * (number + 0.5) / len(cases) - 0.4 for row in mine]
            middle = [100.0 * row.median for row in mine]
            reach = [
                [100.0 * (row.median - row.low) for row in mine],
                [100.0 * (row.high - row.median) for row in mine],
            ]
            axes.errorbar(middle, at, xerr=reach, fmt="o", markersize=4, color=f"C{number}", label=case)
        axes.axvline(0.0, color="0.6", linewidth=0.8)
        axes.set_yticks(range(len(figures)), figures, fontsize=8)
        axes.invert_yaxis()
        axes.set_title(kind, fontsize=9)
        axes.set_xlabel("relative error [%]: median and middle 95 %")
        axes.grid(True, axis="x", color="0.92")
    handles, labels = panels[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure_bytes(drawn, form)
