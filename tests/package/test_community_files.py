"""CITATION.cff and SECURITY.md say what is so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from dp_powerflow._names import __version__ as public_version
from support.building import ROOT

SCHEMA = Path(__file__).with_name("citation.schema.json")
"""The part of the schema of the Citation File Format 1.2.0 that the file uses."""


@pytest.fixture(scope="module")
def citation() -> dict[str, Any]:
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def test_the_citation_is_valid_and_of_this_version(citation: dict[str, Any]) -> None:
    jsonschema.validate(citation, json.loads(SCHEMA.read_bytes()))
    assert citation["version"] == public_version


def test_the_citation_names_the_paper_of_the_readme(citation: dict[str, Any]) -> None:
    (paper,) = citation["references"]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert paper["title"] in readme
    number = paper["identifiers"][0]["value"].removeprefix("arXiv:")
    assert f"arXiv {number}" in readme
    assert paper["url"].endswith(number)


def test_the_security_page_says_how_to_report_what_counts_and_which_versions() -> None:
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)", page, re.MULTILINE) == [
        *("Report a vulnerability", "Supported versions", "What counts", "What does not")
    ]
    for kind in ("wrong ε", "leak", "lost charge", "false verdict"):
        assert re.search(rf"\*\*A {kind}", page), kind
    assert f"| {public_version.rpartition('.')[0]} | yes |" in page
    assert "@" not in page  # nobody's address: reports go through the repository
    assert "private vulnerability reporting" in page
