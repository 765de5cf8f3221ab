"""verify --private: the commitment opens to the internal report, and the ledger says the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dp_powerflow.errors import PrivacyError
from dp_powerflow.manifest.model import canonical_json, digest_of
from dp_powerflow.pipeline.audit import verify_private
from dp_powerflow.privacy.state import PrivateState
from support.manifest_releases import REPORT, Made, make_release


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return make_release(tmp_path, earlier=1)


def failed(made: Made) -> set[str]:
    return {check.name for check in verify_private(made.path, made.state, lambda: REPORT).failures}


def change(made: Made, section: str, name: str, value: object) -> None:
    manifest = json.loads((made.path / "manifest.json").read_text())
    holder = manifest
    for key in section.split("."):
        holder = holder[key]
    holder[name] = value
    manifest["manifest_sha256"] = digest_of(manifest)
    (made.path / "manifest.json").write_bytes(canonical_json(manifest))


def test_an_auditor_opens_the_commitment_and_recomputes_the_evidence(made: Made) -> None:
    report = verify_private(made.path, made.state, lambda: REPORT)
    assert report.ok
    assert {"commitment", "ledger", "network evidence"} <= {check.name for check in report.checks}
    opened = verify_private(made.path, made.state)
    assert opened.ok
    assert "network evidence" not in {check.name for check in opened.checks}


def test_another_report_is_not_the_committed_one(made: Made) -> None:
    PrivateState.inspect(made.state).write_internal("r-1", "report.json", REPORT + b" ")
    assert failed(made) == {"commitment", "network evidence"}


def test_a_missing_report_is_found(made: Made) -> None:
    (made.state / "internal" / "r-1" / "report.json").unlink()
    assert failed(made) == {"commitment", "network evidence"}


def test_another_commitment_is_found(made: Made) -> None:
    change(made, "internal_report", "sha256", "0" * 64)
    assert failed(made) == {"commitment"}


def test_evidence_that_comes_out_otherwise_is_found(made: Made) -> None:
    report = verify_private(made.path, made.state, lambda: REPORT + b" ")
    assert {check.name for check in report.failures} == {"network evidence"}


def test_another_state_directory_does_not_open_the_commitment(made: Made, tmp_path: Path) -> None:
    other = make_release(tmp_path / "other")
    report = verify_private(made.path, other.state)
    assert {"commitment", "ledger"} <= {check.name for check in report.failures}


def test_a_composition_that_the_ledger_does_not_know_is_found(made: Made) -> None:
    change(made, "composition.loads.spent", "rho", 1e9)
    assert "ledger" in failed(made)


def test_a_state_directory_without_a_ledger_fails_the_check(made: Made) -> None:
    for name in ("ledger.sqlite", "ledger.anchor"):
        (made.state / name).unlink()
    assert failed(made) == {"ledger"}


def test_a_manifest_without_a_release_id_opens_nothing(made: Made) -> None:
    change(made, "release", "id", 3)
    assert "commitment" in failed(made)


def test_a_directory_that_is_no_state_is_refused(made: Made, tmp_path: Path) -> None:
    with pytest.raises(PrivacyError):
        verify_private(made.path, tmp_path / "nothing")
    shutil.rmtree(made.state)
    with pytest.raises(PrivacyError):
        verify_private(made.path, made.state)
