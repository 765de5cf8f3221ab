"""docs/equations.md: every label has a function and a test, and every label of the code is on the page."""

from __future__ import annotations

import re

from support.pages import ROOT, exists, is_a_test


def rows() -> dict[str, tuple[str, str]]:
    table = {}
    for line in (ROOT / "docs" / "equations.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if len(cells) == 4 and cells[2].startswith("`"):
            table[cells[0]] = (cells[2].strip("`"), cells[3].strip("`"))
    return table


def test_every_function_on_the_page_exists() -> None:
    for label, (path, _) in rows().items():
        assert exists(path), f"{label}: {path}"


def test_every_test_on_the_page_exists() -> None:
    for label, (_, test) in rows().items():
        assert is_a_test(test), f"{label}: {test}"


def test_every_label_in_the_code_is_on_the_page() -> None:
    known = rows()
    for file in (ROOT / "src").rglob("*.py"):
        for mention in re.findall(
            r"Eq\. ([A-Za-z0-9_]+(?:, [A-Za-z0-9]+_[A-Za-z0-9_]+)*)", file.read_text("utf-8")
        ):
            for label in mention.split(", "):
                assert label in known, f"{file.name} mentions Eq. {label}"


def test_every_equation_of_the_paper_is_on_the_page(paper_source: str) -> None:
    labels = set(re.findall(r"\\label\{eq:([A-Za-z0-9_]+)\}", paper_source))
    assert len(labels) > 40
    assert labels == set(rows())
