"""The measured table for a reader: ticks beside the paper's, and figures of every data set.

Why a measured mark is not the paper's: the words that no rule can generate.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files

from dp_powerflow_paper.run import table as markdown
from dp_powerflow_paper.sources import (
    BY_RADIUS,
    ON_LINES,
    ONE_CUSTOMER,
    ONE_CUSTOMER_DAY,
    ONE_CUSTOMER_STEP,
    SAME_MANIFOLD,
)
from dp_powerflow_paper.table1.bench import Scale
from dp_powerflow_paper.table1.printed import PRINTED, Column, Mark
from dp_powerflow_paper.table1.results import Claim, Measured, Value
from dp_powerflow_paper.table1.rows import Row
from dp_powerflow_paper.table1.ticks import Tick, tick, together

NO_MEASUREMENT = "The paper gives no measurement behind this cell; ours follows from the rule of its column."

EXPLAINED = tomllib.loads(files(__package__).joinpath("explained.toml").read_text(encoding="utf-8"))
"""Row of the paper → "column mark" → one or two sentences."""


def why(printed: str, column: Column, mark: Mark) -> str:
    """One or two sentences."""
    return str(EXPLAINED.get(printed, {}).get(f"{column.name} {mark.name}", NO_MEASUREMENT))


NOT_VOLTAGES = "not a voltage release"
NONE = "—"
_LARGE = 1e4
_UNITS = {
    ONE_CUSTOMER_STEP: "one customer, one step",
    ONE_CUSTOMER_DAY: "one customer-day",
    ONE_CUSTOMER: "one customer",
    BY_RADIUS: "r",
    ON_LINES: "r on lines",
    SAME_MANIFOLD: "r, on one manifold",
}
"""Adjacencies in a few words; others are shown as they are."""


@dataclass(frozen=True, eq=False)
class Table1:
    """All that is shown.

    Attributes
    ----------
    found : data set → row → what was measured.
    words : data set → one sentence.
    left_out : data set → why it is not here.
    steps : data set → steps of a day.
    """

    rows: tuple[Row, ...]
    found: Mapping[str, Mapping[str, Measured]]
    words: Mapping[str, str]
    left_out: Mapping[str, str]
    scale: Scale
    quick: bool
    steps: Mapping[str, int]

    def ticks(self, row: Row) -> dict[Column, Tick]:
        """Of a row on all data sets together."""
        return {
            column: together({data: tick(column, found[row.key]) for data, found in self.found.items()})
            for column in Column
        }


@dataclass(frozen=True)
class Disagreement:
    """A mark of ours that is not the paper's, in words."""

    row: Row
    column: Column
    paper: Mark
    ours: Tick

    @property
    def sentences(self) -> str:
        """The rule that decided, and why."""
        assert self.row.printed is not None
        reason = why(self.row.printed, self.column, self.ours.mark)
        return (
            f"{self.column.value}: the paper has {self.paper.value}, measured {self.ours.mark.value}, "
            f"because {self.ours.because}. {reason}"
        )


def disagreements(table: Table1) -> Iterator[Disagreement]:
    """Every mark that is measured and is not the paper's; that a cross does not apply is none."""
    for row in table.rows:
        if row.printed is None:
            continue
        for column, ours in table.ticks(row).items():
            paper = PRINTED[row.printed].mark(column)
            beside_the_point = ours.mark is Mark.NOT_APPLICABLE and paper is Mark.NO
            if ours.mark not in (Mark.UNKNOWN, paper) and not beside_the_point:
                yield Disagreement(row, column, paper, ours)


# -------------------------------------------------------------------------------- cells and columns


def number(value: float | None, digits: int = 3) -> str:
    """A figure in so many digits."""
    return NONE if value is None or not math.isfinite(value) else f"{value:.{digits}g}"


def with_error(value: Value | None, factor: float = 1.0, decimals: int = 2) -> str:
    """Mean ± standard error, times a factor."""
    if value is None or not math.isfinite(value[0]):
        return NONE
    if abs(factor * value[0]) >= _LARGE:
        return f"{factor * value[0]:.1e}"
    mean = f"{factor * value[0]:.{decimals}f}"
    return mean if not math.isfinite(value[1]) else f"{mean} ± {factor * value[1]:.{decimals}f}"


def claim_words(claim: Claim | None) -> str:
    """ε, δ, who is hidden, what is covered, and whether it is proved."""
    if claim is None:
        return "none"
    stated = claim.guarantee
    hidden = _UNITS.get(stated.adjacency, stated.adjacency)
    if isinstance(stated.metric, float):
        hidden = f"{hidden} = {stated.metric:.2g}" if hidden == "r" else f"{hidden} ({stated.metric:.2g})"
    elif stated.metric is not None:
        hidden = stated.metric
    epsilon = "∞" if math.isinf(stated.epsilon) else number(stated.epsilon)
    words = [f"{epsilon}, δ {stated.delta:.1g}", hidden, f"covers: {stated.unit}"]
    words.append("proved" if stated.proved else "not proved")
    return "; ".join([*words, *([] if stated.jointly else ["single numbers only"])])


def audit_words(found: Measured) -> str:
    """Lower bounds on ε, loads / network."""
    return " / ".join(
        NONE if claim is None else number(claim.audited, 2) for claim in (found.loads, found.network)
    )


def _lag1(found: Measured) -> str:
    own, true = found.lag1
    return NONE if own is None or true is None else f"{own:.2f} ({true:.2f})"


Cell = Callable[[Measured], str]
COLUMNS: Mapping[str, Cell] = {
    "load ε": lambda found: claim_words(found.loads),
    "network ε": lambda found: claim_words(found.network),
    "audited ε ≥ (loads / network)": audit_words,
    "W1 load, % of nominal": lambda found: with_error(found.figures.get("w1_load"), 100.0, 1),
    "lag-1 (true)": _lag1,
    "peak error, %": lambda found: with_error(found.figures.get("peak_error"), 100.0, 1),
    "W1 \\|v\\| pooled, 10⁻³": lambda found: with_error(found.figures.get("w1_pooled"), 1e3),
    "W1 \\|v\\| per node, 10⁻³": lambda found: with_error(found.figures.get("w1_per_node"), 1e3),
    "failed, %": lambda found: with_error(found.figures.get("failed"), 100.0, 1),
    "residual over true": lambda found: number(found.residual_ratio),
    "fit, s": lambda found: number(found.fit_seconds, 2),
    "day, ms": lambda found: number(None if found.day_seconds is None else 1e3 * found.day_seconds, 2),
}
"""Columns of a data set; lines of a table in Markdown, so a bar is written with a backslash."""
_VOLTAGES = tuple(COLUMNS)[3:10]


def cells(found: Measured) -> list[str]:
    """Of a row on a data set, in the order of `COLUMNS`."""
    if found.absent is not None:
        return [found.absent, *[NONE] * (len(COLUMNS) - 1)]
    return [
        NOT_VOLTAGES if found.other and name in _VOLTAGES else cell(found) for name, cell in COLUMNS.items()
    ]


def units(row: Row) -> str:
    """Whether a row is at the matched units."""
    return "matched" if row.matched else "own"


def tick_cells(table: Table1, row: Row) -> list[str]:
    """Ours, and the paper's in brackets."""
    shown = []
    for column, ours in table.ticks(row).items():
        paper = "" if row.printed is None else f" ({PRINTED[row.printed].mark(column).value})"
        shown.append(f"{ours.mark.value}{paper}")
    return shown


def _approach(row: Row) -> str:
    return NONE if row.printed is None else PRINTED[row.printed].approach


# ---------------------------------------------------------------------------------------- Markdown


def to_markdown(table: Table1) -> str:
    """All tables and statements."""
    scale = table.scale
    lines = [
        *(
            ["**A quick run, for a look: its figures are not those of the paper.**", ""]
            if table.quick
            else []
        ),
        f"{scale.days} days, {scale.runs} runs. Matched units: one customer-day at ε = 1, δ = 1e-5; one line "
        "±5 % at ε = 1. A model is fitted anew in every run; where training needs an extra, "
        f"the runs are shared by {scale.trainings} model{'s' * (scale.trainings > 1)}.",
        "",
        *(f"{data}: {words}." for data, words in table.words.items()),
        *(f"{data}: left out: {reason}." for data, reason in table.left_out.items()),
        "",
        "**Ticks: measured (the paper's)**",
        "",
        *markdown(
            ("system", "units", "the paper's row", *(column.value for column in Column)),
            ((row.title, units(row), _approach(row), *tick_cells(table, row)) for row in table.rows),
        ),
        "",
        "**Where a measured mark is not the paper's**",
        "",
        *_disagreement_lines(table),
    ]
    for data, found in table.found.items():
        rows = [[row.title, units(row), *cells(found[row.key])] for row in table.rows]
        lines += ["", f"**{data}**", "", *markdown(["system", "units", *COLUMNS], rows)]
        lines += _other_lines(table, found)
    return "\n".join(lines) + "\n"


def _disagreement_lines(table: Table1) -> list[str]:
    lines = []
    for row in table.rows:
        own = [one for one in disagreements(table) if one.row is row]
        if own:
            lines.append(f"- {row.title} ({units(row)} units)")
            lines += [f"    - {one.sentences}" for one in own]
    return lines or ["None."]


def _other_lines(table: Table1, found: Mapping[str, Measured]) -> list[str]:
    """Figures of rows that release something else."""
    lines = []
    for row in table.rows:
        other = found[row.key].other
        if other:
            figures = ", ".join(f"{name} {number(value[0])}" for name, value in other.items())
            lines.append(f"- {row.title}: {figures}")
    return ["", *lines] if lines else []
