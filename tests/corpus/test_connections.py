"""Buses of a corpus and what joins them: written, read back, and refused where they cannot be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.corpus.schema import CONNECTION_FILES as FILES
from dp_powerflow.corpus.tables import Connections, opaque_buses
from dp_powerflow.corpus.validate import validate_corpus
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import CorpusError
from support.corpora import LAYOUT, RELEASE_ID, ring, write_corpus


@pytest.fixture(params=[False, True], ids=["without places", "with places"])
def given(request: pytest.FixtureRequest) -> Connections:
    return ring(LAYOUT.nodes, coordinates=request.param)


def test_what_is_written_is_read_back(given: Connections, tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "release", connections=given)
    corpus = open_corpus(path)
    found = corpus.connections
    assert found is not None
    for name in ("bus_of", "phase", "pairs", "source"):
        np.testing.assert_array_equal(getattr(found, name), getattr(given, name))
    assert (found.bus_ids, found.kinds) == (given.bus_ids, given.kinds)
    assert (found.coordinates is None) == (given.coordinates is None)
    if given.coordinates is not None:
        np.testing.assert_array_equal(found.coordinates, given.coordinates)
    assert corpus.nodes.bus is not None
    assert corpus.nodes.bus[2:4] == ("b1", "b1")
    report = validate_corpus(path)
    assert report.ok
    assert report.connections is not None
    assert set(FILES) <= report.hashes.keys()


GOOD = ring(LAYOUT.nodes, coordinates=True)
SOURCE = GOOD.n_buses - 1
IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "not their positions": {"bus_ids": ("b1", "b0", *GOOD.bus_ids[2:])},
    "a bus that does not exist": {"bus_of": GOOD.bus_of + 2},
    "in the order of their nodes": {"bus_of": GOOD.bus_of[::-1].copy()},
    "not one bus and phase per node": {"phase": GOOD.phase[1:]},
    "not a positive number": {"phase": GOOD.phase - 1},
    "two nodes of a bus have one phase": {"phase": np.ones_like(GOOD.phase)},
    "not one kind per pair": {"kinds": GOOD.kinds[1:]},
    "not of two buses": {"pairs": GOOD.pairs[:, ::-1].copy()},
    "the smaller row first": {"pairs": np.where(GOOD.pairs == SOURCE, 99, GOOD.pairs)},
    "not sorted": {"pairs": GOOD.pairs[::-1].copy()},
    "occurs twice": {"pairs": np.repeat(GOOD.pairs[:1], len(GOOD.pairs), axis=0)},
    "something unknown": {"kinds": ("rope", *GOOD.kinds[1:])},
    "not connected to a source": {"source": np.zeros_like(GOOD.source)},
    "finite coordinates": {"coordinates": np.full((GOOD.n_buses, 2), np.nan)},
}


@pytest.mark.parametrize("says", IMPOSSIBLE)
def test_what_is_no_network_is_refused(says: str) -> None:
    with pytest.raises(CorpusError, match=says):
        replace(GOOD, **IMPOSSIBLE[says])


def test_a_bus_that_nothing_joins_is_refused_unless_it_is_the_only_one() -> None:
    nobody = np.empty((0, 2), dtype=np.int64)
    alone = Connections(opaque_buses(1), np.zeros(2, int), np.arange(2) + 1, nobody, (), np.array([True]))
    assert alone.n_pairs == 0
    kept = ~np.any(GOOD.pairs == 1, axis=1)
    with pytest.raises(CorpusError, match="not connected to a source"):
        replace(GOOD, pairs=GOOD.pairs[kept], kinds=tuple(np.array(GOOD.kinds)[kept]))


def test_connections_of_other_nodes_are_refused(tmp_path: Path) -> None:
    writer = CorpusWriter(tmp_path / "release", LAYOUT, RELEASE_ID)
    with pytest.raises(CorpusError, match="one bus per node"):
        writer.write_connections(ring(LAYOUT.nodes + 1))
    with pytest.raises(CorpusError, match="relative path outside"):
        writer.add_file("buses.parquet", b"")


def edited(path: Path, change: Any) -> None:
    table = change(pq.read_table(path))
    pq.write_table(table, path, compression="zstd")


def set_first(column: str, value: Any) -> Any:
    def change(table: pa.Table) -> pa.Table:
        values = table.column(column).to_pylist()
        field = table.schema.field(column)
        return table.set_column(
            table.schema.get_field_index(column), field, pa.array([value, *values[1:]], field.type)
        )

    return change


DAMAGE: dict[str, tuple[str, Any]] = {
    "a bus renamed": ("buses.parquet", set_first("bus", "b9")),
    "a place that is none": ("buses.parquet", set_first("x", np.inf)),
    "a bus less": ("buses.parquet", lambda table: table.slice(1)),
    "a column more": ("buses.parquet", lambda table: table.append_column("kv", table.column("x"))),
    "hidden words": ("buses.parquet", lambda table: table.replace_schema_metadata({"of": "the network"})),
    "a pair with itself": ("connections.parquet", set_first("to_bus", 0)),
    "an unknown kind": ("connections.parquet", set_first("kind", "rope")),
    "pairs exchanged": (
        "connections.parquet",
        lambda table: table.take([1, 0, *range(2, len(table))]),
    ),
    "a bridge less": ("connections.parquet", lambda table: table.slice(2)),
    "a node at no bus": ("nodes.parquet", set_first("bus", "b7")),
    "a node at another bus": ("nodes.parquet", set_first("bus", "b2")),
    "a phase that is none": ("nodes.parquet", set_first("phase", 0)),
    "no phases": ("nodes.parquet", lambda table: table.drop_columns(["phase"])),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_files_that_contradict_each_other_are_found_and_not_read(kind: str, tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "release", connections=GOOD)
    name, change = DAMAGE[kind]
    edited(path / name, change)
    report = validate_corpus(path)
    assert report.connections is None
    assert any(file in problem for problem in report.problems for file in (name, "connections.parquet"))
    with pytest.raises(CorpusError, match="cannot be read as part of a corpus"):
        _ = open_corpus(path).connections


@pytest.mark.parametrize("name", FILES)
def test_one_file_without_the_other_is_found(name: str, tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "release", connections=GOOD)
    (path / name).unlink()
    assert not validate_corpus(path).ok
    with pytest.raises(CorpusError):
        _ = open_corpus(path).connections
