"""One small release for all tools: the twin of IEEE 13, hourly, with its tables, loads and connections."""

from __future__ import annotations

from pathlib import Path

import pytest

from dp_powerflow.pipeline.run import run_release
from support.small import small_config


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the release."""
    folder = tmp_path_factory.mktemp("ecosystem")
    network = {"mode": "twin-network", "epsilon": 1.0, "id": "t1", "change": 0.05, "released": "all"}
    network |= {"controls": "frozen", "publish": "network and loads", "graph_days": 2}
    config = small_config(folder, network=network, release={"days": 5, "id": "tools"})
    run_release(config, workers=1)
    return folder / "out"
