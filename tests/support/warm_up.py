"""Run every kind of small release, fit and power flow once, so that its kernels are compiled and kept.

`python -m support.warm_up [processor …]` runs a process for each kind of `support.processors`, at once.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import dp_powerflow as dpf
from support.processors import PROCESSORS, environment_of
from support.small import TABLES, TWIN, small_config

RELEASES: tuple[dict[str, dict[str, Any]], ...] = (
    {"loads": {"days": 16}, "network": TWIN, "model": {"estimator": "history"}},
    {"network": {**TABLES, "noise": "gaussian"}, "model": {"estimator": "structured"}},
    {"model": {"estimator": "plain"}},
)
"""The default, independent days on a published twin, and the paper's release, which has evidence."""


def released(folder: Path, sections: dict[str, dict[str, Any]]) -> None:
    """Plan, release, verify and read it."""
    config = small_config(folder, release={"days": 3}, **sections)
    dpf.plan(config)
    dpf.release(config, workers=1)
    path = folder / "out"
    dpf.verify(path, private=folder / "state")
    corpus = dpf.open_corpus(path)
    corpus.voltages(days=range(2))
    dpf.quality(corpus)
    if (path / "twin").is_dir():
        dpf.export_gridfm(path, folder / "graphs", variety=dpf.GridfmVariety(scenarios=4, seed=1))
    elif "network" not in sections:
        dpf.certify(config)


def by_hand() -> None:
    """Power flow and load models as called from Python."""
    feeder = dpf.open_feeder("ieee123")
    history = dpf.simulate_meters(2000, days=5, step_minutes=60)
    model = dpf.fit(history, dpf.Budget(2.0, 1e-6), key=dpf.StreamKey.from_insecure_seed(1))
    key = dpf.StreamKey.from_insecure_seed(2)
    for scale in (1.0, 10.0):  # the second has no solution
        loads = scale * dpf.sample(model, feeder, days=1, key=key)
        for all_nodes in (False, True):
            dpf.solve(feeder, loads, 0.1 * loads, all_nodes=all_nodes)
        each = scale * dpf.sample(model, feeder, days=1, key=key, per="load")
        for controls in ("frozen", "snapshot", "day"):
            dpf.solve(feeder, each, controls=controls, steps=24)


def main() -> None:
    """Run everything here, or in a process for each processor that is named."""
    if len(sys.argv) > 1:
        command = [sys.executable, "-W", "ignore", "-m", "support.warm_up"]
        running = [subprocess.Popen(command, env=environment_of(PROCESSORS[name])) for name in sys.argv[1:]]
        sys.exit(max(process.wait() for process in running))
    for sections in RELEASES:
        with tempfile.TemporaryDirectory() as folder:
            released(Path(folder), sections)
    by_hand()


if __name__ == "__main__":
    main()
