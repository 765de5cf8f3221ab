"""Detached signatures of a release: who answers for it, and which manifest they have seen.

    signatures/<16 digits of the key>.json    role, public key, SHA-256 of the manifest, Ed25519 signature

A signature is of the manifest's SHA-256, so of every byte of the release, with the role under which it was
given and the key: none of them can be exchanged. A folder of files proves nothing about whose keys they are,
since anybody can make a key: a reader gets the public keys of the signers elsewhere and demands them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from pydantic import Field, ValidationError

from dp_powerflow._files import write_whole
from dp_powerflow._texts import PublicLine
from dp_powerflow.corpus.storage import Location, RemotePath
from dp_powerflow.errors import ConfigError
from dp_powerflow.manifest.model import SIGNATURES, Check, Section, Sha256, check
from dp_powerflow.manifest.verify import signature_files

_FORMAT: Literal["dp-powerflow signature, version 1"] = "dp-powerflow signature, version 1"
_DIGITS, _LARGEST = 16, 16_384
"""Digits of a key in a name; bytes of a file of a signature."""
Role = Annotated[PublicLine, Field(pattern=r"^\w[\w ,.'()&/-]*$")]


class Signature(Section):
    """One signature, as its file holds it."""

    format: Literal["dp-powerflow signature, version 1"]
    manifest_sha256: Sha256
    role: Role
    public_key: Sha256  # 32 bytes, as many as a hash
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]

    @property
    def signed(self) -> bytes:
        """The bytes that are signed: everything but the signature."""
        return json.dumps(self.model_dump(exclude={"signature"}), sort_keys=True).encode()

    @property
    def who(self) -> str:
        """Role and key, for a sentence."""
        return f"'{self.role}' (key {self.public_key[:_DIGITS]})"

    @property
    def holds(self) -> bool:
        """Whether the key has signed these bytes."""
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.public_key))
        try:
            key.verify(bytes.fromhex(self.signature), self.signed)
        except InvalidSignature:
            return False
        return True


def private_key(path: Path, password: bytes | None = None) -> Ed25519PrivateKey:
    """A signing key from a PEM file.

    Raises
    ------
    ConfigError : it is no Ed25519 key in PEM, or needs another password.
    """
    key: Ed25519PrivateKey = _loaded(
        path, lambda content: load_pem_private_key(content, password), Ed25519PrivateKey
    )
    return key


def public_digits(path: Path) -> str:
    """The public key in a PEM file, as signatures state it; raises as `private_key`."""
    key: Ed25519PublicKey = _loaded(path, load_pem_public_key, Ed25519PublicKey)
    return key.public_bytes_raw().hex()


def _loaded(path: Path, load: Any, kind: Any) -> Any:
    content = path.read_bytes()
    try:
        key = load(content)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None  # the cause may quote the key
    if not isinstance(key, kind):
        what = "private" if kind is Ed25519PrivateKey else "public"
        raise ConfigError(
            f"{path} is no {what} Ed25519 key in PEM, or its password is another; make a pair with "
            "'openssl genpkey -algorithm ed25519 -out key.pem' and 'openssl pkey -in key.pem -pubout -out "
            "pub.pem'"
        )
    return key


def make_signature(manifest_sha256: str, key: Ed25519PrivateKey, role: str) -> Signature:
    """The signature of a manifest."""
    public = key.public_key().public_bytes_raw().hex()
    try:
        made = Signature(
            format=_FORMAT, manifest_sha256=manifest_sha256, role=role, public_key=public, signature="0" * 128
        )
    except ValidationError:
        raise ConfigError(
            "a role is at most 200 letters, digits, blanks and ,.'()&/-, such as 'privacy officer'"
        ) from None
    return made.model_copy(update={"signature": key.sign(made.signed).hex()})


def write_signature(directory: Location, signature: Signature) -> Path:
    """Put a signature beside the manifest; one of the same key is replaced."""
    if isinstance(directory, RemotePath):
        raise ConfigError(
            f"{directory} is a URL; sign the release on this machine, then upload the signature"
        )
    path = directory / _file_of(signature)
    path.parent.mkdir(exist_ok=True)
    write_whole(path, json.dumps(signature.model_dump(), indent=1, sort_keys=True).encode() + b"\n")
    return path


def _file_of(signature: Signature) -> str:
    return f"{SIGNATURES}/{signature.public_key[:_DIGITS]}.json"


def signatures_at(directory: Location) -> dict[str, Signature | None]:
    """Signatures by the name of their file, None for a file that holds none."""
    return {name: _read(directory / name) for name in sorted(signature_files(directory))}


def _read(path: Location) -> Signature | None:
    try:
        if isinstance(path, Path) and (path.is_symlink() or not path.is_file()):
            return None
        with path.open("rb") if isinstance(path, Path) else path.open() as file:
            content = file.read(_LARGEST + 1)
        return None if len(content) > _LARGEST else Signature.model_validate(json.loads(content))
    except (OSError, ValueError, RecursionError):
        return None


def accepted(found: Mapping[str, Signature | None], manifest_sha256: str | None) -> dict[str, Signature]:
    """By public key, the signatures of this very manifest that hold and lie where they belong."""
    return {
        each.public_key: each
        for name, each in found.items()
        if each is not None and each.manifest_sha256 == manifest_sha256 and each.holds
        if name == _file_of(each)
    }


def check_signatures(
    directory: Location, manifest_sha256: str | None, required: int = 0, signers: Sequence[str] = ()
) -> Iterator[Check]:
    """Whether all signatures hold, and whether the required ones and the ones of the signers are there.

    Parameters
    ----------
    required : how many different keys must have signed; with `signers`, how many of these.
    signers : public keys whose signatures are demanded.
    """
    found = signatures_at(directory)
    good = accepted(found, manifest_sha256)

    def problems() -> Iterator[str]:
        for name, each in found.items():
            if each is None or each not in good.values():
                yield f"{name} is no signature of this manifest under its role and key."
        for key in signers:
            if key not in good:
                yield f"Key {key[:_DIGITS]} has not signed this release."
        known = good.keys() & set(signers) if signers else good.keys()
        roles = {good[key].role.casefold() for key in known}
        if min(len(known), len(roles)) < required:
            whose = " of the keys that were given" if signers else ""
            yield f"The release demands {required} signatures in different roles; {len(roles)}{whose} hold."

    if found or required or signers:
        who = ", ".join(each.who for _, each in sorted(good.items()))
        known = "" if signers else " Whose keys these are, no file tells: demand them with --signer."
        yield check("signatures", problems(), f"Signed by {who}.{known}")
