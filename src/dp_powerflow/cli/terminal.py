"""What all commands share: options, text on any terminal, results, and progress.

Names in files may hold escape sequences, signs that turn the direction of a line, or bytes that are no text.
A terminal of an old code page cannot write ε. Both are shown as escapes, such as `\\x1b` and `\\u03b5`.
Only public names and counts are shown as progress.
"""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from rich.console import Console
from typer import Argument, Option

from dp_powerflow.errors import printable

FEEDER = "ieee13, ieee123, PATH.dss, PATH.json (pandapower) or simbench:CODE"
ConfigFile = Annotated[Path, Argument(help="Config of the release (TOML).")]
Workers = Annotated[int | None, Option(help="Parts to make in parallel; default: one per core.", min=1)]
Scheduler = Annotated[
    str | None, Option(help="Address of a Dask cluster, such as tls://host:8786; 'local': processes here.")
]
AsJson = Annotated[bool, Option("--json", help="Print JSON.")]

Advance = Callable[[int, int], None]
Describe = Callable[[str], None]


class Terminal(Console):
    """A console whose texts are `printable`."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As of `Console`."""
        shown = (printable(item, lines=True) if isinstance(item, str) else item for item in objects)
        super().print(*shown, **options)

    def print_json(self, json: str | None = None, **options: Any) -> None:
        """As of `Console`, in ASCII: JSON has its own escapes."""
        super().print_json(json, **{"ensure_ascii": True} | options)


out = Terminal()
err = Terminal(stderr=True)


def write_what_can_be() -> None:
    """Let stdout and stderr write signs that their encoding lacks as escapes, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """One line on stderr, unchanged."""
    err.print(text, markup=False, highlight=False, soft_wrap=True)


# ---------------------------------------------------------------------------------------------- results


@dataclass(frozen=True)
class Rendered:
    """A result: Markdown lines for a person, and the same as JSON for a machine."""

    lines: list[str]
    json_text: str

    @classmethod
    def of(
        cls,
        template: str,
        content: object,
        filters: Mapping[str, Callable[..., object]] = MappingProxyType({}),
        **facts: object,
    ) -> Rendered:
        """The lines of a template, and the content as JSON."""
        from dp_powerflow._texts import lines_of  # Jinja is not for short commands

        return cls(lines_of(template, filters, **facts), json.dumps(content))


def show(rendered: Rendered, as_json: bool) -> None:
    """Print a result on stdout."""
    if as_json:
        out.print_json(rendered.json_text)
    else:
        print_markdown(rendered.lines)


def print_markdown(lines: Iterable[str]) -> None:
    """Print Markdown on stdout."""
    from rich.markdown import Markdown  # a tenth of the time of a short command

    out.print(Markdown(printable("\n".join(lines), lines=True)))


def show_ingest(found: Any) -> None:
    """What reading the meters found, on stderr and marked INTERNAL; nothing for simulated loads."""
    if found is not None:
        err.print(found.marking, style="bold red")
        for line in found.summary():
            say(f"meters: {line}")


def escaped(text: str) -> str:
    """A sentence in Markdown whose stars are stars."""
    return text.replace("*", "\\*")


# --------------------------------------------------------------------------------------------- progress


LINE_EVERY = 10.0
"""Seconds between two lines about the same stage, and before the first about a command without stages."""


RAREST_LINES = 60.0
"""Seconds between two lines of a long stage: a twentieth of the time it has taken, at most this."""


LOOK_EVERY = 0.5


class StageLines:
    """Progress as lines: one per stage, and at most one every ten seconds while a stage lasts.

    Parameters
    ----------
    title
        What is being done until a stage is named.
    write
        Prints a line.
    clock
        Seconds, from any moment on.
    """

    def __init__(
        self, title: str, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write, self._clock = write, clock
        self._lock = threading.Lock()
        self._stage, self._count = title, (0, 0)
        self._begun = clock()
        self._next = self._begun + LINE_EVERY

    def describe(self, stage: str) -> None:
        """Another stage begins."""
        with self._lock:
            if stage == self._stage:
                return
            self._stage, self._count = stage, (0, 0)
            self._begun = self._clock()
            self._next = self._begun + LINE_EVERY
            self._write(stage)

    def advance(self, done: int, total: int) -> None:
        """So much of the stage is done."""
        with self._lock:
            self._count = done, total
        self.look()

    def look(self) -> None:
        """Print a line if one is due."""
        with self._lock:
            now = self._clock()
            if now < self._next:
                return
            self._next = now + min(RAREST_LINES, max(LINE_EVERY, (now - self._begun) / 20.0))
            done, total = self._count
            share = f"{done:,} of {total:,} ({done / total:.0%})" if total else f"{now - self._begun:.0f} s"
            self._write(f"{self._stage}: {share}")


@contextmanager
def progress(title: str, console: Console = err) -> Iterator[tuple[Advance, Describe]]:
    """Show what a command is doing: one callback for progress, one for the stage.

    Parameters
    ----------
    title
        What is being done until a stage is named.
    console
        Where to. On a terminal there is a bar, which is gone at the end; elsewhere there are lines that
        become rarer.
    """
    with (_bar if console.is_terminal else _lines)(console, title) as callbacks:
        yield callbacks


@contextmanager
def _lines(console: Console, title: str) -> Iterator[tuple[Advance, Describe]]:
    def write(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    lines, ended = StageLines(title, write), threading.Event()

    def watch() -> None:
        while not ended.wait(LOOK_EVERY):
            lines.look()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield lines.advance, lines.describe
    finally:
        ended.set()
        watcher.join()


@contextmanager
def _bar(console: Console, title: str) -> Iterator[tuple[Advance, Describe]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task, shown = bar.add_task(title, total=None), [title]

        def describe(stage: str) -> None:
            if shown != [stage]:
                shown[:] = [stage]
                bar.reset(task, description=stage, total=None)

        yield lambda done, total: bar.update(task, completed=done, total=total), describe
