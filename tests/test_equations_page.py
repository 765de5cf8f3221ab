"""docs/equations.md: every label has a function and a test, and every label of the code is on the page."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAPER = ROOT.parent / "shared" / "paper" / "dp-powerflow.tex"


def rows() -> dict[str, tuple[str, str]]:
    table = {}
    for line in (ROOT / "docs" / "equations.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if len(cells) == 4 and cells[2].startswith("`"):
            table[cells[0]] = (cells[2].strip("`"), cells[3].strip("`"))
    return table


def test_every_function_on_the_page_exists() -> None:
    for label, (path, _) in rows().items():
        try:
            pkgutil.resolve_name(f"dp_powerflow.{path}")
        except (ImportError, AttributeError) as error:
            raise AssertionError(f"{label}: {path}") from error


def test_every_test_on_the_page_exists() -> None:
    written = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    for label, (_, test) in rows().items():
        assert f"def {test}(" in written, f"{label}: {test}"


def test_every_label_in_the_code_is_on_the_page() -> None:
    known = rows()
    for file in (ROOT / "src").rglob("*.py"):
        for mention in re.findall(
            r"Eq\. ([A-Za-z0-9_]+(?:, [A-Za-z0-9]+_[A-Za-z0-9_]+)*)", file.read_text("utf-8")
        ):
            for label in mention.split(", "):
                assert label in known, f"{file.name} mentions Eq. {label}"


def test_every_equation_of_the_paper_is_on_the_page() -> None:
    if not PAPER.is_file():
        pytest.skip("the paper's source is not here")
    labels = set(re.findall(r"\\label\{eq:([A-Za-z0-9_]+)\}", PAPER.read_text(encoding="utf-8")))
    assert len(labels) > 40
    assert labels == set(rows())
