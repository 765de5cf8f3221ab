"""A newcomer who types what the tutorials print gets what they print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.pages_that_run import blocks_of, commands_of, run_python, type_command

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
