"""A single server process."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from dp_powerflow._parallel.crew import DEFECTS as DEFECTS
from dp_powerflow._parallel.jobs import Result
from dp_powerflow.errors import DpPowerflowError

Request = TypeVar("Request")
Serve = Callable[[Request, Callable[[object], None]], Result]
"""Answers a request, and may tell things meanwhile through the callback. It is pickled to the process."""


class ServerDefectError(RuntimeError):
    """PRIVATE. A defect in a server process; the message is its traceback."""


class ServerProcess(Generic[Request, Result]):
    """A process of its own that answers one request after the other.

    It starts with the first request and is replaced after so many of them, and whenever it ends. It may have
    worker processes itself, and it ends with this process, however that ends.

    Parameters
    ----------
    serve : what answers the requests.
    requests : how many of them one process answers.
    lost : says why a process may have ended, and what to do.
    """

    def __init__(self, serve: Serve[Request, Result], requests: int, lost: str) -> None:
        self._serve, self._requests, self._lost = serve, requests, lost
        self._left = 0
        self._process: Any = None
        self._connection: Connection | None = None

    def ask(self, request: Request, on_told: Callable[[Any], None]) -> Result:
        """The answer to one request; `on_told` gets what is told meanwhile.

        Raises
        ------
        DpPowerflowError : the request failed, or the process ended.
        ServerDefectError : the request met a defect.
        """
        if self._left == 0 or self._process is None:
            self._start()
        self._left -= 1
        connection = self._connection
        assert connection is not None
        try:
            connection.send(request)
            while (message := connection.recv())[0] == "told":
                on_told(message[1])
        except (EOFError, OSError):
            self.stop()
            raise DpPowerflowError(self._lost) from None
        kind, content = message
        if kind == "failed":
            raise DpPowerflowError(content)
        if kind == "defect":
            raise ServerDefectError(content)
        answer: Result = content
        return answer

    def stop(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            self._process.terminate()
            self._process.join()
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _start(self) -> None:
        self.stop()
        context = get_context("spawn")
        own, other = context.Pipe()
        # Not a daemon: it may have worker processes itself.
        self._process = context.Process(target=_answer_all, args=(other,), daemon=False)
        self._process.start()
        other.close()
        self._connection, self._left = own, self._requests
        own.send(self._serve)


def _answer_all(connection: Connection) -> None:
    """Answer requests until the other side is gone, which also ends this process if the other was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other side is interrupted, and ends this one
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        serve = connection.recv()
        while True:
            connection.send(_answer(serve, connection.recv(), connection))


def _answer(serve: Serve[Any, Any], request: Any, connection: Connection) -> tuple[str, Any]:
    try:
        return "done", serve(request, lambda told: connection.send(("told", told)))
    except (DpPowerflowError, OSError) as error:
        return "failed", str(error)
    except DEFECTS:
        return "defect", traceback.format_exc()
