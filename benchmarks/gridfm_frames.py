"""What the frame of the tables for graph models does to their numbers: the table of docs/reference/corpus.md.

python benchmarks/gridfm_frames.py [ieee123]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import dp_powerflow as dpf
from dp_powerflow import GridfmStyle, read_gridfm
from dp_powerflow.corpus.gridfm.network import NodeFacts
from dp_powerflow.corpus.gridfm.tables import GridfmData, GridfmWriter

SCENARIOS = 200
STYLES = {
    "phasors": GridfmStyle(turned=False, merged=False),
    "rotated": GridfmStyle(merged=False),
    "rotated and merged": GridfmStyle(),
}


def main(name: str) -> None:
    feeder = dpf.open_feeder(name)
    nominal = (feeder.load_shares @ feeder.nominal_load)[feeder.retained]
    load = nominal * np.random.default_rng(7).uniform(0.3, 1.0, (SCENARIOS, 1))
    solution = dpf.BatchSolver(feeder, tolerance=1e-12).solve(load, nodes="all")
    v = np.empty((SCENARIOS, len(feeder.nodes)), dtype=np.complex128)
    v[:, feeder.energised], v[:, feeder.slack] = solution.v, feeder.v_slack
    for label, style in STYLES.items():
        with tempfile.TemporaryDirectory() as folder:
            facts = NodeFacts(released=len(feeder.nodes))
            writer = GridfmWriter(Path(folder), feeder, facts=facts, style=style)
            writer.write_block(0, load, None, v)
            writer.write_index(SCENARIOS)
            data = read_gridfm(folder)
        flow = max(
            float(np.hypot(data.column("branch", p), data.column("branch", q)).max())
            for p, q in (("pf", "qf"), ("pt", "qt"))
        )
        apart = float(np.abs(data.phasor()[:, data.bus_of_row] - v).max())
        print(
            f"{label}: {data.n_buses} buses, {len(data.column('branch', 'r')[0])} branches, largest flow "
            f"{flow:.1f} MVA, missing {data.mismatch_mw().max():.0e} MVA, in float32 "
            f"{in_single_precision(data):.2f} MVA, difference to the corpus {apart:.0e} p.u."
        )


def in_single_precision(data: GridfmData) -> float:
    """Largest power [MVA] that the true solution, rounded to 32 bits, misses at a bus."""
    v, y = data.voltage().astype(np.complex64), sp.csr_array(data.admittance().astype(np.complex64))
    p, q = (data.column("bus", f"{name}g") - data.column("bus", f"{name}d") for name in "PQ")
    return float(np.abs(100.0 * v * np.conj((y @ v.T).T) - (p + 1j * q)).max())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "ieee123")
