"""Where a corpus is: a local path, or a URL of an object store through fsspec (extra `storage`).

A store has neither folders nor renaming, but an object is there whole or not at all. Who may read it is the
store's business, and so are credentials: they come from the environment, never from a URL or a config.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from threading import Thread
from typing import Any, NoReturn
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pyarrow as pa
import pyarrow.parquet as pq

from dp_powerflow._files import write_whole
from dp_powerflow._names import refuse_unusable
from dp_powerflow._threads import in_order
from dp_powerflow.errors import CorpusError, MissingExtraError, require

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})


EXTRA = "storage"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_BLOCK = 1 << 22
"""Bytes asked for at a time: a row group of a part and its neighbours."""
_REQUESTS = 16
"""Objects asked for at the same time."""
PATIENCE_S = 30.0
"""How long a store may take to answer before anything is spent [s]."""
_CLIENT_ERRORS = (
    ("botocore.exceptions", "BotoCoreError"),
    ("aiohttp", "ClientError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("azure.core.exceptions", "AzureError"),
)
"""What the clients of the stores raise beside OSError; looked up only where such a client is loaded."""
_NO_CREDENTIALS = frozenset({"NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError"})


@dataclass(frozen=True)
class RemotePath:
    """An object, or all objects below a prefix. It holds no connection, so it can be sent to workers.

    Attributes
    ----------
    url : such as 's3://bucket/release', without a slash at its end.
    """

    url: str

    def __post_init__(self) -> None:
        try:
            split = urlsplit(self.url)
        except ValueError:
            raise CorpusError("this is no URL; give one such as s3://bucket/release") from None
        if split.password is not None:
            raise CorpusError("a URL must not hold a password; put the credentials into the environment")
        if split.query or split.fragment:
            raise CorpusError(f"{split.scheme}:// URLs of a corpus have no '?' and no '#'")
        object.__setattr__(self, "url", self.url.rstrip("/"))

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str | PurePosixPath) -> RemotePath:
        return RemotePath(f"{self.url}/{name}")

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    def with_name(self, name: str) -> RemotePath:
        return RemotePath(f"{self.url.rpartition('/')[0]}/{name}")

    def read_bytes(self) -> bytes:
        """The object."""
        store, key = self.store()
        with _os_errors():
            return bytes(store.cat_file(key))

    def open(self) -> Any:
        """The object as a binary file that is read in pieces."""
        store, key = self.store()
        with _os_errors():
            return store.open(key, "rb", block_size=_BLOCK)

    def write_bytes(self, content: bytes | memoryview) -> None:
        """Put the object, whole or not at all."""
        store, key = self.store()
        with _os_errors():
            store.pipe_file(key, bytes(content))

    def unlink(self) -> None:
        """Remove the object; none is no error."""
        store, key = self.store()
        with _os_errors():
            try:
                store.rm_file(key)
            except FileNotFoundError:
                return

    def rename(self, target: object) -> NoReturn:
        """A store has no renaming."""
        raise CorpusError(f"{self} cannot be renamed to {target}: a store has no renaming; use local paths")

    def exists(self) -> bool:
        """Whether there is an object of this name."""
        store, key = self.store()
        with _os_errors():
            store.invalidate_cache()
            try:
                return bool(store.info(key)["type"] == "file")
            except FileNotFoundError:
                return False

    def version(self) -> str:
        """What changes when the object does; FileNotFoundError if there is none."""
        store, key = self.store()
        with _os_errors():
            store.invalidate_cache()
            return _version(store.info(key))

    def below(self) -> dict[str, str]:
        """Relative names, sorted, of all objects below, each with what changes when the object does."""
        store, key = self.store()
        with _os_errors():
            store.invalidate_cache()
            try:
                found = store.find(key, detail=True)
            except FileNotFoundError:
                return {}
        prefix = key.rstrip("/") + "/"
        names = {name.removeprefix(prefix): info for name, info in found.items() if name.startswith(prefix)}
        return {name: _version(info) for name, info in sorted(names.items()) if name[-1:] not in ("", "/")}

    def children(self) -> dict[str, bool]:
        """Names one level below, sorted, and whether more objects are below each."""
        store, key = self.store()
        with _os_errors():
            store.invalidate_cache()
            try:
                found = store.ls(key, detail=True)
            except FileNotFoundError:
                return {}
        prefix = key.rstrip("/") + "/"
        names = {str(info["name"]).rstrip("/"): info["type"] == "directory" for info in found}
        below = {name.removeprefix(prefix): kind for name, kind in names.items() if name.startswith(prefix)}
        return dict(sorted(below.items()))

    def store(self) -> tuple[Any, str]:
        """The file system of fsspec and the name in it."""
        fsspec = require("fsspec", EXTRA)
        scheme = urlsplit(self.url).scheme
        try:
            store, key = fsspec.url_to_fs(self.url)
        except ImportError:
            if scheme in ("s3", "s3a"):
                raise MissingExtraError("s3fs", EXTRA) from None
            raise CorpusError(
                f"fsspec needs another package for {scheme}:// URLs; install it, or use s3:// or a path",
                code="store-unreachable",
            ) from None
        except ValueError:
            raise CorpusError(
                f"there is no {scheme}:// storage; give a path or a URL such as s3://…",
                code="store-unreachable",
            ) from None
        return store, str(key)


Location = Path | RemotePath


def readers_of(place: Location) -> int | None:
    """Threads that read many small files: of a store its answers are waited for, of a disk cores count."""
    return _REQUESTS if isinstance(place, RemotePath) else None


def put(place: Location, content: bytes | memoryview, *, make_folder: bool = False) -> str:
    """Write a file, if asked with its folder, or an object, whole or not at all; returns its SHA-256."""
    if isinstance(place, RemotePath):
        place.write_bytes(content)
    else:
        if make_folder:
            place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, content)
    return hashlib.sha256(content).hexdigest()


def file_hashes(directory: Location) -> dict[str, str]:
    """SHA-256 of every file below a directory, by its relative path with forward slashes, sorted."""
    if isinstance(directory, RemotePath):
        return hashes_of(directory, directory.below())
    paths = (path for path in directory.rglob("*") if path.is_file())
    return hashes_of(directory, sorted(path.relative_to(directory).as_posix() for path in paths))


def hashes_of(directory: Location, names: Iterable[str]) -> dict[str, str]:
    """SHA-256 of some files below a directory, on all cores."""
    wanted = tuple(names)
    return dict(zip(wanted, in_order(lambda name: file_hash(directory / name), wanted), strict=True))


def file_hash(place: Location) -> str:
    """SHA-256 of a file or an object, read in pieces."""
    with place.open() if isinstance(place, RemotePath) else place.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def location(value: str | os.PathLike[str] | RemotePath) -> Location:
    """A path, absolute because workers may run in another directory, or a URL; `file://` is a path."""
    if isinstance(value, RemotePath):
        return value
    text = os.fspath(value)
    if isinstance(value, str) and _URL.match(text):
        try:
            split = urlsplit(text)
        except ValueError:
            raise CorpusError("this is no URL; give a path or a URL such as s3://bucket/release") from None
        if split.scheme != "file":
            refuse_unusable(text, CorpusError)
            return RemotePath(text)
        if split.netloc not in ("", "localhost"):
            raise CorpusError("a file:// URL needs an absolute path: file:///folder/release")
        text = url2pathname(split.path)
    path = Path(os.path.abspath(text))
    refuse_unusable(path, CorpusError)
    try:
        path.exists()
    except OSError as error:
        raise CorpusError(f"{path} cannot be looked at: {error.strerror}; give another path") from None
    return path


def in_time(ask: Callable[[], object], place: RemotePath) -> None:
    """Ask a store something; one that does not answer soon is refused, however long its client would wait."""
    answer: Future[object] = Future()

    def wait() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # whatever it is: raised below
            answer.set_exception(error)

    Thread(target=wait, daemon=True).start()
    try:
        answer.result(PATIENCE_S)
    except TimeoutError:
        raise CorpusError(
            f"{place} does not answer; check the address and the network", code="store-unreachable"
        ) from None


@contextmanager
def storing(place: Location) -> Iterator[None]:
    """Turn the failure of any write below `place` into one sentence."""
    try:
        yield
    except OSError as error:
        why = _why_not_stored if isinstance(place, RemotePath) else _why_not_written
        raise CorpusError(why(f"{place}", error)) from error


def _why_not_written(path: str, error: OSError) -> str:
    if error.errno in _FULL:
        return (
            f"the disk is full or a quota is reached while writing {path}; "
            "free some space and run the same command again, parts already written are kept"
        )
    if error.errno == errno.EROFS:
        return f"{path} is on a read-only file system; choose a directory that can be written"
    if error.errno in _FORBIDDEN:
        return f"no permission to write {path}; change its permissions or choose another directory"
    return f"{path} cannot be written: {error.strerror or 'unknown reason'}"


def _why_not_stored(url: str, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return f"no permission to write {url}; check credentials in the environment and the bucket's policy"
    if isinstance(error, FileNotFoundError):
        return f"{url} cannot be written: there is no such bucket; make it first"
    return (
        f"{url} cannot be written: the store does not answer or refuses; check the address, then run "
        "the same command again, parts already there are kept"
    )


@contextmanager
def loading(place: Location) -> Iterator[None]:
    """Turn the failure of reading `place` into one sentence."""
    at_url = isinstance(place, RemotePath)
    try:
        yield
    except FileNotFoundError as error:
        where = "URL" if at_url else "directory"
        raise CorpusError(
            f"{place} is missing; is this the {where} of a finished release?", code="release-not-found"
        ) from error
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        if at_url and isinstance(error, PermissionError):
            raise CorpusError(
                f"no permission to read {place}; check the credentials in the environment",
                code="store-unreachable",
            ) from error
        raise CorpusError(
            f"{place} cannot be read as part of a corpus; check the release with: dp-powerflow verify"
        ) from error


@contextmanager
def open_parquet(place: Location | pa.BufferReader, **options: Any) -> Iterator[pq.ParquetFile]:
    """A Parquet file of a corpus, or its bytes that were read already."""
    if isinstance(place, Path | pa.BufferReader):
        with pq.ParquetFile(place, **options) as file:
            yield file
        return
    with place.open() as source, pq.ParquetFile(source, **options) as file:
        yield file


@contextmanager
def local_copy(place: Location, *, one_of: Collection[str] = ()) -> Iterator[Path]:
    """The directory of a release; of a URL a copy that is removed again.

    What is checked is then one set of bytes, however the store changes meanwhile.

    Parameters
    ----------
    one_of : names at a URL without any of which nothing is copied, since no finished release is there.
    """
    if isinstance(place, Path):
        yield place
        return
    with loading(place):
        names = place.below()
    if not names:
        raise CorpusError(
            f"there is nothing at {place}; give the URL of a finished release", code="release-not-found"
        )
    if one_of and names.keys().isdisjoint(one_of):
        raise CorpusError(
            f"there is no {' or '.join(one_of)} at {place}; give the URL of a finished release",
            code="release-not-found",
        )
    if not all(map(_is_relative_path, names)):
        raise CorpusError(f"{place} holds a name that is not a file of a release")
    with _temporary_folder() as folder:
        directory = Path(folder) / "release"
        for name in names:
            with loading(place):
                content = (place / name).read_bytes()
            path = directory / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            except OSError as error:  # apart, so that a full disk is not taken for a damaged release
                raise CorpusError(
                    f"{place} cannot be copied to {tempfile.gettempdir()} to be checked: {error.strerror}; "
                    "free some space there, or name another directory in the environment (TMPDIR)",
                    code="disk-full",
                ) from error
        yield directory


def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="dp-powerflow-")
    except OSError as error:
        raise CorpusError(
            "a release at a URL is copied to be looked at, and no temporary directory can be written; "
            "name one of this user in the environment (TMPDIR)"
        ) from error


def _is_relative_path(name: str) -> bool:
    """Names in a store are anybody's choice: none may lead out of the copy, or be the file of another."""
    path = PurePosixPath(name)
    plain = str(path) == name and "\\" not in name and "\0" not in name
    return plain and ".." not in path.parts and not path.is_absolute()


def _version(info: dict[str, Any]) -> str:
    known = ("ETag", "etag", "md5Hash", "LastModified", "mtime", "created", "size")
    return "|".join(str(info[key]) for key in known if key in info)


@contextmanager
def _os_errors() -> Iterator[None]:
    """Errors of a store's client as OSError, without their text: it may hold names of accounts."""
    others = tuple(
        getattr(sys.modules[module], name) for module, name in _CLIENT_ERRORS if module in sys.modules
    )
    try:
        yield
    except others as error:
        if type(error).__name__ in _NO_CREDENTIALS:
            raise PermissionError(errno.EACCES, "no credentials") from None
        raise OSError(errno.EIO, "the store does not answer") from None
