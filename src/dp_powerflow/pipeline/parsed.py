"""Feeders that were read before, kept in the private state by the hash of all that decides them.

    state/parsed/<hash>.bin    0600, in a directory of mode 0700; the oldest go when there are too many bytes

Reading a pandapower file or a SimBench code takes far longer than loading what came of it. OpenDSS scripts
are not kept: a small one takes some milliseconds, and elements may name files that only the engine opens.

A file holds a pickle, which is code to whoever loads it. It is read only where the state's own rules hold:
from a plain file of this user that nobody else can read, in a directory that nobody else can enter.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pickle
import re
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from itertools import count
from pathlib import Path

from dp_powerflow import grid
from dp_powerflow._files import ensure_private_directory, read_private, whole_file
from dp_powerflow.config import FeederSection
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.sources import SIMBENCH, LoadTable, TapTable, open_feeder, read_loads, read_taps

MOST_BYTES = 512 * 2**20
_FORMAT = "dp-powerflow parsed feeder, format 1"
_PACKAGES = ("dp-powerflow", "pandapower", "simbench", "pandas", "numpy", "scipy")
_OTHER_FILE = re.compile(rb'\.json\\*"|\\u00[2-7]')  # also spelled in a way that no program writes
_DIGEST_BYTES = 32
_LOOKED_AFTER = 32
_written = count()


@dataclass(frozen=True)
class FeederOptions:
    """What `open_feeder` is asked beside the source."""

    taps: TapTable | None = None
    loads: LoadTable | None = None
    base_mva: float = 1.0
    drop_islanded: bool = False

    @classmethod
    def of(cls, section: FeederSection) -> FeederOptions:
        """As a config states them; tables are read."""
        return cls(
            None if section.taps is None else read_taps(section.taps),
            None if section.loads is None else read_loads(section.loads),
            section.base_mva,
            section.drop_islanded,
        )

    def open(self, source: str) -> Feeder:
        """Read the feeder."""
        return open_feeder(
            source,
            taps=self.taps,
            loads=self.loads,
            base_mva=self.base_mva,
            drop_islanded=self.drop_islanded,
        )


def parsed_feeder(source: str, options: FeederOptions, folder: Path | None) -> Feeder:
    """The feeder of a source: as it was kept, or read and kept.

    Parameters
    ----------
    source : as of `open_feeder`.
    folder : `parsed` of the private state; None keeps nothing.

    Raises
    ------
    FeederError : the source is no feeder.
    PrivacyError : somebody else could read, or has put there, what is kept.
    """
    key = None if folder is None else _key(source, options)
    if folder is None or key is None:
        return options.open(source)
    ensure_private_directory(folder, create=True)
    path = folder / f"{key}.bin"
    kept = read_private(path)
    feeder = None if kept is None else _loaded(kept)
    if feeder is not None:
        with suppress(OSError):
            os.utime(path)
        return feeder
    feeder = options.open(source)
    if _key(source, options) != key:
        return feeder  # the file changed meanwhile: nobody knows which content this is
    with suppress(OSError, pickle.PicklingError, TypeError, AttributeError):  # it is read again next time
        _keep(path, feeder)
    return feeder


def _key(source: str, options: FeederOptions) -> str | None:
    """SHA-256 of all that decides a feeder; None where it is not worth keeping, or not all is known."""
    lowered = source.lower()
    if lowered.startswith(SIMBENCH):
        content = lowered.encode()  # part of a package, whose version counts
    elif lowered.endswith(".json"):
        try:
            content = Path(source).read_bytes()
        except OSError:
            return None  # which reading it says better
        if _OTHER_FILE.search(content):
            return None  # tables of a net may lie in files of their own
    else:
        return None
    stated = {
        "format": _FORMAT,
        "code": _code(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "name": Path(source).stem,
        "options": [options.base_mva, options.drop_islanded, repr(options.taps), repr(options.loads)],
        "content": hashlib.sha256(content).hexdigest(),
    }
    return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()


@functools.cache
def _code() -> str:
    """SHA-256 of the modules that read feeders: what another version made of a file is not loaded."""
    digest = hashlib.sha256()
    for path in sorted(Path(str(grid.__file__)).parent.rglob("*.py")):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


@functools.cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _keep(path: Path, feeder: Feeder) -> None:
    """Write it under its name in one step; not flushed, as its digest tells a whole one from half of one."""
    content = pickle.dumps(feeder, protocol=pickle.HIGHEST_PROTOCOL)
    with whole_file(path, private=True, durable=False) as file:
        file.write(hashlib.sha256(content).digest())
        file.write(content)
    if next(_written) % _LOOKED_AFTER == 0:
        remove_oldest(path.parent, MOST_BYTES)


def _loaded(kept: bytes) -> Feeder | None:
    """What is kept; None if it is damaged."""
    digest, content = kept[:_DIGEST_BYTES], kept[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:
        return None
    found = pickle.loads(content)  # of this user's private state, see the head of this module # nosec B301
    return found if isinstance(found, Feeder) else None


def remove_oldest(folder: Path, most_bytes: int) -> None:
    """Remove what was used longest ago until so many bytes are left."""
    files = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            found = path.stat()
            files.append((found.st_mtime_ns, found.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= most_bytes:
            break
        path.unlink(missing_ok=True)
        total -= size
