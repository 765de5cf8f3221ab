"""Compiled code on disk: one archive that is shipped, one folder that grows.

Entries have names that follow from their content. Each is checked by its hash when it is read, since wrong
code could do anything; an entry that is damaged is not there.

Whoever can write to the folder can have this user run anything, so a hash is not enough there: a folder that
others own or may write to, such as one in a shared `NUMBA_CACHE_DIR`, is passed over, and so is a file. The
archive is as safe as the package it lies in.
"""

from __future__ import annotations

import functools
import hashlib
import json
import mmap
import os
import stat
import sys
import time
import uuid
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from numba.core import config

_PACKAGE = Path(__file__).resolve().parents[1]
SHIPPED_FOLDER = _PACKAGE / "_compiled"
SWITCH = "DP_POWERFLOW_KERNELS"
"""Variable of the environment; `compile` leaves out what is shipped."""
CACHE_NAME = "dp_powerflow"
"""Folder below `NUMBA_CACHE_DIR`."""
_SUFFIX = ".kernel"
_HASH_BYTES = 32
_ONLY_USER, _OWN_FILE, _ALL_READ = 0o700, 0o600, 0o644  # modes
_FORGOTTEN_AFTER_S = 30 * 24 * 3600
_ABANDONED_AFTER_S = 24 * 3600  # of a file that nobody finished: to write one takes far less than a second


class KernelsNotKeptWarning(UserWarning):
    """Kernels were compiled and cannot be kept: the next run compiles them again."""


@dataclass(frozen=True)
class Archive:
    """Entries in one file: a line with name, place and size of each, then the entries."""

    index: dict[str, tuple[int, int]] = field(default_factory=dict)
    data: bytes | mmap.mmap = b""

    def find(self, key: str) -> bytes | None:
        """An entry, if it is there and whole."""
        if key not in self.index:
            return None
        start, size = self.index[key]
        return _checked(self.data[start : start + size])

    @classmethod
    def read(cls, path: Path) -> Archive:
        """The archive of a file; an empty one if there is none."""
        try:
            with path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            head = data.readline()
            entries = json.loads(head)
        except (OSError, ValueError):
            return cls()
        return cls({name: (len(head) + start, size) for name, (start, size) in entries.items()}, data)

    def unpack(self, folder: Path) -> None:
        """Write every entry as a file of a folder."""
        folder.mkdir(_ONLY_USER, parents=True, exist_ok=True)
        for key, (start, size) in self.index.items():
            _replace(folder / f"{key}{_SUFFIX}", self.data[start : start + size])

    @staticmethod
    def write(path: Path, folder: Path, keys: Iterable[str]) -> None:
        """Put entries of a folder into one file."""
        entries = {key: (folder / f"{key}{_SUFFIX}").read_bytes() for key in sorted(keys)}
        index, start = {}, 0
        for key, entry in entries.items():
            index[key] = (start, len(entry))
            start += len(entry)
        path.parent.mkdir(exist_ok=True)
        _replace(path, b"".join([json.dumps(index).encode() + b"\n", *entries.values()]), mode=_ALL_READ)


@dataclass(frozen=True)
class Folder:
    """Entries as files of a folder.

    Attributes
    ----------
    path : of this user alone; None where no folder can be written
    used : keys found or kept by this process
    """

    path: Path | None
    used: set[str] = field(default_factory=set)

    @staticmethod
    @functools.cache
    def of_user() -> Folder:
        """The first folder that this user can write, and nobody else; chosen once for a process."""
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        places = [Path(config.CACHE_DIR) / CACHE_NAME] if config.CACHE_DIR else []
        places += [_PACKAGE / "__pycache__" / "kernels", Path(cache) / "dp_powerflow" / "kernels"]
        return Folder(next(filter(_only_user_writes, places), None))

    def find(self, key: str) -> bytes | None:
        """An entry, if it is there and whole."""
        if self.path is None:
            return None
        try:
            found = _checked(_read_own(self.path / f"{key}{_SUFFIX}"))
        except OSError:
            return None
        self.used.add(key)
        return found

    def keep(self, key: str, data: bytes, *, quietly: bool = False) -> None:
        """Add an entry; forget old ones of the same kernel, and what killed processes left of one.

        Where that fails, one warning says so, unless it is to be quiet.
        """
        if self.path is None:
            if not quietly:
                _warn_once("no cache folder can be written by this user and nobody else")
            return
        try:
            _replace(self.path / f"{key}{_SUFFIX}", hashlib.sha256(data).digest() + data)
        except OSError as error:
            if not quietly:
                _warn_once(f"{self.path}: {error.strerror}")
            return
        self.used.add(key)
        for other in self.path.glob(f"{key.rpartition('-')[0]}-*{_SUFFIX}*"):
            kept = _FORGOTTEN_AFTER_S if other.suffix == _SUFFIX else _ABANDONED_AFTER_S
            with suppress(OSError):
                if time.time() - other.stat().st_mtime > kept:
                    other.unlink()


@functools.cache
def shipped_archive() -> Archive:
    """What is shipped for this Python, read once; nothing where everything is to be compiled."""
    return Archive() if os.environ.get(SWITCH) == "compile" else Archive.read(shipped_path())


def shipped_path() -> Path:
    """The file of this Python; a package may hold those of several."""
    return SHIPPED_FOLDER / f"{sys.implementation.cache_tag}{_SUFFIX}s"


@functools.cache
def _warn_once(reason: str) -> None:
    from multiprocessing import parent_process

    if parent_process() is None:
        warnings.warn(
            f"compiled kernels cannot be kept ({reason}), so every run compiles them again; "
            "set NUMBA_CACHE_DIR to a folder of this user",
            KernelsNotKeptWarning,
            stacklevel=2,
        )


def _checked(entry: bytes) -> bytes | None:
    data = entry[_HASH_BYTES:]
    return data if hashlib.sha256(data).digest() == entry[:_HASH_BYTES] else None


def _only_user_writes(folder: Path) -> bool:
    """Whether a folder, made if there is none, can be written by this user and nobody else."""
    try:
        folder.mkdir(_ONLY_USER, parents=True, exist_ok=True)
        found = folder.lstat()  # the folder itself: a link may be somebody else's
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and _is_own(found) and os.access(folder, os.W_OK | os.X_OK)


def _is_own(found: os.stat_result) -> bool:
    """Whether a file or folder is this user's and nobody else may write to it; Windows has no such modes."""
    if not hasattr(os, "geteuid"):
        return True
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _read_own(path: Path) -> bytes:
    """The content of a file of this user, wherever the folder has been moved meanwhile."""
    flags = (
        os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )
    with open(os.open(path, flags), "rb") as file:
        found = os.fstat(file.fileno())
        return file.read() if stat.S_ISREG(found.st_mode) and _is_own(found) else b""


def _replace(path: Path, data: bytes, *, mode: int = _OWN_FILE) -> None:
    """Write a file so that other processes see all of it or nothing."""
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        with open(os.open(part, flags, mode), "wb") as file:
            file.write(data)
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink()
        raise
