"""The page of paper corrections: the code cites sections that exist, and no file outside the repository."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from support.pages import ROOT, exists, is_a_test

PAGE = ROOT / "docs" / "explanation" / "paper-corrections.md"
CITED = re.compile(r"paper corrections?\s+((?:\d+(?:\s*(?:[,–-]|and)\s*)?)+)", re.IGNORECASE)
OUTSIDE = re.compile(r"PAPER_NOTES|TABLE_I\.md|LOADS\.md|TWIN\.md|OPERATION\.md")
SHARED = re.compile(r"\.\./shared|/work/|parents?(?:\[\d\])?\s*/\s*[\"']shared")


def texts(*folders: str) -> Iterator[tuple[Path, str]]:
    """Every text file below the folders, and the README."""
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("*")) if file.is_file()]
    for file in [ROOT / "README.md", *files]:
        if file.suffix in {".py", ".md", ".toml", ".txt", ".html", ".json", ".csv"}:
            yield file, file.read_text(encoding="utf-8")


def sections() -> list[int]:
    return [int(number) for number in re.findall(r"^## (\d+)\. ", PAGE.read_text("utf-8"), re.MULTILINE)]


def test_sections_are_numbered_in_order() -> None:
    assert sections() == list(range(1, 18))


def test_every_citation_names_a_section() -> None:
    known, cited = set(sections()), 0
    for file, text in texts("src", "docs", "tests", "benchmarks"):
        for match in CITED.finditer(text):
            numbers = {int(number) for number in re.findall(r"\d+", match[1])}
            cited += 1
            assert numbers <= known, f"{file}: {match[0]}"
    assert cited > 30


def test_no_file_outside_the_repository_is_mentioned() -> None:
    for file, text in texts("src", "docs", "benchmarks", "tests"):
        assert not OUTSIDE.search(text) or file == Path(__file__), file
    for file, text in texts("src", "docs", "benchmarks"):
        assert not SHARED.search(text), file


def test_tests_find_shared_material_through_conftest_alone() -> None:
    found = {file.name for file, text in texts("tests") if re.search(r"[\"']shared[\"']|\.\./shared", text)}
    assert found <= {"conftest.py", Path(__file__).name}


def test_every_name_on_the_page_exists() -> None:
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        for name in re.findall(r"`([A-Za-z_.]+)`", line):
            if name.startswith("test_"):
                assert is_a_test(name), name
            elif "." in name:
                assert exists(name), name
