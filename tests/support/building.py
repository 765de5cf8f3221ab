"""Wheels and sdists of this checkout, built without an index and without isolation."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

from dp_powerflow._bits.compiled import kernel_folder
from support.small import TWIN, small_raw, write_toml

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    *("pyproject.toml", "MANIFEST.in", "README.md"),
    *("LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md"),
)
"""What a build reads beside `src`."""
NOT_PACKAGED = (
    *("tests/test_startup.py", "benchmarks/startup.py", "examples/release.py", "docs/index.md"),
    *(
        "private-state/ledger.jsonl",
        "meters.csv",
        "release.toml",
        "src/dp_powerflow/grid/data/meters.parquet",
    ),
)
"""Files that a checkout has, or in which somebody works has, and that may not get into a package."""
HOOK = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def copy_sources(target: Path) -> Path:
    """What a build reads of the checkout, and a file of every kind that it may not pick up."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", target / "src", ignore=ignored)
    for name in SOURCES:
        shutil.copy(ROOT / name, target / name)
    for other in NOT_PACKAGED:
        (target / other).parent.mkdir(parents=True, exist_ok=True)
        (target / other).write_text("", encoding="utf-8")
    return target


def build(source: Path, kind: str, target: Path) -> Path:
    """Build a `wheel` or an `sdist` of a source tree with the setuptools of the tests."""
    target.mkdir(exist_ok=True)
    command = [sys.executable, "-W", "ignore", "-c", HOOK, f"build_{kind}", str(target)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, env=clean_environment())
    assert done.returncode == 0, done.stderr
    return target / done.stdout.splitlines()[-1]


def clean_environment() -> dict[str, str]:
    """Without variables by which tests find the checkout, or play another processor (`.ci/processors`)."""
    dropped = ("PYTHONPATH", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")
    return {name: value for name, value in os.environ.items() if name not in dropped}


def unpack(sdist: Path, target: Path) -> Path:
    """The folder in an sdist."""
    with tarfile.open(sdist) as archive:
        archive.extractall(target, filter="data")
    (folder,) = target.iterdir()
    return folder


def content(wheel: Path) -> dict[str, bytes]:
    """Files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@dataclass(frozen=True)
class Installed:
    """A virtual environment of its own with the package."""

    folder: Path

    @classmethod
    def beside_the_tests(cls, wheel: Path, folder: Path) -> Installed:
        """With the dependencies of the environment of the tests: quick, and without an index."""
        made = cls.empty(folder)
        made.pip("install", "--no-index", "--no-deps", "--no-compile", str(wheel))
        # After its own packages: what is installed here hides the checkout's.
        others = [path for path in sys.path if path.endswith("site-packages")]
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / "dependencies.pth").write_text("\n".join(others), encoding="utf-8")
        if (compiled := kernel_folder()) is not None:  # of the same sources: it need not compile them again
            shutil.copytree(compiled, packages / "dp_powerflow/__pycache__/kernels" / compiled.name)
        return made

    @classmethod
    def from_the_index(cls, package: Path, folder: Path) -> Installed:
        """A wheel or an sdist with its dependencies, as a user installs it; takes minutes."""
        made = cls.empty(folder)
        made.pip("install", "--constraint", str(ROOT / "constraints.txt"), str(package))
        return made

    @classmethod
    def empty(cls, folder: Path) -> Installed:
        venv.create(folder, with_pip=False, symlinks=True)
        return cls(folder)

    def pip(self, *arguments: str) -> None:
        """Run the tests' pip for this environment."""
        command = [sys.executable, "-m", "pip", "--python", str(self.folder), "--disable-pip-version-check"]
        subprocess.run([*command, *arguments, "--quiet"], check=True, env=clean_environment())

    def run(self, *command: str, cwd: Path) -> str:
        """What a program of the environment prints; it must succeed."""
        program = [str(self.folder / "bin" / command[0]), *command[1:]]
        done = subprocess.run(program, cwd=cwd, capture_output=True, text=True, env=clean_environment())
        assert done.returncode == 0, done.stderr
        return done.stdout

    def release(self, folder: Path) -> str:
        """Inspect, release and verify in a folder; the program that the manifest names."""
        summary = json.loads(self.run("dp-powerflow", "inspect", "ieee13", "--json", cwd=folder))
        assert summary["marking"].startswith("INTERNAL")
        write_toml(folder / "release.toml", small_raw(network=TWIN, release={"days": 2}))
        self.run("dp-powerflow", "release", "release.toml", "--workers", "1", cwd=folder)
        assert json.loads(self.run("dp-powerflow", "verify", "out", "--json", cwd=folder))["intact"] is True
        manifest = json.loads((folder / "out" / "manifest.json").read_text(encoding="utf-8"))
        return str(manifest["release"]["software"])
