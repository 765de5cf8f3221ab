"""Compiled code is code: kept where only this user writes, found by its sources, never run by halves."""

from __future__ import annotations

import importlib
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from numba.core.dispatcher import Dispatcher

import dp_powerflow
from dp_powerflow._bits import compiled
from dp_powerflow._bits.compiled import KernelCache, KernelsNotKeptWarning, kernel_folder

PACKAGE = Path(dp_powerflow.__file__).parent
needs_owners = pytest.mark.skipif(
    not hasattr(os, "geteuid"), reason="Windows has no owners and modes like these"
)
PROGRAM = """
import sys
from numba.core import event
from dp_powerflow._bits.elementary import exp1
seen = []
class Listener(event.Listener):
    def on_start(self, event): seen.append(event.data["dispatcher"].py_func.__name__)
    def on_end(self, event): pass
event.register("numba:compile", Listener())
print(exp1(1.0), *seen)
"""


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder that every user may write, and one of this user to go to instead."""
    folder = tmp_path / "of-many"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(folder))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))  # is put back after the test
    monkeypatch.setattr(compiled, "_PACKAGE", tmp_path / "dp_powerflow")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    kernel_folder.cache_clear()
    yield folder
    kernel_folder.cache_clear()


def kept_in() -> Path:
    found = kernel_folder()
    assert found is not None
    return found


@needs_owners
def test_a_new_folder_in_a_shared_one_belongs_to_this_user_alone(shared: Path) -> None:
    before = os.umask(0)
    try:
        assert kept_in().parent == shared / "dp_powerflow"
    finally:
        os.umask(before)
    for folder in (kept_in(), kept_in().parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@needs_owners
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
def test_a_folder_that_others_may_write_is_passed_over(shared: Path, mode: int, tmp_path: Path) -> None:
    (shared / "dp_powerflow").mkdir()
    (shared / "dp_powerflow").chmod(mode)
    assert shared not in kept_in().parents


@needs_owners
def test_a_folder_of_another_user_is_passed_over(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shared / "dp_powerflow").mkdir(0o755)
    user = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.warns(KernelsNotKeptWarning, match="set NUMBA_CACHE_DIR"):
        assert shared not in kept_in().parents  # the other places belong to another user too


@needs_owners
def test_a_link_is_passed_over(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(0o700)
    (shared / "dp_powerflow").symlink_to(tmp_path / "elsewhere")
    assert shared not in kept_in().parents
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_changed_constant_that_a_kernel_imports_has_another_folder(shared: Path, tmp_path: Path) -> None:
    package = tmp_path / "dp_powerflow"
    package.mkdir()
    (package / "loops.py").write_text(
        "from dp_powerflow._bits.elementary import kernel\nfrom dp_powerflow.limits import MOST\n"
    )
    (package / "limits.py").write_text("MOST = 1\n")
    (package / "page.py").write_text("TITLE = 1\n")
    before = compiled._sources_hash()
    (package / "page.py").write_text("TITLE = 2\n")
    assert compiled._sources_hash() == before
    (package / "limits.py").write_text("MOST = 2\n")
    assert compiled._sources_hash() != before


def run(cache: Path) -> list[str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


@pytest.mark.slow
def test_a_second_process_compiles_nothing_and_a_damaged_file_is_compiled_again(tmp_path: Path) -> None:
    first = run(tmp_path)
    assert "exp1" in first
    assert run(tmp_path) == first[:1]
    for path in tmp_path.rglob("*exp1*"):
        path.write_bytes(path.read_bytes()[:40])
    again = run(tmp_path)
    assert again[0] == first[0]
    assert "exp1" in again
    assert run(tmp_path) == first[:1]


def sources_with(*words: str) -> list[str]:
    """Modules of the package whose text has one of these words."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    found = [path for path, text in texts.items() if any(word in text for word in words)]
    return [".".join(("dp_powerflow", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in found]


def test_only_one_module_calls_numba_to_compile() -> None:
    """What another one compiled would not be kept."""
    words = ("njit", "import jit", "numba.jit", "cfunc(", "vectorize(")
    assert sources_with(*words) == ["dp_powerflow._bits.compiled"]


@pytest.mark.slow
def test_every_kernel_is_kept_and_every_constant_it_reads_names_the_folder() -> None:
    kernels: dict[str, Any] = {}
    for module in sources_with("@kernel", "@inner", "@compiled"):
        for name, value in vars(importlib.import_module(module)).items():
            if isinstance(value, Dispatcher) and value.__module__ == module:
                kernels[f"{module}.{name}"] = value
    assert len(kernels) > 100
    assert [name for name, kernel in kernels.items() if not isinstance(kernel._cache, KernelCache)] == []
    hashed = compiled._hashed_sources().keys()
    for kernel in kernels.values():
        used = (vars(sys.modules[kernel.__module__]).get(name) for name in kernel.py_func.__code__.co_names)
        modules = {kernel.__module__} | {each.__module__ for each in used if isinstance(each, Dispatcher)}
        assert {Path(str(sys.modules[module].__file__)) for module in modules} <= hashed
