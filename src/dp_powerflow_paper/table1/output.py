"""Files of the table: Markdown, CSV, JSON, a page, and figures."""

from __future__ import annotations

import json
from dataclasses import asdict

from dp_powerflow.lowlevel import plain
from dp_powerflow.page import Bars, Callout, Figure, Page, Section, Series, Table
from dp_powerflow.page.charts import Axis
from dp_powerflow_paper.table1 import ticks
from dp_powerflow_paper.table1.figures import draw_figure
from dp_powerflow_paper.table1.printed import PRINTED, Column
from dp_powerflow_paper.table1.tables import (
    CHECK_HEADER,
    COLUMNS,
    TICK_HEADER,
    Table1,
    cells,
    check_rows,
    disagreements,
    tick_rows,
    to_csv,
    to_markdown,
    units,
)

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


def contents_of(table: Table1) -> tuple[str, dict[str, str | bytes]]:
    """The text for the terminal, and files by name."""
    stem = f"table1{'-quick' if table.quick else ''}"
    text = to_markdown(table)
    contents: dict[str, str | bytes] = {
        f"{stem}.csv": to_csv(table),
        f"{stem}.json": json.dumps(to_json(table), indent=1, allow_nan=False),
        f"{stem}.md": text,
        f"{stem}.html": to_page(table).to_html(),
    }
    for form in ("png", "svg"):
        contents[f"{stem}.{form}"] = draw_figure(table, form)
    return text, contents


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
        "checks": [asdict(check) | {"agrees": check.agrees} for check in table.checks],
    }
    return plain(facts)


def _printed(key: str) -> dict[str, object]:
    row = PRINTED[key]
    return {"approach": row.approach, "marks": {column.value: row.mark(column).value for column in Column}}


def to_page(table: Table1) -> Page:
    """A page without requests to any other host."""
    return Page(
        title="Table II by measurement",
        marking=None,
        lead=tuple(
            [f"{data}: {words}." for data, words in table.words.items()]
            + [f"{data}: left out: {reason}." for data, reason in table.left_out.items()]
            + ["A quick run, for a look: its figures are not those of the paper."] * table.quick
        ),
        sections=(
            _ticks(table),
            _disagreements(table),
            *(_data(table, data) for data in table.found),
            _checks(table),
        ),
        footer=("Made by: dp-powerflow experiment comparison",),
    )


def _ticks(table: Table1) -> Section:
    rows = tuple(tuple(row) for row in tick_rows(table))
    return Section(
        "ticks",
        "Ticks: measured (the paper's)",
        items=(Table(TICK_HEADER, rows), Callout("How a tick follows from numbers", RULES)),
    )


def _disagreements(table: Table1) -> Section:
    rows = tuple((one.row.title, units(one.row), one.sentences) for one in disagreements(table))
    return Section(
        "disagreements",
        "Where a measured mark is not the paper's",
        items=(Table(("system", "units", "why"), rows),),
    )


def _data(table: Table1, data: str) -> Section:
    found = table.found[data]
    header = ("system", "units", *(name.replace("\\", "") for name in COLUMNS))
    rows = tuple((row.title, units(row), *cells(found[row.key])) for row in table.rows)
    measured = [row for row in table.rows if found[row.key].mean("w1_pooled") is not None]
    values = [round(1e3 * (found[row.key].mean("w1_pooled") or 0.0), 4) for row in measured]
    chart = Bars(
        Axis("W1 of |v|, pooled", "10⁻³ p.u.", decimals=3),
        tuple(f"{row.title} ({units(row)})" for row in measured),
        (Series("W1", values),),
    )
    return Section(
        f"data-{data}",
        data,
        (table.words[data],),
        (
            Figure(f"w1-{data}", "Distance of the voltages", "Mean over the runs.", chart),
            Table(header, rows, numeric=frozenset(range(5, len(header)))),
        ),
    )


def _checks(table: Table1) -> Section:
    rows = tuple(tuple(row) for row in check_rows(table))
    return Section(
        "checks",
        "The same settings through the code of the earlier experiments",
        ("Two figures agree if they are within three standard errors of their difference.",),
        (Table(CHECK_HEADER, rows),),
    )
