"""The twin experiment for a reader: Markdown, CSV and a figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dp_powerflow.lowlevel import GAUSSIAN_DELTA, Chain, figure_bytes, new_figure
from dp_powerflow_paper.run import csv_text
from dp_powerflow_paper.twin_settings import Setting

FLOOR_EPSILONS = (1.0, 1.5, 2.0)


@dataclass(frozen=True)
class DesignRow:
    """One design on one feeder: what it promises for 5 % and 50 %, and W1 over its draws [p.u.].

    Attributes
    ----------
    draws, failed : twins drawn, and how many of them had a snapshot without power flow.
    pooled, worst_node : mean over draws, each with its standard error.
    """

    kind: str
    epsilon: float
    large_epsilon: float
    delta: float
    advantage: float
    large_advantage: float
    draws: int
    failed: int
    pooled: tuple[float, float]
    worst_node: tuple[float, float]


_Tables = dict[Setting, list[DesignRow]]
_Floors = dict[Setting, list[Chain]]


def to_markdown(tables: _Tables, chains: _Floors, tried: int | None) -> str:
    """The tables of docs/explanation/twin.md."""
    few = f"A quick run: {tried} elements were tried for the floor, which can be far too low."
    lines = [
        *([few, ""] if tried is not None else []),
        "W1 of voltage magnitudes [p.u.], mean ± standard error over twins. ε and advantage (total variation",
        "of the best test) for one element changed by 5 % / 50 %. Taps as declared, the same on every twin.",
        "",
    ]
    for setting, rows in tables.items():
        lines += [
            f"**{setting.words}** ({len(setting.load)} snapshots, {rows[0].draws} twins each)",
            "",
            "| noise | ε | δ | advantage | W1 pooled | W1 of the worst node | without power flow |",
            "|---|---|---|---|---|---|---|",
            *(_row(row) for row in rows),
            "",
            "The floor: no mechanism with this ε for 5 % does better on all networks of the chain.",
            "",
            "| chain | ε | δ | pooled | worst node |",
            "|---|---|---|---|---|",
            *(_floor_row(chain, epsilon) for chain in chains[setting] for epsilon in FLOOR_EPSILONS),
            "",
        ]
    return "\n".join(lines)


def _row(row: DesignRow) -> str:
    pooled, worst = (f"{mean:.5f} ± {error:.5f}" for mean, error in (row.pooled, row.worst_node))
    return (
        f"| {row.kind} | {row.epsilon:.3g} / {row.large_epsilon:.3g} | {row.delta:g} | "
        f"{row.advantage:.3f} / {row.large_advantage:.3f} | {pooled} | {worst} | {row.failed} |"
    )


def _floor_row(chain: Chain, epsilon: float) -> str:
    floor = chain.floor(epsilon, GAUSSIAN_DELTA)
    return f"| {floor.words} | {epsilon:g} | {floor.delta:g} | {floor.pooled:.5f} | {floor.worst_node:.5f} |"


def to_csv(tables: _Tables) -> str:
    """One row per feeder and design."""
    header = ["feeder", "noise", "epsilon 5 %", "epsilon 50 %", "delta", "advantage 5 %", "advantage 50 %"]
    header += [
        "draws",
        "without power flow",
        "W1 pooled",
        "standard error",
        "W1 worst node",
        "standard error",
    ]
    return csv_text(
        header,
        (
            [
                *(setting.feeder, row.kind, row.epsilon, row.large_epsilon, row.delta),
                *(row.advantage, row.large_advantage, row.draws, row.failed, *row.pooled, *row.worst_node),
            ]
            for setting, rows in tables.items()
            for row in rows
        ),
    )


def draw_figure(tables: _Tables, chains: _Floors, form: str) -> bytes:
    """W1 against ε, one panel per feeder, as the bytes of an SVG or PNG file."""
    figure = new_figure((11.0, 4.2))
    panels: Any = figure.subplots(1, len(tables), squeeze=False)[0]
    for axes, (setting, rows) in zip(panels, tables.items(), strict=True):
        for number, kind in enumerate(dict.fromkeys(row.kind for row in rows)):
            own = [row for row in rows if row.kind == kind]
            for which, style in (("pooled", "o-"), ("worst_node", "s--")):
                means, errors = zip(*(getattr(row, which) for row in own), strict=True)
                label = kind if which == "pooled" else None
                at = [row.epsilon for row in own]
                axes.errorbar(at, means, errors, fmt=style, color=f"C{number}", label=label, markersize=4)
        epsilons = np.linspace(0.9, 2.2, 7)
        floors = [chains[setting][0].floor(float(epsilon), GAUSSIAN_DELTA) for epsilon in epsilons]
        axes.plot(epsilons, [floor.pooled for floor in floors], "k-", linewidth=0.8, label="floor, one line")
        axes.plot(epsilons, [floor.worst_node for floor in floors], "k--", linewidth=0.8)
        axes.set_yscale("log")
        axes.set_xlabel("ε for one element changed by 5 %")
        axes.set_title(setting.feeder, fontsize=9)
        axes.grid(True, color="0.92")
    panels[0].set_ylabel("W1 [p.u.]: pooled (solid), worst node (dashed)")
    panels[0].legend(fontsize=7, frameon=False)
    return figure_bytes(figure, form)
