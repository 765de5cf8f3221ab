"""What the site says of config and errors comes from the source, whole."""

from __future__ import annotations

import re

import pytest
from pydantic import BaseModel
from reference_pages import config_page, documented_codes, errors_page, meanings, stated_codes

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

SECTIONS: tuple[type[BaseModel], ...] = (
    *(FeederSection, LoadsSection, ModelSection, NodesSection),
    *(PVSection, TrueNetwork, TwinNetwork, ReleaseSection),
)


def test_codes_are_short_words_and_one_class_has_one() -> None:
    codes = [code for code, _ in documented_codes().values()]
    assert len(set(codes)) == len(codes)
    every = {*codes, *(code for code, _ in stated_codes())}
    assert {f"`{code}`" for code in every} == set(re.findall(r"^\| (`\S+`) \|", errors_page(), re.MULTILINE))
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+){0,4}", code) for code in every)


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
