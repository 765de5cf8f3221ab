"""Reliability of public feeders under their nominal loads: closed form beside simulation, and CPU time.

python benchmarks/reliability.py
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from dp_powerflow import BatchSolver, Feeder, open_feeder
from dp_powerflow.lowlevel import Study
from dp_powerflow.model.sample import LoadBlock
from dp_powerflow.studies.reliability import Reliability
from dp_powerflow.units import FloatArray, IntArray

YEARS = 100_000
SETTINGS = {
    "default": Reliability(years=YEARS),
    "no fuses, switches or ties": Reliability(
        years=YEARS, lateral_fuses="none", transformer_fuses=False, sectionalise=False, ties=False
    ),
    "fixed repair": Reliability(years=YEARS, repair_law="fixed"),
}


@dataclass(frozen=True)
class Nominal:
    """One day of one step at nominal load: its own law and its own source."""

    positions: IntArray
    load_kw: FloatArray
    base_mva: float
    steps: int = 1
    shares: None = None
    n_days: int = 1
    n_blocks: int = 1

    @property
    def law(self) -> Nominal:
        return self

    def block(self, index: int) -> LoadBlock:
        return LoadBlock(index, self.load_kw.copy(), np.zeros_like(self.load_kw))


def study_of(feeder: Feeder) -> Study:
    """A feeder at nominal load."""
    positions, kw = feeder.loaded_nodes()
    released = feeder.retained[positions]
    return Study(
        feeder=feeder,
        source=Nominal(positions, kw[:, None, None], feeder.base_mva),
        make_solver=lambda threads: BatchSolver(feeder),
        released=released,
        node_ids=tuple(f"n{k:03d}" for k in range(len(released))),
    )


def main() -> None:
    """Print a table."""
    print("| feeder | settings | index | closed form | simulated | standard errors apart | CPU s |")
    print("|---|---|---|---|---|---|---|")
    for name in ("ieee13", "ieee123"):
        study = study_of(open_feeder(name))
        Reliability(years=100).find(study)  # imports are not what is measured
        for words, kind in SETTINGS.items():
            begin = time.process_time()
            found = kind.find(study, workers=1).figures
            took = time.process_time() - begin
            for index in ("saifi", "saidi_hours", "ens_kwh"):
                drawn = found["simulated"][index]
                apart = (drawn["mean"] - found[index]) / drawn["standard_error"]
                print(
                    f"| {name} | {words} | {index} | {found[index]:.5g} | {drawn['mean']:.5g} "
                    f"± {drawn['standard_error']:.2g} | {apart:+.1f} | {took:.1f} |"
                )


if __name__ == "__main__":
    main()
