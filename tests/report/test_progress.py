"""Progress of a long command: lines when it is piped, a bar on a terminal; never silence for minutes."""

from __future__ import annotations

import subprocess
import sys
import threading
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from dp_powerflow.cli import terminal as shown
from dp_powerflow.cli.terminal import StageLines, progress
from support.small import RAW, write_toml


class Clock:
    """Time that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_stage_has_a_line_when_it_begins_and_one_every_ten_seconds() -> None:
    clock, written = Clock(), list[str]()
    lines = StageLines("release", written.append, clock)
    lines.look()
    lines.describe("fitting the load model")
    for _ in range(60):
        clock.now += 0.5
        lines.look()
    lines.describe("drawing loads and solving")
    for done in range(1, 31):
        clock.now += 0.75
        lines.advance(done, 30)
    assert written == [
        "fitting the load model",
        "fitting the load model: 10 s",
        "fitting the load model: 20 s",
        "fitting the load model: 30 s",
        "drawing loads and solving",
        "drawing loads and solving: 14 of 30 (47%)",
        "drawing loads and solving: 28 of 30 (93%)",
    ]


def test_a_stage_without_a_callback_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line comes from a thread of its own, whatever the command is busy with."""
    for name in ("LINE_EVERY", "LOOK_EVERY"):
        monkeypatch.setattr(shown, name, 0.001)
    seen = threading.Event()

    class Watched(StringIO):
        def write(self, text: str) -> int:
            seen.set()
            return super().write(text)

    output = Watched()
    with progress("planning", Console(file=output)):
        assert seen.wait(30.0)
    assert output.getvalue().startswith("planning: 0 s\n")


def test_a_bar_appears_on_a_terminal_past_two_seconds_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    brief = StringIO()
    with progress("release", Console(file=brief, force_terminal=True)) as (advance, describe):
        describe("fitting")
        advance(1, 2)
    assert brief.getvalue() == ""
    monkeypatch.setattr(shown, "SHOWN_AFTER", 0.0)
    appeared = threading.Event()

    class Watched(StringIO):
        def write(self, text: str) -> int:
            if "1/2" in text:
                appeared.set()
            return super().write(text)

    long = Watched()
    with progress("release", Console(file=long, force_terminal=True)) as (advance, describe):
        describe("fitting")
        advance(1, 2)
        assert appeared.wait(30.0)
    assert "fitting" in long.getvalue()


@pytest.mark.slow
def test_a_release_that_is_piped_says_every_stage_on_stderr(tmp_path: Path) -> None:
    raw = {**RAW, "release": {**RAW["release"], "days": 3}}
    write_toml(tmp_path / "release.toml", raw)
    command = [sys.executable, "-c", "from dp_powerflow.cli import main; main()"]
    done = subprocess.run(
        [*command, "release", "release.toml", "--workers", "1", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    stages = ["reading the meter data", "fitting the load model", "drawing loads and solving"]
    lines = done.stderr.splitlines()
    assert [line for line in lines if line in stages] == stages
    assert done.stdout.startswith("{")
    assert "\x1b" not in done.stderr
