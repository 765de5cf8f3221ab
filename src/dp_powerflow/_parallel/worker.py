"""A worker process: what it does with what comes through its pipe.

It imports little. What a job needs is imported when the job is read.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, NoReturn

from dp_powerflow._parallel.crew import Answer, Work, attempted

READY, TOLD, ANSWER = "ready", "told", "answer"
JOB, REQUEST = "job", "request"
SIGNALS = {signal.SIGINT, signal.SIGHUP, signal.SIGTERM}
"""What is kept from a worker that starts: it is not ready to answer them well."""
_PR_SET_PDEATHSIG = 1


def serve(connection: Connection, parent: int) -> NoReturn:
    """Answer requests until the other side is gone, however that ended.

    Parameters
    ----------
    parent : id of the process that started this one.
    """
    end_with(parent)
    os.set_inheritable(connection.fileno(), False)
    received: SimpleQueue[tuple[str, Any, bytes]] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, received.put), daemon=True).start()
    Worker(connection).serve(received)


def end_with(parent: int) -> None:
    """Leave signals of the terminal to the parent, and end with it even where no thread gets its turn.

    To be exact, it ends with the thread that started it: whoever starts a worker waits for it in the same
    thread. A parent that has ended already is found out by its id, which is another one then.
    """
    for terminal in (signal.SIGINT, signal.SIGHUP):
        signal.signal(terminal, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _receive(connection: Connection, put: Callable[[tuple[str, Any, bytes]], None]) -> None:
    """Take what comes, so that the end of the other side is noticed at any time."""
    while True:
        try:
            kind, fact = connection.recv()
            put((kind, fact, connection.recv_bytes()))
        except (EOFError, OSError):
            os._exit(0)


class Worker:
    """PRIVATE. What answers the requests of one process."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._sending = connection, threading.Lock()
        self._start: Callable[[], Work] | None = None
        self._work: Work | None = None

    def serve(self, received: SimpleQueue[tuple[str, Any, bytes]]) -> NoReturn:
        """Answer one request after the other."""
        self._send((READY, 0, None))
        while True:
            kind, fact, content = received.get()
            if kind == JOB:
                self._take_job(content, fact)
            else:
                self._answer(fact, content)

    def _take_job(self, content: bytes, threads: int | None) -> None:
        self._work = None  # gives back what the job before it kept
        # With the first request. From the process that started this one, by a pipe of these two.
        self._start = lambda: pickle.loads(content).start(threads)  # nosec B301

    def _answer(self, number: int, content: bytes) -> None:
        def do() -> Any:
            if self._work is None:
                assert self._start is not None
                self._work, self._start = self._start(), None
            request = pickle.loads(content)  # from there too # nosec B301
            return self._work(request, lambda told: self._send((TOLD, number, told)))

        answer = attempted(number, "", do, lambda _: traceback.format_exc())
        try:
            self._send((ANSWER, number, answer))
        except Exception:  # it cannot be pickled
            self._send((ANSWER, number, Answer(number, "", defect=traceback.format_exc())))

    def _send(self, message: tuple[str, int, Any]) -> None:
        content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        try:
            with self._sending:
                self._connection.send_bytes(content)
        except OSError:
            os._exit(0)  # the other side is gone
