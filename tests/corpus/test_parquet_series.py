"""Files of series that the package lays out itself are Parquet files as any reader expects them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_powerflow.corpus import parquet
from dp_powerflow.corpus.grid import Phasors, round_to_grid
from dp_powerflow.corpus.schema import CorpusLayout, encode_part, part_schema
from support.corpora import voltages

LAYOUTS = [
    CorpusLayout(days=1, steps=1, nodes=1, days_per_part=1),
    CorpusLayout(days=5, steps=1, nodes=3, days_per_part=5),
    CorpusLayout(days=3, steps=2, nodes=129, days_per_part=2),
    CorpusLayout(days=7, steps=9, nodes=33, days_per_part=7),
    CorpusLayout(days=40, steps=24, nodes=300, days_per_part=40),
    CorpusLayout(days=4, steps=96, nodes=1500, days_per_part=3),
]


def expected_rows(layout: CorpusLayout, part: int) -> tuple[pa.Table, Phasors]:
    """The table of a part as pyarrow holds it."""
    days = layout.days_of(part)
    phasors = round_to_grid(voltages(layout, days).transpose(0, 2, 1))
    schema = part_schema(layout, "a3f9", part)
    series = [
        pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), type=schema.field(2).type)
        for values in (phasors.vm_pu, phasors.va_deg)
    ]
    day = np.repeat(np.arange(days.start, days.stop, dtype=np.int32), layout.nodes)
    node = np.tile(np.arange(layout.nodes, dtype=np.int32), len(days))
    return pa.Table.from_arrays([pa.array(day), pa.array(node), *series], schema=schema), phasors


def encoded(layout: CorpusLayout, part: int) -> memoryview:
    return encode_part(layout, "a3f9", part, voltages(layout, layout.days_of(part)))


def described(file: pq.ParquetFile) -> list[dict[str, Any]]:
    """What the footer says of every column, but for sizes and places."""
    found = []
    for group in range(file.num_row_groups):
        for column in range(4):
            about = file.metadata.row_group(group).column(column).to_dict()
            sized = {"total_compressed_size", "total_uncompressed_size", "data_page_offset", "file_offset"}
            found.append({key: value for key, value in about.items() if key not in sized})
    return found


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_file_is_what_pyarrow_writes_of_the_same_rows(layout: CorpusLayout, tmp_path: Path) -> None:
    for part in range(layout.n_parts):
        rows, _ = expected_rows(layout, part)
        content = encoded(layout, part)
        found = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        assert found.read().equals(rows)
        assert found.schema_arrow.equals(rows.schema, check_metadata=True)
        with pq.ParquetWriter(
            tmp_path / "theirs",
            rows.schema,
            compression="zstd",
            use_dictionary=False,
            write_statistics=["day", "node"],
            column_encoding={
                **dict.fromkeys(("day", "node"), "DELTA_BINARY_PACKED"),
                **{f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in ("vm_pu", "va_deg")},
            },
        ) as writer:
            for days in layout.groups_of(part):
                first = (days.start - layout.days_of(part).start) * layout.nodes
                block = rows.slice(first, len(days) * layout.nodes)
                writer.write_table(block, row_group_size=len(block))
        with pq.ParquetFile(tmp_path / "theirs") as theirs:
            assert found.schema.equals(theirs.schema)
            assert described(found) == described(theirs)
            assert found.metadata.metadata == theirs.metadata.metadata


def test_a_row_group_of_many_pages_is_read_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = LAYOUTS[4]
    rows, _ = expected_rows(layout, 0)
    sizes = []
    for values in (1, 24, 1000, 5000, 1 << 18):
        monkeypatch.setattr(parquet, "PAGE_VALUES", values)
        content = encoded(layout, 0)
        found = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        assert found.read().equals(rows), values
        sizes.append(len(content))
    assert sizes == sorted(sizes, reverse=True)


def test_threads_that_encode_at_the_same_time_give_the_bytes_of_one() -> None:
    layout = CorpusLayout(days=24, steps=24, nodes=70, days_per_part=2)
    alone = [bytes(encoded(layout, part)) for part in range(layout.n_parts)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda part: bytes(encoded(layout, part)), range(layout.n_parts)))
    assert together == alone
    assert len(set(alone)) == len(alone)


def test_a_changed_byte_of_a_page_is_found_by_its_checksum() -> None:
    content = bytearray(encoded(LAYOUTS[3], 0))
    footer = int.from_bytes(content[-8:-4], "little")
    content[len(content) - footer - 60] ^= 1
    with pytest.raises(OSError, match=r"CRC|checksum|[Ii]nvalid|corrupt"):
        pq.ParquetFile(pa.BufferReader(bytes(content)), page_checksum_verification=True).read()


def test_polars_and_duckdb_read_the_same_numbers(tmp_path: Path) -> None:
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    for layout in LAYOUTS[3:]:
        path = tmp_path / "part.parquet"
        path.write_bytes(encoded(layout, 0))
        _, phasors = expected_rows(layout, 0)
        frame = polars.read_parquet(path)
        for name, values in (("vm_pu", phasors.vm_pu), ("va_deg", phasors.va_deg)):
            flat = frame[name].explode().to_numpy()
            assert flat.astype(np.float32).tobytes() == values.tobytes()
            found = duckdb.sql(
                f"SELECT unnest({name}) AS x FROM read_parquet('{path}') ORDER BY day, node"
            ).fetchnumpy()["x"]
            assert np.asarray(found, dtype=np.float32).tobytes() == values.tobytes()
        assert frame["day"].to_list() == np.repeat(np.array(layout.days_of(0)), layout.nodes).tolist()
        assert frame["node"].to_list() == list(range(layout.nodes)) * len(layout.days_of(0))
