"""This package: snapshots drawn, solved and written to disk block after block, to measure peak memory."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp
from cases import open_case
from outcome import Outcome

from dp_powerflow import BatchSolver
from dp_powerflow.units import ComplexArray

BLOCK = 4096


def run(case: str, snapshots: int, variant: str) -> Outcome:
    del variant
    feeder = open_case(case)
    solver = BatchSolver(feeder)
    shares = sp.csr_array(feeder.load_shares)[feeder.retained]
    rng = np.random.default_rng(7)

    def blocks() -> Iterator[ComplexArray]:
        for first in range(0, snapshots, BLOCK):
            count = min(BLOCK, snapshots - first)
            factors = rng.uniform(0.2, 1.2, (count, len(feeder.loads)))
            yield np.ascontiguousarray((shares @ (factors * feeder.nominal_load).T).T)

    begin = time.perf_counter()
    failed = 0
    with tempfile.TemporaryFile() as file:
        for solution in map(solver.solve, blocks()):
            failed += solution.n_failed
            file.write(solution.v.astype(np.complex64).tobytes())
        written = file.tell()
    seconds = time.perf_counter() - begin
    none = np.empty((0, len(feeder.retained)), dtype=np.complex128)
    return Outcome(seconds, [], none, f"{failed} failed, {written / 2**20:.0f} MiB written, drawing included")
