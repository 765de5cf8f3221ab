"""What the tests of the docs share: the built site, and folders in which blocks of pages run."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.built_site import Site, build_site
from support.worlds import make_fleet, make_operated


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The site, built once."""
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason="the docs group is not installed: pip install --group docs")
    return build_site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders by name; pages run in copies of them."""
    made = {"operated": make_operated, "fleet": make_fleet}
    folders = {name: tmp_path_factory.mktemp(name) for name in made}
    for name, make in made.items():
        make(folders[name])
    return folders
