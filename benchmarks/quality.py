"""The quality page of a decade of IEEE 123: seconds and memory, beside their limits.

    python benchmarks/quality.py [--days 3650] [--steps 96] [--workers 2] [--keep DIRECTORY]

The corpus has the shape of a release of IEEE 123 with everything published: voltages and loads of 278 nodes,
head, taps, capacitors and connections. Its numbers are drawn, not solved, in a process of its own, so that
the memory told is that of the page alone.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.corpus.schema import CorpusLayout, ExtrasLayout
from dp_powerflow.corpus.tables import Connections, NodeTable, opaque_buses
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.quality import measure

NODES, DAYS_PER_PART = 278, 48
EXTRAS = ExtrasLayout(loads=True, source_phases=3, regulators=7, capacitors=4, scaled_down=True)
LIMIT_SECONDS, LIMIT_MIB = 30.0, 1024.0
PHASES = np.arange(NODES) % 3
BUSES = -(-NODES // 3)


def connections() -> Connections:
    """A line of buses with three phases each."""
    buses = np.arange(BUSES)
    return Connections(
        bus_ids=opaque_buses(BUSES),
        bus_of=np.arange(NODES) // 3,
        phase=PHASES + 1,
        pairs=np.stack([buses[:-1], buses[1:]], axis=1),
        kinds=("line",) * (BUSES - 1),
        source=buses == 0,
    )


def write_part(writer: CorpusWriter, part: int) -> int:
    """Voltages that sag with the load and along the feeder; one random source per part."""
    rng, days, steps = np.random.default_rng([1, part]), len(writer.layout.days_of(part)), writer.layout.steps
    clock = np.arange(steps) / steps
    shape = 1.0 + 0.5 * np.sin(2 * np.pi * (clock - 0.3)) + 0.2 * np.sin(4 * np.pi * clock)
    level = shape[None, :, None] * rng.gamma(20.0, 0.05, (days, steps, 1))
    kw = 12.0 * level * rng.gamma(4.0, 0.25, (days, steps, NODES))
    magnitude = 1.03 - 0.0003 * np.arange(NODES) * level + rng.normal(0.0, 0.001, kw.shape)
    angle = -120.0 * PHASES - 0.01 * np.arange(NODES) * level + rng.normal(0.0, 0.02, kw.shape)
    head = kw.sum(axis=2)[:, :, None] / 3 * np.ones(3)
    extras = {
        "loads": kw + 0.4j * kw,
        "head": head + 0.4j * head,
        "taps": np.rint(4 * level * np.ones(7)).astype(np.int64),
        "capacitors": (level * np.ones(4) > 1.0).astype(np.int64),
        "locked": np.zeros((days, steps), dtype=np.bool_),
        "scaled_down": np.zeros((days, steps), dtype=np.int64),
    }
    writer.write_part(part, magnitude * np.exp(1j * np.deg2rad(angle)), extras)
    return part


def write_corpus(target: Path, days: int, steps: int, workers: int) -> None:
    """The whole corpus, on processes that end before the page is made."""
    writer = CorpusWriter(target, CorpusLayout(days, steps, NODES, DAYS_PER_PART), "decade", EXTRAS)
    writer.prepare()
    parts = writer.missing_parts()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for done in pool.map(write_part, [writer] * len(parts), parts):
            print(f"\r  part {done + 1} of {len(parts)}", end="", file=sys.stderr)
    joined = connections()
    writer.write_nodes(joined.of_nodes(NodeTable.opaque(NODES)))
    writer.write_connections(joined)
    writer.add_file("manifest.json", b"{}\n")
    writer.finish()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=3650)
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="directory that holds the corpus, or will")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        target = options.keep or Path(folder) / "decade"
        if not target.exists():
            write_corpus(target, options.days, options.steps, options.workers)
        corpus = open_corpus(target)
        busy, began = time.process_time(), time.perf_counter()
        page = measure(corpus, workers=options.workers).to_html()
        wall, busy = time.perf_counter() - began, time.process_time() - busy
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\n{corpus.layout.n_phasors:,} phasors of {corpus.layout.days} days, {options.workers} threads")
    print(f"  wall time {wall:.1f} s: {wall / LIMIT_SECONDS:.2f} of the limit of {LIMIT_SECONDS:.0f} s")
    print(f"  processor time {busy:.1f} s")
    print(f"  peak memory {mib:.0f} MiB: {mib / LIMIT_MIB:.2f} of the limit of {LIMIT_MIB:.0f} MiB")
    print(f"  page {len(page) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
