"""Parts of a corpus are Parquet files that any reader opens, with the same bytes from any thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_powerflow.corpus.grid import Phasors, round_to_grid
from dp_powerflow.corpus.parts import encode_part
from dp_powerflow.corpus.schema import CorpusLayout
from support.corpora import voltages

LAYOUTS = [
    CorpusLayout(days=1, steps=1, nodes=1, days_per_part=1),
    CorpusLayout(days=5, steps=1, nodes=3, days_per_part=5),
    CorpusLayout(days=3, steps=2, nodes=129, days_per_part=2),
    CorpusLayout(days=7, steps=9, nodes=33, days_per_part=7),
    CorpusLayout(days=40, steps=24, nodes=300, days_per_part=40),
    CorpusLayout(days=4, steps=96, nodes=1500, days_per_part=3),
]


def encoded(layout: CorpusLayout, part: int) -> memoryview:
    return encode_part(layout, "a3f9", part, voltages(layout, layout.days_of(part)))


def expected_values(layout: CorpusLayout) -> Phasors:
    """Of the first part, as (day, node, step)."""
    return round_to_grid(voltages(layout, layout.days_of(0)).transpose(0, 2, 1))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_row_groups_hold_whole_days_and_statistics_of_day_and_node(layout: CorpusLayout) -> None:
    for part in range(layout.n_parts):
        with pq.ParquetFile(pa.BufferReader(encoded(layout, part)), page_checksum_verification=True) as file:
            groups = [file.metadata.row_group(k) for k in range(file.num_row_groups)]
            assert [group.num_rows for group in groups] == [
                len(days) * layout.nodes for days in layout.groups_of(part)
            ]
            for group, days in zip(groups, layout.groups_of(part), strict=True):
                stated = [group.column(k).statistics for k in range(4)]
                assert [(own.min, own.max) for own in stated[:2]] == [
                    (days.start, days.stop - 1),
                    (0, layout.nodes - 1),
                ]
                assert stated[2:] == [None, None]
                assert {"BYTE_STREAM_SPLIT"} < {*group.column(2).encodings}


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
        phasors = expected_values(layout)
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
