"""Kernels compiled ahead: used where they fit, never where they are stale, with the same bits.

Each test works on a copy of the package with its own shipped kernels, so nothing here depends on whether the
checkout has any.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

import dp_powerflow
from dp_powerflow._bits import kept
from dp_powerflow._bits.compiled import TARGETS
from dp_powerflow._bits.kept import SWITCH, Archive, Folder, KernelsNotKeptWarning
from support.processors import ROOT

RUNS_HERE = any(target.runs_here for target in TARGETS)
BLOCKED = "/dev/null/no-such-folder"
"""A folder that nobody can make, root neither."""


def test_entries_are_found_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.keep("kernel-1", b"code")
    assert folder.find("kernel-1") == b"code"
    assert folder.find("kernel-2") is None
    path = tmp_path / "kernel-1.kernel"
    path.write_bytes(path.read_bytes()[:-1] + b"E")
    assert folder.find("kernel-1") is None


def test_an_archive_holds_what_the_folder_held(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "from")
    (tmp_path / "from").mkdir()
    for key in ("a-1", "b-2", "stale-3"):
        folder.keep(key, key.encode() * 1000)
    archive = tmp_path / "shipped" / "kernels"
    Archive.write(archive, tmp_path / "from", ["b-2", "a-1"])
    found = Archive.read(archive)
    assert found.find("a-1") == b"a-1" * 1000
    assert found.find("stale-3") is None
    found.unpack(tmp_path / "to")
    assert Folder(tmp_path / "to").find("b-2") == b"b-2" * 1000
    archive.write_bytes(archive.read_bytes()[:-1])
    assert Archive.read(archive).find("b-2") is None
    archive.write_bytes(b"no archive")
    assert Archive.read(archive).index == {}
    assert Archive.read(tmp_path / "nowhere").index == {}


def test_where_nothing_can_be_written_one_warning_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_PACKAGE", Path(BLOCKED))
    monkeypatch.setattr("numba.core.config.CACHE_DIR", BLOCKED)
    monkeypatch.setenv("XDG_CACHE_HOME", BLOCKED)
    Folder.of_user.cache_clear()
    kept._warn_once.cache_clear()
    try:
        folder = Folder.of_user()
        assert folder.path is None
        with pytest.warns(KernelsNotKeptWarning, match="NUMBA_CACHE_DIR"):
            folder.keep("a-1", b"code")
        folder.keep("b-2", b"code")  # warnings are errors: there is no second one
        assert folder.find("a-1") is None
    finally:
        Folder.of_user.cache_clear()


def child(package: Path, module: str, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a module with another copy of the package, and with no cache but the one that is named."""
    paths = os.pathsep.join([str(package.parent), str(ROOT / "tests")])
    ours = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_CACHE_DIR", SWITCH)
    outside = {name: value for name, value in os.environ.items() if name not in ours}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**outside, "PYTHONPATH": paths, **settings},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )


def released(package: Path, mode: str, **settings: str) -> dict[str, Any]:
    done = child(package, "support.kernels_child", mode, **settings)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert Path(found["package"]).parent == package
    return found | {"stderr": done.stderr}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, with kernels compiled ahead from exactly these sources.

    What the checkout has compiled ahead is copied too: only what is stale there is compiled again.
    """
    if not RUNS_HERE:
        pytest.skip("nothing is compiled ahead for this processor")
    copy = tmp_path_factory.mktemp("site") / "dp_powerflow"
    shutil.copytree(Path(dp_powerflow.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    done = child(copy, "dp_powerflow._compile")
    assert done.returncode == 0, done.stderr[-3000:]
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["twin-with-histories", "true-network"])
def test_with_shipped_kernels_a_release_and_its_verification_compile_nothing(
    package: Path, mode: str, tmp_path: Path
) -> None:
    shipped = released(package, mode, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert shipped["compiled"] == []
    assert not (tmp_path / "cache").exists()


@pytest.mark.campaign
def test_shipped_kernels_have_the_bits_of_kernels_compiled_here(package: Path, tmp_path: Path) -> None:
    here = released(
        package, "twin-network", **{SWITCH: "compile", "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    )
    shipped = released(package, "twin-network", NUMBA_CACHE_DIR=BLOCKED)
    assert shipped["compiled"] == []
    assert len(here["compiled"]) > 20
    assert shipped["files"] == here["files"]


@pytest.mark.slow
def test_a_changed_kernel_is_compiled_again_and_kept(package: Path, tmp_path: Path) -> None:
    changed = tmp_path / "dp_powerflow"
    shutil.copytree(package, changed, ignore=shutil.ignore_patterns("__pycache__"))
    source = changed / "quality" / "counting.py"
    text = source.read_text(encoding="utf-8")
    before, after = "sums[i] += moved[r, i]", "sums[i] = sums[i] + moved[r, i]"
    assert text.count(before) == 1
    source.write_text(text.replace(before, after), encoding="utf-8")
    cache = tmp_path / "cache"
    once = released(changed, "twin-as-operated", NUMBA_CACHE_DIR=str(cache))
    ours = [name for name in once["compiled"] if name.startswith("dp_powerflow.")]
    assert ours == ["dp_powerflow.quality.counting.add_products"]
    assert len(list(cache.rglob("*.kernel"))) == 1
    again = released(changed, "twin-as-operated", NUMBA_CACHE_DIR=str(cache))
    assert again["compiled"] == []
    assert again["files"] == once["files"]


@pytest.mark.slow
def test_a_stale_install_that_cannot_be_written_works_and_says_so_once(package: Path, tmp_path: Path) -> None:
    stale = tmp_path / "dp_powerflow"
    shutil.copytree(package, stale, ignore=shutil.ignore_patterns("__pycache__"))
    (stale / "__pycache__").mkdir(exist_ok=True)
    (stale / "__pycache__" / "kernels").write_text("in the way of the folder")
    code = (
        "import numpy as np; from dp_powerflow._bits import elementary; "
        "print(elementary.exp(np.zeros(3)).sum(), elementary.log(np.ones(3)).sum())"
    )
    blocked = {
        "NUMBA_CACHE_DIR": BLOCKED,
        "XDG_CACHE_HOME": BLOCKED,
        "HOME": BLOCKED,
        "PYTHONPATH": str(tmp_path),
    }
    for settings, notices in (({}, 0), ({SWITCH: "compile"}, 1)):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **blocked, **settings},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["3.0", "0.0"]
        assert done.stderr.count("cannot be kept") == notices
        assert "Traceback" not in done.stderr


@pytest.mark.campaign
def test_a_wheel_brings_its_kernels(package: Path, tmp_path: Path) -> None:
    """Built from a copy of the checkout, installed beside the packages of this Python."""
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, project / name)
    shutil.copytree(package, project / "src" / "dp_powerflow", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(project)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "environment"
    venv.create(installed, system_site_packages=False, with_pip=False)
    (site,) = installed.glob("lib/python*/site-packages")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    found = released(site / "dp_powerflow", "twin-as-operated", NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert found["compiled"] == []
