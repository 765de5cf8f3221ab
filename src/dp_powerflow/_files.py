"""Files that are there whole or not at all, files nobody else may read, and the lock of a directory.

A file is written under a temporary name in its own directory, flushed to the disk, then renamed, and the
directory is flushed too: after a crash there is the old file or the new one, never half of either. Private
files have mode 0600 and lie in directories of mode 0700; their errors are sentences.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from dp_powerflow.errors import ConfigError, PrivacyError

LOCK_FILE = "lock"
_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700
_OTHERS = 0o077
_TEMPORARY = ".tmp-"


def temporary_name(path: Path) -> Path:
    """A name nobody uses, in the same directory, so that a rename or link stays within one file system."""
    # Random, not drawn from any stream of a release: the name never outlives the call that made it.
    return path.with_name(f"{path.name}{_TEMPORARY}{secrets.token_hex(8)}")


def is_temporary(name: str) -> bool:
    """Whether a file of this name was never finished."""
    return _TEMPORARY in name


def remove_temporaries(directory: Path) -> None:
    """Remove what killed processes left of files they had not finished, in all folders below."""
    for path in directory.rglob(f"*{_TEMPORARY}*"):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_file(path: Path, *, private: bool = False, once: bool = False) -> Iterator[BinaryIO]:
    """A binary file that appears under `path` when the block ends without an error.

    Readers, and several processes that write the same file at once, see an old file or a new one.

    Parameters
    ----------
    private : mode 0600 whatever the umask; otherwise the mode that new files have.
    once : leave a file that is there already as it is; see `publish_once`.

    Raises
    ------
    OSError : the file cannot be written; nothing of it is left.
    """
    temporary = temporary_name(path)
    try:
        with os.fdopen(create_private(temporary), "wb") if private else temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if once:
            publish_once(temporary, path)
        else:
            temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Replace a file in one step."""
    with whole_file(path) as file:
        file.write(content)


def sync_directory(directory: Path) -> None:
    """Make names created, replaced or removed in a directory survive a loss of power."""
    if os.name != "posix":
        return  # Windows cannot open a directory, and needs not.
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def create_private(path: Path) -> int:
    """Descriptor of a new empty file of mode 0600, whatever the umask."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, _FILE_MODE)
    os.fchmod(descriptor, _FILE_MODE)
    return descriptor


@contextlib.contextmanager
def private_writer(path: Path) -> Iterator[BinaryIO]:
    """`whole_file` of mode 0600 with its errors in one sentence."""
    try:
        with whole_file(path, private=True) as file:
            yield file
    except OSError as error:
        raise PrivacyError(
            f"the private file {path} cannot be written ({error.strerror}); free disk space or check the "
            "mode of its directory"
        ) from error


def write_private(path: Path, data: bytes) -> None:
    """Replace a private file in one step."""
    with private_writer(path) as file:
        file.write(data)


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


def ensure_private_directory(path: Path, *, create: bool) -> None:
    """Create a directory of mode 0700 if asked to, and refuse one that somebody else could read."""
    if create:
        try:
            path.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
            path.mkdir(mode=_DIRECTORY_MODE)
            path.chmod(_DIRECTORY_MODE)  # whatever the umask
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


@contextlib.contextmanager
def only_process(directory: Path) -> Iterator[None]:
    """Hold the lock of a private directory; the system frees it when the process ends, however it ends."""
    import fcntl  # not on Windows, where a corpus can be read but no release made

    handle = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError("another process is making this release; wait until it has finished") from None
        yield
    finally:
        os.close(handle)
