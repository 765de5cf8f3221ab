"""An engine whose crew is this very process: quick to start, and within reach of monkeypatches."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from dp_powerflow._parallel import Answer, Crew, CrewJob, Local, OnTold, Work
from dp_powerflow._parallel.processes import attempted


class HereCrew:
    """One worker, which answers when somebody waits; `requests` has the last one of each number."""

    at_once = 1

    def __init__(self, on_told: OnTold) -> None:
        self._on_told = on_told
        self._waiting: deque[tuple[int, Any]] = deque()
        self._work: Work | None = None
        self.requests: dict[int, Any] = {}

    def give(self, job: CrewJob) -> None:
        self._work = job.start(None)

    def submit(self, number: int, request: Any, *, near: str | None = None) -> None:
        self._waiting.append((number, request))
        self.requests[number] = request

    def answers(self) -> Iterator[Answer]:
        while self._waiting:
            number, request = self._waiting.popleft()
            assert self._work is not None
            do = partial(self._work, request, partial(self._on_told, number))
            yield attempted(number, "here", do, lambda _: traceback.format_exc())


class Here(Local):
    """This process alone."""

    def __init__(self) -> None:
        super().__init__(1)

    @contextmanager
    def crew(self, on_told: OnTold, begun_per_worker: int) -> Iterator[Crew]:
        yield HereCrew(on_told)
