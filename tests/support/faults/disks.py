"""Small file systems in memory, in mounts that only this process and its children see."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000


def own_mounts() -> str | None:
    """Give this process mounts of its own; why that is not possible, or None.

    Call it before there are threads: where the user is not root, a process of one thread may become root of
    a world of its own.
    """
    libc, user, group = ctypes.CDLL(None, use_errno=True), os.geteuid(), os.getegid()
    flags = _NEW_MOUNTS if user == 0 else _NEW_MOUNTS | _NEW_USER
    if libc.unshare(flags) != 0:
        return f"this machine lets nobody mount a file system: {os.strerror(ctypes.get_errno())}"
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    done = subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True, text=True, check=False)
    return done.stderr.strip() or None if done.returncode else None


@contextmanager
def mounted(place: Path, options: str) -> Iterator[Path]:
    """A file system in memory at a place, for the time of the context."""
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def resized(place: Path, options: str) -> None:
    """Make such a file system larger."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)


def used(place: Path) -> tuple[int, int]:
    """Bytes and files that a file system holds."""
    found = os.statvfs(place)
    return (found.f_blocks - found.f_bfree) * found.f_frsize, found.f_files - found.f_ffree
