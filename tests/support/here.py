"""An engine that does everything in this very process: quick to start, and within reach of monkeypatches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from dp_powerflow._parallel import Kept, Local
from dp_powerflow._parallel.local import Job, finished, unwrapped


class HereKept:
    """One worker, which does an item as soon as it is taken."""

    def map(
        self,
        job: Job[Any, Any],
        items: Iterable[Any],
        on_done: Callable[[Any], None],
        on_lost: Callable[[Any], Any] | None = None,
    ) -> None:
        """Do every item."""
        work = job.start(None)
        for item in items:
            on_done(unwrapped(finished(work(item))))


class Here(Local):
    """This process alone, or what takes its place."""

    def __init__(self, kept: Kept | None = None) -> None:
        super().__init__(1)
        self._kept = kept or HereKept()

    @contextmanager
    def kept(self, items: int, most_items: int) -> Iterator[Kept]:
        """This process."""
        yield self._kept
