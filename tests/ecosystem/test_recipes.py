"""Every recipe of the docs, and of the card of a release, runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow.corpus.reader import open_corpus
from support.pages_that_run import blocks_in, blocks_of

RECIPES = [block.text for block in blocks_of("how-to/use-a-release.md") if block.language == "python"]
PACKAGES = (
    *("duckdb", "polars", "datasets", "mlcroissant", "xarray", "zarr"),
    *("torch", "torch_geometric", "pandas"),
)


def run(code: str) -> dict[str, Any]:
    """The names that a recipe leaves."""
    for package in PACKAGES:
        if re.search(rf"^(import|from) {package}\b", code, flags=re.MULTILINE):
            pytest.importorskip(package, reason=f"{package} is not installed")
    names: dict[str, Any] = {}
    exec(code, names)
    return names


@pytest.fixture
def named(beside: Path) -> dict[str, str]:
    """Recipe by a name that it assigns."""
    return {found: code for code in RECIPES for found in re.findall(r"^(\w+) = ", code, flags=re.MULTILINE)}


@pytest.mark.usefixtures("offline")
@pytest.mark.filterwarnings("ignore:ConjunctiveGraph is deprecated:DeprecationWarning")
@pytest.mark.parametrize("number", range(len(RECIPES)))
def test_every_recipe_runs(beside: Path, number: int) -> None:
    run(RECIPES[number])


def test_duckdb_finds_the_numbers_of_the_corpus(named: dict[str, str]) -> None:
    corpus = open_corpus("release")
    lowest = run(named["lowest"])["lowest"]
    found = dict(zip(lowest["id"], lowest["vm_pu"], strict=True))
    expected = corpus.phasors().vm_pu.min(axis=(0, 1))
    assert [found[name] for name in corpus.nodes.ids] == expected.tolist()
    rows = run(named["rows"])["rows"].sort_values(["day", "node", "step"])
    assert len(rows) == 2 * 24 * corpus.layout.nodes
    np.testing.assert_array_equal(
        rows["p_kw"].to_numpy(), corpus.loads(range(2)).real.transpose(0, 2, 1).ravel().astype(np.float32)
    )
    energy = run(named["energy"])["energy"]
    assert corpus.calendar is not None
    off = corpus.loads().real.sum(axis=(1, 2))[corpus.calendar.off].mean()
    assert energy["kwh_per_day"].iloc[1] == pytest.approx(off)


@pytest.mark.usefixtures("offline")
def test_the_card_says_how_to_load_the_release(release: Path, beside: Path) -> None:
    card = (release / "README.md").read_text(encoding="utf-8")
    before = sorted(release.rglob("*"))
    names: dict[str, Any] = {}
    for block in blocks_in(card):
        if block.language == "python":
            names |= run(block.text)
    corpus = open_corpus(release)
    assert len(names["mean"]) == corpus.layout.days * corpus.layout.nodes
    assert len(names["lowest"].fetchall()) == corpus.layout.nodes
    assert names["voltages"]["train"].num_rows == len(names["mean"])
    assert sorted(release.rglob("*")) == before
