"""docs/explanation/threat-model.md: every attack that it says is stopped names a test that shows it."""

from __future__ import annotations

import re

from support.pages import ROOT, is_a_test

PAGE = ROOT / "docs" / "explanation" / "threat-model.md"
ATTACKERS = {
    "Reader of the release",
    "Publisher of a forged release",
    "Insider with the state directory",
    "Colleague on the same machine",
    "Malicious data supplier",
    "Cluster neighbour",
    "Bad luck",
}


def sections() -> dict[str, str]:
    _, *parts = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in parts}


def attacks(text: str) -> list[list[str]]:
    """Rows of the tables, without their heads."""
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in rows[1:]]


def test_everybody_in_the_table_has_a_section() -> None:
    found = sections()
    assert {row[0] for row in attacks(found["Who is who"])} == ATTACKERS
    assert set(found) == ATTACKERS | {"Who is who"}


def test_every_attack_names_tests_that_exist() -> None:
    rows = [row for name in ATTACKERS for row in attacks(sections()[name])]
    assert len(rows) > 30
    for row in rows:
        assert len(row) == 3, row
        tests = re.findall(r"`(test_\w+)`", row[2])
        assert tests, row
        for name in tests:
            assert is_a_test(name), name


def test_what_is_not_stopped_is_said() -> None:
    for name in ATTACKERS:
        assert "**Not stopped.**" in sections()[name], name
