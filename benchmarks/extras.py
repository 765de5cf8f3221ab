"""What each extra of the package adds to an installation: packages and bytes, in an environment of its own.

    python benchmarks/extras.py [--only NAME ...] [--write]

Every extra is installed beside the package into a new virtual environment, under `constraints.txt` (the CPU
build of torch), and `site-packages` is measured without pip and without bytecode. `--write` puts the figures
into the table of `docs/how-to/install.md`; rows of extras that were not measured stay. Downloads a few
gigabytes the first time.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "how-to" / "install.md"
NOT_COUNTED = re.compile(
    r"(pip|setuptools|wheel|pkg_resources|_distutils_hack)\b|__pycache__|distutils-precedence"
)
BASE, ALL = "none", "all of them"
"""Rows of the package without extras, and with all."""


@dataclass(frozen=True)
class Size:
    """An installation: packages beside pip, and what they take on disk [bytes]."""

    packages: int
    size: int

    def beyond(self, base: Size) -> Size:
        return Size(self.packages - base.packages, self.size - base.size)

    @property
    def cells(self) -> tuple[str, str]:
        """As the table shows it: packages, MB."""
        return str(self.packages), f"{self.size / 1e6:,.0f} MB" if self.size >= 1e6 else "under 1 MB"


def extras() -> dict[str, list[str]]:
    """Extras of `pyproject.toml` and what they require."""
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: dict[str, list[str]] = stated["project"]["optional-dependencies"]
    return found


def pip(*arguments: str) -> None:
    """Run pip, quietly."""
    subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True
    )


def installed(wheel: Path, names: Iterable[str], folder: Path) -> Size:
    """The package with some extras, in a new environment."""
    venv.create(folder, with_pip=False, symlinks=True)
    wanted = f"dp-powerflow[{','.join(names)}] @ {wheel.as_uri()}"
    constraints = str(ROOT / "constraints.txt")
    pip("--python", str(folder), "install", "--no-compile", "--constraint", constraints, wanted)
    (packages,) = folder.glob("lib/python*/site-packages")
    files = [
        path
        for path in packages.rglob("*")
        if path.is_file() and not any(map(NOT_COUNTED.match, path.relative_to(packages).parts))
    ]
    count = sum(1 for path in packages.glob("*.dist-info") if not NOT_COUNTED.match(path.name))
    return Size(count, sum(path.stat().st_size for path in files))


def with_figures(page: str, figures: dict[str, tuple[str, str]]) -> str:
    """The page with the last two cells of some rows replaced."""
    lines = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        name = cells[0].strip("`")
        if line.startswith("| ") and name in figures:
            line = f"| {' | '.join((*cells[:-2], *figures[name]))} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(extras()), default=list(extras()))
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    figures = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        pip("wheel", "--no-deps", "--wheel-dir", place, str(ROOT))
        (wheel,) = folder.glob("*.whl")
        base = installed(wheel, (), folder / BASE)
        figures[BASE] = base.cells
        print(f"{'extra':12} {'packages':>8} {'size':>12}")
        print(f"{BASE:12} {base.cells[0]:>8} {base.cells[1]:>12}", flush=True)
        for name in asked.only:
            figures[name] = installed(wheel, (name,), folder / name).beyond(base).cells
            print(f"{name:12} {figures[name][0]:>8} {figures[name][1]:>12}", flush=True)
        if asked.only == list(extras()):
            figures[ALL] = installed(wheel, extras(), folder / "all").beyond(base).cells
            print(f"{ALL:12} {figures[ALL][0]:>8} {figures[ALL][1]:>12}")
    if asked.write:
        PAGE.write_text(with_figures(PAGE.read_text(encoding="utf-8"), figures), encoding="utf-8")


if __name__ == "__main__":
    main()
