"""A newcomer who types what the tutorials print gets what they print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.pages_that_run import LEFT_OUT, blocks_of, commands_of, run_python, type_command

FIRST_RELEASE = "tutorial/first-release.md"
FIRST_CORPUS = "tutorial/first-corpus.md"
NOT_AFFORDABLE = ("dp-powerflow plan second.toml", "3")


@pytest.mark.slow
def test_the_first_release_goes_as_it_is_printed(tmp_path: Path) -> None:
    ended = {}
    for block in blocks_of(FIRST_RELEASE):
        if block.title is not None:
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "console":
            for command in commands_of(block):
                ended[command.line] = type_command(command, tmp_path)
    assert len(ended) == 14
    assert [item for item in ended.items() if item[1] != "0"] == [NOT_AFFORDABLE]
    assert (tmp_path / "release-2" / "quality.html").is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("ieee13")  # the first engine of a process returns to where dss was imported
def test_the_first_corpus_goes_as_it_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("pandas", "sklearn"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    session: dict[str, Any] = {}
    printed, compared = "", 0
    for block in blocks_of(FIRST_CORPUS):
        if block.title is not None:
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            printed = run_python(block.text, session)
        elif block.language == "text":
            assert_shown(block.text, printed)
            compared += 1
    assert compared == 6
    assert (tmp_path / "day.png").is_file()


def assert_shown(shown: str, printed: str) -> None:
    """The page prints what the block printed; `…` stands for a line."""
    for expected, line in zip(shown.splitlines(), printed.splitlines(), strict=True):
        assert expected in (LEFT_OUT, line.rstrip())
