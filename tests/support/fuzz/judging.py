"""What became of an input: accepted, refused in one sentence, or a failure of the program."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import traceback
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import dp_powerflow
from dp_powerflow.errors import DpPowerflowError
from support.fuzz.changes import Mutate

CPU_SECONDS = 20.0
"""Processor time after which an input counts as one that hangs."""
MOST_SIGNS = 100_000
_NUMBERED = re.compile(r"\n  \d+\. ")
_BIDI = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c")
_CHANGES = {
    f"os.{name}" for name in ("remove", "rmdir", "rename", "mkdir", "symlink", "link", "truncate", "chmod")
}
_PROCESSES = {"subprocess.Popen"} | {
    f"os.{name}" for name in ("system", "exec", "posix_spawn", "spawn", "fork", "forkpty")
}
_CONNECTIONS = {"socket.connect", "socket.getaddrinfo", "socket.sendto"}
_HARMLESS = ("/dev/null", "/proc/", "/dev/tty")


class WrongAcceptanceError(AssertionError):
    """An input was accepted, or called intact, that must not be."""


class SlowError(BaseException):
    """An input took too long; no handler of the program may catch it."""


@dataclass(frozen=True, eq=False)
class Door:
    """A format: what inputs are made from, and what they go through.

    Attributes
    ----------
    seeds : valid inputs.
    mutate : makes another input from one of them.
    enter : the program's own reader; returns if the input is accepted, raises if it is refused.
    secrets : texts that no message may hold.
    closed : folders in which nothing may appear.
    may_connect : whether it is its business to connect to somebody; it never comes to that here.
    """

    seeds: tuple[bytes, ...]
    mutate: Mutate
    enter: Callable[[bytes], object]
    secrets: tuple[str, ...] = ()
    closed: tuple[Path, ...] = ()
    may_connect: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of one input.

    Attributes
    ----------
    kind : what happened.
    signature : of a failure: kind of the error and place in the program, the same for the same mistake.
    detail : of a failure: the traceback, or what was wrong.
    """

    kind: Literal["accepted", "refused", "failure"]
    signature: str = ""
    detail: str = ""


def judged(door: Door, content: bytes) -> Outcome:
    """Let one input through a door and say what became of it."""
    before = {path for folder in door.closed for path in folder.iterdir()}
    outcome = Outcome("accepted")
    try:
        with _limited(), _watched(door) as broken, warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("default", module=r"pandapower|pandas|simbench|distributed")
            warnings.filterwarnings("ignore", category=ResourceWarning)
            warnings.filterwarnings("ignore", message="pandapower|.*simbench")
            door.enter(content)
    except DpPowerflowError as error:
        wrong, place = wrong_words(str(error), door.secrets), f"{type(error).__name__} {_where(error)}"
        refused = Outcome("refused")
        outcome = Outcome("failure", f"message: {wrong} {place}", str(error)[:3000]) if wrong else refused
    except (Exception, SystemExit, GeneratorExit, SlowError) as error:  # what else escapes is looked for
        told = "".join(traceback.format_exception(error))[-6000:]
        return Outcome("failure", f"{type(error).__name__} {_where(error)}", told)
    new = {path for folder in door.closed for path in folder.iterdir()} - before
    for path in new:
        path.unlink()
    if broken:
        return Outcome("failure", f"did {broken[0].split(' ')[0]}", "; ".join(broken[:5]))
    return Outcome("failure", "wrote a file", ", ".join(map(str, sorted(new)[:5]))) if new else outcome


def wrong_words(message: str, secrets: tuple[str, ...] = ()) -> str:
    """What is wrong with a message, in words that do not depend on the input; nothing if it is a sentence."""
    if not message.strip():
        return "empty"
    if len(message) > MOST_SIGNS:
        return "endless"
    if any(secret in message for secret in secrets):
        return "tells a secret"
    signs = set("".join(_NUMBERED.split(message)))
    unseen = {sign for sign in signs if unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp")}
    return "sign that is not printed" if unseen or signs & _BIDI else ""


def _where(error: BaseException) -> str:
    """The innermost place of the program, or the innermost at all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/dp_powerflow/" in frame.filename] or frames
    places = [f"{Path(frame.filename).name}:{frame.name}" for frame in (own[-1], frames[-1])]
    return " > ".join(dict.fromkeys(places))


@contextmanager
def _limited() -> Iterator[None]:
    """SlowError once so much processor time is gone; only the main thread can have it."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise SlowError(f"more than {CPU_SECONDS:g} s of processor time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


class _Watch:
    """What the program does to the machine; an audit hook stays for ever, so there is one."""

    door: Door | None = None
    broken: list[str]

    def __init__(self) -> None:
        package = os.path.dirname(dp_powerflow.__file__)  # kernels are compiled there
        self._allowed = (tempfile.gettempdir(), os.path.expanduser("~/.cache"), package, *_HARMLESS)
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.door is None:
            return
        if event in _PROCESSES or event in _CONNECTIONS:
            if event in _PROCESSES or not self.door.may_connect:
                self.broken.append(f"{event} {arguments[:2]!r}"[:300])
            raise PermissionError(1, "not while inputs are tried")
        if event == "open":
            _, mode, flags = arguments
            changes = any(sign in mode for sign in "wax+") if isinstance(mode, str) else bool(flags & 0o3)
        else:  # a name within an open folder is of a tree that was made below an allowed one
            within = event in {"os.remove", "os.rmdir"} and arguments[-1] >= 0
            changes = event in _CHANGES and not within
        if changes and isinstance(arguments[0], str | bytes):
            name = os.path.abspath(os.fsdecode(arguments[0]))
            if not name.startswith(self._allowed):
                self.broken.append(f"{event} {name}"[:300])


_watch = cache(_Watch)


@contextmanager
def _watched(door: Door) -> Iterator[list[str]]:
    """What the program does meanwhile that reading an input must not do."""
    watch = _watch()
    watch.door, watch.broken = door, []
    try:
        yield watch.broken
    finally:
        watch.door = None
