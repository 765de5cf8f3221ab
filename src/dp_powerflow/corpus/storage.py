"""Where a corpus is: a local path, or a URL of an object store through fsspec (extra `storage`).

A store has neither folders nor renaming, but an object is there whole or not at all. The store
decides who may read it. Credentials come from the environment, never from a URL or a config.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pyarrow as pa
import pyarrow.parquet as pq

from dp_powerflow._files import sync_directory, write_whole
from dp_powerflow._names import refuse_unusable
from dp_powerflow._threads import in_order
from dp_powerflow.corpus.schema import MANIFEST_FILE
from dp_powerflow.errors import CorpusError, MissingExtraError, OutputTakenError, require

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
"""What the clients of the stores raise besides OSError; looked up only where such a client is loaded."""
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
        with self._asked() as (store, key):
            return bytes(store.cat_file(key))

    def open(self) -> Any:
        """The object as a binary file that is read in pieces."""
        with self._asked() as (store, key):
            return store.open(key, "rb", block_size=_BLOCK)

    def write_bytes(self, content: bytes | memoryview) -> None:
        """Put the object, whole or not at all."""
        with self._asked() as (store, key):
            store.pipe_file(key, bytes(content))

    def unlink(self) -> None:
        """Remove the object; none is no error."""
        with self._asked() as (store, key), suppress(FileNotFoundError):
            store.rm_file(key)

    def exists(self) -> bool:
        """Whether there is an object of this name."""
        with self._asked(anew=True) as (store, key), suppress(FileNotFoundError):
            return bool(store.info(key)["type"] == "file")
        return False

    def version(self) -> str:
        """What changes when the object does; FileNotFoundError if there is none."""
        with self._asked(anew=True) as (store, key):
            return _version(store.info(key))

    def below(self) -> dict[str, str]:
        """Relative names, sorted, of all objects below, each with what changes when the object does."""
        found = self._listed(lambda store, key: store.find(key, detail=True).items())
        return {name: _version(info) for name, info in found.items() if not name.endswith("/")}

    def children(self) -> dict[str, bool]:
        """Names one level below, sorted, and whether more objects are below each."""
        found = self._listed(
            lambda store, key: ((info["name"].rstrip("/"), info) for info in store.ls(key, detail=True))
        )
        return {name: info["type"] == "directory" for name, info in found.items()}

    def _listed(self, listing: Callable[[Any, str], Iterable[tuple[str, Any]]]) -> dict[str, Any]:
        """What a listing says of every name below, relative to this one and sorted."""
        found: list[tuple[str, Any]] = []
        with self._asked(anew=True) as (store, key), suppress(FileNotFoundError):
            found = [*listing(store, key)]
        prefix = key.rstrip("/") + "/"
        below = {name.removeprefix(prefix): info for name, info in found if name.startswith(prefix)}
        return {name: info for name, info in sorted(below.items()) if name}

    @contextmanager
    def _asked(self, *, anew: bool = False) -> Iterator[tuple[Any, str]]:
        """The file system and the name in it, errors as OSError. `anew`: what it has listed is forgotten."""
        store, key = self.store()
        with _os_errors():
            if anew:
                store.invalidate_cache()
            yield store, key

    def store(self) -> tuple[Any, str]:
        """The file system of fsspec and the name in it."""
        fsspec = require("fsspec", EXTRA)
        scheme = urlsplit(self.url).scheme
        try:
            store, key = fsspec.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            if isinstance(error, ImportError) and scheme in ("s3", "s3a"):
                raise MissingExtraError("s3fs", EXTRA) from None
            lacks = f"fsspec needs another package for {scheme}:// URLs; install it, or use s3:// or a path"
            unknown = f"there is no {scheme}:// storage; give a path or a URL such as s3://…"
            why = lacks if isinstance(error, ImportError) else unknown
            raise CorpusError(why, code="store-unreachable") from None
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
    return hashes_of(directory, below(directory))


def children(place: Location) -> dict[str, bool]:
    """Names one level below, sorted, and whether each is a folder and no link."""
    if isinstance(place, RemotePath):
        return place.children()
    with os.scandir(place) as items:
        return dict(sorted((item.name, item.is_dir(follow_symlinks=False)) for item in items))


def below(directory: Location) -> dict[str, Version]:
    """Relative names, sorted, of all files below, each with what changes when the file does."""
    if isinstance(directory, RemotePath):
        return {**directory.below()}
    found = {}
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):  # a temporary file that has its name by now
            if path.is_file():
                found[path.relative_to(directory).as_posix()] = version_of(path)
    return dict(sorted(found.items()))


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
        remote = RemotePath(text)
        split = urlsplit(remote.url)
        if split.scheme != "file":
            refuse_unusable(text, CorpusError)
            return remote
        if split.netloc not in ("", "localhost"):
            raise CorpusError("a file:// URL needs an absolute path: file:///folder/release")
        text = url2pathname(split.path)
    path = Path(os.path.abspath(text))
    refuse_unusable(path, CorpusError)
    try:
        path.exists()
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror}; give another path") from None
    return path


def in_time(ask: Callable[[], object], place: RemotePath) -> None:
    """Ask a store something; one that does not answer soon is refused, however long its client would wait."""
    answer: Future[object] = Future()

    def wait() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # raised below
            answer.set_exception(error)

    threading.Thread(target=wait, daemon=True).start()
    try:
        answer.result(PATIENCE_S)
    except TimeoutError:
        raise CorpusError(
            f"{place} does not answer; check the address and the network", code="store-unreachable"
        ) from None


def refuse_taken(place: Location) -> None:
    """Refuse a path that exists."""
    if isinstance(place, Path) and os.path.lexists(place):
        raise OutputTakenError(f"{place} exists already; choose another directory or remove it first")


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A folder to write, which gets its name once all is written; nothing is left of a failure.

    What a killed process left under the other name is removed by the next one.

    Raises
    ------
    CorpusError : the target exists, the disk is full, or cannot be written.
    """
    refuse_taken(target)
    working = target.with_name(f".{target.name}.unfinished")
    try:
        with storing(target):
            shutil.rmtree(working, ignore_errors=True)
            working.mkdir(parents=True)
            yield working
            refuse_taken(target)
            working.rename(target)
            sync_directory(target.absolute().parent)
    finally:
        shutil.rmtree(working, ignore_errors=True)


@contextmanager
def storing(place: Location) -> Iterator[None]:
    """Turn the failure of any write below `place` into one sentence."""
    try:
        yield
    except OSError as error:
        if isinstance(place, RemotePath):
            kinds = (PermissionError, FileNotFoundError, OSError)
            why = next(_NOT_STORED[kind] for kind in kinds if isinstance(error, kind))
        else:
            why = _NOT_WRITTEN.get(error.errno, "{} cannot be written: {}")
        raise CorpusError(why.format(place, error.strerror or "unknown reason")) from error


_NOT_WRITTEN: dict[int | None, str] = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
        "the disk is full or a quota is reached while writing {}; "
        "free some space and run the same command again, parts already written are kept",
    ),
    errno.EROFS: "{} is on a read-only file system; choose a directory that can be written",
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM),
        "no permission to write {}; change its permissions or choose another directory",
    ),
}
_NOT_STORED = {
    PermissionError: "no permission to write {}; check credentials in the environment and the bucket's "
    "policy",
    FileNotFoundError: "{} cannot be written: there is no such bucket; make it first",
    OSError: "{} cannot be written: the store does not answer or refuses; check the address, then run "
    "the same command again, parts already there are kept",
}


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


# --- files against the manifest ---------------------------------------------------------------------------
# The bytes that are hashed are the bytes that are decoded: a file is read once. What was found sound is known
# to the process until the file changes (size, times and number of a local file, what a store says of an
# object), so that a second pass over a corpus hashes nothing.
KEPT_BYTES = 128 << 20
"""Of objects of stores that stay in memory: the next row group, or the next check, does not fetch again."""

Version = tuple[int, ...] | str
"""What changes when a file does."""

_sound: dict[str, tuple[Version, str]] = {}
"""Place → version of a file that was hashed in this process, and its SHA-256."""
_fetched: OrderedDict[str, tuple[Version, bytes]] = OrderedDict()
"""Objects of stores that were fetched last."""
_fetching = threading.Lock()


@dataclass(frozen=True)
class Listed:
    """The files of a release, as its manifest lists them.

    Attributes
    ----------
    root : directory or URL of the release.
    hashes : SHA-256 by relative path; None checks nothing.
    """

    root: Location
    hashes: Mapping[str, str] | None = field(default=None, repr=False)

    def source(self, name: str) -> Location | pa.BufferReader:
        """What a file is parsed from: its bytes, if they had to be hashed, or its place.

        Raises
        ------
        CorpusError : it is not the file that the manifest lists.
        """
        place = self.root / name
        if self.hashes is None:
            return place
        if name not in self.hashes:
            raise CorpusError(f"{place} is not a file of the release: {MANIFEST_FILE} does not list it")
        expected = self.hashes[name]
        with loading(place):
            version = version_of(place)
            if _sound.get(str(place)) == (version, expected):
                kept = _kept(place, version)
                return place if kept is None else pa.BufferReader(kept)
            content = place.read_bytes()
        if hashlib.sha256(content).hexdigest() != expected:
            raise CorpusError(
                f"{place} is damaged: it is not the file that {MANIFEST_FILE} lists; fetch it again"
            )
        _sound[str(place)] = version, expected
        if isinstance(place, RemotePath):
            _keep(place, version, content)
        return pa.BufferReader(content)

    def has(self, name: str) -> bool:
        """Whether there is such a file, or should be."""
        return (self.root / name).exists() if self.hashes is None else name in self.hashes

    def check(self, names: Iterable[str]) -> None:
        """Check many files on all cores, before another library reads them; raises as `source`."""
        for _ in in_order(self.source, names if self.hashes is not None else (), readers_of(self.root)):
            pass

    def check_folder(self, folder: str) -> None:
        """The same of all files below a folder."""
        self.check(name for name in self.hashes or () if name.startswith(f"{folder}/"))


def read_listed(root: Location, *, sha256: str | None = None) -> Listed:
    """The list of a release; one without a manifest, or whose manifest lists no files, is not checked.

    Parameters
    ----------
    sha256 : of `manifest.json`, where something else states it.

    Raises
    ------
    CorpusError : the manifest is damaged.
    """
    place = root / MANIFEST_FILE
    try:
        content = place.read_bytes()
    except FileNotFoundError:
        return Listed(root)
    except OSError:
        with loading(place):
            raise
    damaged = CorpusError(f"{place} is damaged; fetch it again, then check with: dp-powerflow verify")
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise damaged
    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError):
        raise damaged from None
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if files is None:
        return Listed(root)
    if not isinstance(files, dict) or not all(isinstance(digest, str) for digest in files.values()):
        raise damaged
    return Listed(root, files)


def version_of(place: Location) -> Version:
    """What changes when the file does; OSError if there is none."""
    if isinstance(place, RemotePath):
        return place.version()
    found = os.stat(place)
    return found.st_size, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def _kept(place: Location, version: Version) -> bytes | None:
    known, content = _fetched.get(str(place), (None, b""))
    return content if known == version else None


def _keep(place: RemotePath, version: Version, content: bytes) -> None:
    with _fetching:
        _fetched.pop(str(place), None)
        held = sum(len(known) for _, known in _fetched.values()) + len(content)
        while _fetched and held > KEPT_BYTES:
            held -= len(_fetched.popitem(last=False)[1][1])
        if held <= KEPT_BYTES:
            _fetched[str(place)] = version, content


# --- one set of bytes -------------------------------------------------------------------------------------
# Before and after a release at a URL is checked, the store says what is there: an object that was put,
# changed or removed meanwhile, or could not be read, ends the check without a verdict.
@dataclass(eq=False)
class _Reading:
    """Objects of one release: versions as they were listed, and what the store answered to none of them."""

    prefix: str
    versions: dict[str, str]
    failure: BaseException | None = None


@dataclass(frozen=True)
class Snapshot(RemotePath):
    """A place of a release that was listed; what it says of names, it says of that listing.

    Attributes
    ----------
    reading : what all places of the release share.
    """

    reading: _Reading = field(kw_only=True, compare=False, repr=False)

    def __truediv__(self, name: str | PurePosixPath) -> Snapshot:
        return Snapshot(f"{self.url}/{name}", reading=self.reading)

    def exists(self) -> bool:
        """Whether there is an object of this name."""
        return self._name in self.reading.versions

    def below(self) -> dict[str, str]:
        """Relative names of all objects below and their versions."""
        prefix = f"{self._name}/" if self._name != self.url else ""
        listed = self.reading.versions.items()
        return {name.removeprefix(prefix): version for name, version in listed if name.startswith(prefix)}

    def children(self) -> dict[str, bool]:
        """As `RemotePath.children`."""
        parted = [name.partition("/") for name in self.below()]
        return {name: bool(slash) for name, slash, _ in parted}

    def read_bytes(self) -> bytes:
        """The object. One that is listed and cannot be read is no damage to the release: remember why."""
        content = _kept(self, self.version())
        if content is None:
            try:
                content = super().read_bytes()
            except OSError as error:
                self.reading.failure = error
                raise
            _keep(self, self.version(), content)
        return content

    def version(self) -> str:
        """As it was listed; FileNotFoundError if it was not."""
        if not self.exists():
            raise FileNotFoundError(self.url)
        return self.reading.versions[self._name]

    def open(self) -> Any:
        """The object as a binary file."""
        return pa.BufferReader(self.read_bytes())

    @property
    def _name(self) -> str:
        return self.url.removeprefix(self.reading.prefix)


@contextmanager
def one_reading(place: Location) -> Iterator[Location]:
    """A release to be checked: its directory, or a `Snapshot` of a URL.

    Raises
    ------
    CorpusError : the store did not answer, or the release changed; whatever was found meanwhile, it is no
        verdict on a release.
    """
    if isinstance(place, Path):
        yield place
        return
    with loading(place):
        reading = _Reading(f"{place}/", place.below())
    for known in [known for known in _fetched if known.startswith(reading.prefix)]:
        _fetched.pop(known, None)  # a check reads what is there now
    yield Snapshot(place.url, reading=reading)
    with loading(place):
        if reading.failure is not None:
            raise reading.failure
        unchanged = place.below() == reading.versions
    if not unchanged:
        raise CorpusError(f"{place} changed while it was read; wait until nobody writes there, then verify")
