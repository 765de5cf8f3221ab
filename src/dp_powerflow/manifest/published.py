"""The tables of a release as dataset hubs see them: one list for the card and for Croissant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from dp_powerflow.corpus.gridfm.schema import ROWS_FILE, TABLES, table_directory
from dp_powerflow.corpus.schema import BUSES_FILE, CONNECTIONS_FILE, DAYS_FILE, NODES_FILE
from dp_powerflow.manifest.model import FEEDER_PARTS, LOADS_PARTS, PARTS, Statement

VOLTAGES = "voltages"
"""Name of the table with the voltages."""

_KNOWN = (
    (VOLTAGES, "parts", PARTS, "One row per day and node.", "voltages"),
    ("nodes", "nodes-file", NODES_FILE, "One row per node.", "the released nodes"),
    ("loads", "loads-parts", LOADS_PARTS, "One row per day and node.", "powers of the nodes"),
    (
        "feeder",
        "feeder-parts",
        FEEDER_PARTS,
        "One row per day.",
        "power of the sources, states of the controls",
    ),
    ("buses", "buses-file", BUSES_FILE, "One row per bus.", "the buses, with or without a released node"),
    (
        "connections",
        "connections-file",
        CONNECTIONS_FILE,
        "One row per pair of buses.",
        "which buses are joined by what",
    ),
    ("days", "days-file", DAYS_FILE, "One row per day.", "dates and public figures of the days"),
)


class PublishedColumn(NamedTuple):
    """A column: name, type in words, unit and meaning."""

    name: str
    type: str
    unit: str | None
    means: str


@dataclass(frozen=True)
class PublishedTable:
    """A table of a release.

    Attributes
    ----------
    name : as hubs call it.
    node : name of its files in Croissant.
    files : relative path, or a pattern of several.
    rows, means : what a row is, and what the table holds.
    columns : in their order.
    """

    name: str
    node: str
    files: str
    rows: str
    means: str
    columns: tuple[PublishedColumn, ...]

    @property
    def in_parts(self) -> bool:
        """Whether `files` is a pattern."""
        return "*" in self.files


def published_tables(statement: Statement[Any]) -> Iterator[PublishedTable]:
    """All tables that a release holds, voltages first."""
    for name, node, files, rows, means in _KNOWN:
        columns = tuple(
            PublishedColumn(column.name, column.type, column.unit, column.means)
            for column in statement.data.columns
            if column.file == files
        )
        if columns:
            yield PublishedTable(name, node, files, rows, means, columns)
    network = statement.data.network_tables
    if network is None:
        return
    numbered = (
        PublishedColumn("row", "int64", None, f"row of {NODES_FILE}"),
        PublishedColumn("bus", "int64", None, f"bus of the tables in {network.directory}/"),
    )
    yield PublishedTable(
        f"{network.directory}_rows",
        f"{network.directory}-rows",
        f"{network.directory}/{ROWS_FILE}",
        "One row per node.",
        f"the bus of every node in the tables of {network.directory}/",
        numbered,
    )
    for table in network.tables:
        means = f"{table} of the {network.directory} ({network.holds}), {network.layout}"
        columns = tuple(
            PublishedColumn(name, kind, None, f"{name} of {table} in the gridfm-datakit layout")
            for name, kind in TABLES[table].items()
        )
        yield PublishedTable(
            f"{network.directory}_{table.removesuffix('_data')}",
            f"{network.directory}-{table}",
            f"{network.directory}/{table_directory(table)}/*/*.parquet",
            "One row per scenario and row of the table.",
            means,
            columns,
        )
