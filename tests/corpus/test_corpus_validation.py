"""Validation finds whatever is wrong on disk, and never falls over it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.corpus.schema import CONNECTION_FILES
from dp_powerflow.corpus.tables import Connections, opaque_buses
from dp_powerflow.corpus.validate import validate_corpus
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import CorpusError
from support.corpora import EXTRAS, LAYOUT, RELEASE_ID, ring, write_corpus

DATA, LOADS, FEEDER = (f"{folder}/part-00001.parquet" for folder in ("data", "loads", "feeder"))
Change = Callable[[pa.Table], pa.Table]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("validation") / "release", extras=EXTRAS)


@pytest.fixture
def release(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "release"))


def rewrite(path: Path, change: Change, rows_per_group: int | None = None) -> None:
    """Read a Parquet file, change the table, write it."""
    table = change(pq.read_table(path))
    pq.write_table(table, path, row_group_size=rows_per_group or len(table), compression="zstd")


def with_value(column: str, value: float) -> Change:
    def change(table: pa.Table) -> pa.Table:
        index, field = table.schema.get_field_index(column), table.schema.field(column)
        values = table.column(column).combine_chunks().flatten().to_numpy(zero_copy_only=False).copy()
        values[17] = value
        made = pa.FixedSizeListArray.from_arrays(pa.array(values), type=field.type)
        return table.set_column(index, field, made)

    return change


def with_column(column: str, change: Callable[[np.ndarray], np.ndarray]) -> Change:
    def changed(table: pa.Table) -> pa.Table:
        index, field = table.schema.get_field_index(column), table.schema.field(column)
        return table.set_column(index, field, pa.array(change(table.column(column).to_numpy()), field.type))

    return changed


def with_metadata(key: bytes, value: bytes) -> Change:
    return lambda table: table.replace_schema_metadata(table.schema.metadata | {key: value})


def problem(release: Path) -> str:
    (found,) = validate_corpus(release).problems
    return found


def test_a_sound_corpus_has_no_problems(sound: Path) -> None:
    report = validate_corpus(sound)
    assert report.ok
    assert (report.problems, report.layout, report.release_id) == ((), LAYOUT, RELEASE_ID)
    assert report.n_phasors == LAYOUT.n_phasors
    assert report.vm_range_pu is not None
    low, high = report.vm_range_pu
    assert 0.9 <= low < 0.91 < 1.09 < high <= 1.1
    assert report.extras == EXTRAS
    assert report.n_powers == LAYOUT.days * LAYOUT.steps * (2 * LAYOUT.nodes + 3)
    assert {DATA, LOADS, FEEDER} <= set(report.hashes)


@pytest.mark.parametrize("name", [DATA, LOADS, FEEDER])
def test_rewriting_alone_changes_nothing(release: Path, name: str) -> None:
    """Otherwise the tests below would find their problem in the rewriting."""
    rewrite(release / name, lambda table: table)
    assert validate_corpus(release).ok


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [
        *((DATA, "vm_pu", value) for value in (1.0000001, np.nan, np.inf, -1.0, 9.0)),
        *((DATA, "va_deg", value) for value in (0.000001, np.nan, -180.0, 200.0, -0.0)),
        *((LOADS, "p_kw", value) for value in (np.nan, np.inf, -0.0, 1.0005, 2e9)),
        (LOADS, "g_kvar", 1.0005),
        (FEEDER, "s1_q_kvar", 1.0005),
    ],
)
def test_one_value_off_the_grid_is_found(release: Path, name: str, column: str, value: float) -> None:
    rewrite(release / name, with_value(column, value))
    assert problem(release) == f"{name}: 1 values of days 4 to 7 are not on the public grid."


ROWS, ORDER = "rows or row groups are missing or too many", "days 4 to 7 do not hold every node exactly once"
SCHEMA = "columns, types or metadata are not those of this part"
CHANGES: dict[str, tuple[str, Change, str]] = {
    "nodes exchanged": (DATA, lambda t: t.take([1, 0, *range(2, len(t))]), ORDER),
    "a node twice": (DATA, with_column("node", lambda nodes: np.repeat(nodes[::2], 2)), ORDER),
    "days reversed": (DATA, with_column("day", lambda days: days[::-1]), ORDER),
    "days exchanged": (FEEDER, lambda t: t.take([1, 0, *range(2, len(t))]), "not there exactly once"),
    "a row less": (DATA, lambda t: t.slice(0, len(t) - 1), ROWS),
    "a day less": (FEEDER, lambda t: t.slice(1), ROWS),
    "a column more": (DATA, lambda t: t.append_column("load_kw", pa.array(np.ones(len(t)))), SCHEMA),
    "a column less": (DATA, lambda t: t.drop_columns(["va_deg"]), SCHEMA),
    "a tap less": (FEEDER, lambda t: t.drop_columns(["r1_tap"]), SCHEMA),
    "hidden metadata": (DATA, with_metadata(b"note", b"hidden"), SCHEMA),
    "another part": (DATA, with_metadata(b"dp_powerflow.part", b"2"), SCHEMA),
    "another type": (DATA, lambda t: t.set_column(0, "day", t.column("day").cast(pa.int64())), SCHEMA),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_part_of_another_shape_is_found(release: Path, kind: str) -> None:
    name, change, words = CHANGES[kind]
    rewrite(release / name, change)
    found = problem(release)
    assert found.startswith(f"{name}: ")
    assert words in found


def test_other_row_groups_are_found(release: Path) -> None:
    rewrite(release / DATA, lambda table: table, 7)
    assert ROWS in problem(release)


@pytest.mark.parametrize("name", [DATA, LOADS])
def test_damage_foreign_and_missing_parts_are_found(release: Path, tmp_path: Path, name: str) -> None:
    folder, content = name.split("/")[0], (release / name).read_bytes()
    for damaged in (b"", content[: len(content) // 2], b"PAR1" * 50):
        (release / name).write_bytes(damaged)
        assert problem(release) == f"{name} is damaged or not a Parquet file."
    shutil.copy(release / folder / "part-00000.parquet", release / name)
    assert SCHEMA in problem(release)
    shutil.copy(write_corpus(tmp_path / "other", release_id="other", extras=EXTRAS) / name, release / name)
    assert SCHEMA in problem(release)
    (release / name).unlink()
    assert problem(release) == f"1 of 3 parts are missing in {folder}/."


def test_a_first_part_that_is_damaged_or_missing_is_one_sentence(release: Path) -> None:
    (release / "loads/part-00000.parquet").write_bytes(b"PAR1")
    assert "cannot be read as part of a corpus" in problem(release)
    with pytest.raises(CorpusError, match="cannot be read as part of a corpus"):
        open_corpus(release).loads()
    assert open_corpus(release).voltages([0]).shape == (1, LAYOUT.steps, LAYOUT.nodes)
    (release / "loads/part-00000.parquet").unlink()
    assert problem(release) == "loads/ does not hold its first part."


@pytest.mark.parametrize(
    "name",
    [
        *("loads.csv", "data/part-00003.parquet", "data/part-1.parquet", "data/x.tmp-01", ".hidden"),
        *("twin/y.csv", "data/manifest.json", "feeder/notes.txt"),
    ],
)
def test_a_file_that_does_not_belong_there_is_found(release: Path, name: str) -> None:
    path = release / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x")
    report = validate_corpus(release)
    assert f"{name} does not belong to the corpus." in report.problems
    assert len(report.problems) == 1 + name.startswith("twin")


def test_files_of_the_manifest_may_be_there_and_links_may_not(release: Path, tmp_path: Path) -> None:
    (release / "twin").mkdir()
    (release / "twin" / "branches.csv").write_bytes(b"x")
    listed = ["manifest.json", "twin/branches.csv"]
    assert validate_corpus(release, other_files=listed).ok
    (release / DATA).rename(tmp_path / "elsewhere")
    (release / DATA).symlink_to(tmp_path / "elsewhere")
    problems = validate_corpus(release, other_files=listed).problems
    assert f"{DATA} is a link or a device; a release holds files only." in problems
    (tmp_path / "none").mkdir()
    nothing = validate_corpus(tmp_path / "none")
    assert "nodes.parquet is missing" in nothing.problems[0]
    assert nothing.layout is None


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.slice(0, 6),
        lambda t: t.append_column("latitude", pa.array(np.ones(len(t)))),
        lambda t: t.append_column("phase", pa.array([None] * len(t), pa.int32())),
        with_metadata(b"dp_powerflow.days", b"2000000000"),
        with_metadata(b"dp_powerflow.nodes", b"2000000000"),
        with_metadata(b"dp_powerflow.days", b"-1"),
        with_metadata(b"dp_powerflow.steps", b"\xff"),
        with_metadata(b"dp_powerflow.days_per_part", b"1"),
        lambda t: t.set_column(1, t.schema.field("id"), pa.array(["a"] * len(t))),
    ],
)
def test_a_changed_node_table_is_found(release: Path, change: Change) -> None:
    rewrite(release / "nodes.parquet", change)
    assert not validate_corpus(release).ok


@pytest.mark.parametrize("name", [DATA, "nodes.parquet", *CONNECTION_FILES])
def test_damaged_files_are_reported_and_never_raise(tmp_path: Path, name: str) -> None:
    release = write_corpus(tmp_path / "release", connections=ring(LAYOUT.nodes))
    rng = random.Random(7)
    whole = (release / name).read_bytes()
    in_data = 0
    for _ in range(150):
        position = rng.randrange(len(whole))
        damaged = bytearray(whole)
        damaged[position] ^= 1 << rng.randrange(8)
        (release / name).write_bytes(damaged)
        report = validate_corpus(release)
        # Pages come first and carry a checksum; in the footer a flipped bit can be harmless (hashes find it).
        if name == DATA and position < len(whole) // 2:
            in_data += 1
            assert not report.ok
    for length in (0, 3, 100, len(whole) // 2, len(whole) - 1):
        (release / name).write_bytes(whole[:length])
        assert not validate_corpus(release).ok
    assert in_data > 20 or name != DATA


# --- buses, and what joins them ---
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
    assert set(CONNECTION_FILES) <= report.hashes.keys()


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


def set_first(column: str, value: Any) -> Change:
    def change(table: pa.Table) -> pa.Table:
        values = table.column(column).to_pylist()
        field = table.schema.field(column)
        return table.set_column(
            table.schema.get_field_index(column), field, pa.array([value, *values[1:]], field.type)
        )

    return change


DAMAGE: dict[str, tuple[str, Change]] = {
    "a bus renamed": ("buses.parquet", set_first("bus", "b9")),
    "a place that is none": ("buses.parquet", set_first("x", np.inf)),
    "a bus less": ("buses.parquet", lambda table: table.slice(1)),
    "a column more": ("buses.parquet", lambda table: table.append_column("kv", table.column("x"))),
    "hidden words": ("buses.parquet", lambda table: table.replace_schema_metadata({"of": "the network"})),
    "a pair with itself": ("connections.parquet", set_first("to_bus", 0)),
    "an unknown kind": ("connections.parquet", set_first("kind", "rope")),
    "pairs exchanged": ("connections.parquet", lambda table: table.take([1, 0, *range(2, len(table))])),
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
    rewrite(path / name, change)
    report = validate_corpus(path)
    assert report.connections is None
    assert any(file in problem for problem in report.problems for file in (name, "connections.parquet"))
    with pytest.raises(CorpusError, match="cannot be read as part of a corpus"):
        _ = open_corpus(path).connections


@pytest.mark.parametrize("name", CONNECTION_FILES)
def test_one_file_without_the_other_is_found(name: str, tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "release", connections=GOOD)
    (path / name).unlink()
    assert not validate_corpus(path).ok
    with pytest.raises(CorpusError):
        _ = open_corpus(path).connections
