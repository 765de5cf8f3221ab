"""One small release for all tools: the twin of IEEE 13, hourly, with its tables, loads and connections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dp_powerflow.pipeline.release import run_release
from support.small import raw_config, small_config


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the release."""
    folder = tmp_path_factory.mktemp("ecosystem")
    run_release(small_config(folder, **raw_config("tools")), workers=1)
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
