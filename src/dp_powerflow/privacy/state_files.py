"""Files nobody else may read: mode 0600, written whole or not at all, durable once written.

A file is written under a temporary name in its own directory, flushed to the disk, then renamed, and the
directory is flushed too: after a crash there is the old file or the new one, never half of either.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from dp_powerflow.errors import PrivacyError

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
_OTHERS = 0o077


def ensure_private_directory(path: Path, *, create: bool) -> None:
    """Create a directory of mode 0700 if asked to, and refuse one that somebody else could read."""
    if create:
        try:
            path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            path.mkdir(mode=DIRECTORY_MODE)
            path.chmod(DIRECTORY_MODE)  # whatever the umask
            sync_directory(path.parent)
        except FileExistsError:
            pass  # made before, or by a process that runs at the same time; checked below either way
        except OSError as error:
            raise PrivacyError(
                f"the private directory {path} cannot be created ({error.strerror}); "
                "choose a place where you may write"
            ) from error
    try:
        found = path.lstat()
    except OSError as error:
        raise PrivacyError(
            f"there is no private state directory {path} ({error.strerror}); check the path, or run a release"
        ) from error
    if stat.S_ISLNK(found.st_mode):
        raise PrivacyError(f"the private directory {path} is a symbolic link; name the directory itself")
    if not stat.S_ISDIR(found.st_mode):
        raise PrivacyError(f"the private directory {path} is not a directory; choose another path")
    if found.st_uid != os.geteuid():
        raise PrivacyError(
            f"the private directory {path} belongs to another user; run as its owner or choose another path"
        )
    if found.st_mode & _OTHERS:
        raise PrivacyError(f"other users can enter the private directory {path}; run: chmod 700 {path}")


def read_private(path: Path) -> bytes | None:
    """Content of a private file, or None if there is none; refuses links and files others could read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PrivacyError(
            f"the private file {path} cannot be read ({error.strerror}); check its owner and mode"
        ) from error
    with os.fdopen(descriptor, "rb") as file:
        check_private(path, os.fstat(descriptor))
        return file.read()


def check_private(path: Path, found: os.stat_result) -> None:
    """Refuse what is not a plain file of ours that nobody else can read."""
    if not stat.S_ISREG(found.st_mode):
        raise PrivacyError(f"{path} is not a plain file; remove what replaced it and restore a backup")
    if found.st_uid != os.geteuid():
        raise PrivacyError(f"the private file {path} belongs to another user; run as its owner")
    if found.st_mode & _OTHERS:
        raise PrivacyError(f"other users can read the private file {path}; run: chmod 600 {path}")


@contextlib.contextmanager
def private_writer(path: Path) -> Iterator[BinaryIO]:
    """A binary file that appears under `path`, mode 0600, when the block ends without an error."""
    temporary = temporary_name(path)
    try:
        descriptor = create_private(temporary)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise PrivacyError(
            f"the private file {path} cannot be written ({error.strerror}); free disk space or check the "
            "mode of its directory"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_private(path: Path, data: bytes) -> None:
    """Replace a private file in one step."""
    with private_writer(path) as file:
        file.write(data)


def temporary_name(path: Path) -> Path:
    """A name nobody uses, in the same directory, so that a rename or link stays within one file system."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def create_private(path: Path) -> int:
    """Descriptor of a new empty file of mode 0600, whatever the umask."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    os.fchmod(descriptor, FILE_MODE)
    return descriptor


def publish_once(temporary: Path, path: Path) -> None:
    """Give a finished temporary file its name, unless another process was first; the temporary goes away.

    A hard link fails if the name is taken, where a rename would replace: of several racing processes one
    creates the file, and all of them read the same one afterwards.
    """
    try:
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
        temporary.unlink()
        sync_directory(path.parent)
    except OSError as error:
        raise PrivacyError(
            f"the private file {path} cannot be created ({error.strerror}); the private state directory "
            "needs a file system of this machine with hard links"
        ) from error


def sync_directory(path: Path) -> None:
    """Make names created, replaced or removed in a directory survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
