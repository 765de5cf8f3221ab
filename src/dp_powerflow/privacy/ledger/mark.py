"""How a file looks from outside: whether anybody has written to it since it was read.

Every write sets the times of a file. Two writes within one tick of the file system's clock (up to 10 ms) set
the same ones, so a look is of use only if the tick of the last write is over, or if the last writer left a
time that no write sets. `settled` waits for the first, `planted` does the second.

Who can set the times of the file can also make them look untouched within one such tick. That hides a change
from a process that has already checked the file, and goes by what it remembers; it misleads nobody, and the
next process finds it.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

_COARSE_CLOCK = getattr(time, "CLOCK_REALTIME_COARSE", 5)  # what Linux sets the times of files by


@dataclass(frozen=True)
class Mark:
    """Which file it is, how long it is, and when it was written or replaced last [ns]."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int

    @classmethod
    def of(cls, path: Path) -> Mark | None:
        """The mark as it is; None if there is no file. The file is not opened."""
        try:
            found = path.lstat()
        except OSError:
            return None
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    @classmethod
    def settled(cls, path: Path) -> Mark | None:
        """A mark that any later write changes; None if the clock does not allow to tell."""
        mark, tick = cls.of(path), _tick_seconds()
        if mark is None:
            return None
        wait = tick - (time.time_ns() - mark._last) / 1e9
        if wait > tick:
            return None  # written in the future: the clock was set back
        if wait > 0:
            time.sleep(wait)
        return mark if cls.of(path) == mark else None

    @classmethod
    def planted(cls, path: Path) -> Mark | None:
        """Set a time that no write sets, to the nanosecond; None where the file system has coarser times."""
        now = time.time_ns() | 1  # odd, so that a file system with coarser times does not keep it
        with contextlib.suppress(OSError):
            os.utime(path, ns=(now, now))
        mark = cls.of(path)
        return mark if mark is not None and mark.modified == now else None

    def same_file(self, other: Mark) -> bool:
        """Whether both are of the same file, whatever was written to it."""
        return (self.device, self.inode) == (other.device, other.inode)

    @property
    def _last(self) -> int:
        return max(self.modified, self.changed)


def _tick_seconds() -> float:
    """How long to wait until later writes have later times."""
    try:
        return 2 * time.clock_getres(_COARSE_CLOCK)
    except (OSError, AttributeError):
        return 0.02
