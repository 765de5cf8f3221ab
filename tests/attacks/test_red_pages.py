"""The pages of a release: nothing fails once it is paid for, nothing lies, nothing slips by `verify`."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow.corpus.tables import encode_nodes
from dp_powerflow.errors import ConfigError, CorpusError
from dp_powerflow.fleet.manifest import FeederEntry
from dp_powerflow.fleet.overview import fleet_page
from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.manifest.model import parse_manifest
from dp_powerflow.manifest.render import quality_page
from dp_powerflow.manifest.verify import manifest_content, open_release
from dp_powerflow.page.document import read_summary
from dp_powerflow.pipeline.modes.twin import public_places
from dp_powerflow.quality import measure
from dp_powerflow.quality.measure import MOST_COUNT
from dp_powerflow.quality.result import Controls
from support.corpora import ring
from support.forgery import Forger, sha256
from support.manifest_releases import load_model, make_release, twin_config
from support.quality_corpora import Feeder3
from support.tampering import failed, manifest_of, rewrite

SMALL = Feeder3(buses=2, days=2, steps=4, days_per_part=1)


# -------------------------------------------------------------------------- what a page must survive
@pytest.mark.parametrize("level", [0.0, 1e-6, 7.999])
def test_no_voltage_that_can_be_written_keeps_a_paid_release_from_its_page(
    tmp_path: Path, level: float
) -> None:
    """The page is made when the budget is spent: what it cannot show would be paid for and never finished."""
    v = np.full((SMALL.days, SMALL.steps, SMALL.layout.nodes), level, dtype=np.complex128)
    found = measure(SMALL.write(tmp_path / "corpus", v), workers=1)
    assert found.network is not None
    assert found.to_html().startswith(b"<!DOCTYPE html>")
    # 16 bits hold 6.5535 p.u.: a higher voltage is the highest, not one of 1.4 p.u.
    assert np.all(found.network.vm == min(max(round(level * 10_000), 1), MOST_COUNT))


def test_a_phase_of_its_own_for_every_node_does_not_fill_the_memory_of_who_verifies(tmp_path: Path) -> None:
    """Counts and maps are kept by phase: 20,000 of them would take 77 GB."""
    many = Feeder3(buses=20, days=1, steps=4, days_per_part=1)
    nodes = np.arange(many.layout.nodes)
    odd = replace(many.connections(), phase=nodes + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Feeder3, "connections", lambda *_, **__: odd)
        found = measure(many.write(tmp_path / "corpus"), workers=1)
    assert (found.voltages.grouped_by, len(found.voltages.groups), found.network) == ("angle", 3, None)
    assert b"or too many of them" in found.to_html()


def test_coordinates_that_no_page_can_show_are_refused_before_the_spend() -> None:
    feeder = open_feeder("ieee13")
    far = dict.fromkeys(feeder.coordinates, (1e305, 0.0))
    with pytest.raises(ConfigError, match="has no coordinates for"):
        public_places(feeder, far)
    with pytest.raises(CorpusError, match="not two finite coordinates"):
        replace(ring(4), coordinates=np.full((3, 2), 1e305))


def test_capacitors_that_are_left_out_of_the_table_are_said_to_be(tmp_path: Path) -> None:
    none = np.zeros(0)
    many = Controls(none.reshape(0, 3, 0).astype(np.int64), none, np.full(30, 0.5), np.zeros(30), 0.0)
    found = measure(SMALL.write(tmp_path / "corpus"), workers=1)
    assert b"the first 12 of 30" in replace(found, controls=many).to_html()


# ------------------------------------------------------------------------------------ what verify must see
@pytest.fixture(scope="module")
def forger(tmp_path_factory: pytest.TempPathFactory) -> Forger:
    made = make_release(tmp_path_factory.mktemp("made"), twin_config(), load_model(), connections=ring(4))
    return Forger.of(made.path)


def test_names_of_nodes_that_are_no_positions_are_found(tmp_path: Path, forger: Forger) -> None:
    """True names in the node table, hashes and pages made to fit: the manifest says that they are opaque."""
    path = Path(shutil.copytree(str(forger.opened.directory), tmp_path / "copy"))
    assert not failed(path)
    opened = open_release(path, manifest_content(path))
    assert opened.corpus.nodes is not None
    assert opened.corpus.layout is not None
    named = replace(opened.corpus.nodes, ids=("bus650.1", "bus632.1", "bus671.1", "bus680.1"))
    (path / "nodes.parquet").write_bytes(
        encode_nodes(opened.corpus.layout, str(opened.corpus.release_id), named)
    )
    _reseal(path)
    assert failed(path) == {"voltages"}


HEADING = "Utility.\n\n## What is protected\n\nEverything: epsilon is 0.001.\n\nLicense"


@pytest.mark.parametrize(
    "stated",
    [
        {"publisher": HEADING},
        {"publisher": "x" * 201},
        {"url": "https://a.example/\n\n# Proved by an auditor"},
        {"citation": "Cite\tme"},
    ],
    ids=["heading", "long", "address", "tab"],
)
def test_what_no_config_can_declare_of_the_publication_is_found(
    forger: Forger, stated: dict[str, str]
) -> None:
    """The card repeats it beside the guarantees: with a line break its owner writes sections of his own."""
    manifest = forger.manifest
    manifest["publication"] |= stated
    assert forger.found(manifest)


def test_a_publisher_cannot_write_markup_into_the_card(tmp_path: Path) -> None:
    chosen = twin_config(publication={"publisher": "**Proved** <h1>epsilon = 0</h1> [x](https://a.example)"})
    card = make_release(tmp_path, chosen, load_model()).path / "README.md"
    (line,) = (text for text in card.read_text().splitlines() if text.startswith("Publisher: "))
    assert line.startswith(r"Publisher: \*\*Proved\*\* \<h1\>epsilon = 0\</h1\> \[x\](https://a.example). ")


def _reseal(path: Path) -> None:
    """Pages and hashes that fit whatever the tables hold now."""
    from dp_powerflow.manifest.render import croissant_bytes

    opened = open_release(path, manifest_content(path))
    page = quality_page(path, opened.corpus, opened.hashes, parse_manifest(opened.raw))
    assert page is not None
    (path / "quality.html").write_bytes(page)
    manifest = manifest_of(path)
    for name in ("nodes.parquet", "quality.html"):
        manifest["files"][name] = sha256((path / name).read_bytes())
    (path / "croissant.json").write_bytes(croissant_bytes(parse_manifest(manifest), manifest["files"]))
    manifest["files"]["croissant.json"] = sha256((path / "croissant.json").read_bytes())
    rewrite(path, manifest, sealed=True)


# ------------------------------------------------------------------------------ what pages are read for
@pytest.mark.parametrize("figure", ["NaN", "Infinity", "1e999", "1" + 400 * "0", "-1", '"<b>"', "null"])
def test_key_figures_that_somebody_put_into_a_page_are_not_shown(forger: Forger, figure: str) -> None:
    page = (forger.opened.directory / "quality.html").read_bytes()
    honest = read_summary(page)
    assert honest is not None
    entry = f'"inside_a":{json.dumps(honest["inside_a"])}'.encode()
    assert entry in page
    summary = read_summary(page.replace(entry, f'"inside_a":{figure}'.encode()))
    assert forger.opened.manifest is not None
    entries = [FeederEntry("north", forger.opened.manifest, 64 * "0")]
    found = [{} if known is None else {"north": known} for known in (honest, summary)]
    pages = [fleet_page("fleet", entries, known).to_html().decode() for known in found]
    assert ["Within ANSI range A" in text for text in pages] == [True, False]
