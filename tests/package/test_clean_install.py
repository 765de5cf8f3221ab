"""Wheel and sdist installed from the index into new environments, with builds in isolation (minutes)."""

from __future__ import annotations

from pathlib import Path

import pytest

from dp_powerflow._names import __version__
from support.building import Installed, build, copy_sources

pytestmark = pytest.mark.campaign


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_a_clean_install_releases_and_verifies(kind: str, tmp_path: Path) -> None:
    (tmp_path / "checkout").mkdir()
    package = build(copy_sources(tmp_path / "checkout"), kind, tmp_path / "dist")
    installed = Installed.from_the_index(package, tmp_path / "venv")
    installed.pip("check")
    assert installed.run("dp-powerflow", "--version", cwd=tmp_path).strip() == __version__
    installed.release(tmp_path)
