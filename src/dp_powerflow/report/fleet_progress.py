"""Progress of a fleet: how many feeders are done, how fast, how long it takes still, and who is under way.

A bar and a line below it on a terminal; where the output is piped, lines that become rarer in a long run.
Only public names are shown. How many failed is INTERNAL, and marked so.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dp_powerflow.fleet.names import ENDS, UNDER_WAY, FeederEvent, FeederState

Advance = Callable[[int, int], None]
Describe = Callable[[str], None]

SHOWN_AFTER = 2.0
"""Seconds before a bar appears."""
LINE_EVERY = 10.0
"""Seconds between two lines about the same stage, and before the first about a command without stages."""
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
            self._next = now + LINE_EVERY
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
    task = bar.add_task(title, total=None)
    appears = threading.Timer(SHOWN_AFTER, bar.start)
    appears.daemon = True
    appears.start()
    try:
        yield (
            lambda done, total: bar.update(task, completed=done, total=total),
            lambda stage: bar.reset(task, description=stage, total=None),
        )
    finally:
        appears.cancel()
        appears.join()
        if bar.live.is_started:
            bar.stop()


MOST_NAMES = 4
"""Feeders under way that are named; the others are counted."""
MOST_FAILURES = 20
"""Failures that are told one by one; the others are counted."""
RAREST_LINES = 60.0
"""Seconds between two lines of a long run; ten at first, then a twentieth of the time it has taken."""
_IN_WORDS: dict[FeederState, str] = {
    "waiting": "waiting",
    "checking": "being checked",
    "checked": "checked",
    "paid": "paid",
    "solving": "being solved",
    "released": "released",
    "failed": "failed",
}


class FleetCount:
    """Where the feeders of a fleet are, from the events that were heard.

    Parameters
    ----------
    clock
        Seconds, from any moment on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._states: dict[str, FeederState] = {}
        self._counts: Counter[FeederState] = Counter()
        self._under_way: dict[str, None] = {}
        self._begun: float | None = None
        self._ended = 0

    def hear(self, event: FeederEvent) -> None:
        """A feeder is in a state now."""
        before = self._states.get(event.name)
        if before is not None:
            self._counts[before] -= 1
        self._states[event.name] = event.state
        self._counts[event.state] += 1
        if event.state not in UNDER_WAY:
            self._under_way.pop(event.name, None)
        else:
            if self._begun is None and event.state == "solving":
                self._begun = self._clock()  # checks are no measure of what making takes
            self._under_way[event.name] = None
        if event.state in ENDS and before not in (None, *ENDS):
            self._ended += 1  # one whose first event is its end was there before

    @property
    def total(self) -> int:
        """Feeders that were heard of."""
        return len(self._states)

    @property
    def done(self) -> int:
        """Feeders that are released or failed."""
        return sum(self._counts[state] for state in ENDS)

    @property
    def is_under_way(self) -> bool:
        """Whether a feeder is being made."""
        return bool(self._under_way)

    @property
    def per_minute(self) -> float | None:
        """Feeders that this run ends in a minute; None before the first."""
        if self._begun is None or not self._ended:
            return None
        return 60.0 * self._ended / max(self._clock() - self._begun, 1e-3)

    @property
    def seconds_left(self) -> float | None:
        """At the rate of this run; None before its first feeder."""
        rate = self.per_minute
        return None if rate is None else 60.0 * (self.total - self.done) / rate

    def pace(self) -> str:
        """Rate and time left in words; empty before the first feeder."""
        rate, left = self.per_minute, self.seconds_left
        if rate is None or left is None:
            return ""
        figure = f"{rate:.2g}" if rate < 10.0 else f"{rate:,.0f}"
        return f"{figure} a minute, {in_time(left)} left" if left else f"{figure} a minute"

    def states(self) -> str:
        """How many feeders are in which state, and the names of those under way."""
        parts = [
            f"{self._counts[state]:,} {words}"
            for state, words in _IN_WORDS.items()
            if self._counts[state] and state != "failed"
        ]
        failed = [f"INTERNAL: {self._counts['failed']:,} failed"] if self._counts["failed"] else []
        return "; ".join([", ".join(parts), *failed, *self._names()])

    def _names(self) -> list[str]:
        """The feeders under way."""
        named = [*self._under_way][:MOST_NAMES]
        more = len(self._under_way) - len(named)
        return [", ".join(named) + (f" and {more:,} more" if more else "")] if named else []

    def line(self, stage: str) -> str:
        """All of it."""
        if not self.total:
            return stage
        share = f"{stage}: {self.done:,} of {self.total:,} ({self.done / self.total:.0%})"
        pace = self.pace()
        return f"{share}, {pace}; {self.states()}" if pace else f"{share}; {self.states()}"


def in_time(seconds: float) -> str:
    """So many seconds as a person says them."""
    minutes = round(seconds / 60.0)
    if seconds < 90.0:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


class FleetProgress:
    """Shows the progress of a fleet while the context lasts.

    Parameters
    ----------
    console
        Where to. On a terminal a bar appears past two seconds and is gone at the end.
    clock
        Seconds, from any moment on.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._lock = threading.RLock()
        self._count = FleetCount(clock)
        self._stage = "fleet"
        self._begun = self._stage_begun = clock()
        self._next = self._begun + LINE_EVERY
        self._ended = threading.Event()
        self._live = Live(console=console, get_renderable=self.shown, refresh_per_second=4, transient=True)
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def on_event(self, event: FeederEvent) -> None:
        """A feeder is in a state now."""
        with self._lock:
            self._count.hear(event)
        self.look()

    def describe(self, stage: str) -> None:
        """What is done for all feeders; a line of its own unless feeders are under way."""
        with self._lock:
            if stage == self._stage:
                return
            self._stage, self._stage_begun = stage, self._clock()
            if not self._console.is_terminal and not self._count.is_under_way:
                self._next = self._stage_begun + LINE_EVERY
                self._write(stage)

    def look(self) -> None:
        """Print a line if one is due; none on a terminal, which has the bar."""
        if self._console.is_terminal:
            return
        with self._lock:
            now = self._clock()
            if now < self._next:
                return
            self._next = now + min(RAREST_LINES, max(LINE_EVERY, (now - self._begun) / 20.0))
            counted = self._count.total > 0
            seconds = now - self._stage_begun
            self._write(self._count.line(self._stage) if counted else f"{self._stage}: {seconds:.0f} s")

    def shown(self) -> RenderableType:
        """The bar, and below it who is where."""
        with self._lock:
            count = self._count
            grid = Table.grid(padding=(0, 1), expand=True)
            grid.add_column(no_wrap=True, ratio=3)
            grid.add_column(ratio=4)
            grid.add_column(no_wrap=True)
            bar = ProgressBar(total=count.total or None, completed=count.done, pulse=not count.total)
            pace = f"{count.done:,}/{count.total:,} {count.pace()}" if count.total else ""
            grid.add_row(Text(self._stage, overflow="ellipsis"), bar, Text(pace))
            below = Text(count.states(), style="dim", no_wrap=True, overflow="ellipsis")
            return Group(grid, below) if count.total else grid

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._live.is_started:
            self._live.stop()

    def _write(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _watch(self) -> None:
        if self._console.is_terminal:
            if not self._ended.wait(SHOWN_AFTER):
                self._live.start()
            return
        while not self._ended.wait(LOOK_EVERY):
            self.look()


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
