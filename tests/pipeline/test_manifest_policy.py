"""A mode that nobody thought of: one subclass of the policy; manifest, schema, pages and verify know it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import jsonschema
import pytest

from dp_powerflow.config import Config
from dp_powerflow.corpus.storage import Location
from dp_powerflow.manifest import build as manifest_facts
from dp_powerflow.manifest import model as register
from dp_powerflow.manifest.build import Facts
from dp_powerflow.manifest.model import (
    Check,
    NetworkPolicy,
    ReleaseError,
    manifest_schema,
    parse_manifest,
    registered,
)
from dp_powerflow.manifest.verify import verify_release
from dp_powerflow.pipeline.audit import verify_private
from dp_powerflow.privacy.ledger.accounts import AccountKind
from support.manifest_releases import Made, make_release
from support.tampering import failed, manifest_of, rewrite

MODE = "public-network"


WORDS = """{% extends "words.txt" %}
{% block scope %}
- Nothing of the network is covered.
{% endblock %}
{% block attestation %}
- Everybody has the network.
{% endblock %}
{% block attested %}
- The network is public.
{% endblock %}
"""


@pytest.fixture(scope="module", autouse=True)
def _third_mode() -> Iterator[None]:
    """A network that is public anyway."""

    class PublicPolicy(NetworkPolicy):
        account_kind: ClassVar[AccountKind] = AccountKind.NETWORK_INSTANCE
        template: ClassVar[str] = WORDS

        mode: Literal["public-network"]
        kind: Literal["no protection, the network is public"]
        source: Literal["a public test feeder"]

        @classmethod
        def of(cls, config: Config) -> Self:
            return cls(
                mode="public-network",
                kind="no protection, the network is public",
                epsilon=0.0,
                delta=1e-5,
                source="a public test feeder",
            )

        def recomputed(self) -> Self:
            return self

        def contradictions(self, facts: Facts) -> Iterator[str]:
            yield from ()

        def checks(self, facts: Facts, directory: Location, files: Any) -> Iterator[Check]:
            yield Check("public network", True, "It is public.")

    yield
    del register._REGISTERED[MODE]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.setattr(manifest_facts, "policy_of", registered(MODE).of)
    return make_release(tmp_path)


def test_a_release_in_a_third_mode_is_made_and_verified(made: Made) -> None:
    report = verify_release(made.path)
    assert report.verdict == "release", report.failures
    assert report.attested == ("The network is public.",)
    assert "public network" in {check.name for check in report.checks}
    assert verify_private(made.path, made.state).ok
    page = (made.path / "certificate.html").read_text()
    assert "no protection, the network is public" in page
    assert "Everybody has the network." in page


def test_what_is_changed_in_it_is_found(made: Made) -> None:
    manifest = manifest_of(made.path)
    manifest["data"]["nodes"] += 1
    rewrite(made.path, manifest, sealed=True)
    assert {"statement", "pages"} <= failed(made.path)
    manifest["guarantee"]["network"]["epsilon"] = 0.5
    rewrite(made.path, manifest, sealed=True)
    assert "pages" in failed(made.path)


def test_the_schema_lists_it(made: Made) -> None:
    manifest = manifest_of(made.path)
    validator = jsonschema.Draft202012Validator(manifest_schema())
    assert not list(validator.iter_errors(manifest))
    manifest["guarantee"]["network"]["source"] = "mine"
    assert list(validator.iter_errors(manifest))


def test_a_mode_that_nobody_registered_is_refused(made: Made) -> None:
    manifest = json.loads((made.path / "manifest.json").read_bytes())
    manifest["guarantee"]["network"]["mode"] = "other"
    with pytest.raises(ReleaseError, match="mode is unknown"):
        parse_manifest(manifest)
