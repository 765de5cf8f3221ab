"""The private state directory: its key, the ledger, keys of unfinished products, everything marked INTERNAL.

    state/                     0700
      secret.key               0600  created once, by way of secret.key.new; no noise comes from it
      ledger.sqlite            0600  what has been spent (see `ledger`)
      ledger.anchor            0600  where the ledger stood last
      internal/<release id>/…  0700, files 0600; <product>-<request>.key while a product is unfinished
      experiments/<release id>/…  0700, what experiments on private data write

The key of the state chains the ledger and names the protected data: an account belongs to a keyed hash of
the meter data or of the network. The hash says nothing about them without the key; the private state, which
has both, can confirm a guess of all meter readings or of the whole network, and stays private.

**Keys that end.** Noise and draws come from other keys: 256 random bits for every product (the fit of a
model, the draw of a twin, the draw of a corpus), made just before the product is paid for and destroyed
once it is complete. In between, a killed run finds the key and resumes to the same bits. `DP_POWERFLOW_KEYS`
names another folder for them, such as one in memory. The state remembers the folder. A product is named by
a release or twin, and by a request: no two products, and no two requests, share a stream, because they share
no key.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from dp_powerflow._files import (
    create_once,
    destroy,
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
KEYS_VARIABLE = "DP_POWERFLOW_KEYS"
"""Environment variable: the folder of the keys of unfinished products; by default they lie in the state."""
KEY_ENDING = ".key"
_KEYS_AT = "keys-at"
"""Internal file: the folder in which the keys of a release or twin were made."""
_KEY_FORMAT = "dp-powerflow secret key, format 1"
_SYSTEM, _SEED = "operating system", "insecure seed"
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_COMMITMENT = b"dp-powerflow commitment, format 1"
_OWN_DIGITS = 16
"""Of the keyed hash that names the keys of one state in a folder that several states share."""


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
        """The key of the state: for keyed hashes, and for draws that nothing published depends on."""
        return self._key

    def make_key(self, release_id: str, product: str, request: str) -> None:
        """Make the key of a product that is about to be paid for, unless a killed run has made it.

        Parameters
        ----------
        release_id
            Release, twin or fleet that the product belongs to, as internal files are kept.
        product
            What is drawn with it, such as ``"fit"``.
        request
            Hash of everything that decides the product. The key of another request has another name; it was
            never used, since that request was not paid for.
        """
        if self.insecure_seed or self._secret_of(release_id, product, request) is not None:
            return
        if self.read_internal(release_id, _KEYS_AT) is None:
            elsewhere = os.environ.get(KEYS_VARIABLE)
            own = Path(elsewhere).absolute() / self.identity("keys", [])[:_OWN_DIGITS] if elsewhere else ""
            self.write_internal(release_id, _KEYS_AT, str(own).encode())
        path = self._place_of(release_id, _key_name(product, request))
        ensure_private_directory(path.parent.parent, create=True)
        ensure_private_directory(path.parent, create=True)
        if not (read_private(path) or b"0").strip(b"\0"):  # a kill has left what it had overwritten
            destroy(path)
        _write_secret(path, os.urandom(SECRET_BYTES), source=_SYSTEM, request=request)

    def key_of(self, release_id: str, product: str, request: str) -> StreamKey | None:
        """The key of an unfinished product; None if there is none. With a seed, the same for all products."""
        secret = self._key.secret if self.insecure_seed else self._secret_of(release_id, product, request)
        return None if secret is None else StreamKey(secret, insecure_seed=self.insecure_seed)

    def destroy_key(self, release_id: str, product: str) -> None:
        """Overwrite and remove the keys of a product that is complete; best effort on most disks."""
        own = self.keys_folder(release_id) / check_release_id(release_id)
        for path in own.glob(f"{_key_name(product, '*')}*"):
            destroy(path)
        if not [*own.glob(f"*{KEY_ENDING}*")]:  # from now on nobody asks for the folder
            (self.root / INTERNAL_DIRECTORY / release_id / _KEYS_AT).unlink(missing_ok=True)

    def keys_folder(self, release_id: str) -> Path:
        """Where the keys of a release or twin are, if they can be looked for.

        Raises
        ------
        PrivateStateError : the folder is not there, so nobody knows whether they are gone.
        """
        folder = self._keys_of(release_id)
        if not folder.is_dir() and self.read_internal(release_id, _KEYS_AT):
            raise PrivateStateError(
                f"the keys of '{release_id}' are in {folder}, which is not there; mount it, or make it if it "
                "was in memory"
            )
        return folder

    def _secret_of(self, release_id: str, product: str, request: str) -> bytes | None:
        content = self.read_internal(release_id, _key_name(product, request))
        if content is None or not content.strip(b"\0"):  # a kill came between overwriting and removing it
            return None
        found, fields = _parsed_secret(content, self.root)
        return found if fields.get("request") == request else None

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
        self.internal_directory(release_id)
        path = self._place_of(release_id, name)
        write_private(path, data)
        return path

    def read_internal(self, release_id: str, name: str) -> bytes | None:
        """Content of an internal file, None if there is none."""
        return read_private(self._place_of(release_id, name))

    def _place_of(self, release_id: str, name: str) -> Path:
        of_key = name.endswith(KEY_ENDING)
        root = self._keys_of(release_id) if of_key else self.root / INTERNAL_DIRECTORY
        return root / check_release_id(release_id) / _check_file_name(name)

    def _keys_of(self, release_id: str) -> Path:
        """Folder of the keys of a release or twin: where the first of them was made, whatever is set now."""
        elsewhere = self.read_internal(release_id, _KEYS_AT)
        return Path(elsewhere.decode()) if elsewhere else self.root / INTERNAL_DIRECTORY

    def internal_files(self, only: str | None = None) -> Iterator[tuple[str, frozenset[str]]]:
        """Release id, or whatever else files are kept under, with the names of the files; of one, or all."""
        root = self.root / INTERNAL_DIRECTORY
        every = [only] if only is not None else os.listdir(root) if root.is_dir() else []
        for name in sorted(every):
            if re.fullmatch(RELEASE_ID, name) and (root / name).is_dir():
                places = {root / name, self._keys_of(name) / name}
                yield name, frozenset(file for path in places if path.is_dir() for file in os.listdir(path))

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


def _key_name(product: str, request: str) -> str:
    """File of the key of a product; of a request by some of its digits."""
    return f"{product}-{request[:_OWN_DIGITS]}{KEY_ENDING}"


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
    _write_secret(root / KEY_FILE, secret, source=source)


def _write_secret(path: Path, secret: bytes, **facts: str) -> None:
    fields = {
        "format": _KEY_FORMAT,
        "secret": secret.hex(),
        "sha256": hashlib.sha256(secret).hexdigest(),  # tells a damaged key from a good one
        **facts,
    }
    try:
        create_once(path, json.dumps(fields, indent=1).encode() + b"\n")
    except OSError as error:
        raise PrivateStateError(
            f"the secret key cannot be written to {path.parent} ({error.strerror}); free disk space or "
            "choose another private state directory"
        ) from error


def _read_key(root: Path) -> StreamKey:
    content = read_private(root / KEY_FILE)
    if content is None:
        raise PrivateStateError(f"the private state directory {root} has no {KEY_FILE}; check the path")
    secret, fields = _parsed_secret(content, root)
    return StreamKey(secret, insecure_seed=fields["source"] == _SEED)


def _parsed_secret(content: bytes, root: Path) -> tuple[bytes, dict[str, Any]]:
    """A secret and what its file says of it."""
    damaged = PrivateStateError(f"a key of {root}, such as {KEY_FILE}, is damaged; restore it from a backup")
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
    return secret, fields


Files = Mapping[tuple[str, str], bytes]
"""Release id, or whatever else files are kept under, and name of a file → content."""


@dataclass(frozen=True, repr=False)
class CarriedState(PrivateState):
    """PRIVATE. Key and internal files of the state, away from its directory.

    What is written stays in memory, for the data owner to keep.

    Attributes
    ----------
    files : what the directory holds of a release, and what was written here.
    ended : products whose keys the data owner has to destroy.
    """

    files: dict[tuple[str, str], bytes] = field(default_factory=dict)
    ended: set[tuple[str, str]] = field(default_factory=set, init=False)
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

    def destroy_key(self, release_id: str, product: str) -> None:
        """Forget a key, and tell the data owner, who has its file."""
        for place in [*self.files]:
            if place[0] == release_id and fnmatch(place[1], _key_name(product, "*")):
                del self.files[place]
        self.ended.add((release_id, product))

    def taken(self) -> dict[tuple[str, str], bytes]:
        """What was written and not taken before."""
        found = {place: self.files[place] for place in sorted(self._new)}
        self._new.clear()
        return found
