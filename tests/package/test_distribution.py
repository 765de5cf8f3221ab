"""The package as people get it: what is in a wheel and an sdist, and that an installed one works."""

from __future__ import annotations

import email
import re
from collections.abc import Iterable
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from dp_powerflow._names import __version__ as public_version
from support.building import ROOT, SOURCES, Installed, build, content, copy_sources, unpack

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Built:
    """What was made of one copy of the checkout."""

    wheel: Path
    sdist: Path
    again: Path
    """The wheel of the unpacked sdist."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("package")
    (folder / "checkout").mkdir()
    source = copy_sources(folder / "checkout")
    sdist = build(source, "sdist", folder / "sdist")
    unpacked = unpack(sdist, folder / "unpacked")
    return Built(build(source, "wheel", folder / "wheel"), sdist, build(unpacked, "wheel", folder / "again"))


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed.beside_the_tests(built.wheel, tmp_path_factory.mktemp("environment") / "venv")


def packaged(names: Iterable[str], package: str = "dp_powerflow") -> set[str]:
    """Paths within a package of a wheel."""
    start = f"{package}/"
    return {name.removeprefix(start) for name in names if name.startswith(start)}


def metadata_of(files: dict[str, bytes]) -> Message:
    (name,) = (name for name in files if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(files[name])


def test_a_wheel_has_the_package_and_nothing_else(built: Built) -> None:
    files = content(built.wheel)
    places = {name.split("/")[0] for name in files}
    about = built.wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info"
    assert places == {"dp_powerflow", "dp_powerflow_paper", about}
    assert not [name for name in files if {"test", "tests"} & set(Path(name).parts)]


@pytest.mark.parametrize("name", ["dp_powerflow", "dp_powerflow_paper"])
def test_a_wheel_has_every_file_of_the_package_and_no_stray_one(built: Built, name: str) -> None:
    package = ROOT / "src" / name
    beside = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    known = {str(path.relative_to(package)) for path in beside}
    if name == "dp_powerflow":
        assert {"py.typed", "__init__.pyi", "page/assets/page.html", "grid/data/ieee123.dss"} <= known
    assert packaged(content(built.wheel), name) == known


def test_an_sdist_gives_the_wheel_of_the_checkout(built: Built) -> None:
    first, again = content(built.wheel), content(built.again)
    assert built.again.name == built.wheel.name
    kept = {name for name in first if not name.endswith("RECORD")}
    assert kept == {name for name in again if not name.endswith("RECORD")}
    assert {name for name in kept if first[name] != again[name]} == set()


def test_an_sdist_has_what_a_build_reads_and_no_tests(built: Built, tmp_path: Path) -> None:
    folder = unpack(built.sdist, tmp_path)
    tops = {path.name for path in folder.iterdir()}
    assert tops == {*SOURCES, "PKG-INFO", "setup.cfg", "src"}
    packages = {"dp_powerflow", "dp_powerflow_paper", "dp_powerflow.egg-info"}
    assert {path.name for path in (folder / "src").iterdir()} == packages


def test_metadata_are_complete_and_the_readme_renders(built: Built) -> None:
    files = content(built.wheel)
    stated = metadata_of(files)
    assert stated["Name"] == "dp-powerflow"
    assert stated["Version"] == public_version
    assert stated["License-Expression"] == "BSD-3-Clause"
    assert stated["Requires-Python"] == ">=3.11"
    licences = [name for name in files if name.endswith("/licenses/LICENSE")]
    assert len(licences) == 1
    assert files[licences[0]] == (ROOT / "LICENSE").read_bytes()
    classifiers = stated.get_all("Classifier", [])
    assert "Typing :: Typed" in classifiers
    assert not [word for word in classifiers if word.startswith("License ::")]  # the expression says it
    assert len(set(classifiers)) == len(classifiers)
    urls = dict(entry.split(", ", 1) for entry in stated.get_all("Project-URL", []))
    assert urls
    assert all(re.fullmatch(r"https://[\w./-]+", url) for url in urls.values())
    assert stated["Description-Content-Type"].startswith("text/markdown")
    page = MarkdownIt("commonmark").enable("table").render(str(stated.get_payload()))
    assert page.startswith("<h1>")
    (scripts,) = (text for name, text in files.items() if name.endswith("entry_points.txt"))
    assert b"dp-powerflow = dp_powerflow.__main__:main" in scripts


def test_the_installed_package_runs_from_where_it_is_installed(installed: Installed, tmp_path: Path) -> None:
    program = (
        "import dp_powerflow, dp_powerflow.cli as cli; print(dp_powerflow.__version__); print(cli.__file__)"
    )
    version, file = installed.run("python", "-c", program, cwd=tmp_path).splitlines()
    assert Path(file).is_relative_to(installed.folder)
    assert version == public_version
    assert installed.run("dp-powerflow", "--version", cwd=tmp_path).strip() == version


def test_the_installed_command_inspects_releases_and_verifies(installed: Installed, tmp_path: Path) -> None:
    assert installed.release(tmp_path) == f"dp-powerflow {public_version}"


@pytest.mark.campaign
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_a_clean_install_releases_and_verifies(kind: str, tmp_path: Path) -> None:
    (tmp_path / "checkout").mkdir()
    package = build(copy_sources(tmp_path / "checkout"), kind, tmp_path / "dist")
    installed = Installed.from_the_index(package, tmp_path / "venv")
    installed.pip("check")
    assert installed.run("dp-powerflow", "--version", cwd=tmp_path).strip() == public_version
    installed.release(tmp_path)
