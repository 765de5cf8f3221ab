"""Validation finds whatever is wrong on disk, and never falls over it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_powerflow.corpus.schema import CorpusLayout, part_name
from dp_powerflow.corpus.validate import CorpusReport, validate_corpus
from support.corpora import LAYOUT, RELEASE_ID, write_corpus

PART = Path("data") / part_name(1)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("validation") / "release")


@pytest.fixture
def release(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "release"))


def rewrite(path: Path, change: Any, rows_per_group: int | None = None) -> None:
    """Read a Parquet file, change the table, write it."""
    table = change(pq.read_table(path))
    pq.write_table(table, path, row_group_size=rows_per_group or len(table), compression="zstd")


def with_values(column: str, row: int, step: int, value: float) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index(column)
        field = table.schema.field(index)
        values = table.column(column).combine_chunks().flatten().to_numpy().copy()
        values[row * LAYOUT.steps + step] = value
        return table.set_column(index, field, pa.FixedSizeListArray.from_arrays(values, type=field.type))

    return change


def with_column(column: str, values: Any) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index(column)
        new = values(table.column(column).to_numpy().copy())
        return table.set_column(
            index, table.schema.field(index), pa.array(new, table.schema.field(index).type)
        )

    return change


def only_problem(report: CorpusReport) -> str:
    assert not report.ok
    assert len(report.problems) == 1, report.problems
    return report.problems[0]


def test_a_sound_corpus_has_no_problems(sound: Path) -> None:
    report = validate_corpus(sound)
    assert report.ok
    assert report.problems == ()
    assert report.layout == LAYOUT
    assert report.release_id == RELEASE_ID
    assert report.n_phasors == 11 * 24 * 7
    assert report.vm_range_pu is not None
    low, high = report.vm_range_pu
    assert 0.9 <= low < 0.91 < 1.09 < high <= 1.1


def test_a_corpus_with_several_row_groups_has_no_problems(tmp_path: Path) -> None:
    layout = CorpusLayout(days=7, steps=96, nodes=500, days_per_part=5)
    report = validate_corpus(write_corpus(tmp_path / "wide", layout))
    assert report.ok
    assert report.n_phasors == layout.n_phasors


def test_rewriting_alone_changes_nothing(release: Path) -> None:
    """Otherwise the tests below would find their problem in the rewriting."""
    rewrite(release / PART, lambda table: table)
    assert validate_corpus(release).ok


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("vm_pu", 1.0000001),
        ("vm_pu", np.nan),
        ("vm_pu", np.inf),
        ("vm_pu", -1.0),
        ("vm_pu", 9.0),
        ("va_deg", 0.000001),
        ("va_deg", np.nan),
        ("va_deg", -180.0),
        ("va_deg", 200.0),
        ("va_deg", -0.0),
    ],
)
def test_one_value_off_the_grid_is_found(release: Path, column: str, value: float) -> None:
    rewrite(release / PART, with_values(column, 5, 3, value))
    assert only_problem(validate_corpus(release)) == (
        "data/part-00001.parquet: 1 values of days 4 to 7 are not on the public grid."
    )


def test_a_magnitude_beyond_the_declared_range_is_found(release: Path) -> None:
    assert validate_corpus(release, vm_range_pu=(0.9, 1.1)).ok
    rewrite(release / PART, with_values("vm_pu", 5, 3, 1.1))
    assert validate_corpus(release, vm_range_pu=(0.9, 1.1)).ok
    rewrite(release / PART, with_values("vm_pu", 5, 3, 1.100001))
    assert "to 1.100001 p.u., beyond the declared 0.9 to 1.1" in only_problem(
        validate_corpus(release, vm_range_pu=(0.9, 1.1))
    )


def swapped(values: np.ndarray) -> np.ndarray:
    values[[0, 1]] = values[[1, 0]]
    return values


def doubled(values: np.ndarray) -> np.ndarray:
    values[1] = values[0]
    return values


@pytest.mark.parametrize(
    "change",
    [
        with_column("node", swapped),
        with_column("node", doubled),
        with_column("day", lambda days: days + 1),
        with_column("day", lambda days: days[::-1]),
    ],
    ids=["nodes out of order", "a node twice", "other days", "days reversed"],
)
def test_rows_that_are_not_each_day_and_node_once_are_found(release: Path, change: Any) -> None:
    rewrite(release / PART, change)
    assert "days 4 to 7 do not hold every node exactly once, in order." in only_problem(
        validate_corpus(release)
    )


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        (lambda t: t.slice(0, len(t) - 1), None),
        (lambda t: pa.concat_tables([t, t.slice(0, 1)]), None),
        (lambda t: t, 7),
    ],
    ids=["a row less", "a row more", "other row groups"],
)
def test_missing_and_additional_rows_are_found(release: Path, change: Any, rows: int) -> None:
    rewrite(release / PART, change, rows)
    assert "rows or row groups are missing or too many" in only_problem(validate_corpus(release))


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.append_column("load_kw", pa.array(np.ones(len(t)))),
        lambda t: t.drop_columns(["va_deg"]),
        lambda t: t.replace_schema_metadata(t.schema.metadata | {b"note": b"hidden"}),
        lambda t: t.replace_schema_metadata(t.schema.metadata | {b"dp_powerflow.part": b"2"}),
        lambda t: t.set_column(0, "day", t.column("day").cast(pa.int64())),
    ],
    ids=["a column more", "a column less", "hidden metadata", "another part", "another type"],
)
def test_another_schema_is_found(release: Path, change: Any) -> None:
    rewrite(release / PART, change)
    assert "columns, types or metadata" in only_problem(validate_corpus(release))


def test_a_part_of_another_release_is_found(release: Path, tmp_path: Path) -> None:
    other = write_corpus(tmp_path / "other", release_id="other")
    shutil.copy(other / PART, release / PART)
    assert "columns, types or metadata" in only_problem(validate_corpus(release))


def test_missing_parts_are_counted(release: Path) -> None:
    for part in (0, 2):
        (release / "data" / part_name(part)).unlink()
    report = validate_corpus(release)
    assert only_problem(report) == "2 of 3 parts are missing in data/."
    assert report.n_phasors == 4 * 24 * 7


@pytest.mark.parametrize(
    "name",
    [
        "loads.csv",
        "data/part-00003.parquet",
        "data/part-1.parquet",
        "data/x.tmp-01",
        ".hidden",
        "twin/y.csv",
        "data/manifest.json",
    ],
)
def test_a_file_that_does_not_belong_there_is_found(release: Path, name: str) -> None:
    path = release / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x")
    report = validate_corpus(release)
    assert f"{name} does not belong to the corpus." in report.problems
    assert len(report.problems) == 1 + name.startswith("twin")


def test_files_of_the_manifest_may_be_there(release: Path) -> None:
    (release / "twin").mkdir()
    (release / "twin" / "branches.csv").write_bytes(b"x")
    assert validate_corpus(release, other_files=["manifest.json", "twin/branches.csv"]).ok


def test_a_link_is_found(release: Path) -> None:
    (release / "certificate.html").symlink_to("/etc/hostname")
    assert "is a link or a device" in only_problem(validate_corpus(release))


def test_a_link_in_place_of_a_part_is_found(release: Path, tmp_path: Path) -> None:
    (release / PART).rename(tmp_path / "elsewhere")
    (release / PART).symlink_to(tmp_path / "elsewhere")
    problems = validate_corpus(release).problems
    assert "data/part-00001.parquet is a link or a device; a release holds files only." in problems


def test_a_directory_that_is_no_corpus_is_one_problem(tmp_path: Path) -> None:
    report = validate_corpus(tmp_path)
    assert "nodes.parquet is missing" in only_problem(report)
    assert report.layout is None


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.slice(0, 6),
        lambda t: t.append_column("latitude", pa.array(np.ones(len(t)))),
        lambda t: t.append_column("phase", pa.array([None] * len(t), pa.int32())),
        lambda t: t.replace_schema_metadata(t.schema.metadata | {b"dp_powerflow.days": b"2000000000"}),
        lambda t: t.replace_schema_metadata(t.schema.metadata | {b"dp_powerflow.nodes": b"2000000000"}),
        lambda t: t.replace_schema_metadata(t.schema.metadata | {b"dp_powerflow.days": b"-1"}),
        lambda t: t.replace_schema_metadata(t.schema.metadata | {b"dp_powerflow.steps": b"\xff"}),
        lambda t: t.replace_schema_metadata(t.schema.metadata | {b"dp_powerflow.days_per_part": b"1"}),
        lambda t: t.set_column(1, t.schema.field("id"), pa.array(["a"] * len(t))),
    ],
    ids=[
        "rows",
        "column",
        "nulls",
        "many days",
        "many nodes",
        "no days",
        "not text",
        "many parts",
        "same names",
    ],
)
def test_a_changed_node_table_is_found(release: Path, change: Any) -> None:
    rewrite(release / "nodes.parquet", change)
    assert not validate_corpus(release).ok


@pytest.mark.parametrize("name", [PART.as_posix(), "nodes.parquet"])
def test_damaged_files_are_reported_and_never_raise(release: Path, sound: Path, name: str) -> None:
    rng = random.Random(7)
    whole = (sound / name).read_bytes()
    in_data = 0
    for _ in range(150):
        position = rng.randrange(len(whole))
        damaged = bytearray(whole)
        damaged[position] ^= 1 << rng.randrange(8)
        (release / name).write_bytes(damaged)
        report = validate_corpus(release)
        # Pages come first and carry a checksum; in the footer a flipped bit can be harmless (hashes find it).
        if name != "nodes.parquet" and position < len(whole) // 2:
            in_data += 1
            assert not report.ok
    for length in (0, 3, 100, len(whole) // 2, len(whole) - 1):
        (release / name).write_bytes(whole[:length])
        assert not validate_corpus(release).ok
    assert in_data > 20 or name == "nodes.parquet"
