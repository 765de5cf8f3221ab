"""The pages of equations and of claims: all of the paper has a function, a command and a test."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from support.pages import PROGRAM, ROOT, exists, is_a_command, is_a_test

EXEMPT = {"sec", "app"}
PREFIX = {"eq", "tab", "fig", "rem", "def", "thm", "prop", "cor", "lem", "alg"}
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Line:
    """One line of a table: the label it is about, its names in backquotes, and its text."""

    label: str
    names: tuple[str, ...]
    text: str

    @property
    def commands(self) -> list[str]:
        return [name for name in self.names if name.startswith(PROGRAM)]

    @property
    def tests(self) -> list[str]:
        return [name for name in self.names if name.startswith("test_")]

    @property
    def functions(self) -> set[str]:
        return {*self.names} - {*self.commands, *self.tests}


def equations() -> list[Line]:
    """Lines of docs/explanation/equations.md; a label without a prefix is an equation's."""
    found = []
    for text in (ROOT / "docs" / "explanation" / "equations.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in text.strip().strip("|").split(" | ")]
        if len(cells) == 5 and cells[2].startswith("`"):
            label = cells[0] if ":" in cells[0] else f"eq:{cells[0]}"
            found.append(Line(label, tuple(re.findall(r"`([^`]+)`", text)), text))
    return found


def claims() -> list[Line]:
    """Lines of docs/results/paper.md; a heading ends with the label its claims are about, if any."""
    found, label = [], ""
    for text in (ROOT / "docs" / "results" / "paper.md").read_text(encoding="utf-8").splitlines():
        if text.startswith("#"):
            heading = re.search(r"\(`([a-z]+:\w+)`\)$", text)
            label = heading[1] if heading else ""
        elif text.startswith("| ") and not text.startswith("| claim"):
            found.append(Line(label, tuple(re.findall(r"`([^`]+)`", text)), text))
    return found


@pytest.mark.parametrize("lines", [equations(), claims()], ids=["equations", "claims"])
def test_every_function_command_and_test_on_the_pages_exists(lines: list[Line]) -> None:
    assert len(lines) > 20
    for line in lines:
        assert all(map(is_a_command, line.commands)), line
        assert all(map(is_a_test, line.tests)), line
        assert all("." in name and exists(name) for name in line.functions), line


def test_every_line_names_a_function_and_a_test_or_says_that_nothing_was_measured() -> None:
    for line in [*equations(), *claims()]:
        if NOT_MEASURED not in line.text:
            assert line.functions, line.text
            assert line.tests, line.text


def test_commands_are_named_wherever_there_is_one() -> None:
    without = [line.label for line in equations() if not line.commands]
    assert without == ["eq:vZ_recovery", "rem:vZ_determined"]
    for line in claims():
        assert line.commands or NOT_MEASURED in line.text, line.text


def test_no_label_is_on_the_equations_page_twice() -> None:
    labels = [line.label for line in equations()]
    assert len(labels) == len(set(labels))


def test_every_label_in_the_code_is_on_the_page() -> None:
    known = {line.label for line in equations()}
    for file in (ROOT / "src").rglob("*.py"):
        for mention in re.findall(
            r"Eq\. ([A-Za-z0-9_]+(?:, [A-Za-z0-9]+_[A-Za-z0-9_]+)*)", file.read_text("utf-8")
        ):
            for label in mention.split(", "):
                assert f"eq:{label}" in known, f"{file.name} mentions Eq. {label}"


def test_everything_of_the_paper_is_on_the_pages(paper_source: str) -> None:
    labels = set(re.findall(r"\\label\{([a-z]+:[A-Za-z0-9_]+)\}", paper_source))
    assert {label.split(":")[0] for label in labels} == EXEMPT | PREFIX
    labels = {label for label in labels if label.split(":")[0] not in EXEMPT}
    assert len(labels) > 70
    assert labels == {line.label for line in [*equations(), *claims()] if line.label}
