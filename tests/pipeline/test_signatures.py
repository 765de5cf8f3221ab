"""Detached signatures: forged, missing, exchanged and re-ordered ones are found."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from dp_powerflow.errors import ConfigError
from dp_powerflow.manifest.model import SIGNATURES
from dp_powerflow.manifest.signatures import (
    check_signatures,
    make_signature,
    private_key,
    public_digits,
    write_signature,
)

MANIFEST = "1" * 64
OFFICER, ENGINEER, STRANGER = (Ed25519PrivateKey.generate() for _ in range(3))


def digits(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """Signed by two people in two roles."""
    write_signature(tmp_path, make_signature(MANIFEST, OFFICER, "privacy officer"))
    write_signature(tmp_path, make_signature(MANIFEST, ENGINEER, "data engineer"))
    return tmp_path


def problem(
    folder: Path, manifest: str = MANIFEST, required: int = 0, signers: Sequence[Ed25519PrivateKey] = ()
) -> str:
    """What is wrong with the signatures; empty if they are sound."""
    checks = check_signatures(folder, manifest, required, [digits(key) for key in signers])
    return " ".join(check.sentence for check in checks if not check.ok)


def test_sound_signatures_pass_and_a_release_without_any_says_nothing(signed: Path, tmp_path: Path) -> None:
    assert problem(signed, required=2, signers=[ENGINEER, OFFICER]) == ""
    [check] = check_signatures(signed, MANIFEST)
    assert "'privacy officer'" in check.sentence
    assert "--signer" in check.sentence
    shutil.rmtree(tmp_path / SIGNATURES)
    assert not list(check_signatures(tmp_path, MANIFEST))


def test_missing_signatures_are_found(signed: Path) -> None:
    assert "demands 3" in problem(signed, required=3)
    assert digits(STRANGER)[:16] in problem(signed, signers=[STRANGER])
    (signed / SIGNATURES / f"{digits(OFFICER)[:16]}.json").unlink()
    assert "demands 2" in problem(signed, required=2)
    assert digits(OFFICER)[:16] in problem(signed, signers=[OFFICER])


def test_keys_that_nobody_named_do_not_count_where_signers_are_named(signed: Path) -> None:
    write_signature(signed, make_signature(MANIFEST, STRANGER, "board"))
    assert problem(signed, required=3) == ""
    assert "2 of the keys" in problem(signed, required=3, signers=[OFFICER, ENGINEER])


def test_one_person_in_one_role_does_not_count_twice(tmp_path: Path) -> None:
    write_signature(tmp_path, make_signature(MANIFEST, OFFICER, "privacy officer"))
    write_signature(tmp_path, make_signature(MANIFEST, OFFICER, "data engineer"))
    assert "demands 2" in problem(tmp_path, required=2)
    write_signature(tmp_path, make_signature(MANIFEST, STRANGER, "data engineer"))
    assert "demands 2" in problem(tmp_path, required=2)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("role", "data engineer"),
        ("public_key", "1" * 64),
        ("manifest_sha256", "0" * 64),
        ("signature", "0" * 128),
        ("format", "another"),
        ("more", 1),
    ],
)
def test_a_changed_entry_is_found(signed: Path, entry: str, value: object) -> None:
    path = signed / SIGNATURES / f"{digits(OFFICER)[:16]}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {entry: value}))
    assert path.name in problem(signed)


def test_signatures_of_another_release_and_exchanged_files_are_found(signed: Path) -> None:
    assert f"{digits(OFFICER)[:16]}.json" in problem(signed, "2" * 64)
    one, other = (signed / SIGNATURES / f"{digits(key)[:16]}.json" for key in (OFFICER, ENGINEER))
    both = one.read_bytes(), other.read_bytes()
    other.write_bytes(both[0])
    one.write_bytes(both[1])
    assert one.name in problem(signed)
    assert other.name in problem(signed)


def test_files_that_are_no_signatures_are_found(signed: Path) -> None:
    for name, content in (("readme.txt", b"hello"), ("a.json", b"[" * 10_000), ("b.json", b"\xff")):
        path = signed / SIGNATURES / name
        path.write_bytes(content)
        assert name in problem(signed)
        path.unlink()
    path = signed / SIGNATURES / f"{digits(OFFICER)[:16]}.json"
    with path.open("ab") as file:  # sound, and larger than any: nobody reads it into memory
        file.truncate(1 << 40)
    assert path.name in problem(signed)
    path.unlink()
    os.mkfifo(path)  # nobody waits for a writer
    assert path.name in problem(signed)


def test_roles_that_differ_by_case_are_one(signed: Path) -> None:
    write_signature(signed, make_signature(MANIFEST, STRANGER, "Data Engineer"))
    assert "demands 3" in problem(signed, required=3)


def test_keys_are_read_from_pem_and_others_refused(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    raw, pkcs8 = Encoding.PEM, PrivateFormat.PKCS8
    path.write_bytes(OFFICER.private_bytes(raw, pkcs8, BestAvailableEncryption(b"word")))
    assert digits(private_key(path, b"word")) == digits(OFFICER)
    for password in (None, b"other"):
        with pytest.raises(ConfigError, match="password"):
            private_key(path, password)
    path.write_bytes(generate_private_key(65537, 2048).private_bytes(raw, pkcs8, NoEncryption()))
    with pytest.raises(ConfigError, match="no private Ed25519 key"):
        private_key(path)
    path.write_bytes(OFFICER.public_key().public_bytes(raw, PublicFormat.SubjectPublicKeyInfo))
    assert public_digits(path) == digits(OFFICER)


@pytest.mark.parametrize("role", ["two\nlines", "a | b", "<b>", ""])
def test_a_role_is_plain_words(role: str) -> None:
    with pytest.raises(ConfigError, match="letters, digits"):
        make_signature(MANIFEST, OFFICER, role)
