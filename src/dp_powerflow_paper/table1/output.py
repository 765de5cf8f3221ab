"""Files of the table: Markdown, JSON and figures.

Fidelity against ε, one mark per system: loads above, networks below, one column per data set.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from dp_powerflow.lowlevel import figure_bytes, new_figure, plain
from dp_powerflow_paper.run import Written, write_report
from dp_powerflow_paper.sources import ONE_CUSTOMER_STEP
from dp_powerflow_paper.table1 import ticks
from dp_powerflow_paper.table1.printed import PRINTED, Column
from dp_powerflow_paper.table1.results import Claim, Measured, Value
from dp_powerflow_paper.table1.rows import Row
from dp_powerflow_paper.table1.tables import Table1, disagreements, to_markdown, units
from dp_powerflow_paper.table1.ticks import MOST_LAG1, MOST_W1

HIGHEST = 0.1
"""Of W1 in the figure; what is above stands at the edge with an arrow."""
_MARKERS = "osD^v<>phP*X8d"


@dataclass(frozen=True)
class Mark:
    """A system in a panel.

    Attributes
    ----------
    epsilon : of one customer-day, or of the network as claimed.
    w1 : pooled W1 of |v| [p.u.], mean and standard error.
    keeps_time : whether its lag-1 correlation is within the rule.
    """

    row: Row
    epsilon: float
    w1: Value
    keeps_time: bool


def customer_day(claim: Claim, steps: int) -> float:
    """ε of one customer-day: that of a step times the steps of a day, by basic composition."""
    stated = claim.guarantee
    return stated.epsilon * (steps if stated.adjacency == ONE_CUSTOMER_STEP else 1)


def marks(
    rows: tuple[Row, ...], found: Mapping[str, Measured], steps: int, *, network: bool
) -> Iterator[Mark]:
    """Rows with a finite ε and a distance; one with a claim for the network is in that panel alone."""
    for row in rows:
        own = found[row.key]
        w1 = own.figures.get("w1_pooled")
        if w1 is None or not (math.isfinite(w1[0]) and w1[0] > 0.0):
            continue
        claim = own.network if network else own.loads
        if claim is None or (not network and own.network is not None):
            continue
        epsilon = claim.guarantee.epsilon if network else customer_day(claim, steps)
        released, true = own.lag1
        keeps = released is not None and true is not None and abs(released - true) <= MOST_LAG1
        if math.isfinite(epsilon) and epsilon > 0.0:
            yield Mark(row, epsilon, w1, keeps)


def draw_figure(table: Table1, form: str) -> bytes:
    """The bytes of an SVG or PNG file."""
    columns = len(table.found)
    figure = new_figure((4.2 * columns + 4.6, 8.6))
    panels: Any = figure.subplots(2, columns, sharey=True, squeeze=False)
    numbers = {row.key: number for number, row in enumerate(table.rows, 1) if row.make is not None}
    shown: dict[str, Any] = {}
    for column, (data, found) in enumerate(table.found.items()):
        for line, words in enumerate(("ε of one customer-day", "ε of the network, as claimed")):
            axes = panels[line, column]
            drawn = list(marks(table.rows, found, table.steps[data], network=line == 1))
            shown |= draw_panel(axes, drawn, numbers)
            axes.axhline(MOST_W1, color="0.45", linewidth=0.8, linestyle="--")
            axes.set_yscale("log")
            axes.set_xlabel(words, fontsize=9)
            axes.grid(True, which="major", axis="y", color="0.92")
            if line == 0:
                axes.set_title(data, fontsize=11)
    for line, secret in enumerate(("loads are protected", "the network is protected")):
        panels[line, 0].set_ylabel(f"{secret}\nW1 of |v|, pooled [p.u.]", fontsize=9)
    ordered = sorted(shown.items(), key=lambda item: numbers[item[0]])
    titles = {row.key: f"{numbers[row.key]}  {row.title}" for row in table.rows if row.key in numbers}
    figure.legend(
        [handle for _, handle in ordered],
        [textwrap.fill(titles[key], 44) for key, _ in ordered],
        loc="outside right upper",
        fontsize=8,
        frameon=False,
    )
    note = (
        f"Filled: lag-1 correlation within {MOST_LAG1:g} of the true one; hollow: not. Dashed: the rule of "
        f"the tick, W1 = {MOST_W1:g}. ↑: above {HIGHEST:g}. One band for every ε: the place within a band "
        "means nothing. ε of a step counts once for every step of a customer-day. DP-Powerflow's ε on the "
        "true network is a formula for one step, not proved."
    )
    figure.supxlabel(textwrap.fill(note, int(13 * figure.get_figwidth())), fontsize=8, color="0.35")
    return figure_bytes(figure, form)


def draw_panel(axes: Any, drawn: list[Mark], numbers: Mapping[str, int]) -> dict[str, Any]:
    """Marks of one panel in a band for every ε, within it in the order of their distance."""
    handles = {}
    groups: dict[float, list[Mark]] = {}
    for mark in sorted(drawn, key=lambda mark: (mark.epsilon, mark.w1[0])):
        groups.setdefault(float(f"{mark.epsilon:.2g}"), []).append(mark)
    edges = [0]
    for group in groups.values():
        for place, mark in enumerate(sorted(group, key=lambda mark: mark.w1[0]), start=edges[-1]):
            at = place + 0.5
            number = numbers[mark.row.key]
            colour = f"C{number % 10}"
            w1, above = min(mark.w1[0], HIGHEST), mark.w1[0] > HIGHEST
            error = mark.w1[1] if math.isfinite(mark.w1[1]) and not above else 0.0
            handles[mark.row.key] = axes.errorbar(
                [at],
                [w1],
                yerr=[[min(error, 0.9 * w1)], [error]],
                fmt=_MARKERS[number % len(_MARKERS)],
                color=colour,
                markerfacecolor=colour if mark.keeps_time else "white",
                markersize=6,
                capsize=2,
            )
            axes.annotate(
                f"{number}{' ↑' * above}", (at, w1), xytext=(4, 4), textcoords="offset points", fontsize=8
            )
        edges.append(edges[-1] + len(group))
    for edge in edges[1:-1]:
        axes.axvline(edge, color="0.75", linewidth=0.8)
    axes.set_xlim(0, edges[-1] + 0.4)
    middles = [(low + high) / 2.0 for low, high in pairwise(edges)]
    axes.set_xticks(middles, [f"{epsilon:g}" for epsilon in groups], fontsize=8)
    return handles


RULES = (
    "Load DP: a claim for the loads with a finite ε, proved, for all that is released together, and no audit "
    "above it.",
    "Topology DP: the same for the network, and a change of one line is among its neighbours.",
    f"Distribution fidelity: pooled W1 of |v| at most {ticks.MOST_W1:g} p.u., and lag-1 correlation within "
    f"{ticks.MOST_LAG1:g} of the true one: of the loads, or of |v| where noise is added to them.",
    "Unlimited load samples (tested): ten times the days are drawn, all different, at the same ε.",
    "True Y in power flow (tested): one line is changed; the voltages change, and the network that was "
    "solved on is the changed one. Not applicable where loads alone are released and stay bit for bit.",
    "A mark of several data sets is ✓ only if it is ✓ on all of them.",
)
"""How every tick follows from numbers."""


def write_table(folder: Path, table: Table1) -> Written:
    """Write the text for the terminal, everything behind it, and the figures."""
    stem = f"table1{'-quick' if table.quick else ''}"
    figures = {stem: partial(draw_figure, table)}
    return write_report(folder, stem, to_markdown(table), to_json(table), figures)


def to_json(table: Table1) -> object:
    """Everything, unrounded."""
    facts = {
        "quick": table.quick,
        "scale": asdict(table.scale),
        "data": dict(table.words),
        "left out": dict(table.left_out),
        "rules": RULES,
        "rows": [
            {
                "key": row.key,
                "title": row.title,
                "units": units(row),
                "paper": None if row.printed is None else _printed(row.printed),
                "ticks": {
                    column.value: {"mark": own.mark.value, "because": own.because}
                    for column, own in table.ticks(row).items()
                },
                "measured": {data: found[row.key].as_json() for data, found in table.found.items()},
            }
            for row in table.rows
        ],
        "disagreements": [
            {"row": one.row.key, "column": one.column.value, "words": one.sentences}
            for one in disagreements(table)
        ],
    }
    return plain(facts)


def _printed(key: str) -> dict[str, object]:
    row = PRINTED[key]
    return {"approach": row.approach, "marks": {column.value: row.mark(column).value for column in Column}}
