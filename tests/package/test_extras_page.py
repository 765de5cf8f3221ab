"""Extras: the page lists those of the package, and every message names one that exists."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from support.building import ROOT

PAGE = ROOT / "docs" / "how-to" / "install.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
NAME = re.compile(r"[\w.-]+")


def rows() -> dict[str, list[str]]:
    """Cells of the table by extra."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:])
    return {first.strip("`"): others for first, *others in cells}


def plain(name: str) -> str:
    """A distribution as indexes compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def required(names: list[str]) -> set[str]:
    """Distributions that requirements name, without versions."""
    return {plain(found.group()) for found in map(NAME.match, names) if found}


def asked_for() -> Iterator[tuple[str, str | None, str]]:
    """Module, package and extra of every place that asks for an optional package."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2):
                continue
            if node.func.id in ("require", "MissingExtraError") and path.name != "errors.py":
                package, extra = node.args
                named = package.value if isinstance(package, ast.Constant) else None
                value = constant(path, extra.id) if isinstance(extra, ast.Name) else ast.literal_eval(extra)
                yield path.name, None if named is None else str(named), str(value)


def constant(path: Path, name: str) -> object:
    """A constant of a module of the package."""
    module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
    return getattr(importlib.import_module(module), name)


def test_the_page_has_every_extra_with_what_it_requires() -> None:
    table = rows()
    assert list(table) == ["none", *EXTRAS, "all of them"]
    for extra, requirements in EXTRAS.items():
        purpose, requires, *_ = table[extra]
        assert len(purpose) > 5
        assert requires == ", ".join(f"`{requirement}`" for requirement in requirements)


def test_every_extra_has_a_measured_size_and_all_are_less_than_their_sum() -> None:
    sizes = {}
    for extra, cells in rows().items():
        assert re.fullmatch(r"\d+", cells[-2]), extra
        found = re.fullmatch(r"([\d,]+) MB|under 1 MB", cells[-1])
        assert found, extra
        sizes[extra] = int((found.group(1) or "0").replace(",", ""))
    assert (
        max(sizes[extra] for extra in EXTRAS) <= sizes["all of them"] <= sum(sizes[extra] for extra in EXTRAS)
    )


def test_measuring_again_changes_figures_and_nothing_else() -> None:
    with_figures = runpy.run_path(str(ROOT / "benchmarks" / "extras.py"))["with_figures"]
    page = PAGE.read_text(encoding="utf-8")
    assert with_figures(page, {name: (cells[-2], cells[-1]) for name, cells in rows().items()}) == page
    other = with_figures(page, {"polars": ("7", "8 MB")})
    assert "`polars>=1` | 7 | 8 MB |" in other
    assert len(set(other.splitlines()) - set(page.splitlines())) == 1


def test_every_message_names_an_extra_that_installs_the_package() -> None:
    found = list(asked_for())
    assert {extra for _, _, extra in found} == set(EXTRAS)
    for module, package, extra in found:
        if package is None:
            continue
        provided = required(EXTRAS[extra])
        indirect = {need for name in provided for need in required(metadata.requires(name) or [])}
        assert plain(package.split(".")[0]) in provided | indirect, f"{module}: {package} is not in [{extra}]"


def test_pages_and_messages_name_extras_that_exist() -> None:
    texts = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    for path in texts:
        for names in re.findall(r"dp-powerflow\[([\w,-]+)\]", path.read_text(encoding="utf-8")):
            assert set(names.split(",")) <= set(EXTRAS), path


def test_the_targets_of_make_install_every_extra_for_the_tests() -> None:
    makefile = Path(ROOT / "Makefile").read_text(encoding="utf-8")
    (listed,) = re.findall(r'--editable "\.\[([\w,]+)\]"', makefile)
    assert listed.split(",") == list(EXTRAS)
