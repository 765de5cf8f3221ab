"""`sign` and `review`, as their users call them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

import dp_powerflow as dpf
from dp_powerflow.errors import ConfigError
from dp_powerflow.manifest.review import SECTIONS
from dp_powerflow.manifest.signatures import make_signature, write_signature
from support.made import Released, ReleasedFleet


def run(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dp_powerflow", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """A private key and its public one, in PEM files."""
    key, private, public = Ed25519PrivateKey.generate(), tmp_path / "key.pem", tmp_path / "pub.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


@pytest.mark.slow
@pytest.mark.parametrize("made", ["twin_release", "true_release"])
def test_a_review_answers_every_question_of_a_release(
    request: pytest.FixtureRequest, tmp_path: Path, made: str
) -> None:
    released: Released = request.getfixturevalue(made)
    found = dpf.review(released.path)
    assert list(found.sections) == list(SECTIONS.values())
    rows = [row for section in found.sections.values() for row in section]
    assert len(rows) > 25
    for row in rows:
        assert all(cell and "None" not in cell and "{" not in cell for cell in row), row
    page = found.to_html().decode()
    assert "Nobody." in page
    assert "demonstration" in page


@pytest.mark.slow
def test_a_signed_release_is_reviewed_and_verified_with_its_signer(
    twin_release: Released, tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    copy = twin_release.copied(tmp_path)
    (private, public), other = keys, tmp_path / "other.pem"
    made = run("sign", copy, "--key", private, "--role", "privacy officer")
    assert made.returncode == 0, made.stderr
    assert run("verify", copy, "--signer", public).returncode == 0
    shown = run("review", copy, "--signer", public, "--html", tmp_path / "review.html")
    assert "privacy officer" in shown.stdout
    assert "privacy officer" in (tmp_path / "review.html").read_text()
    other.write_bytes(
        Ed25519PrivateKey.generate()
        .public_key()
        .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    refused = run("verify", copy, "--signer", other)
    assert refused.returncode == 1
    assert "has not signed" in " ".join(refused.stdout.split())
    write_signature(copy, make_signature("0" * 64, Ed25519PrivateKey.generate(), "board of another release"))
    shown = run("review", copy)
    assert "privacy officer" in shown.stdout
    assert "board of another" not in shown.stdout
    (copy / "README.md").write_text("changed")
    with pytest.raises(ConfigError, match="not intact, so it is not signed"):
        dpf.sign(copy, private, "privacy officer")


@pytest.mark.slow
def test_a_fleet_is_signed_as_a_whole(
    fleet_release: ReleasedFleet, tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    copy = Path(shutil.copytree(fleet_release.path, tmp_path / "fleet"))
    dpf.sign(copy, keys[0], "privacy officer")
    report = dpf.verify(copy, signers=[keys[1]])
    assert report.intact, report.failures
    assert report.checks[-1].name == "signatures"
    hidden = next(copy.glob("feeder=*")) / "signatures/meters.csv"
    hidden.parent.mkdir()
    hidden.write_text("customer,time,kw\n")
    assert [check.name for check in dpf.verify(copy).failures if check.name != "random source"] == [
        hidden.parents[1].name
    ]


def test_wrong_keys_and_places_are_refused_in_a_sentence(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    for words in (
        ("sign", tmp_path, "--key", keys[1], "--role", "x"),
        ("sign", tmp_path, "--key", keys[0], "--role", "x"),
        ("sign", tmp_path, "--key", tmp_path / "none.pem", "--role", "x"),
        ("verify", tmp_path, "--signer", keys[0]),
        ("review", tmp_path),
    ):
        found = run(*words)
        assert found.returncode == 2, words
        assert found.stderr.startswith("error: "), found.stderr
        assert "Traceback" not in found.stderr
