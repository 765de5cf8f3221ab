"""gridfm-graphkit trains on an exported twin from its own command line, split by day.

Needs gridfm-graphkit, which builds torch-scatter from source: set GRIDFM_GRAPHKIT to its command.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dp_powerflow as dpf
from dp_powerflow.config import parse_config
from dp_powerflow.corpus.gridfm.reader import GridfmData, read_gridfm
from dp_powerflow.units import FloatArray

EPOCHS, SCENARIOS = 12, 480
AS_PHASORS_MSE = 1.35
"""Validation MSE after 12 epochs on tables of phasors: that of one mean for all buses."""
RAW: dict[str, Any] = {
    "feeder": {"source": "ieee123"},
    "loads": {"kind": "simulated", "load_points": 1000, "days": 120, "step_minutes": 60},
    "model": {
        **{"epsilon": 1.0, "delta": 1e-5, "estimator": "structured"},
        **{"bounds": [0.005, 1.0], "variance_floor": 1e-2, "power_factor": 0.97},
    },
    "nodes": {"load_class": "residential", "kw_per_customer": 1.5},
    "network": {
        **{"mode": "twin-network", "epsilon": 1.0, "change": 0.05, "id": "twin-1", "released": "all"},
        **{"controls": "frozen", "publish": "network and loads"},
    },
    "release": {"id": "ieee123-twin", "days": 50, "output": "release", "state": "state", "insecure_seed": 11},
}


@pytest.fixture(scope="module")
def graphkit() -> str:
    command = os.environ.get("GRIDFM_GRAPHKIT") or shutil.which("gridfm_graphkit")
    if command is None:
        pytest.skip("gridfm-graphkit is not here: set GRIDFM_GRAPHKIT to its command")
    return command


@pytest.mark.campaign
def test_a_released_twin_trains_graphkit_a_hundred_times_better_than_phasors(
    graphkit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release = dpf.release(parse_config(RAW, base=tmp_path), workers=1).path
    made = dpf.export_gridfm(release, tmp_path / "graphs")
    config = json.loads(made.config.read_text(encoding="utf-8"))
    config["data"]["scenarios"] = [SCENARIOS]
    assert config["training"]["epochs"] == EPOCHS
    (tmp_path / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
    trained = subprocess.run(
        [
            *(graphkit, "train", "--config", str(tmp_path / "config.yaml"), "--data_path", str(made.path)),
            *("--log_dir", str(tmp_path / "runs"), "--exp_name", "twin", "--run_name", "twin"),
        ],
        env={**os.environ, "MLFLOW_ALLOW_FILE_STORE": "true", "PYTHONPATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert trained.returncode == 0, trained.stderr[-2000:]
    (losses,) = (tmp_path / "runs").rglob("metrics/Validation loss")
    reached = float(losses.read_text().splitlines()[-1].split()[1])
    (splits,) = (tmp_path / "runs").rglob("*_scenario_splits.json")
    parts = json.loads(splits.read_text(encoding="utf-8"))
    data = read_gridfm(made.path / made.networks[0].name / "raw")
    day = data.column("bus", "load_scenario_idx")[:, 0]
    assert not set(day[parts["train"]]) & set(day[parts["val"]])
    with capsys.disabled():
        one_mean, own_mean = means(data, parts)
        found = f"graphkit {reached:.2e}, one mean {one_mean:.2e}, mean of every bus {own_mean:.2e}"
        sys.stdout.write(f"\n{found}\n")
    assert reached < AS_PHASORS_MSE / 100.0


def means(data: GridfmData, parts: dict[str, list[int]]) -> tuple[float, float]:
    """MSE of two trivial answers on the same buses and targets: one mean for all, and every bus's own."""
    targets: FloatArray = np.stack([data.column("bus", "Vm"), np.deg2rad(data.column("bus", "Va"))], axis=-1)
    targets = targets[:, data.column("bus", "PQ")[0] == 1]
    train, held = targets[parts["train"]], targets[parts["val"]]
    answers = (train.mean(axis=(0, 1)), train.mean(axis=0))
    one, own = (float(np.mean((held - answer) ** 2)) for answer in answers)
    return one, own
