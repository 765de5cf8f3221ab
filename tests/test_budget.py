"""The size of the house: code lines and files of every package stay within `budget.toml`."""

from __future__ import annotations

import ast
import io
import tokenize
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUDGET = tomllib.loads((ROOT / "budget.toml").read_text())
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


def code_lines(text: str) -> int:
    """Lines that hold code: no blank lines, comments or docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            ast.get_docstring(node, clean=False) is not None
        ):
            first = node.body[0]
            lines.difference_update(range(first.lineno, (first.end_lineno or 0) + 1))
    return len(lines)


def size_of(files: list[Path]) -> tuple[int, int]:
    """Code lines and number of files."""
    return sum(code_lines(path.read_text()) for path in files), len(files)


@pytest.mark.parametrize("house", BUDGET)
def test_a_house_and_its_rooms_stay_within_the_budget(house: str) -> None:
    root, budget = ROOT / house, BUDGET[house]
    rooms = {path.name for path in root.iterdir() if path.is_dir() and list(path.rglob("*.py"))}
    assert rooms == set(budget["rooms"]), "every package of its own has a budget, and no other"
    lines, files = size_of(list(root.rglob("*.py")))
    assert lines <= budget["lines"], f"{house}: {lines} lines"
    assert files <= budget["files"], f"{house}: {files} files"
    for room, (most_lines, most_files) in budget["rooms"].items():
        lines, files = size_of(list((root / room).rglob("*.py")))
        assert lines <= most_lines, f"{room}: {lines} lines"
        assert files <= most_files, f"{room}: {files} files"


def test_the_counter_counts_code_alone() -> None:
    text = '"""Says."""\n\n# why\ndef f(x):\n    """Says."""\n    return (\n        x\n    )\n'
    assert code_lines(text) == 4
