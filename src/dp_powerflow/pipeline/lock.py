"""One process at a time makes a release."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dp_powerflow.errors import ConfigError

LOCK_FILE = "lock"


@contextmanager
def only_process(directory: Path) -> Iterator[None]:
    """Hold the lock of a release's internal directory; the system frees it when the process ends, however."""
    handle = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError("another process is making this release; wait until it has finished") from None
        yield
    finally:
        os.close(handle)
