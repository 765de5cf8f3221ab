"""Progress of a command, for people: a bar on a terminal, lines that become rarer where the output is piped.

Only public names and counts are shown; that a feeder of a fleet failed is INTERNAL, and marked so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Advance = Callable[[int, int], None]
Describe = Callable[[str], None]

SHOWN_AFTER = 2.0
"""Seconds before a bar appears."""
LINE_EVERY = 10.0
"""Seconds between two lines about the same stage, and before the first about a command without stages."""
RAREST_LINES = 60.0
"""Seconds between two lines of a long stage: a twentieth of the time it has taken, at most this."""
MOST_FAILURES = 20
"""Failures that are told one by one; the others are counted."""
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
def progress(console: Console, title: str) -> Iterator[tuple[Advance, Describe]]:
    """Show what a command is doing: one callback for progress, one for the stage.

    Parameters
    ----------
    console
        Where to. On a terminal a bar appears past two seconds and is gone at the end.
    title
        What is being done until a stage is named.
    """
    shown = _bar(console, title) if console.is_terminal else _lines(console, title)
    with shown as callbacks:
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
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True)
    task, shown = bar.add_task(title, total=None), [title]
    appears = threading.Timer(SHOWN_AFTER, bar.start)
    appears.daemon = True
    appears.start()

    def describe(stage: str) -> None:
        if shown != [stage]:
            shown[:] = [stage]
            bar.reset(task, description=stage, total=None)

    try:
        yield lambda done, total: bar.update(task, completed=done, total=total), describe
    finally:
        appears.cancel()
        appears.join()
        if bar.live.is_started:
            bar.stop()


class ToldFailures:
    """INTERNAL. Tells the first feeders that fail as they do, and counts the others.

    Parameters
    ----------
    write
        Prints a line.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write, self._count = write, 0

    def tell(self, name: str, key: str, problem: str) -> None:
        """A feeder failed."""
        self._count += 1
        if self._count <= MOST_FAILURES:
            self._write(f"INTERNAL: {name} ({key}) failed: {problem}")
        elif self._count == MOST_FAILURES + 1:
            self._write("INTERNAL: more feeders fail; they are counted, and all are listed at the end")

    def rest(self, where: object) -> None:
        """How many were not told, and where they are listed."""
        if self._count > MOST_FAILURES:
            self._write(f"INTERNAL: {self._count - MOST_FAILURES:,} more failed; all are listed in {where}")
