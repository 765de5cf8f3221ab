"""Where the releases of a fleet are made: in this process, or in one of its own, replaced now and then.

A process of its own has two reasons. An engine of dss-python keeps about 2 MB for ever, so a process that
opens thousands of feeders runs out of memory. And a feeder that crashes the process that reads it must not
stop the rest: here it is one failed feeder, and the next one gets a new process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from dp_powerflow._parallel import Engine, ServerProcess
from dp_powerflow.config import Config
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.pipeline.inputs import read_inputs
from dp_powerflow.pipeline.modes.base import Progress, mode_of
from dp_powerflow.pipeline.run import Say, run_release
from dp_powerflow.privacy.state import PrivateState

_LOST = (
    "its process ended unexpectedly, perhaps for want of memory or because the feeder crashes OpenDSS; "
    "run the fleet again to resume"
)


class Maker(Protocol):
    """Makes the releases of one fleet, one at a time."""

    def examine(self, config: Config) -> str:
        """Identity of a feeder's network; refuses what can be known to be wrong before anything is spent."""

    def release(self, config: Config, say: Say, progress: Progress | None) -> None:
        """Make one release, or finish it."""


@dataclass(frozen=True, eq=False, repr=False)
class HereMaker:
    """PRIVATE. In this process."""

    engine: Engine
    history: LoadHistory

    def examine(self, config: Config) -> str:
        """Open the feeder and look at it."""
        state = PrivateState.open(config.release.state, insecure_seed=config.release.insecure_seed)
        inputs, mode = read_inputs(config, state, history=self.history), mode_of(config)
        mode.check(inputs)
        return mode.identity(inputs)

    def release(self, config: Config, say: Say, progress: Progress | None) -> None:
        """Make one release."""
        run_release(config, engine=self.engine, history=self.history, say=say, progress=progress)

    def __call__(self, request: tuple[str, Config], tell: Callable[[object], None]) -> str:
        """Answer a request of `ProcessMaker`, in its process."""
        what, config = request
        if what == "examine":
            return self.examine(config)
        self.release(config, tell, lambda done, total: tell((done, total)))
        return ""


class ProcessMaker:
    """In a process of its own, which is replaced after some feeders and whenever it ends."""

    def __init__(self, process: ServerProcess[tuple[str, Config], str]) -> None:
        self._process = process

    def examine(self, config: Config) -> str:
        """Open the feeder and look at it."""
        return self._process.ask(("examine", config), lambda _: None)

    def release(self, config: Config, say: Say, progress: Progress | None) -> None:
        """Make one release."""

        def on_told(told: Any) -> None:
            if isinstance(told, str):
                say(told)
            elif progress is not None:
                progress(*told)

        self._process.ask(("release", config), on_told)


@contextmanager
def maker_of(engine: Engine, history: LoadHistory, feeders_per_process: int | None) -> Iterator[Maker]:
    """What makes the releases; None makes them in this process."""
    here = HereMaker(engine, history)
    if feeders_per_process is None:
        yield here
        return
    process = ServerProcess(here, feeders_per_process, _LOST)
    try:
        yield ProcessMaker(process)
    finally:
        process.stop()
