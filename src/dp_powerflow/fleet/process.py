"""Where the releases of a fleet are made: in this process, or in one of its own, replaced now and then.

A process of its own has two reasons. An engine of dss-python keeps about 2 MB for ever, so a process that
opens thousands of feeders runs out of memory. And a feeder that crashes the process that reads it must not
stop the rest: here it is one failed feeder, and the next one gets a new process.
"""

from __future__ import annotations

import contextlib
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Protocol

from dp_powerflow._parallel import Engine
from dp_powerflow.config import Config
from dp_powerflow.errors import DpPowerflowError
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.pipeline.assembly import check_before_spending, feeder_of
from dp_powerflow.pipeline.charge import network_identity
from dp_powerflow.pipeline.run import Progress, Report, run_release
from dp_powerflow.privacy.state import PrivateState

DEFECTS = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""What a defect of the program, or of a library, raises on one feeder; the others are made nevertheless."""

_EXAMINE, _RELEASE = "examine", "release"
_SAY, _PROGRESS, _DONE, _FAILED, _DEFECT = "say", "progress", "done", "failed", "defect"


class ReleaseDefectError(RuntimeError):
    """PRIVATE. A defect in the process that makes releases; the message is its traceback."""


class Maker(Protocol):
    """Makes the releases of one fleet, one at a time."""

    def examine(self, config: Config) -> str:
        """Identity of a feeder's network; refuses what can be known to be wrong before anything is spent."""

    def release(self, config: Config, say: Report, progress: Progress | None) -> None:
        """Make one release, or finish it."""


class HereMaker:
    """In this process."""

    def __init__(self, engine: Engine, history: LoadHistory) -> None:
        self._engine, self._history = engine, history

    def examine(self, config: Config) -> str:
        """Open the feeder and look at it."""
        feeder = feeder_of(config)
        check_before_spending(config, feeder, self._history)
        state = PrivateState.open(config.release.state, insecure_seed=config.release.insecure_seed)
        return network_identity(config, state, feeder)

    def release(self, config: Config, say: Report, progress: Progress | None) -> None:
        """Make one release."""
        run_release(config, engine=self._engine, history=self._history, say=say, progress=progress)


class ProcessMaker:
    """In a process of its own, which is replaced after some feeders and whenever it ends."""

    def __init__(self, engine: Engine, history: LoadHistory, feeders: int) -> None:
        self._inputs = (engine, history)
        self._feeders = feeders
        self._left = 0
        self._process: Any = None
        self._connection: Connection | None = None

    def examine(self, config: Config) -> str:
        """Open the feeder and look at it."""
        return self._ask(_EXAMINE, config, lambda _: None, None)

    def release(self, config: Config, say: Report, progress: Progress | None) -> None:
        """Make one release."""
        self._ask(_RELEASE, config, say, progress)

    def stop(self) -> None:
        """End the process; what it has not finished is resumed by the next run."""
        if self._process is not None:
            self._process.terminate()
            self._process.join()
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, what: str, config: Config, say: Report, progress: Progress | None) -> str:
        if self._left == 0 or self._process is None:
            self._start()
        self._left -= 1
        connection = self._connection
        assert connection is not None
        try:
            connection.send((what, config))
            while True:
                kind, *values = connection.recv()
                if kind == _SAY:
                    say(*values)
                elif kind == _PROGRESS:
                    if progress is not None:
                        progress(*values)
                else:
                    break
        except (EOFError, OSError):
            self.stop()
            raise DpPowerflowError(
                "its process ended unexpectedly, perhaps for want of memory or because the feeder crashes "
                "OpenDSS; run the fleet again to resume"
            ) from None
        if kind == _FAILED:
            raise DpPowerflowError(*values)
        if kind == _DEFECT:
            raise ReleaseDefectError(*values)
        return str(values[0])

    def _start(self) -> None:
        self.stop()
        context = get_context("spawn")
        own, other = context.Pipe()
        # Not a daemon: it may have worker processes itself.
        self._process = context.Process(target=_serve, args=(other,), daemon=False)
        self._process.start()
        other.close()
        self._connection, self._left = own, self._feeders
        own.send(self._inputs)


@contextmanager
def maker_of(engine: Engine, history: LoadHistory, feeders_per_process: int | None) -> Iterator[Maker]:
    """What makes the releases; None makes them in this process."""
    if feeders_per_process is None:
        yield HereMaker(engine, history)
        return
    maker = ProcessMaker(engine, history, feeders_per_process)
    try:
        yield maker
    finally:
        maker.stop()


def _serve(connection: Connection) -> None:
    """Make releases until the other side is gone, which also ends this process if the other was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other side is interrupted, and ends this one
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        maker = HereMaker(*connection.recv())
        while True:
            connection.send(_answer(maker, connection, *connection.recv()))


def _answer(maker: HereMaker, connection: Connection, what: str, config: Config) -> tuple[str, str]:
    try:
        if what == _EXAMINE:
            return _DONE, maker.examine(config)
        maker.release(
            config,
            lambda text: connection.send((_SAY, text)),
            lambda done, total: connection.send((_PROGRESS, done, total)),
        )
    except (DpPowerflowError, OSError) as error:
        return _FAILED, str(error)
    except DEFECTS:
        return _DEFECT, traceback.format_exc()
    return _DONE, ""
