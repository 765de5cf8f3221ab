"""The version: with the commit for people, without it for what is paid for and released."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import dp_powerflow as dpf
from dp_powerflow._names import __version__ as public_version
from dp_powerflow._version import full_version, source_version
from support.building import ROOT, clean_environment

COMMIT = re.compile(rf"{re.escape(public_version)}\+g[0-9a-f]{{9}}")
with_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
    command = ["git", "-C", str(folder), *who, "-c", "init.defaultBranch=main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=clean_environment()).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository of one file with two commits and no tag."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "--quiet")
    for text in ("one", "two"):
        (folder / "file").write_text(text, encoding="utf-8")
        git(folder, "add", "file")
        git(folder, "commit", "--quiet", "--message", text)
    return folder


@with_git
def test_a_checkout_without_tags_is_named_by_its_commit(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert source_version(checkout) == f"{public_version}+g{commit[:9]}"


@with_git
def test_a_shallow_clone_has_the_version_of_its_origin(checkout: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", "--depth=1", checkout.as_uri(), "shallow")
    assert source_version(tmp_path / "shallow") == source_version(checkout)


@with_git
def test_changes_are_told_and_only_a_clean_tagged_commit_is_the_version_itself(checkout: Path) -> None:
    git(checkout, "tag", "v0.0.1")
    assert COMMIT.fullmatch(source_version(checkout))
    git(checkout, "tag", "--annotate", "--message", "released", f"v{public_version}")
    assert source_version(checkout) == public_version
    (checkout / "file").write_text("three", encoding="utf-8")
    assert re.fullmatch(rf"{COMMIT.pattern}\.dirty", source_version(checkout))


@with_git
def test_variables_of_a_git_hook_do_not_mislead(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = source_version(checkout)
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    assert source_version(checkout) == wanted


def test_an_sdist_states_its_version_even_within_another_repository(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    folder = tmp_path / "dp_powerflow-sdist"
    folder.mkdir()
    assert source_version(folder) == public_version
    for stated, wanted in {
        f"{public_version}+g123456789": f"{public_version}+g123456789",
        "0.0.1+g123456789": public_version,
    }.items():
        (folder / "PKG-INFO").write_text(f"Name: dp-powerflow\nVersion: {stated}\n", encoding="utf-8")
        assert source_version(folder) == wanted


@with_git
def test_without_git_the_public_version_stands_alone(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert source_version(checkout) == public_version


def test_the_public_name_is_the_full_version_of_what_runs() -> None:
    assert dpf.__version__ == full_version()
    assert dpf.__version__.partition("+")[0] == public_version
    assert re.fullmatch(r"\d+\.\d+\.\d+", public_version)


def test_nothing_that_is_paid_for_or_released_knows_the_commit() -> None:
    """A version that changes with every commit would change requests and manifests: only people see it."""
    package = ROOT / "src" / "dp_powerflow"
    naming = re.compile(r"_version import|import _version|dpf\.__version__|dp_powerflow import .*__version__")
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if naming.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"cli.py"}
