"""The reference page of the config is the one that the schema gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from dp_powerflow.config import (
    Config,
    FeederSection,
    LoadsSection,
    ModelSection,
    NodesSection,
    PVSection,
    ReleaseSection,
    TrueNetwork,
    TwinNetwork,
)
from dp_powerflow.report.reference import config_page, meanings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "config.md"
SECTIONS: tuple[type[BaseModel], ...] = (
    *(FeederSection, LoadsSection, ModelSection, NodesSection),
    *(PVSection, TrueNetwork, TwinNetwork, ReleaseSection),
)


def test_the_committed_page_is_the_generated_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == config_page(), "run 'make reference'"


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_has_a_meaning_of_its_own_and_every_meaning_a_key(section: type[BaseModel]) -> None:
    said = meanings(section)
    assert said.keys() == section.model_fields.keys()
    assert all(len(text) > 5 for text in said.values())
    assert len(set(said.values())) == len(said)


def test_the_page_has_every_section_with_type_and_default() -> None:
    page = config_page()
    assert re.findall(r"^## \[(\w+)\]", page, re.MULTILINE) == list(Config.model_fields)
    assert "| `step_minutes` | whole number, > 0 | `15` | length of an interval [min] |" in page
    assert "| `bounds` | 2 of: number, > 0 | `[0.001, 3.0]` |" in page
    assert re.search(
        r"\| `publish` \| `voltages` or `network` or `network and loads` \| `\"voltages\"`", page
    )
