"""From meter files to a fitted load model: time, memory, and readings per second beside the bare parser.

    python benchmarks/ingest.py                                # 5,000 customers × 365 days × 96: 175 million
    python benchmarks/ingest.py --customers 1000 --days 90
    python benchmarks/ingest.py --quick                        # 200 customers × 28 days

Meters are made up and written once, to a temporary folder: Parquet, one row per customer and interval (long)
or one column per customer (wide), and CSV, long, of a tenth of the customers. Making them is not timed. Days
are those of 2023 in Zurich, so the clock changes twice. Stamps have an offset from UTC.

Every case runs in a process of its own: read and check the file, then fit with ε = 1. The parser beside it is
pyarrow alone, in a process of its own too: the same columns in the same types, and nothing done with them.
Times count from when the modules are imported and the kernels compiled, so a case runs a small fit first.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pq

from dp_powerflow import Budget, FitOptions, LoadHistory, LongColumns, MeterFormat, StreamKey, WideColumns
from dp_powerflow.loads.declared import ServiceMap
from dp_powerflow.loads.ingest import read_long, read_wide
from dp_powerflow.loads.simulate import DEMO_CLASSES
from dp_powerflow.loads.timegrid import build_time_grid
from dp_powerflow.lowlevel import Estimator, Structured, simulate_load_history
from dp_powerflow.model.fit import fit
from dp_powerflow.model.history.estimate import History
from dp_powerflow.units import FloatArray

ZONE, FIRST, STEPS = "Europe/Zurich", dt.date(2023, 1, 1), 96
FORMAT = MeterFormat("kWh per interval", "start", ZONE, 15)
BASES = 64  # simulated homes of which the others are made
CSV_SHARE = 10
ESTIMATORS: dict[str, Estimator] = {"history": History(), "structured": Structured()}
CASES = ("long.parquet", "wide.parquet", "long.csv")


@dataclass(frozen=True)
class Size:
    """Of the meter data."""

    customers: int
    days: int

    @property
    def names(self) -> list[str]:
        return [f"meter-{i:07d}" for i in range(self.customers)]

    @property
    def instants(self) -> np.ndarray[Any, Any]:
        """Stamps of all intervals, UTC."""
        last = FIRST + dt.timedelta(days=self.days - 1)
        grid = build_time_grid(ZONE, FIRST, last, 15)
        return (grid.origin_s + 900 * np.arange(grid.slot_of_instant.size)).astype("datetime64[s]")

    @property
    def readings(self) -> int:
        return self.customers * int(self.instants.size)


def energies(size: Size) -> Iterator[FloatArray]:
    """(interval,) [kWh] of one customer after the other: a simulated home, larger, later and noisier."""
    homes = simulate_load_history(min(BASES, size.customers), n_days=size.days + 7, classes=DEMO_CLASSES[:1])
    flat = homes.load_kw.reshape(homes.n_load_points, -1) / 4
    rng, count = np.random.default_rng(0), size.instants.size
    for i in range(size.customers):
        start = STEPS * int(rng.integers(0, 7)) + int(rng.integers(0, 8))
        own = flat[i % len(flat), start : start + count] * np.exp(0.3 * rng.standard_normal())
        yield np.round(own * np.exp(0.1 * rng.standard_normal(own.size, dtype=np.float32)), 3)


def write(size: Size, folder: Path) -> None:
    """All files of the benchmark."""
    stamps = pa.array(size.instants).cast(pa.timestamp("us", "UTC"))
    columns = pa.schema(
        [("customer", pa.string()), ("time", pa.timestamp("us", "UTC")), ("kwh", pa.float64())]
    )
    in_csv, wide = max(1, size.customers // CSV_SHARE), []
    with (
        pq.ParquetWriter(folder / "long.parquet", columns, compression="zstd") as long,
        pa_csv.CSVWriter(folder / "long.csv", columns) as csv,
    ):
        group: list[pa.RecordBatch] = []
        for i, (name, own) in enumerate(zip(size.names, energies(size), strict=True)):
            cells = [pa.repeat(pa.scalar(name), own.size), stamps, pa.array(own)]
            group.append(pa.record_batch(cells, schema=columns))
            wide.append(own.astype(np.float32))
            if i < in_csv:
                csv.write_batch(group[-1])
            if len(group) * own.size >= 1 << 20 or i + 1 == size.customers:
                long.write_table(pa.Table.from_batches(group), row_group_size=1 << 20)
                group = []
    # thousandths of a kWh: exact in the wide file too
    rows = {"time": stamps} | {
        name: pa.array(np.round(own.astype(np.float64), 3))
        for name, own in zip(size.names, wide, strict=True)
    }
    pq.write_table(pa.table(rows), folder / "wide.parquet", compression="zstd", row_group_size=4096)


def read(path: Path, size: Size) -> LoadHistory:
    """The checked history of a file; the records and days are declared, as of a release."""
    chosen = Size(max(1, size.customers // CSV_SHARE), size.days) if path.suffix == ".csv" else size
    services = ServiceMap({name: name for name in chosen.names})
    days = (FIRST, FIRST + dt.timedelta(days=size.days - 1))
    if path.stem == "wide":
        return read_wide(path, FORMAT, WideColumns(), services=services, days=days).history
    return read_long(path, FORMAT, LongColumns(), services=services, days=days).history


def parse(path: Path) -> int:
    """Rows of a file that pyarrow alone has read, as it reads best."""
    if path.suffix == ".csv":
        kept = pa_csv.ConvertOptions(column_types={"kwh": pa.float64()})
        return sum(batch.num_rows for batch in pa_csv.open_csv(path, convert_options=kept))
    scanner = pa_dataset.dataset(path, format="parquet").scanner()
    return sum(batch.num_rows for batch in scanner.to_batches())


def fitted(history: LoadHistory, estimator: str) -> None:
    options = FitOptions((0.005, 50.0), ESTIMATORS[estimator])
    fit(history, budget=Budget(1.0, 1e-6), options=options, key=StreamKey.from_insecure_seed(1))


def peak_mib() -> float:
    """Most memory that this process has held [MiB]."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def timed(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """What some work gives, its wall and processor time [s], and the peak of memory so far [MiB]."""
    wall, processor = time.perf_counter(), time.process_time()
    result = work()
    return result, {
        "wall_s": time.perf_counter() - wall,
        "processor_s": time.process_time() - processor,
        "peak_mib": peak_mib(),
    }


def warm_up(estimator: str, folder: Path) -> None:
    """Load every kernel that the case needs."""
    small = Size(20, 21)
    (folder / "small").mkdir(exist_ok=True)
    write(small, folder / "small")
    for case in CASES:
        history = read(folder / "small" / case, small)
    fitted(simulate_load_history(20, n_days=21), estimator)
    assert history.n_days == small.days


def run(case: str, estimator: str, size: Size, folder: Path) -> dict[str, Any]:
    """In a process of its own: the stages of one case."""
    path = folder / case
    if estimator == "parser":
        return {"parse": timed(lambda: parse(path))[1]}
    with tempfile.TemporaryDirectory() as other:
        warm_up(estimator, Path(other))
    history, reading = timed(lambda: read(path, size))
    _, fitting = timed(lambda: fitted(history, estimator))
    return {"read": reading, "fit": fitting}


def start(case: str, estimator: str, size: Size, folder: Path) -> dict[str, dict[str, float]]:
    """Run one case in a process of its own."""
    arguments = [f"--customers={size.customers}", f"--days={size.days}", f"--folder={folder}"]
    command = [sys.executable, __file__, f"--case={case}", f"--estimator={estimator}", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def report(size: Size, folder: Path, estimators: list[str]) -> None:
    """Write the files, run every case, print a table."""
    write(size, folder)
    print(f"{size.customers} customers, {size.days} days, {size.readings:,} readings\n", flush=True)
    print("| file | MB | stage | wall [s] | processor [s] | readings/s | of the parser | peak [MiB] |")
    print("|---|--:|---|--:|--:|--:|--:|--:|", flush=True)
    for case in CASES:
        path = folder / case
        readings = size.readings // (CSV_SHARE if case.endswith("csv") else 1)
        parser = start(case, "parser", size, folder)["parse"]
        show(path, "pyarrow alone", parser, readings, parser)
        for estimator in estimators:
            found = start(case, estimator, size, folder)
            show(path, "read and check", found["read"], readings, parser)
            show(path, f"fit, {estimator}", found["fit"], readings, None)


def show(
    path: Path, stage: str, found: dict[str, float], readings: int, parser: dict[str, float] | None
) -> None:
    """One row of the table."""
    share = "" if parser is None else f"{parser['processor_s'] / found['processor_s']:.2f}"
    times = f"{found['wall_s']:.2f} | {found['processor_s']:.2f} | {readings / found['wall_s']:,.0f}"
    size = path.stat().st_size / 1e6
    print(f"| {path.name} | {size:.0f} | {stage} | {times} | {share} | {found['peak_mib']:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--customers", type=int, default=5000)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--quick", action="store_true", help="200 customers, 28 days")
    parser.add_argument("--folder", type=Path, help="where to keep the files; removed afterwards without it")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--estimator", choices=[*ESTIMATORS, "parser"], action="append")
    chosen = parser.parse_args()
    size = Size(200, 28) if chosen.quick else Size(chosen.customers, chosen.days)
    if chosen.case is not None:
        print(json.dumps(run(chosen.case, chosen.estimator[0], size, chosen.folder)))
        return
    estimators = chosen.estimator or list(ESTIMATORS)
    if chosen.folder is not None:
        chosen.folder.mkdir(parents=True, exist_ok=True)
        report(size, chosen.folder, estimators)
        return
    with tempfile.TemporaryDirectory() as folder:
        report(size, Path(folder), estimators)


if __name__ == "__main__":
    main()
