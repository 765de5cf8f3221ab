"""96,000 snapshots of IEEE 123: solve them, find log|det M̃| of each and a proved bound on σ_min.

python benchmarks/jacobian.py
"""

from __future__ import annotations

import time

import numpy as np

from dp_powerflow import BatchSolver, open_feeder
from dp_powerflow.powerflow.jacobian.batch import JacobianBatch

SNAPSHOTS = 96_000


def main() -> None:
    feeder = open_feeder("ieee123")
    nominal = -feeder.nominal_injection[feeder.retained]
    factor = np.random.default_rng(0).uniform(0.3, 1.2, (SNAPSHOTS, len(nominal)))
    load = factor * nominal
    solver, jacobian = BatchSolver(feeder), JacobianBatch(feeder)
    v = solver.solve(load[:100]).v
    jacobian.log_abs_det(v, -load[:100])
    jacobian.sigma_min_lower_bound(v, -load[:100], gap=1e-2)  # compiled by now

    began = time.perf_counter()
    v = solver.solve(load).v
    solved = time.perf_counter()
    jacobian.log_abs_det(v, -load)
    measured = time.perf_counter()
    bound = jacobian.sigma_min_lower_bound(v, -load, gap=1e-2)
    proved = time.perf_counter()
    print(f"solve            {solved - began:6.2f} s  {SNAPSHOTS / (solved - began):10,.0f} /s")
    print(f"log|det|         {measured - solved:6.2f} s  {SNAPSHOTS / (measured - solved):10,.0f} /s")
    print(f"σ_min, proved    {proved - measured:6.2f} s  {SNAPSHOTS / (proved - measured):10,.0f} /s")
    print(f"smallest σ_min, proved {bound.min():.6f}")


if __name__ == "__main__":
    main()
