"""Throughput of training windows on a decade of IEEE 123: shuffled beside sequential.

    python benchmarks/windows.py [--days 3650] [--corpus DIRECTORY] [--length 24] [--batch 64] [--workers 0]
                                 [--repeat 3]

The decade is that of `benchmarks/decade.py`: 2,000 persistent customers, acting controls, every energised
node. It is written to `--corpus` and kept there, or to a temporary directory. Every figure is the best of
`--repeat` fresh processes, each of which runs two passes of a `DataLoader` over all windows: the first has
everything to decode, the second finds what the cache holds. Time is processor time, with workers wall time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from decade import STEPS, TOLERANCE, history

import dp_powerflow as dpf
from dp_powerflow import OperatedSolver, open_feeder
from dp_powerflow.corpus.schema import CorpusLayout
from dp_powerflow.corpus.tables import NodeTable
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.lowlevel import solve_days

CUSTOMERS = 2000
CACHES = {"default": None, "256 MB, the default of 0.4": 256.0}


def build(target: Path, days: int) -> None:
    """Write the decade."""
    feeder = open_feeder("ieee123")
    solver = OperatedSolver(feeder, controls="day", steps=STEPS, tolerance=TOLERANCE)
    source = history(feeder, CUSTOMERS, days)
    layout = CorpusLayout(days, STEPS, len(feeder.energised), source.days_per_block)
    writer = CorpusWriter(target, layout, "decade")
    writer.prepare()
    for part in writer.missing_parts():
        solved = solve_days(solver, source, part, nodes="all")
        v = np.asarray(solved.solution.v).reshape(-1, STEPS, layout.nodes)
        writer.write_part(part, v)
    writer.write_nodes(NodeTable.opaque(layout.nodes))
    writer.finish()


def passes(options: argparse.Namespace) -> list[float]:
    """Windows per second of two passes over all windows, in this process."""
    from torch.utils.data import DataLoader

    corpus = dpf.open_corpus(options.corpus)
    cache: dict[str, Any] = {} if options.cache_mb is None else {"cache_mb": options.cache_mb}
    windows = corpus.windows(options.length, options.length, **cache)
    order: dict[str, Any] = {"shuffle": options.order == "shuffled"}
    if options.order == "blocks":
        order = {"sampler": windows.sampler(workers=options.workers, batch_size=options.batch)}
    loader = DataLoader(windows, batch_size=options.batch, num_workers=options.workers, **order)
    rates, clock = [], time.perf_counter if options.workers else time.process_time
    for _ in range(2):
        began = clock()
        seen = sum(len(batch.day) for batch in loader)
        rates.append(seen / (clock() - began))
        assert seen == len(windows)
    return rates


def measured(options: argparse.Namespace, order: str, cache_mb: float | None) -> list[float]:
    """The best of the same in fresh processes."""
    command = [sys.executable, __file__, "--corpus", str(options.corpus), "--order", order]
    command += ["--length", str(options.length), "--batch", str(options.batch)]
    command += ["--workers", str(options.workers)]
    command += [] if cache_mb is None else ["--cache-mb", str(cache_mb)]
    found = []
    for _ in range(options.repeat):
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found.append(json.loads(done.stdout))
    return [max(rates) for rates in zip(*found, strict=True)]


def report(options: argparse.Namespace) -> None:
    layout = dpf.open_corpus(options.corpus).layout
    size = layout.n_phasors * 8 / 1e6
    print(f"{layout.days} days, {layout.nodes} nodes, {size:,.0f} MB as float32; {options.workers} workers")
    for name, cache_mb in CACHES.items():
        print(f"cache: {name}")
        sequential = measured(options, "sequential", cache_mb)
        for order in ("shuffled", "blocks"):
            rates = measured(options, order, cache_mb)
            for k, which in enumerate(("first", "second")):
                print(
                    f"  {which:6s} pass, {order:8s}: {rates[k]:8,.0f} windows/s, sequential "
                    f"{sequential[k]:8,.0f}: {rates[k] / sequential[k]:.2f} of it"
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=3650)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--length", type=int, default=24)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--order", choices=("sequential", "shuffled", "blocks"), help=argparse.SUPPRESS)
    parser.add_argument("--cache-mb", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.order is not None:
        print(json.dumps(passes(options)))
        return
    with tempfile.TemporaryDirectory() as folder:
        options.corpus = options.corpus or Path(folder) / "decade"
        if not options.corpus.exists():
            build(options.corpus, options.days)
        report(options)


if __name__ == "__main__":
    main()
