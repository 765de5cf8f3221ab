"""What this process has checked of a ledger, so that it checks every entry once.

A `Memory` starts with a check of the whole chain. From then on it is bound to its last entry, whose keyed
hash vouches for all entries before, and to a mark of the file. Whoever goes on with it reads from that entry
on: it must be there unchanged, and what follows must continue the chain.

`remembered` gives whoever opens the ledger again in this process the same memory, if nobody has written to
the file since, and else nothing, so that all of it is checked anew. It lasts as long as the process: nothing
on disk says what was checked, so nobody can forge it. A forked process starts with none.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from dp_powerflow.privacy.ledger.books import Books
from dp_powerflow.privacy.ledger.chain import Entry
from dp_powerflow.privacy.ledger.mark import Mark

_MOST = 8  # ledgers of one process that are remembered


class Memory:
    """Checked entries and what they add up to; threads may share it.

    Attributes
    ----------
    last : the last entry that was checked; None before the first.
    mark : of the file when all entries were in it as checked, and no more; None if that is not known.
    """

    def __init__(self) -> None:
        self._process = _process
        self._whole = True
        self._lock = threading.Lock()
        self._macs: list[str] = []
        self._books = Books()
        self.last: Entry | None = None
        self.mark: Mark | None = None

    @property
    def usable(self) -> bool:
        """Whether it is of this process, and whole."""
        if self._process is not _process:
            return False  # nor is its lock: the fork may have copied it closed
        with self._lock:
            return self._whole

    def take(self, entries: Sequence[Entry]) -> bool:
        """Go on with checked entries, all at once for other threads; False if they contradict known ones."""
        with self._lock:
            known = [entry for entry in entries if entry.seq < len(self._macs)]
            if any(self._macs[entry.seq] != entry.mac for entry in known):
                return False
            self._whole = False  # if anything interrupts what follows
            for entry in entries[len(known) :]:
                self._books.take(entry)
                self._macs.append(entry.mac)
                self.last = entry
            self._whole = True
            return True

    def has(self, number: int, mac: str) -> bool:
        """Whether an entry with this number and keyed hash was checked."""
        return number < len(self._macs) and self._macs[number] == mac

    @property
    def anchored(self) -> bool:
        """Whether the entries say that the anchor has a keyed hash."""
        return self._books.anchored

    @contextlib.contextmanager
    def books(self) -> Iterator[tuple[Books, int]]:
        """The accounts and the number of entries, while no other thread goes on with them."""
        with self._lock:
            yield self._books, len(self._macs)

    def draft(self) -> Books:
        """Books that go on from here, for whoever holds the lock of the ledger; these stay as they are."""
        return Books(self._books)


_process = object()
"""Stands for this process: a forked one makes its own."""
_remembered: dict[tuple[Path, str], Memory] = {}


def _after_fork() -> None:
    global _process
    _process = object()
    _remembered.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)


def remembered(path: Path, key: str) -> Memory | None:
    """What this process has checked of a ledger, if the file is as it was then.

    Parameters
    ----------
    key : tells keys apart, without being one.
    """
    memory = _remembered.get((path, key))
    if memory is None or not memory.usable or memory.mark is None or memory.mark != Mark.of(path):
        return None
    return memory


def remember(path: Path, key: str, memory: Memory) -> None:
    """Keep a memory for whoever opens the ledger next in this process."""
    _remembered.pop((path, key), None)
    _remembered[path, key] = memory
    for oldest in tuple(_remembered)[:-_MOST]:
        _remembered.pop(oldest, None)
