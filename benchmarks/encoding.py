"""How a part becomes a file: choices of encoding beside those in use, stages beside the machine.

    python benchmarks/encoding.py [--release DIRECTORY] [--parts 3] [--repeat 5]

Voltages (and loads, where they are published) are those of a release; without `--release` one of 66 days is
made: IEEE 123 as operated, persistent customers, all nodes. Times are processor time of one thread, the best
of `--repeat`. MB are those of float32 values, 8 bytes per phasor; sizes are bytes of the file per phasor with
day, node and footer. "rounded numbers" are float32 already; the others start from complex float64.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import dp_powerflow as dpf
from dp_powerflow._files import write_whole
from dp_powerflow.corpus import tables as parquet
from dp_powerflow.corpus.grid import (
    NodeColumns,
    Phasors,
    on_grid,
    round_to_grid,
    rounded_powers,
    rounded_voltages,
    va_counts,
    vm_counts,
)
from dp_powerflow.corpus.schema import DATA, LOADS, NOTHING, part_schema

CONFIG = """
[feeder]
source = "ieee123"
[loads]
kind = "simulated"
homes_only = true
load_points = 400
days = 28
[model]
epsilon = 1.0
delta = 1e-5
bounds = [0.005, 1.0]
power_factor = 0.97
estimator = "history"
[nodes]
load_class = "residential"
kw_per_customer = 1.745
[network]
mode = "twin-network"
epsilon = 1.0
change = 0.05
id = "twin-1"
released = "all"
[release]
id = "encoding"
days = 66
output = "out"
state = "state"
insecure_seed = 1
"""
LIST = ".list.element"
FLOPS = {"voltages": 51, "loads": 10}
"""Of a phasor in `grid.rounded_voltages` and a pair of powers in `grid.rounded_powers`, counted by hand."""


@contextmanager
def released(given: Path | None) -> Iterator[dpf.Corpus]:
    """The corpus to measure on."""
    if given is not None:
        yield dpf.open_corpus(given)
        return
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "c.toml"
        config.write_text(CONFIG)
        yield dpf.open_corpus(dpf.release(dpf.read_config(config), workers=1).path)


class Series:
    """Pairs of float32 series of some parts, and how they are written here."""

    def __init__(self, corpus: dpf.Corpus, parts: int, kind: str) -> None:
        layout = corpus.layout
        self.kind, self.layout, self.days = kind, layout, [*map(layout.days_of, range(parts))]
        self.groups = [layout.groups_of(part) for part in range(parts)]
        voltages = kind == "voltages"
        given = [(corpus.voltages if voltages else corpus.loads)(days) for days in self.days]
        extras = NOTHING if voltages else corpus.extras
        self.schema = part_schema(DATA if voltages else LOADS, layout, extras, corpus.release_id, 0)
        if len(self.schema) != 4:
            raise SystemExit("give a release without generation: this script looks at one pair of columns")
        self.given = [NodeColumns.of(values) for values in given]
        self.phasors = sum(values.size for values in given)
        self.rounded = rounded_voltages if voltages else rounded_powers

    def rows(self, part: int, groups: list[range]) -> Iterator[list[NDArray[Any]]]:
        """Columns of the row groups of a part."""
        first, nodes = self.days[part].start, self.layout.nodes
        for days in groups:
            day, node = np.repeat(np.array(days), nodes), np.tile(np.arange(nodes), len(days))
            within = range(days.start - first, days.stop - first)
            yield [day, node, *self.rounded(self.given[part], within)]

    def encode(self, groups: list[list[range]] | None = None) -> list[memoryview]:
        """Files as the package writes them."""
        return [
            parquet.encode_groups(self.schema, self.rows(part, of_part))
            for part, of_part in enumerate(groups or self.groups)
        ]

    def tables(self, files: list[memoryview]) -> list[list[pa.Table]]:
        """Row groups as pyarrow reads them."""
        read = [pq.ParquetFile(pa.BufferReader(file)) for file in files]
        return [[one.read_row_group(k, use_threads=False) for k in range(one.num_row_groups)] for one in read]


def by_pyarrow(tables: list[list[pa.Table]], **options: Any) -> list[memoryview]:
    """Files of rounded numbers, with other options."""
    found = []
    for groups in tables:
        sink, schema = pa.BufferOutputStream(), groups[0].schema
        chosen = {**parquet.PARQUET, "write_statistics": ["day", "node"]} | options
        with pq.ParquetWriter(sink, schema, **chosen) as writer:
            for table in groups:
                writer.write_table(table, row_group_size=len(table))
        found.append(memoryview(sink.getvalue()))
    return found


def as_counts(tables: list[list[pa.Table]]) -> list[list[pa.Table]]:
    """The same with integer counts: what a reader would have to scale."""
    turned = []
    for groups in tables:
        turned.append([])
        for table in groups:
            columns = [table.column(0), table.column(1)]
            for name, counts in (("vm_pu", vm_counts), ("va_deg", va_counts)):
                lists = table.column(name).chunk(0)
                flat = pa.array(counts(lists.flatten().to_numpy()).astype(np.int32))
                columns.append(pa.FixedSizeListArray.from_arrays(flat, lists.type.list_size))
            turned[-1].append(pa.table(columns, names=table.column_names))
    return turned


def decode(files: list[memoryview]) -> None:
    """Read all of it, row group by row group."""
    for file in files:
        with pq.ParquetFile(pa.BufferReader(file), page_checksum_verification=True) as opened:
            for group in range(opened.num_row_groups):
                opened.read_row_group(group, use_threads=False)


def best(work: Callable[[], Any], repeat: int) -> float:
    """Processor seconds."""
    found = []
    for _ in range(repeat):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def choices(series: Series, repeat: int) -> None:
    """A line per choice of encoding."""
    n = series.phasors
    tables = series.tables(series.encode())
    names = series.schema.names[2:]
    plain = {"column_encoding": dict.fromkeys(("day", "node"), "DELTA_BINARY_PACKED")}
    print(f"\n{series.kind}: {n / 1e6:.2f} million pairs, {len(series.days)} parts")
    print(f"{'':44s} bytes/phasor   encode    decode MB/s")

    def show(name: str, write: Callable[[], list[memoryview]]) -> None:
        files = write()
        took, read = best(write, repeat), best(lambda: decode(files), repeat)
        size = sum(map(len, files)) / n
        print(f"{name:44s} {size:10.3f} {8e-6 * n / took:11.0f} {8e-6 * n / read:9.0f}", flush=True)

    used = parquet.PARQUET
    for level in (-5, -1, 1, 2, 3, 4, 6):
        parquet.PARQUET = {**used, "compression_level": level}
        show(f"zstd {level}" + " (in use)" * (level == used["compression_level"]), series.encode)
    for size in (1 << 15, 1 << 17, 1 << 18, 1 << 19):
        parquet.PARQUET = {**used, "data_page_size": size}
        show(f"  pages of {size >> 10} KiB", series.encode)
    parquet.PARQUET = used
    whole = [[days] for days in series.days]
    show("  one row group per part", lambda: series.encode(whole))
    days = [[days[k : k + 1] for k in range(len(days))] for days in series.days]
    show("  one row group per day", lambda: series.encode(days))
    split = {
        "column_encoding": {**plain["column_encoding"], **{f"{n}{LIST}": "BYTE_STREAM_SPLIT" for n in names}}
    }
    show("rounded numbers", lambda: by_pyarrow(tables, **split))
    show("rounded numbers, statistics of values", lambda: by_pyarrow(tables, **split, write_statistics=True))
    show("rounded numbers, not split", lambda: by_pyarrow(tables, **plain))
    show("rounded numbers, dictionary", lambda: by_pyarrow(tables, use_dictionary=True))
    for other in ("lz4", "none"):
        packed = {**split, "compression": other, "compression_level": None}
        show(f"rounded numbers, {other}", partial(by_pyarrow, tables, **packed))
    if series.kind == "voltages":
        counts = as_counts(tables)
        packed = {"column_encoding": {f"{name}{LIST}": "DELTA_BINARY_PACKED" for name in ("vm_pu", "va_deg")}}
        show("int32 counts, delta", lambda: by_pyarrow(counts, **packed))


def stages(series: Series, repeat: int) -> None:
    """A line per stage of writing and of checking one part, with what it moves and computes."""
    days, values, n = series.days[0], series.given[0], series.given[0].values.size
    whole = range(len(days))
    codec = pa.Codec("zstd", compression_level=parquet.PARQUET["compression_level"])
    raw = [column.view(np.uint8).reshape(-1, 4).T.tobytes() for column in series.rounded(values, whole)]
    packed = [codec.compress(page, asbytes=True) for page in raw]
    file = series.encode()[0]
    size = len(file) / n
    print(f"\nstages of one part of {series.kind}, {n:,} pairs")
    print(f"{'':34s} ns/phasor  bytes read, written  flops/phasor  MB/s of its input")

    def show(name: str, work: Callable[[], Any], moved: tuple[float, float], flops: int = 0) -> None:
        took = best(work, 3 * repeat) / n * 1e9
        rate = moved[0] / took * 1e3
        print(f"{name:34s} {took:9.2f} {moved[0]:10.2f} {moved[1]:8.2f} {flops:13d} {rate:13.0f}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "part"
        rounding = FLOPS[series.kind]
        show("round and order", lambda: series.rounded(values, whole), (16, 8), rounding)
        show("compress (plain zstd)", lambda: [codec.compress(page) for page in raw], (8, size))
        show("checksum of pages", lambda: [zlib.crc32(page) for page in packed], (size, 0))
        show("hash (SHA-256)", lambda: hashlib.sha256(file).digest(), (size, 0))
        show("write and sync", lambda: write_whole(place, file), (size, size))
        show("all of encoding", lambda: series.encode([series.groups[0]]), (16, size), rounding)
    show("read back with checksums", lambda: decode([file]), (size, 8))
    if series.kind == "voltages":
        stored = round_to_grid(values.values)
        show("on the grid?", lambda: on_grid(stored), (8, 1), 20)
        show("round alone, in order", lambda: round_to_grid(values.values), (16, 8), rounding)
        kept = Phasors(stored.vm_pu.copy(), stored.va_deg.copy())
        show("copy of float32 (memory)", lambda: np.copyto(kept.vm_pu, stored.vm_pu), (4, 4))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--release", type=Path)
    parser.add_argument("--parts", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=5)
    chosen = parser.parse_args()
    with released(chosen.release) as corpus:
        parts = min(chosen.parts, corpus.layout.n_parts)
        print(f"{corpus.layout}, pyarrow {pa.__version__}")
        for kind in ("voltages", *("loads",) * ("loads" in corpus.holds)):
            series = Series(corpus, parts, kind)
            choices(series, chosen.repeat)
            stages(series, chosen.repeat)


if __name__ == "__main__":
    main()
