"""Disks that are full, read-only or broken: from the n-th call on, or from so many bytes on."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from dp_powerflow.privacy.state import LEDGER_FILE
from support.faults.bench import Bench, Case, Undisturbed
from support.faults.children import Ended
from support.faults.disks import mounted, resized
from support.faults.looking import LOST, WORDS, Snapshot
from support.faults.results import DISKS, Line
from support.faults.shim import Action, Event, Kind, Strike
from support.faults.subjects import Subject

UNSPENT = "nothing was spent"
_NEEDS_SPACE = (Kind.CREATE, Kind.WRITE, Kind.LINK, Kind.MKDIR, Kind.RENAME)
_CHANGES = (
    *(Kind.CREATE, Kind.OPEN, Kind.WRITE, Kind.TRUNCATE, Kind.RENAME, Kind.LINK, Kind.UNLINK),
    *(Kind.MKDIR, Kind.RMDIR, Kind.CHMOD, Kind.TOUCH),
)
ENOUGH_BYTES = 256 << 20
_MANY = 100_000


@dataclass(frozen=True)
class Fault:
    """How a disk fails: which calls, with which errno, from one on or once.

    Attributes
    ----------
    noticed : False for what a program has to bear without a word.
    """

    name: str
    kinds: tuple[Kind, ...]
    error: int = 0
    action: Action = Action.FAIL
    noticed: bool = True


FAULTS = (
    Fault("no space", _NEEDS_SPACE, errno.ENOSPC),
    Fault("quota reached", _NEEDS_SPACE, errno.EDQUOT),
    Fault("read-only", _CHANGES, errno.EROFS),
    Fault("broken", (Kind.WRITE, Kind.SYNC), errno.EIO),
    Fault("one error", (Kind.WRITE, Kind.SYNC, Kind.RENAME), errno.EIO, Action.FAIL_ONCE),
    Fault("no space when flushed", (Kind.SYNC,), errno.ENOSPC, Action.FAIL_ONCE),
    Fault("short write", (Kind.WRITE,), action=Action.SHORT, noticed=False),
)


def points(known: Undisturbed, fault: Fault) -> list[Event]:
    """The calls at which a subject can meet a fault."""
    return [event for event in known.events if event.kind in fault.kinds]


def last_of_ledger(known: Undisturbed, fault: Fault) -> int:
    """The last of these calls by which SQLite writes the ledger: something was charged before."""
    of_ledger = [at for at, event in enumerate(points(known, fault)) if LEDGER_FILE in event.name]
    return of_ledger[-1]


def fail(bench: Bench, subject: Subject, fault: Fault, at: int) -> Line:
    """Let a disk fail from a call on, listen to what is said, mend the disk, and let the command finish."""
    case = bench.case(subject)
    strike = Strike(fault.action, at, fault.error, fault.kinds)
    ended, struck = bench.disturb(case, strike)
    found = bench.between(case, killed=Kind.UNLINK in fault.kinds)
    if struck and not fault.noticed and ended.code != subject.code:
        case.blame(LOST, f"a short write ended the command: {' '.join(ended.errors)[-300:]}")
    _listen(case, ended, found)
    bench.finish(case)
    return _line(case, f"{subject.name}: {fault.name} at {at}", fault.name, ended)


def fill(bench: Bench, subject: Subject, size: int, inodes: int) -> Line:
    """The command on a disk of so many bytes and files, 0 for any number, which then grows."""
    options = f"size={size},nr_inodes={inodes or _MANY}"
    with mounted(bench.root / "case", options) as place:
        case = bench.case(subject)
        ended, _ = bench.disturb(case, Strike())
        found = bench.between(case, killed=False)
        _listen(case, ended, found)
        resized(place, f"size={ENOUGH_BYTES},nr_inodes={_MANY}")
        bench.finish(case)
    fault = "disk of few files" if inodes else "small disk"
    return _line(case, f"{subject.name}: {options}", fault, ended)


def _line(case: Case, name: str, fault: str, ended: Ended) -> Line:
    return Line(DISKS, name, fault, tuple(case.wrong), noticed=ended.code != case.known.subject.code)


def _listen(case: Case, ended: Ended, found: Snapshot | None) -> None:
    """One sentence, exit code 2, and what it says of the budget is true."""
    if ended.code == case.known.subject.code:
        return
    if ended.code != 2 or len(ended.errors) != 1:
        said = ended.text.strip().splitlines()[-1:] or ["nothing"]
        case.blame(WORDS, f"code {ended.code}, {len(ended.errors)} sentences: {said[0][-300:]}")
        return
    [sentence] = ended.errors
    before = case.known.reference.before.spends
    if found is not None and UNSPENT in sentence and found.spends != before:
        case.blame(WORDS, f"{sum((found.spends - before).values())} charges, yet: {sentence[-300:]}")
