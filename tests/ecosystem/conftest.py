"""One small release for all tools: the twin of IEEE 13, hourly, with its tables, loads and connections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dp_powerflow.pipeline.release import run_release
from support.small import small_config

PUBLICATION: dict[str, Any] = {
    "publisher": "Utility of Town",
    "license": "CC-BY-4.0",
    "date": "2031-02-03",
    "url": "https://data.example.org/voltages",
}


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the release."""
    folder = tmp_path_factory.mktemp("ecosystem")
    network = {"mode": "twin-network", "epsilon": 1.0, "id": "t1", "change": 0.05, "released": "all"}
    network |= {"controls": "frozen", "publish": "network and loads", "graph_days": 2}
    own = {"days": 5, "id": "tools", "output": "release"}
    run_release(small_config(folder, network=network, release=own, publication=PUBLICATION), workers=1)
    return folder / "release"


@pytest.fixture
def beside(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory in which the release is called `release`."""
    (tmp_path / "release").symlink_to(release, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def offline(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No hub, and a cache of its own for `datasets`."""
    datasets: Any = pytest.importorskip("datasets", reason="datasets is not installed")
    cache = tmp_path_factory.mktemp("hub")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    datasets.disable_progress_bars()
