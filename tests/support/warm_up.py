"""Run every kind of small release, fit and power flow once, so that its kernels are compiled and kept.

`python -m support.warm_up [processor …]` runs a process for each kind of `support.processors`, at once.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dp_powerflow as dpf
from dp_powerflow.config import parse_config
from support.processors import PROCESSORS, environment_of

Raw = dict[str, dict[str, Any]]

BASE: Raw = {
    "feeder": {"source": "ieee13"},
    "loads": {"kind": "simulated", "load_points": 400, "days": 6, "step_minutes": 60},
    "model": {"epsilon": 4.0, "bounds": [0.01, 2.0], "variance_floor": 0.01},
    "nodes": {"load_class": "residential"},
    "release": {"id": "warm-up", "days": 3, "output": "out", "state": "state", "insecure_seed": 1},
}
CUSTOMERS = {"kw_per_customer": 10.0}
TWIN = {
    "mode": "twin-network",
    "epsilon": 4.0,
    "delta": 1e-5,
    "id": "twin",
    "change": 0.05,
    "released": "all",
}
TRUE = {
    "mode": "true-network",
    "bound": "full-support",
    "radius": 1e-13,
    "epsilon": 1e6,
    "delta": 0.999,
    "calibration_days": 20,
    "require_evidence": False,
}


def histories(folder: Path) -> None:
    """The default: a twin, customers who persist, controls that act."""
    _release(folder, loads={"days": 16}, nodes=CUSTOMERS, network=TWIN, model={"estimator": "history"})


def published_twin(folder: Path) -> None:
    """A twin whose network and loads are published, drawn as independent days."""
    network = {
        **TWIN,
        "controls": "frozen",
        "publish": "network and loads",
        "graph_days": 3,
        "noise": "gaussian",
    }
    _release(folder, network=network, nodes=CUSTOMERS, model={"estimator": "structured", "components": 2})
    dpf.export_gridfm(folder / "out", folder / "graphs", variety=dpf.GridfmVariety(scenarios=4, seed=1))


def true_network(folder: Path) -> None:
    """The paper's release, with its evidence."""
    config = _release(folder, network=TRUE, nodes={"scale_factor": 0.02}, model={"estimator": "plain"})
    dpf.certify(config)


def by_hand(folder: Path) -> None:
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


def _release(folder: Path, **sections: dict[str, Any]) -> dpf.Config:
    """Release, verify and look at it, in one process."""
    config = parse_config(
        {name: {**BASE.get(name, {}), **sections.get(name, {})} for name in {**BASE, **sections}}, base=folder
    )
    dpf.plan(config)
    dpf.release(config, workers=1)
    path = folder / "out"
    dpf.verify(path, private=folder / "state")
    corpus = dpf.open_corpus(path)
    corpus.voltages(days=range(2))
    dpf.quality(corpus)
    return config


RUNS: dict[str, Callable[[Path], None]] = {
    run.__name__: run for run in (histories, published_twin, true_network, by_hand)
}


def main() -> None:
    """Run everything here, or in a process for each processor that is named."""
    if len(sys.argv) > 1:
        command = [sys.executable, "-W", "ignore", "-m", "support.warm_up"]
        running = [subprocess.Popen(command, env=environment_of(PROCESSORS[name])) for name in sys.argv[1:]]
        sys.exit(max(process.wait() for process in running))
    for run in RUNS.values():
        with tempfile.TemporaryDirectory() as folder:
            run(Path(folder))


if __name__ == "__main__":
    main()
