"""The tables of a published twin: what a manifest says of them, and what `verify` looks at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from dp_powerflow.corpus.gridfm.schema import CLOSE_PU, MERGED_CLOSE_PU, ROWS_FILE, TABLES, GridfmStyle
from dp_powerflow.corpus.storage import Location
from dp_powerflow.manifest.build import Facts
from dp_powerflow.manifest.model import Check, Tables, check

VOLTAGES, NETWORK, WITH_LOADS = "voltages", "network", "network and loads"
"""What of a twin can be released."""
TWIN = "twin"
"""Directory of the published twin."""
TURNED: Literal["rotated"] = "rotated"
PHASORS: Literal["phasors"] = "phasors"
"""Frames of the voltages in its tables."""
AS_PHASORS = GridfmStyle(turned=False, merged=False)
"""Of a release without tables."""


def style_of(tables: Tables | None) -> GridfmStyle:
    """How tables are written, as a manifest states it."""
    return AS_PHASORS if tables is None else GridfmStyle(tables.frame == TURNED, tables.switches_merged)


def described_tables(published: str, days: int, facts: Facts, style: GridfmStyle) -> Tables | None:
    """Where the published twin is; None if only voltages are released."""
    if published == VOLTAGES:
        return None
    scenarios = days * facts.layout.steps
    numbered = "scenario = day * steps_per_day + step, load_scenario_idx = day"
    return Tables(
        directory=TWIN,
        layout="gridfm-datakit: Parquet tables, one directory per table and partition of scenarios",
        tables=sorted(TABLES),
        holds=published,
        days=days,
        scenarios=max(scenarios, 1),
        order=f"{ROWS_FILE} has the bus of every node of the corpus, further buses follow; "
        + (numbered if scenarios else "one scenario without load"),
        frame=TURNED if style.turned else PHASORS,
        switches_merged=style.merged,
    )


def check_of_tables(tables: Tables | None, directory: Location, files: Iterable[str]) -> Iterator[Check]:
    """The tables are there, and in order, if and only if they are published."""
    name = "twin tables"
    if tables is not None:
        from dp_powerflow.corpus.gridfm.reader import (
            check_tables,  # knows the solver; few releases have tables
        )

        count, style = tables.scenarios, style_of(tables)
        good = (
            f"The twin's tables hold {count:,} scenario{'s' * (count > 1)} of power flow on their own "
            f"network{', with the voltages of the corpus' * (tables.days > 0)}."
        )
        close = MERGED_CLOSE_PU if style.merged else CLOSE_PU
        problems = check_tables(directory, TWIN, count, style, close_pu=close if tables.days > 0 else None)
        yield check(name, problems, good)
    elif any(file.startswith(f"{TWIN}/") for file in files):
        yield Check(name, False, f"There are files in {TWIN}/ though no twin is published.")


def wrong_days(published: str, days: int, facts: Facts) -> Iterator[str]:
    """What cannot be true of the days in the tables."""
    if not 0 <= days <= facts.layout.days:
        yield "The tables of the twin hold more days than the corpus."
    if (days > 0) != (published == WITH_LOADS):
        yield "The days of the tables do not go with what is published of the twin."
