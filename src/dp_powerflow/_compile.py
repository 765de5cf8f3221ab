"""Compile all kernels ahead: `python -m dp_powerflow._compile` writes what `_bits.compiled` looks for first.

What is compiled is what runs: small releases of every kind, models and power flows, in processes that compile
for one of `TARGETS` each. So there is no list of kernels or signatures to maintain.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dp_powerflow as dpf
from dp_powerflow._bits.compiled import TARGETS, Target, compile_ahead
from dp_powerflow._bits.kept import CACHE_NAME, SWITCH, Archive, Folder, shipped_path
from dp_powerflow.config import parse_config

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


def compile_all(targets: Sequence[Target]) -> list[str]:
    """Run everything in processes that compile for these targets; the keys of what they compiled.

    What is compiled already and still the same is taken from the file that is there.
    """
    with tempfile.TemporaryDirectory() as name:
        cache, folder = Path(name), Path(name) / CACHE_NAME
        Archive.read(shipped_path()).unpack(folder)
        # Processes of one target compile much of it twice: two for a single one, else one for each.
        runs = tuple(RUNS)
        parts = [runs] if len(targets) > 1 else [runs[::2], runs[1::2]]
        jobs = [_Job(target, part, cache) for part in parts for target in targets]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            lists = list(pool.map(_Job.keys, jobs))
        keys = sorted({key for found in lists for key in found})
        Archive.write(shipped_path(), folder, keys)
    return keys


@dataclass(frozen=True)
class _Job:
    target: Target
    runs: tuple[str, ...]
    cache: Path

    def keys(self) -> list[str]:
        """Keys of the compiled code that the runs used."""
        settings = {
            SWITCH: "compile",
            "NUMBA_CPU_NAME": self.target.name,
            "NUMBA_CPU_FEATURES": self.target.features,
            "NUMBA_CACHE_DIR": str(self.cache),
        }
        command = [sys.executable, "-W", "ignore", "-m", "dp_powerflow._compile", "--run", *self.runs]
        environment = {**os.environ, **settings}
        # This Python and this module: nothing of it is input.
        return subprocess.run(  # nosec B603
            command, env=environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout.split()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m dp_powerflow._compile", description="Compile kernels ahead."
    )
    parser.add_argument("--all", action="store_true", help="for every kind of processor, not only this one")
    parser.add_argument(
        "--run", nargs="+", choices=list(RUNS), help="these runs in this process; prints what they used"
    )
    options = parser.parse_args()
    if options.run is not None:
        compile_ahead()
        for run in options.run:
            with tempfile.TemporaryDirectory() as folder:
                RUNS[run](Path(folder))
        sys.stdout.write("\n".join(sorted(Folder.of_user().used)))
        return
    targets = [target for target in TARGETS if target.runs_here]
    keys = compile_all(targets if options.all else targets[:1])
    names = ", ".join(target.name for target in (targets if options.all else targets[:1]))
    sys.stdout.write(
        f"{len(keys)} compiled kernels for {names or 'no target of this processor'}: {shipped_path()}\n"
    )


if __name__ == "__main__":
    main()
