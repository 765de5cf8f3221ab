"""How a command ends before its time: a signal, a second one, or no memory, each in one sentence.

Only the command line uses this; the library installs no handler, and Ctrl-C is `KeyboardInterrupt` there.

The first signal unwinds the command, so that workers end, the bar disappears and what is of no use is
removed. Whatever comes while that lasts ends the process at once, like a kill: everything that is kept is
whole at any moment, and workers end with their parent (`_parallel.local`). `Ended` is no
`KeyboardInterrupt`, which click answers itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

from dp_powerflow._spending import RESUME, STAYS_SPENT, charges_begun

NO_MEMORY = "there is not enough memory; free some, allow more, or use fewer --workers"
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
_SHOW_CURSOR = "\x1b[?25h"


class Ended(BaseException):
    """A signal came.

    Attributes
    ----------
    number : of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Ending:
    """What a command says when it ends before its time.

    Attributes
    ----------
    resumes : whether the same command, run again, goes on; set by commands that spend.
    """

    def __init__(self) -> None:
        self.resumes = False
        self._came: int | None = None
        self._charges = 0
        self._said = False

    def sentence(self, what: str) -> str:
        """What happened, with what is true of charges."""
        if not self.resumes:
            return what
        spent = STAYS_SPENT if charges_begun() > self._charges else f"this run has spent nothing; {RESUME}"
        return f"{what}; {spent}"

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Handle signals in this block; those that the parent has chosen to ignore stay ignored."""
        self.resumes, self._came, self._charges = False, None, charges_begun()
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {}
        for name in _SIGNALS:
            number = getattr(signal, name, None)  # Windows has no SIGHUP
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, self._handle)
        hook = sys.unraisablehook
        sys.unraisablehook = self._unraisable(hook)
        try:
            yield
        finally:
            sys.unraisablehook = hook
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._came is not None:
            self.at_once(self._came)
        self._came = number
        raise Ended(number)

    def _unraisable(
        self, hook: Callable[[sys.UnraisableHookArgs], object]
    ) -> Callable[[sys.UnraisableHookArgs], object]:
        """Where an exception cannot be raised, as in a finalizer, the signal would be lost."""

        def ends(found: sys.UnraisableHookArgs) -> None:
            if isinstance(found.exc_value, Ended):
                self.at_once(found.exc_value.number)
            hook(found)

        return ends

    def at_once(self, number: int) -> NoReturn:
        """Say it and end, whatever else is under way."""
        stream, said, self._said = sys.__stderr__, self._said, True
        if stream is not None and not said:
            with contextlib.suppress(OSError, ValueError):
                cursor = _SHOW_CURSOR if stream.isatty() else ""
                os.write(stream.fileno(), f"{cursor}{self.sentence('interrupted')}\n".encode())
        os._exit(128 + number)


ENDING = Ending()
"""Of the command that this process runs."""


def run(command: Callable[[], object]) -> None:
    """Run a command; a signal ends it, and the process, in one sentence."""
    with ENDING.heard():
        try:
            command()
        except Ended as ended:
            # All is unwound. Threads that still compute, and finalizers, have nothing left to keep.
            ENDING.at_once(ended.number)
