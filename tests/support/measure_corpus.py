"""Speed of writing and reading a corpus: `python tests/support/measure_corpus.py [DIRECTORY] [DAYS]`.

Voltages are those of the built-in IEEE 123 feeder under random smooth loads; solving them is not timed.
"""

from __future__ import annotations

import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from dp_powerflow.corpus.grid import round_to_grid
from dp_powerflow.corpus.parts import encode_part
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.corpus.schema import CorpusLayout
from dp_powerflow.corpus.tables import NodeTable
from dp_powerflow.corpus.validate import validate_corpus
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.units import ComplexArray

STEPS = 96
DAYS_PER_PART = 50


def solved_days(days: int) -> ComplexArray:
    """Voltages (day, step, node) of log-normal loads that are correlated over the day."""
    feeder = open_feeder("ieee123")
    load = -feeder.nominal_injection[feeder.retained]
    rng = np.random.default_rng(0)
    hours = np.arange(STEPS) / STEPS
    covariance = np.exp(-12 * np.abs(np.subtract.outer(hours, hours))) + 1e-9 * np.eye(STEPS)
    root = 0.3 * np.linalg.cholesky(covariance)
    shape = 0.6 + 0.3 * np.sin(2 * np.pi * (hours - 0.3))
    spread = np.einsum("ts,dsn->dtn", root, rng.standard_normal((days, STEPS, len(load))))
    snapshots = (shape[:, None] * np.exp(spread) * load).reshape(-1, len(load))
    solution = BatchSolver(feeder).solve(snapshots)
    solution.raise_if_failed()
    return solution.v.reshape(days, STEPS, len(load))


def report(what: str, start: float, phasors: int, n_bytes: int) -> None:
    seconds = time.perf_counter() - start
    sys.stdout.write(
        f"{what:28s} {seconds:7.2f} s  {phasors / seconds / 1e6:7.2f} M phasors/s  "
        f"{n_bytes / seconds / 1e6:7.1f} MB/s on disk\n"
    )


def main() -> None:
    directory = Path(tempfile.mkdtemp(dir=sys.argv[1] if len(sys.argv) > 1 else None))
    days = int(sys.argv[2]) if len(sys.argv) > 2 else 3650
    v = solved_days(DAYS_PER_PART)
    layout = CorpusLayout(days, STEPS, v.shape[2], DAYS_PER_PART)
    start = time.perf_counter()
    round_to_grid(v)
    report("round one part", start, v.size, 0)
    start = time.perf_counter()
    size = len(encode_part(CorpusLayout(DAYS_PER_PART, v.shape[1], v.shape[2], DAYS_PER_PART), "r", 0, v))
    report("round and encode one part", start, v.size, size)
    sys.stdout.write(f"{size / v.size:.2f} bytes per phasor\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    writer = CorpusWriter(directory / "release", layout, "r")
    writer.prepare()
    for part in writer.missing_parts():
        writer.write_part(part, v[: len(layout.days_of(part))])
    writer.write_nodes(NodeTable.opaque(layout.nodes))
    release = writer.finish()
    assert isinstance(release, Path)
    n_bytes = sum(path.stat().st_size for path in release.rglob("*.parquet"))
    report(f"write {days} days", start, layout.n_phasors, n_bytes)
    start = time.perf_counter()
    for _ in open_corpus(release).batches():
        pass
    report("read in batches", start, layout.n_phasors, n_bytes)
    start = time.perf_counter()
    open_corpus(release).hashes()
    report("hash", start, layout.n_phasors, n_bytes)
    start = time.perf_counter()
    if not validate_corpus(release).ok:
        raise SystemExit("the corpus is not sound")
    report("validate", start, layout.n_phasors, n_bytes)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3
    sys.stdout.write(f"{layout.n_phasors:,} phasors, {n_bytes / 1e6:.1f} MB; memory grew by {grown:.0f} MB\n")
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
