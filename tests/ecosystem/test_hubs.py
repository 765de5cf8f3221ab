"""What dataset hubs read of a real release: the card and Croissant, with the real packages."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.manifest.build import make_statement
from dp_powerflow.manifest.model import Statement
from dp_powerflow.manifest.render import card_bytes, croissant_bytes, registry_bytes
from dp_powerflow.manifest.verify import verify_release
from support.manifest_releases import config, load_model, make_inputs

SPDX = "https://spdx.org/licenses"
TABLES = {
    *("voltages", "nodes", "loads", "feeder", "buses", "connections", "days"),
    *("twin_bus", "twin_branch", "twin_gen", "twin_y_bus", "twin_rows"),
}


def front_matter(card: bytes) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(card.decode().split("---\n")[1])
    return found


def stated(folder: Path, **publication: str) -> Statement[Any]:
    return make_statement(make_inputs(folder, config(publication=publication), load_model())[0])


@pytest.mark.usefixtures("offline")
def test_every_table_of_the_card_loads_offline(release: Path) -> None:
    datasets: Any = pytest.importorskip("datasets", reason="datasets is not installed")
    names = datasets.get_dataset_config_names(str(release))
    assert set(names) == TABLES
    for entry in front_matter((release / "README.md").read_bytes())["configs"]:
        loaded = datasets.load_dataset(str(release), entry["config_name"])["train"]
        files = sorted(release.glob(entry["data_files"]))
        assert loaded.num_rows == sum(pq.ParquetFile(file).metadata.num_rows for file in files) > 0
        assert loaded.column_names == pq.ParquetFile(files[0]).schema_arrow.names
    voltages = datasets.load_dataset(str(release))["train"].with_format("numpy")
    corpus = open_corpus(release)
    np.testing.assert_array_equal(
        voltages["va_deg"][:], corpus.phasors().va_deg.transpose(0, 2, 1).reshape(-1, corpus.layout.steps)
    )


@pytest.mark.filterwarnings("ignore:ConjunctiveGraph is deprecated:DeprecationWarning")
def test_croissant_validates_without_a_warning_and_every_record_set_is_read(release: Path) -> None:
    mlcroissant: Any = pytest.importorskip("mlcroissant", reason="mlcroissant is not installed")
    dataset = mlcroissant.Dataset(jsonld=str(release / "croissant.json"))
    issues = dataset.metadata.ctx.issues
    assert (issues.errors, issues.warnings) == (set(), set())
    assert {records.id for records in dataset.metadata.record_sets} == TABLES
    for name in TABLES:
        (first,) = itertools.islice(dataset.records(name), 1)
        assert all(key.startswith(f"{name}/") for key in first)
    assert dataset.metadata.license == ["https://spdx.org/licenses/CC-BY-4.0"]
    assert str(dataset.metadata.date_published)[:10] == "2031-02-03"


@pytest.mark.filterwarnings("ignore:ConjunctiveGraph is deprecated:DeprecationWarning")
def test_without_declarations_nothing_is_made_up(tmp_path: Path) -> None:
    """Only the date, which nothing true can stand for, is missed."""
    mlcroissant: Any = pytest.importorskip("mlcroissant", reason="mlcroissant is not installed")
    statement = stated(tmp_path)
    hashes = {"nodes.parquet": "0" * 64, "model.json": "0" * 64}
    path = tmp_path / "croissant.json"
    path.write_bytes(croissant_bytes(statement, hashes))
    metadata = mlcroissant.Dataset(jsonld=str(path)).metadata
    (missed,) = metadata.ctx.issues.warnings
    assert "datePublished" in missed
    assert metadata.license == ["not stated"]
    assert statement.release.id in metadata.cite_as
    card = card_bytes(statement)
    assert front_matter(card)["license"] == "unknown"
    assert "Publisher: not stated. License: not stated. Published: not stated." in card.decode()


@pytest.mark.parametrize(
    ("spdx", "entries"),
    [
        ("CC-BY-4.0", {"license": "cc-by-4.0"}),
        ("EUPL-1.2", {"license": "other", "license_name": "eupl-1.2", "license_link": f"{SPDX}/EUPL-1.2"}),
        ("LicenseRef-Own", {"license": "other", "license_name": "licenseref-own"}),
    ],
)
def test_the_license_is_named_as_the_hub_does(tmp_path: Path, spdx: str, entries: dict[str, str]) -> None:
    found = front_matter(card_bytes(stated(tmp_path, license=spdx)))
    assert {key: value for key, value in found.items() if key.startswith("license")} == entries


def test_what_is_declared_reaches_every_document_and_the_card_states_both_guarantees(
    release: Path, tmp_path: Path
) -> None:
    statement = stated(tmp_path, publisher="Utility of Town", citation="Cite: me.\nTwice.", date="2031-02-03")
    assert "    Cite: me.\n    Twice.\n" in card_bytes(statement).decode()
    basic = yaml.safe_load(registry_bytes(statement))["deployment"]["basic"]
    assert basic["data_curators"][0]["data_curator_name"] == "Utility of Town"
    assert basic["publication_date"] == "2031-02-03"
    card = (release / "README.md").read_text(encoding="utf-8")
    for words in (
        "Epsilon at most 4 at delta 1e-5",
        "epsilon at most 1 at delta 0",
        "advantage of at most 0.394",
    ):
        assert words in card
    assert any(words.startswith("Publisher, license") for words in verify_release(release).attested)
