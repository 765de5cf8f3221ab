"""The private state directory: the secret key, the ledger and everything marked INTERNAL.

    state/                     0700
      secret.key               0600  created once, by way of secret.key.new; with it, anybody can take the
                                     noise off every release
      ledger.sqlite            0600  what has been spent (see `ledger`)
      ledger.anchor            0600  where the ledger stood last
      internal/<release id>/…  0700, files 0600
      experiments/<release id>/…  0700, what experiments on private data write

The key also names the protected data: an account of the ledger belongs to a keyed hash of the meter data or
of the network, which says nothing about them without the key.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dp_powerflow._files import (
    create_once,
    ensure_private_directory,
    read_private,
    remove_new,
    remove_temporaries,
    write_private,
)
from dp_powerflow._names import RELEASE_ID, RELEASE_ID_RULE, refuse_unusable
from dp_powerflow.errors import PrivacyError, PrivateStateError
from dp_powerflow.privacy.random import SECRET_BYTES, StreamKey

KEY_FILE = "secret.key"
LEDGER_FILE = "ledger.sqlite"
ANCHOR_FILE = "ledger.anchor"
INTERNAL_DIRECTORY = "internal"
EXPERIMENTS_DIRECTORY = "experiments"
RECEIPT = "paid-"
"""How the name of an internal file begins that says what was paid; see `pipeline.plan`."""
_KEY_FORMAT = "dp-powerflow secret key, format 1"
_SYSTEM, _SEED = "operating system", "insecure seed"
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_COMMITMENT = b"dp-powerflow commitment, format 1"


def check_release_id(release_id: str) -> str:
    """The id, if it can be a file name everywhere."""
    if not re.fullmatch(RELEASE_ID, release_id):
        raise PrivacyError(f"the release id {release_id[:100]!r} is not usable: {RELEASE_ID_RULE}")
    return release_id


@dataclass(frozen=True)
class PrivateState:
    """An opened private state directory; make one with `open` or `inspect`."""

    root: Path
    _key: StreamKey = field(repr=False)

    @classmethod
    def open(cls, path: Path | str, *, create: bool = True, insecure_seed: int | None = None) -> PrivateState:
        """Open a state directory to make releases, creating it and its key if they are not there.

        What killed processes left of unfinished files is removed; what others write now stays.

        Parameters
        ----------
        path
            Directory of mode 0700 owned by this user, not a link.
        create
            False: both must be there already.
        insecure_seed
            For tests, demos and experiments: the key comes from this seed, and everything made with it says
            so. A directory is of one kind for ever: a seed is refused where a real key lies, and a
            directory made with a seed opens only with the same seed.
        """
        root = Path(path).absolute()
        refuse_unusable(root, PrivacyError)
        ensure_private_directory(root, create=create)
        if create and read_private(root / KEY_FILE) is None:
            _create_key(root, insecure_seed)
        key = _read_key(root)
        remove_new(root / KEY_FILE)
        remove_temporaries(root)
        if insecure_seed is None and key.insecure_seed:
            raise PrivateStateError(
                f"the private state directory {root} was made with an insecure seed, for a demo or a test; "
                "give a release another directory"
            )
        if insecure_seed is not None and key.secret != StreamKey.from_insecure_seed(insecure_seed).secret:
            raise PrivateStateError(
                f"the private state directory {root} was made with another key than this insecure seed; "
                "give the demo or test another directory"
            )
        return cls(root, key)

    @classmethod
    def inspect(cls, path: Path | str) -> PrivateState:
        """Open an existing state directory of either kind to look at it: the ledger, an audit."""
        root = Path(path).absolute()
        refuse_unusable(root, PrivacyError)
        ensure_private_directory(root, create=False)
        return cls(root, _read_key(root))

    @property
    def insecure_seed(self) -> bool:
        """True if the key came from a seed: nothing made here is a release."""
        return self._key.insecure_seed

    @property
    def ledger_path(self) -> Path:
        return self.root / LEDGER_FILE

    @property
    def anchor_path(self) -> Path:
        return self.root / ANCHOR_FILE

    def stream_key(self) -> StreamKey:
        """The secret as a key of streams; bind it to release id, model hash and identities before use."""
        return self._key

    def identity(self, what: str, chunks: Iterable[bytes]) -> str:
        """Keyed hash (64 hex digits) that names protected data, such as ``identity("network", …)``.

        The same chunks in the same order give the same identity in this state directory and nowhere else.
        """
        return self._key.bind("identity", what).keyed_hash(chunks)

    def internal_directory(self, release_id: str) -> Path:
        """`internal/<release id>`, made with mode 0700 if it is not there."""
        return self._private_folder(INTERNAL_DIRECTORY, release_id)

    def experiments_directory(self, release_id: str) -> Path:
        """`experiments/<release id>`, made with mode 0700 if it is not there; no part of any release."""
        return self._private_folder(EXPERIMENTS_DIRECTORY, release_id)

    def _private_folder(self, kind: str, release_id: str) -> Path:
        directory = self.root / kind / check_release_id(release_id)
        ensure_private_directory(directory.parent, create=True)
        ensure_private_directory(directory, create=True)
        return directory

    def write_internal(self, release_id: str, name: str, data: bytes) -> Path:
        """Write `internal/<release id>/<name>` whole or not at all, mode 0600."""
        path = self.internal_directory(release_id) / _check_file_name(name)
        write_private(path, data)
        return path

    def read_internal(self, release_id: str, name: str) -> bytes | None:
        """Content of an internal file, None if there is none."""
        path = self.root / INTERNAL_DIRECTORY / check_release_id(release_id) / _check_file_name(name)
        return read_private(path)

    def internal_files(self, only: str | None = None) -> Iterator[tuple[str, frozenset[str]]]:
        """Release id, or whatever else files are kept under, with the names of the files; of one, or all."""
        internal = self.root / INTERNAL_DIRECTORY
        every = [internal / only] if only is not None else internal.iterdir() if internal.is_dir() else ()
        for path in sorted(every):
            if re.fullmatch(RELEASE_ID, path.name) and path.is_dir():
                yield path.name, frozenset(os.listdir(path))

    def commit(self, release_id: str, purpose: str, data: bytes) -> str:
        """SHA-256 of a salt and private bytes: a commitment that can be published.

        The salt is derived from the key, so that a resumed release publishes the same digest. It is a secret
        of 256 bits for a reader without the key, and tells apart what is committed to for another `purpose`.
        Nobody can open the digest to other bytes.
        """
        bound = self._key.bind("commitment", check_release_id(release_id)).bind("purpose", purpose)
        digest = hashlib.sha256(_COMMITMENT)  # prefix and salt have a fixed length: the encoding is injective
        digest.update(bytes.fromhex(bound.keyed_hash([b"salt"])))
        digest.update(data)
        return digest.hexdigest()


def _check_file_name(name: str) -> str:
    if not _FILE_NAME.fullmatch(name):
        raise PrivacyError(
            "the name of an internal file is not usable; take up to 100 letters, digits, dots, underscores "
            "and hyphens, starting with a letter or a digit"
        )
    return name


def _create_key(root: Path, insecure_seed: int | None) -> None:
    """Write the key unless there is one; of several processes that race, one creates it."""
    # Asked before looking for the key again: a ledger is only ever made after its key.
    if any((root / name).exists() for name in (LEDGER_FILE, ANCHOR_FILE)) and not (root / KEY_FILE).exists():
        raise PrivateStateError(
            f"the private state directory {root} has a ledger but no {KEY_FILE}; restore the key from a "
            "backup, since a new one would forget which data were charged"
        )
    if insecure_seed is None:
        source, secret = _SYSTEM, os.urandom(SECRET_BYTES)
    else:
        source, secret = _SEED, StreamKey.from_insecure_seed(insecure_seed).secret
    fields = {
        "format": _KEY_FORMAT,
        "source": source,
        "secret": secret.hex(),
        "sha256": hashlib.sha256(secret).hexdigest(),  # tells a damaged key from a good one
    }
    try:
        create_once(root / KEY_FILE, json.dumps(fields, indent=1).encode() + b"\n")
    except OSError as error:
        raise PrivateStateError(
            f"the secret key cannot be written to {root} ({error.strerror}); free disk space or choose "
            "another private state directory"
        ) from error


def _read_key(root: Path) -> StreamKey:
    content = read_private(root / KEY_FILE)
    if content is None:
        raise PrivateStateError(f"the private state directory {root} has no {KEY_FILE}; check the path")
    damaged = PrivateStateError(f"the {KEY_FILE} of {root} is damaged; restore it from a backup")
    try:
        fields: Any = json.loads(content)
        secret = bytes.fromhex(fields["secret"])
        source, checksum, key_format = fields["source"], fields["sha256"], fields["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise damaged from None  # the cause would quote the key
    if key_format != _KEY_FORMAT or source not in (_SYSTEM, _SEED):
        raise damaged
    if len(secret) != SECRET_BYTES or hashlib.sha256(secret).hexdigest() != checksum:
        raise damaged
    return StreamKey(secret, insecure_seed=source == _SEED)


Files = Mapping[tuple[str, str], bytes]
"""Release id, or whatever else files are kept under, and name of a file → content."""


@dataclass(frozen=True, repr=False)
class CarriedState(PrivateState):
    """PRIVATE. Key and internal files of the state, away from its directory.

    What is written stays in memory, for the data owner to keep.

    Attributes
    ----------
    files : what the directory holds of a release, and what was written here.
    """

    files: dict[tuple[str, str], bytes] = field(default_factory=dict)
    _new: set[tuple[str, str]] = field(default_factory=set, init=False)

    @property
    def ledger_path(self) -> Path:
        """There is none: a worker makes what is paid for."""
        raise PrivacyError("a worker has no ledger; this is a bug, report it")

    def internal_directory(self, release_id: str) -> Path:
        """Where the files will be kept, as the data owner knows it; nothing is made."""
        return self.root / INTERNAL_DIRECTORY / check_release_id(release_id)

    def write_internal(self, release_id: str, name: str, data: bytes) -> Path:
        """Remember a file."""
        self.files[check_release_id(release_id), name] = data
        self._new.add((release_id, name))
        return self.internal_directory(release_id) / name

    def read_internal(self, release_id: str, name: str) -> bytes | None:
        """Content of a file, None if there is none."""
        return self.files.get((release_id, name))

    def internal_files(self, only: str | None = None) -> Iterator[tuple[str, frozenset[str]]]:
        """What is known here, as of the directory."""
        for release_id in sorted({where for where, _ in self.files if only in (None, where)}):
            yield release_id, frozenset(name for where, name in self.files if where == release_id)

    def taken(self) -> dict[tuple[str, str], bytes]:
        """What was written and not taken before."""
        found = {place: self.files[place] for place in sorted(self._new)}
        self._new.clear()
        return found
