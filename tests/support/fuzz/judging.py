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
_PACKAGE = "dp_powerflow"
_BIDI = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c")
_PROCESSES = (
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty"),
)
_CHANGES = (
    *("os.remove", "os.rmdir", "os.rename", "os.mkdir", "os.symlink", "os.link", "os.truncate"),
    "os.chmod",
)
_CONNECTIONS = ("socket.connect", "socket.getaddrinfo", "socket.sendto")
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
    """What is wrong with a message, in words that do not hang on the input; nothing if it is a sentence."""
    if not message.strip():
        return "empty"
    if len(message) > MOST_SIGNS:
        return "endless"
    if any(secret in message for secret in secrets):
        return "tells a secret"
    for sentence in _NUMBERED.split(message):
        for sign in sentence:
            if sign in _BIDI or unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp"):
                return "sign that is not printed"
    return ""


def _where(error: BaseException) -> str:
    """The innermost place of the program, or the innermost at all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if f"/{_PACKAGE}/" in frame.filename] or frames
    inner = frames[-1]
    place = f"{Path(own[-1].filename).name}:{own[-1].name}"
    return place if inner is own[-1] else f"{place} > {Path(inner.filename).name}:{inner.name}"


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
    """What the program did to the machine; an audit hook stays for ever, so there is one."""

    def __init__(self) -> None:
        self.broken: list[str] | None = None
        self.allowed: tuple[str, ...] = ()
        self.there = False
        self.may_connect = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.broken is None:
            return
        if event == "open":
            path, mode, flags = arguments
            writes = any(sign in mode for sign in "wax+") if isinstance(mode, str) else bool(flags & 0o3)
            if writes and isinstance(path, str | bytes):
                self._look("open", path)
        elif event in {"os.remove", "os.rmdir"} and arguments[-1] >= 0:
            pass  # a name within an open folder: a tree is removed that was made below an allowed one
        elif event in _CHANGES:
            self._look(event, arguments[0])
        elif event in _PROCESSES or event in _CONNECTIONS:
            if event in _PROCESSES or not self.may_connect:
                self.broken.append(f"{event} {arguments[:2]!r}"[:300])
            raise PermissionError(1, "not while inputs are tried")

    def _look(self, event: str, path: Any) -> None:
        assert self.broken is not None
        if not isinstance(path, str | bytes):
            return
        name = os.path.abspath(os.fsdecode(path))
        if not name.startswith((*self.allowed, *_HARMLESS)):
            self.broken.append(f"{event} {name}"[:300])


_WATCH = _Watch()


@contextmanager
def _watched(door: Door) -> Iterator[list[str]]:
    """What the program does meanwhile that reading an input must not do."""
    if not _WATCH.there:
        kernels = os.path.dirname(dp_powerflow.__file__)
        _WATCH.allowed = (tempfile.gettempdir(), os.path.expanduser("~/.cache"), kernels)
        sys.addaudithook(_WATCH)
        _WATCH.there = True
    broken: list[str] = []
    _WATCH.broken, _WATCH.may_connect = broken, door.may_connect
    try:
        yield broken
    finally:
        _WATCH.broken = None
