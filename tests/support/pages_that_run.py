"""Pages of the docs, run as a reader runs them: files are saved, commands typed, outputs compared.

Three kinds of fenced block count. `title="NAME"` is a file to save. `console` holds commands after `$` and
what they print; a line `…` stands for what is left out. `python` without a title is typed into one session,
and a `text` block without a title right after it is what it prints. `skip="REASON"` marks a block that a test
cannot run.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = "…"
HOME = "/home/you/valley"
"""Where the pages say that the reader works."""

_BLOCK = re.compile(r'^( *)```(\w+)((?: \w+="[^"]*")*)\n(.*?)^\1```$', re.MULTILINE | re.DOTALL)
_OWN_KEY = re.compile(r"\d+\.\d{4}\b|\d\.\de-1\d|\d{4}-\d\d-\d\dT[\d:+]+")
"""Voltages, mismatches and times: they differ from run to run, since the key does."""
_COMMIT = re.compile(r"(?<=\d)\+g?[0-9a-f][\w.]*$")
"""What a version made from a clone has behind its number."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, the file it is to be saved as, its text, why it is not run."""

    language: str
    title: str | None
    text: str
    skip: str | None = None


@dataclass(frozen=True)
class Command:
    """A command of a `console` block and the lines that the page says it prints."""

    line: str
    shown: tuple[str, ...]


def blocks_of(page: str) -> tuple[Block, ...]:
    """All fenced blocks of a page of the docs, in order."""
    return blocks_in((ROOT / "docs" / page).read_text(encoding="utf-8"))


def blocks_in(text: str) -> tuple[Block, ...]:
    """All fenced blocks of a text; one inside a list is moved to the left."""
    found = []
    for _, language, marks, body in _BLOCK.findall(text):
        said = dict(re.findall(r'(\w+)="([^"]*)"', marks))
        found.append(Block(language, said.pop("title", None), textwrap.dedent(body), said.pop("skip", None)))
        if said:
            raise ValueError(f"a block has the unknown mark {next(iter(said))!r}")
    return tuple(found)


def commands_of(block: Block) -> Iterator[Command]:
    """The commands of a `console` block."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, *shown = part.splitlines()
        yield Command(line, tuple(text for text in shown if text.strip() not in ("", LEFT_OUT)))


def type_command(command: Command, folder: Path) -> str:
    """Run one command as in a terminal of 80 columns; complain of a line that it does not print."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        command.line,
        shell=True,
        cwd=folder,
        env={**os.environ, "PATH": path, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
    )
    said = [_plain(stream, folder) for stream in (done.stdout, done.stderr)]
    for shown in map(_masked, command.shown):
        stream = next((lines for lines in said if shown in lines), None)
        assert stream is not None, f"{command.line}\ndoes not print\n{shown}\nbut\n{done.stdout}{done.stderr}"
        del stream[: stream.index(shown) + 1]  # what is shown is in order
    return str(done.returncode)


def run_python(code: str, session: dict[str, Any]) -> str:
    """What a block prints; its names stay in the session."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "<block>", "exec"), session)
    return printed.getvalue()


def _plain(stream: str, folder: Path) -> list[str]:
    return [_masked(line) for line in stream.replace(str(folder.resolve()), HOME).splitlines()]


def _masked(line: str) -> str:
    return _OWN_KEY.sub("#", _COMMIT.sub("", " ".join(line.split())))


@dataclass(frozen=True)
class Site:
    """The built site and what MkDocs said while it was built."""

    folder: Path
    exit_code: int
    said: str

    def html(self, page: str) -> str:
        """The built page of a page of the docs, such as 'how-to/fleet.md'."""
        return (self.folder / page).with_suffix(".html").read_text(encoding="utf-8")


def build_site(folder: Path) -> Site:
    """Build the site as `make docs` does."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    return Site(folder, done.returncode, done.stdout + done.stderr)
