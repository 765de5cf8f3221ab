"""What a forger or an odd name does to the pages that are made from a manifest, and to `verify`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import dp_powerflow as dpf
from dp_powerflow.corpus.schema import ExtrasLayout
from dp_powerflow.manifest import verify
from dp_powerflow.manifest.model import DIGEST, at_least, canonical_json, digest_of, parse_manifest
from dp_powerflow.manifest.render import registry_bytes
from dp_powerflow.manifest.verify import check_release, read_manifest, verify_release
from dp_powerflow.pipeline.deriving.manifest import card_bytes, certificate_html
from dp_powerflow.pipeline.deriving.verify import check_derived, open_files
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.studies.study import KINDS
from support.corpora import ring
from support.derived_kind import PLACE
from support.forgery import Forger, sha256
from support.manifest_releases import LAYOUT, make_release, twin_config
from support.small import small_config
from support.tampering import manifest_of, rewrite


@pytest.fixture(scope="module")
def on_true(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_release(tmp_path_factory.mktemp("true")).path


@pytest.fixture(scope="module")
def on_twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    beside: dict[str, Any] = {"extras": ExtrasLayout(mended=True), "connections": ring(LAYOUT.nodes)}
    return make_release(tmp_path_factory.mktemp("twin"), twin_config(), **beside).path


def test_figures_that_do_not_go_with_the_templates_are_found_without_a_traceback(
    on_true: Path, on_twin: Path, tmp_path: Path
) -> None:
    """A warning of the other mode, or the account of the other mode, made jinja2 raise out of `verify`."""
    true, twin = manifest_of(on_true), manifest_of(on_twin)
    true["release"]["warnings"] = ["coordinates"]
    twin["composition"]["network"] = manifest_of(on_true)["composition"]["network"]
    for source, manifest in ((on_true, true), (on_twin, twin)):
        copy = tmp_path / source.parent.name
        shutil.copytree(source, copy)
        rewrite(copy, manifest, sealed=True)
        assert {"statement", "pages"} <= {check.name for check in verify_release(copy).failures}


@pytest.mark.parametrize("sign", ["\x7f", "\x85", "\x92", "\u2028", "\ufeff", "\uffff", "\x85---\x85", '"\\'])
def test_a_publisher_with_an_odd_sign_leaves_the_registry_record_readable(on_true: Path, sign: str) -> None:
    """0x92 is the apostrophe of Windows-1252 read as Latin-1; YAML takes it escaped only."""
    content = manifest_of(on_true)
    content["publication"]["publisher"] = f"Grid{sign}Co"
    record = yaml.safe_load(registry_bytes(parse_manifest(content)))
    curator = record["deployment"]["basic"]["data_curators"][0]
    assert curator["data_curator_name"] == f"Grid{sign}Co"


def test_pages_that_are_not_compared_are_warned_of(on_true: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once two versions can be named, a forger names the other one and writes what he likes on the pages."""
    opened = Forger.of(on_true).opened
    assert not any("NOT COMPARED" in text for text in check_release(opened).warnings)
    monkeypatch.setattr(verify, "__version__", "9.9.9")
    assert check_release(opened).warnings[0].startswith("THE PAGES WERE NOT COMPARED")


def test_noise_is_never_shown_larger_than_it_is(on_twin: Path) -> None:
    """A scale that was rounded up promised more than the release keeps."""
    stated = read_manifest(on_twin)[0]
    page = (on_twin / "certificate.html").read_text()
    shown = re.findall(r"noise, scale ([0-9.e-]+) of the logarithm", page)
    largest = max(stated.guarantee.network.scale_of(part) for part in stated.guarantee.network.scales)
    assert shown
    assert all(float(scale) <= largest for scale in shown)
    assert all(float(at_least(query.noise_std, 4)) <= query.noise_std for query in stated.load_queries)


def test_what_was_spent_of_evidence_has_its_star(on_true: Path) -> None:
    page = (on_true / "certificate.html").read_text()
    assert "ε* = " in page.partition("Spent so far")[2].partition("What was asked")[0]


# ---------------------------------------------------------------------------------------------- derived


KIND = "lowest-voltage"


@pytest.fixture(autouse=True)
def _a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, KIND, PLACE)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of a release whose twin is weak."""
    folder = tmp_path_factory.mktemp("study")
    twin = {"mode": "twin-network", "id": "t1", "epsilon": 20.0, "change": 0.05, "released": "all"}
    twin |= {"controls": "frozen", "publish": "network and loads", "graph_days": 2}
    release = {"days": 2, "network_epsilon_cap": 50.0}
    run_release(small_config(folder, network=twin, release=release), workers=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(KINDS, KIND, PLACE)
        dpf.derive(KIND, folder / "out", folder / "found", workers=1)
    return folder / "found"


def sealed_anew(folder: Path, source: dict[str, Any], **files: bytes) -> None:
    """Both manifests and both pages made to fit."""
    source |= {DIGEST: digest_of(source)}
    written = {"source/manifest.json": canonical_json(source), **files}
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["source"]["manifest_sha256"] = sha256(written["source/manifest.json"])
    (folder / "source" / "manifest.json").write_bytes(written["source/manifest.json"])
    opened = open_files(folder)
    assert opened.manifest is not None
    parsed = read_manifest(folder / "source")[0]
    written["certificate.html"] = certificate_html(opened.manifest, parsed)
    written["README.md"] = card_bytes(opened.manifest, parsed)
    for name, content in written.items():
        (folder / name).write_bytes(content)
        manifest["files"][name] = sha256(content)
    rewrite(folder, manifest, sealed=True)


def test_a_study_does_not_lose_the_warnings_of_its_release(study: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(study, tmp_path / "a")
    source = json.loads((folder / "source" / "manifest.json").read_text())
    assert "network" in source["release"]["warnings"]
    sealed_anew(folder, source)
    assert check_derived(open_files(folder)).intact
    source["release"]["warnings"].remove("network")
    sealed_anew(folder, source)
    assert {check.name for check in check_derived(open_files(folder)).failures} >= {"source"}


def test_a_file_of_a_study_that_only_looks_like_a_table_is_found(study: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(study, tmp_path / "a")
    source = json.loads((folder / "source" / "manifest.json").read_text())
    sealed_anew(folder, source, **{"secret.parquet": b"no table"})
    assert "statement" in {check.name for check in check_derived(open_files(folder)).failures}


def test_a_study_that_names_no_software_is_found_without_a_traceback(study: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(study, tmp_path / "a")
    manifest = manifest_of(folder)
    manifest["software"] = {}
    rewrite(folder, manifest, sealed=True)
    assert "pages" in {check.name for check in check_derived(open_files(folder)).failures}
