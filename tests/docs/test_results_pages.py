"""Every figure of the results names the command that makes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.pages_that_run import ROOT

RESULTS = sorted((ROOT / "docs" / "results").glob("*.md"))
COMMAND = re.compile(
    r"\b(?:dp-powerflow \w+|python (?:benchmarks|examples|tests)/\S+\.py|pytest\b|"
    r"make (?:demo|bench|faults|fuzz))"
)
ELSEWHERE = ("explanation", "how-to", "reference")
MEASURED = re.compile(r"\d ± \d|\bMB/s\b|processor seconds|µs per snapshot", re.IGNORECASE)


def sections(text: str) -> list[str]:
    """What stands before the first heading of level two, then every section of that level."""
    return re.split(r"^(?=## )", text, flags=re.MULTILINE)


def tables_without_a_command(text: str) -> list[str]:
    """Titles of sections with a table for which neither they nor the head of the page name a command."""
    head, *rest = sections(text)
    if COMMAND.search(head):
        return []
    found = [part for part in (head, *rest) if re.search(r"^\|[ :|-]+\|$", part, re.MULTILINE)]
    return [part.splitlines()[0] for part in found if not COMMAND.search(part)]


@pytest.mark.parametrize("page", RESULTS, ids=lambda page: page.stem)
def test_every_table_has_a_command_in_its_section(page: Path) -> None:
    assert tables_without_a_command(page.read_text(encoding="utf-8")) == []


def test_a_table_without_a_command_is_found() -> None:
    table = "| a | b |\n|---|---|\n| 1 | 2 |\n"
    assert tables_without_a_command(f"# Page\n\n## One\n\n{table}") == ["## One"]
    assert tables_without_a_command(f"# Page\n\n## One\n\n`python benchmarks/x.py`\n\n{table}") == []
    assert tables_without_a_command(f"# Page\n\n`dp-powerflow plan`\n\n## One\n\n{table}") == []


def test_the_page_of_numbers_gives_every_figure_a_command_and_a_page() -> None:
    text = (ROOT / "docs" / "results" / "index.md").read_text(encoding="utf-8")
    rows = [row for row in re.findall(r"^\| (.+) \|$", text, re.MULTILINE) if not row.startswith("figure")]
    assert len(rows) > 25
    for row in rows:
        *_, command, page = re.split(r" (?<!\\)\| ", row)
        assert command == "the same" or COMMAND.search(command), row
        assert re.search(r"\]\((\w[\w-]*\.md)[#)]", page), row
    linked = set(re.findall(r"\]\((\w[\w-]*\.md)[#)]", text))
    assert {page.name for page in RESULTS} - {"index.md"} <= linked


def test_tables_of_measurements_stand_with_the_results() -> None:
    for folder in ELSEWHERE:
        for page in (ROOT / "docs" / folder).rglob("*.md"):
            rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
            assert not [row for row in rows if MEASURED.search(row)], page.name
