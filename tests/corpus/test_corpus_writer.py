"""The writer: whole or not at all, the same bytes every time, from any number of processes."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dp_powerflow.corpus.schema import CorpusLayout, part_name
from dp_powerflow.corpus.storage import file_hashes
from dp_powerflow.corpus.tables import NodeTable
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import CorpusError
from support.corpora import LAYOUT, RELEASE_ID, voltages, write_corpus, write_parts


@pytest.fixture
def writer(tmp_path: Path) -> CorpusWriter:
    made = CorpusWriter(tmp_path / "release", LAYOUT, RELEASE_ID)
    made.prepare()
    return made


def write_one(writer: CorpusWriter, part: int) -> None:
    writer.write_part(part, voltages(writer.layout, writer.layout.days_of(part)))


def test_nothing_has_the_final_name_until_the_corpus_is_finished(writer: CorpusWriter) -> None:
    mask = os.umask(0)
    os.umask(mask)
    write_parts(writer)
    writer.write_nodes(NodeTable.opaque(LAYOUT.nodes))
    assert not writer.target.exists()
    assert stat.S_IMODE(writer.partial.stat().st_mode) == 0o700  # others cannot look into it
    assert not writer.finished
    assert writer.finish() == writer.target
    assert writer.finished
    assert not writer.partial.exists()
    assert isinstance(writer.target, Path)
    assert stat.S_IMODE(writer.target.stat().st_mode) == 0o777 & ~mask
    assert sorted(p.name for p in writer.target.iterdir()) == ["data", "nodes.parquet"]
    assert len(list((writer.target / "data").iterdir())) == LAYOUT.n_parts == 3


def test_the_file_states_units_grid_and_shape_and_nothing_of_the_run(writer: CorpusWriter) -> None:
    write_one(writer, 1)
    file = pq.ParquetFile(writer.partial / "data" / part_name(1))
    schema = file.schema_arrow
    assert schema.field("vm_pu").metadata == {
        b"means": b"voltage magnitude at every step of the day",
        b"unit": b"p.u.",
        b"grid": b"multiples of 1e-6 p.u.",
    }
    assert schema.field("va_deg").metadata[b"unit"] == b"degree"
    assert schema.metadata == {
        b"dp_powerflow.format": b"dp-powerflow corpus, version 1",
        b"dp_powerflow.release_id": RELEASE_ID.encode(),
        b"dp_powerflow.days": b"11",
        b"dp_powerflow.steps": b"24",
        b"dp_powerflow.nodes": b"7",
        b"dp_powerflow.days_per_part": b"4",
        b"dp_powerflow.part": b"1",
    }
    group = file.metadata.row_group(0)
    for column in (2, 3):
        assert group.column(column).compression == "ZSTD"
        assert "BYTE_STREAM_SPLIT" in group.column(column).encodings
    stated = [group.column(k).statistics for k in range(4)]
    assert [(own.min, own.max) for own in stated[:2]] == [(4, 7), (0, 6)]
    assert stated[2:] == [None, None]


def test_row_groups_depend_on_the_shape_alone() -> None:
    layout = CorpusLayout(days=100, steps=96, nodes=96, days_per_part=40)
    assert layout.days_per_group == 14
    assert [len(days) for days in layout.groups_of(2)] == [14, 6]
    assert CorpusLayout(days=5, steps=96, nodes=9000, days_per_part=5).days_per_group == 1
    for name in ("days", "steps", "nodes", "days_per_part"):
        with pytest.raises(CorpusError, match=f"positive number of {name}"):
            replace(layout, **{name: 0})


@pytest.mark.parametrize("kind", ["empty directory", "full directory", "file", "dangling link"])
def test_an_existing_target_is_refused_and_left_alone(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "release"
    writer = CorpusWriter(target, LAYOUT, RELEASE_ID)
    writer.prepare()
    write_parts(writer)
    writer.write_nodes(NodeTable.opaque(LAYOUT.nodes))
    if kind == "file":
        target.write_text("mine")
    elif kind == "dangling link":
        target.symlink_to(tmp_path / "nowhere")
    else:
        target.mkdir()
        if kind == "full directory":
            (target / "mine").write_text("mine")
    for attempt in (writer.finish, writer.prepare):
        with pytest.raises(CorpusError, match="exists already"):
            attempt()
    assert writer.missing_parts() == ()
    assert stat.S_IMODE(writer.partial.stat().st_mode) == 0o700
    assert not (target / "data").exists()


def test_a_run_keeps_the_parts_of_the_run_before(writer: CorpusWriter) -> None:
    write_one(writer, 1)
    before = (writer.partial / "data" / part_name(1)).stat()
    (writer.partial / "data" / "part-00000.parquet.tmp-0123").write_bytes(b"half")
    again = CorpusWriter(writer.target, LAYOUT, RELEASE_ID)
    again.prepare()
    assert again.missing_parts() == (0, 2)
    assert sorted(p.name for p in (writer.partial / "data").iterdir()) == [part_name(1)]
    write_parts(again)
    after = (writer.partial / "data" / part_name(1)).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    (writer.partial / "data" / part_name(1)).write_bytes(b"")  # the disk lost power
    assert again.missing_parts() == (1,)


@pytest.mark.parametrize(
    "other", [replace(LAYOUT, days=12), replace(LAYOUT, steps=12), replace(LAYOUT, days_per_part=3)]
)
def test_parts_of_another_shape_are_never_continued(writer: CorpusWriter, other: CorpusLayout) -> None:
    write_one(writer, 0)
    with pytest.raises(CorpusError, match="another corpus under the same release id"):
        CorpusWriter(writer.target, other, RELEASE_ID).prepare()


def test_parts_of_another_release_are_never_continued(writer: CorpusWriter) -> None:
    write_parts(writer)
    other = CorpusWriter(writer.target, LAYOUT, "another")
    other.prepare()
    assert other.missing_parts() == (0, 1, 2)
    assert isinstance(writer.target, Path)
    write_corpus(writer.target, release_id="another")
    assert other.finished
    assert not writer.finished


def test_voltages_of_the_wrong_shape_or_without_a_value_are_refused(writer: CorpusWriter) -> None:
    v = voltages(LAYOUT, LAYOUT.days_of(2))
    with pytest.raises(CorpusError, match=r"part 0 needs voltages of shape \(4, 24, 7\), not \(3, 24, 7\)"):
        writer.write_part(0, v)
    with pytest.raises(CorpusError, match="there is no part 3"):
        writer.write_part(3, v)
    v[2, 2, 1] = np.nan
    with pytest.raises(CorpusError, match="not a finite number"):
        writer.write_part(2, v)
    assert list((writer.partial / "data").iterdir()) == []


@pytest.mark.parametrize(
    "name", ["/etc/x", "../x", "a/../../x", "data/x", "loads/x", "feeder/x", "nodes.parquet", "", ".", "data"]
)
def test_added_files_stay_in_the_release_and_out_of_its_data(writer: CorpusWriter, name: str) -> None:
    with pytest.raises(CorpusError, match="relative path"):
        writer.add_file(name, b"x")
    writer.add_file("twin/branches.csv", b"1")
    writer.add_file("twin/branches.csv", b"22")
    assert (writer.partial / "twin" / "branches.csv").read_bytes() == b"22"
    assert list(writer.hashes()) == ["twin/branches.csv"]
    writer.discard()
    writer.discard()
    assert not writer.partial.exists()


@pytest.mark.parametrize("release_id", ["", "a/b", "..", "a b", "x" * 65, "-a", "a\n"])
def test_a_release_id_that_cannot_be_in_a_file_name_is_refused(tmp_path: Path, release_id: str) -> None:
    with pytest.raises(CorpusError, match="release id"):
        CorpusWriter(tmp_path / "r", LAYOUT, release_id)


def test_the_node_table_holds_the_declared_columns_only(writer: CorpusWriter) -> None:
    writer.write_nodes(NodeTable.opaque(7))
    assert pq.read_schema(writer.partial / "nodes.parquet").names == ["node", "id"]
    writer.write_nodes(replace(NodeTable.opaque(7), phase=(1,) * 7, bus=("b0",) * 7))
    assert pq.read_schema(writer.partial / "nodes.parquet").names == ["node", "id", "phase", "bus"]
    with pytest.raises(CorpusError, match="has 7 nodes and the node table 6"):
        writer.write_nodes(NodeTable.opaque(6))
    wrong: list[dict[str, Any]] = [
        {"ids": ()},
        {"ids": ("a", "a")},
        {"ids": ("a", "")},
        {"ids": ("a", "b"), "phase": (1,)},
    ]
    for columns in (*wrong, {"ids": ("a",), "bus": ("b0",)}):
        with pytest.raises(CorpusError, match=r"nodes of a corpus|node table"):
            NodeTable(**columns)


# --- full disks, read-only and forbidden directories: one sentence, whole or nothing ---
@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "the disk is full or a quota is reached"),
        (errno.EDQUOT, "the disk is full or a quota is reached"),
        (errno.EFBIG, "the disk is full or a quota is reached"),
        (errno.EROFS, "read-only file system; choose a directory that can be written"),
        (errno.EACCES, "no permission to write"),
        (errno.EIO, "cannot be written: "),
    ],
)
def test_a_write_that_fails_is_one_sentence_and_the_run_goes_on_later(
    writer: CorpusWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, says: str
) -> None:
    write_one(writer, 0)

    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(CorpusError, match=says) as caught:
        write_parts(writer)
    monkeypatch.undo()
    assert "\n" not in str(caught.value)
    assert [path.name for path in (writer.partial / "data").iterdir()] == [part_name(0)]
    assert isinstance(writer.target, Path)
    assert file_hashes(write_corpus(writer.target)) == file_hashes(write_corpus(tmp_path / "other"))


def test_a_corpus_that_cannot_fit_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    huge = CorpusLayout(days=10**9, steps=96, nodes=10**4, days_per_part=10**9)
    with pytest.raises(
        CorpusError, match=r"takes at least [\d.,]+ MB and the disk of .* has [\d.,]+ MB left"
    ):
        CorpusWriter(tmp_path / "release", huge, RELEASE_ID).prepare()


def test_a_target_that_cannot_be_ends_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CorpusError, match="cannot be written: "):
        write_corpus(tmp_path / "file" / "release")
    with pytest.raises(CorpusError, match="cannot be written: File name too long"):
        write_corpus(tmp_path / ("x" * 250))
