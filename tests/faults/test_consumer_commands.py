"""Opening and reading a corpus compiles nothing: it is pyarrow and NumPy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow.fleet.run import run_fleet
from dp_powerflow.pipeline.release import run_release
from support.fleet_small import on_twins, write_feeders
from support.here import Here
from support.reading import everything
from support.small import TABLES, TWIN, small_config

KINDS: dict[str, dict[str, dict[str, Any]]] = {
    "true network, plain model": {"model": {"estimator": "plain"}},
    "published twin of Gaussian noise, structured model": {
        "network": {**TABLES, "graph_days": 2, "noise": "gaussian"},
        "model": {"estimator": "structured", "components": 2},
    },
    "twin as operated, histories": {
        "network": TWIN,
        "loads": {"days": 16},
        "model": {"estimator": "history"},
    },
}


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A release of every kind, and a fleet."""
    folders = []
    for sections in KINDS.values():
        folders.append(tmp_path_factory.mktemp("release"))
        run_release(small_config(folders[-1], release={"days": 3}, **sections), workers=1)
    folders.append(tmp_path_factory.mktemp("fleet"))
    write_feeders(folders[-1], repaired=True)
    run_fleet(on_twins(folders[-1], fleet={"days": 1}), engine=Here())
    return folders


@pytest.mark.slow
def test_readers_do_without_compiling(releases: list[Path], tmp_path: Path) -> None:
    """In a process where nothing is compiled and compiling raises."""
    nothing = {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "support.reading", *map(str, releases)],
        env={**os.environ, **nothing},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr == ""
    found = json.loads(done.stdout)
    for folder in releases:
        here = json.loads(json.dumps(everything(folder)))
        assert found[str(folder)] == here
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
