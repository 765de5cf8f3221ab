"""Equations of the paper without a label: each has a line on the equations page, each line an equation."""

from __future__ import annotations

import re

from support.pages import ROOT, exists, is_a_command, is_a_test

DISPLAY = re.compile(
    r"\\label\{(?P<label>[^}]*)\}"
    r"|\\begin\{(?P<kind>equation\*?|align\*?|gather\*?|multline\*?)\}(?P<body>.*?)\\end\{(?P=kind)\}"
    r"|(?<!\\)\\\[(?P<short>.*?)\\\]",
    re.DOTALL,
)
LABEL = re.compile(r"\\label\{([^}]*)\}")


def lines() -> list[list[str]]:
    """Cells of the table: label before, function, what it is, command, test."""
    page = (ROOT / "docs" / "explanation" / "equations.md").read_text(encoding="utf-8")
    table = page.split("## Equations without a label", maxsplit=1)[1].splitlines()
    rows = [line.strip().strip("|").split(" | ") for line in table if line.startswith("| ")]
    return [[cell.strip().strip("`") for cell in row] for row in rows[1:]]


def unlabelled(source: str) -> list[str]:
    """The label before each equation that has none of its own, in the order of the text."""
    found, before = [], ""
    for match in DISPLAY.finditer(source):
        own = [match["label"]] if match["label"] else LABEL.findall(match["body"] or match["short"])
        if own:
            before = own[-1]
        else:
            found.append(before)
    return found


def test_every_equation_without_a_label_has_a_line_and_every_line_an_equation(paper_source: str) -> None:
    assert unlabelled(paper_source) == [line[0] for line in lines()]


def test_lines_of_equations_without_a_label_name_what_exists() -> None:
    assert len(lines()) > 10
    for _, function, _, command, test in lines():
        assert exists(function), function
        assert is_a_command(command), command
        assert is_a_test(test), test


def test_an_equation_that_loses_its_label_is_noticed() -> None:
    source = (
        r"\label{eq:a}\begin{equation}x\label{eq:b}\end{equation}\begin{align*}y\end{align*} \\[2pt] \[z\]"
    )
    assert unlabelled(source) == ["eq:b", "eq:b"]
    assert unlabelled(source.replace(r"\label{eq:b}", "")) == ["eq:a", "eq:a", "eq:a"]
