"""Files that are there whole or not at all, files nobody else may read, and the lock of a directory.

A file is written under a temporary name in its own directory, flushed to the disk, then renamed, and the
directory is flushed too: after a crash there is the old file or the new one, never half of either. Private
files have mode 0600 and lie in directories of mode 0700; their errors are sentences.

A writer holds a lock on its temporary file until the file has its name. The system frees the lock when the
process ends, however it ends. So a process that can take the lock knows that nobody will finish the file, and
may remove it, even while others write in the same directory (`remove_temporaries`). One moment is left: a
file that was just created is not locked yet. A writer therefore looks, once it has the lock, whether its file
still has a name, and otherwise begins again. A file system without locks lets nobody take one: there
temporary files stay.

The ledger is such a file too, and SQLite has locks of its own on it, which belong to the whole process: to
close any descriptor of the file drops them. So no thread goes to the ledger while another one of its process
has a descriptor of what is, or may become, the ledger (`undisturbed`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from dp_powerflow.errors import ConfigError, PrivacyError, PrivateStateError

LOCK_FILE = "lock"
_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700
_OTHERS = 0o077
_TEMPORARY = ".tmp-"
_BINARY = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_EXISTING = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | _BINARY
_descriptors = threading.Lock()


def _after_fork() -> None:
    global _descriptors
    _descriptors = threading.Lock()  # another thread may have had it


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """No other thread has a descriptor of a file that may become the ledger, except SQLite.

    A thread that makes such a file, or opens one that was left behind, holds this until it closes the
    descriptor; a thread that goes to the ledger checks under it whether there is one.
    """
    with _descriptors:
        yield


def temporary_name(path: Path) -> Path:
    """A name nobody uses, in the same directory, so that a rename or link stays within one file system."""
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    # Random, not drawn from any stream of a release: the name never outlives the call that made it.
    return path.with_name(f"{path.name}{_TEMPORARY}{secrets.token_hex(8)}")


def is_temporary(name: str) -> bool:
    """Whether a file of this name was never finished."""
    return _TEMPORARY in name


def remove_temporaries(directory: Path, *, also_locked: bool = False) -> None:
    """Remove what killed processes left of files they had not finished, in all folders below.

    What a process is writing now stays. So does what cannot be removed: the next run tries again.

    Parameters
    ----------
    also_locked : also what a process is writing now, of which nothing is needed any more.

    Raises
    ------
    OSError : something that is locked too cannot be removed.
    """
    for folder, _, names in os.walk(directory):
        for name in filter(is_temporary, names):
            if also_locked:
                Path(folder, name).unlink(missing_ok=True)
                continue
            with contextlib.suppress(OSError):
                remove_unlocked(Path(folder, name))


def remove_unlocked(path: Path) -> None:
    """Remove a file unless a process that writes it holds its lock; one that has its name may go at once.

    It has if there is another link to it. It is not opened then: it may be the ledger, and to close any
    descriptor of it drops the locks that SQLite holds in this process.
    """
    with undisturbed():
        if path.lstat().st_nlink > 1:
            path.unlink(missing_ok=True)
            return
        handle = os.open(path, _EXISTING)
        try:
            if stat.S_ISREG(os.fstat(handle).st_mode) and _locked(handle, wait=False):
                path.unlink(missing_ok=True)
        finally:
            os.close(handle)


@contextlib.contextmanager
def noted(path: Path, content: str) -> Iterator[None]:
    """A small file for as long as the block lasts; locked, so that one that is left behind is told apart."""
    with path.open("x", encoding="ascii") as file:
        _locked(file.fileno(), wait=True)
        file.write(content)
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _locked(handle: int, *, wait: bool) -> bool:
    """Take the lock of an open file; False if another process has it, or nobody can."""
    try:
        import fcntl  # not on Windows, where a corpus can be read but no release made

        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except (ImportError, OSError):
        return False
    return True


def _has_name(handle: int, path: Path) -> bool:
    """Whether an open file still has its name."""
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


def _new_temporary(path: Path, *, private: bool) -> tuple[Path, int, int]:
    """A new temporary file: its path, a descriptor to write it, and another one that holds its lock."""
    while True:
        temporary = temporary_name(path)
        if private:
            handle = create_private(temporary)
        else:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)
        _locked(handle, wait=True)
        if os.name != "posix" or _has_name(handle, temporary):
            return temporary, handle, os.dup(handle)
        os.close(handle)  # taken for one that was left behind, before it was locked


@contextlib.contextmanager
def whole_file(
    path: Path, *, private: bool = False, once: bool = False, durable: bool = True
) -> Iterator[BinaryIO]:
    """A binary file that appears under `path` when the block ends without an error.

    Readers, and several processes that write the same file at once, see an old file or a new one.

    Parameters
    ----------
    private : mode 0600 whatever the umask; otherwise the mode that new files have.
    once : keep a file that is there already; see `publish_once`.
    durable : whether it must survive a loss of power; a file that can be made again needs not.

    Raises
    ------
    OSError : the file cannot be written; nothing of it is left.
    """
    temporary, handle, lock = _new_temporary(path, private=private)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        if os.name != "posix":  # Windows renames no open file, and has no lock to hold
            os.close(lock)
            lock = -1
        if once:
            publish_once(temporary, path)
        else:
            temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if lock >= 0:
            os.close(lock)
    if durable:
        sync_directory(path.parent)


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Replace a file in one step."""
    with whole_file(path) as file:
        file.write(content)


def write_named(path: Path, content: bytes) -> None:
    """`write_whole` of a file that a person has named, in a folder of theirs.

    What killed processes left of this very file goes; no other run would remove it there.
    """
    begun = re.compile(re.escape(f"{path.name}{_TEMPORARY}") + "[0-9a-f]{16}")
    with contextlib.suppress(OSError):
        for name in filter(begun.fullmatch, os.listdir(path.parent)):
            with contextlib.suppress(OSError):
                remove_unlocked(path.with_name(name))
    write_whole(path, content)


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
        temporary.unlink(missing_ok=True)
        sync_directory(path.parent)
    except OSError as error:
        raise PrivateStateError(
            f"the private file {path} cannot be created ({error.strerror}); the private state directory "
            "needs a file system of this machine with hard links"
        ) from error


def create_private(path: Path) -> int:
    """Descriptor of a new empty file of mode 0600, whatever the umask."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, _FILE_MODE)
    os.fchmod(descriptor, _FILE_MODE)
    return descriptor


def create_once(path: Path, content: bytes) -> None:
    """Write a private file unless there is one; of several processes that race, one creates it.

    It is written under one fixed name next to it, `<name>.new`, whose lock is held meanwhile: a secret never
    lies under a name that nobody knows. What a killed process left there is written anew by the next one, or
    removed by `remove_new`.

    Raises
    ------
    OSError : the file cannot be written.
    PrivacyError : what lies at one of the two names is not ours.
    """
    new = _new_name(path)
    while True:
        handle = os.open(new, _EXISTING | os.O_CREAT, _FILE_MODE)
        try:
            os.fchmod(handle, _FILE_MODE)  # whatever the umask
            check_private(new, os.fstat(handle))
            if not _locked(handle, wait=True):
                raise OSError(errno.ENOLCK, "the file system has no locks")
            if not _has_name(handle, new):
                continue  # the process that had the lock has published or removed this one
            if not os.path.lexists(path):  # and nobody makes it now: that takes the lock
                os.ftruncate(handle, 0)
                with os.fdopen(os.dup(handle), "wb") as file:
                    file.write(content)
                os.fsync(handle)
                os.link(new, path)
            new.unlink(missing_ok=True)
            sync_directory(path.parent)
            return
        finally:
            os.close(handle)


def remove_new(path: Path) -> None:
    """Remove what a killed `create_once` left beside a file; one that is at work keeps it."""
    with contextlib.suppress(OSError):
        remove_unlocked(_new_name(path))


def destroy(path: Path) -> None:
    """Overwrite a private file, then remove it, with what a killed `create_once` left beside it.

    What a disk, a copy-on-write file system or a backup keeps of the old bytes is beyond a program.
    """
    for file in (_new_name(path), path):
        with contextlib.suppress(FileNotFoundError):
            with os.fdopen(os.open(file, os.O_RDWR | os.O_NOFOLLOW), "r+b") as handle:
                handle.write(b"\0" * os.fstat(handle.fileno()).st_size)
                handle.flush()
                os.fsync(handle.fileno())
            file.unlink()
            sync_directory(path.parent)


def _new_name(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


@contextlib.contextmanager
def private_writer(path: Path) -> Iterator[BinaryIO]:
    """`whole_file` of mode 0600 with its errors in one sentence."""
    try:
        with whole_file(path, private=True) as file:
            yield file
    except OSError as error:
        raise PrivateStateError(
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
        raise PrivateStateError(
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
        raise PrivateStateError(f"the private file {path} belongs to another user; run as its owner")
    if found.st_mode & _OTHERS:
        raise PrivateStateError(f"other users can read the private file {path}; run: chmod 600 {path}")


def ensure_private_directory(path: Path, *, create: bool) -> None:
    """Create a directory of mode 0700 if asked to, and refuse one that others could read."""
    if create:
        try:
            path.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
            path.mkdir(mode=_DIRECTORY_MODE)
            path.chmod(_DIRECTORY_MODE)  # whatever the umask
            sync_directory(path.parent)
        except FileExistsError:
            pass  # made before, or by a process that runs at the same time; checked below either way
        except OSError as error:
            raise PrivateStateError(
                f"the private directory {path} cannot be created ({error.strerror}); "
                "choose a place where you may write"
            ) from error
    try:
        found = path.lstat()
    except OSError as error:
        raise PrivateStateError(
            f"there is no private state directory {path} ({error.strerror}); check the path, or run a release"
        ) from error
    if stat.S_ISLNK(found.st_mode):
        raise PrivateStateError(f"the private directory {path} is a symbolic link; name the directory itself")
    if not stat.S_ISDIR(found.st_mode):
        raise PrivateStateError(f"the private directory {path} is not a directory; choose another path")
    if found.st_uid != os.geteuid():
        raise PrivateStateError(
            f"the private directory {path} belongs to another user; run as its owner or choose another path"
        )
    if found.st_mode & _OTHERS:
        raise PrivateStateError(f"other users can enter the private directory {path}; run: chmod 700 {path}")


@contextlib.contextmanager
def only_process(directory: Path) -> Iterator[None]:
    """Hold the lock of a private directory; the system frees it when the process ends, however it ends."""
    import fcntl  # not on Windows, where a corpus can be read but no release made

    handle = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                "another process is making this release; wait until it has finished", code="release-running"
            ) from None
        yield
    finally:
        os.close(handle)
