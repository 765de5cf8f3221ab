"""verify: an untouched release passes, and whatever is changed in it is found."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import dp_powerflow.manifest.render as pipeline_quality
from dp_powerflow._names import LAST_READER, __version__
from dp_powerflow.corpus.reader import Corpus, open_corpus
from dp_powerflow.corpus.tables import NodeTable, encode_nodes
from dp_powerflow.corpus.validate import validate_corpus
from dp_powerflow.manifest.build import assemble, read_facts
from dp_powerflow.manifest.model import ReleaseError, canonical_json, parse_manifest, seal
from dp_powerflow.manifest.render import (
    card_bytes,
    certificate_html,
    croissant_bytes,
    promise_of,
    registry_bytes,
)
from dp_powerflow.manifest.verify import (
    SEED,
    check_release,
    manifest_content,
    open_release,
    read_manifest,
    understand,
    verify_release,
)
from dp_powerflow.quality import Quality, measure
from support.manifest_releases import Made, load_model, make_release
from support.tampering import failed, leaves, manifest_of, rewrite, with_leaf

FILES = (
    "README.md",
    "certificate.html",
    "croissant.json",
    "data/part-00000.parquet",
    "data/part-00001.parquet",
    "manifest.json",
    "model.json",
    "nodes.parquet",
    "quality.html",
    "registry.yaml",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_release(tmp_path_factory.mktemp("made"), earlier=1)


@pytest.fixture
def copied(made: Made, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.path, tmp_path / "copy"))


def test_an_untouched_release_passes_every_check(made: Made) -> None:
    report = verify_release(made.path)
    assert report.verdict == "release"
    assert report.release_id == "r-1"
    assert all(check.ok and check.sentence.endswith(".") for check in report.checks)
    assert {"files", "voltages", "load privacy", "statement"} <= {check.name for check in report.checks}
    assert any("not differential privacy" in sentence for sentence in report.attested)
    assert json.loads(json.dumps(report.to_json()))["verdict"] == "release"


def test_the_release_holds_exactly_the_files_that_are_tampered_with(made: Made) -> None:
    assert tuple(sorted(p.relative_to(made.path).as_posix() for p in made.path.rglob("*.*"))) == FILES


@pytest.mark.parametrize("name", ["loads.parquet", "data/part-00002.parquet", "data/notes.txt", "twin/a.csv"])
def test_an_extra_file_is_found(copied: Path, name: str) -> None:
    (copied / name).parent.mkdir(exist_ok=True)
    (copied / name).write_bytes(b"loads")
    assert {"files", "voltages"} <= failed(copied)


def test_a_link_in_place_of_a_file_is_found(copied: Path) -> None:
    (copied / "model.json").rename(copied.parent / "elsewhere.json")
    os.symlink(copied.parent / "elsewhere.json", copied / "model.json")
    assert "files" in failed(copied)


def test_a_change_of_any_entry_of_the_manifest_is_found(made: Made) -> None:
    opened = open_release(made.path, manifest_content(made.path))
    paths = list(leaves(opened.raw))
    assert len(paths) > 250
    for path in paths:
        changed = with_leaf(opened.raw, path)
        again = understand(made.path, canonical_json(changed), opened.corpus, opened.hashes, opened.small)
        assert not check_release(again).checks[0].ok, path


def test_no_section_or_entry_can_be_added_or_taken_away(copied: Path) -> None:
    manifest = manifest_of(copied)
    for section in manifest:
        if section != "manifest_sha256":
            rewrite(copied, {k: v for k, v in manifest.items() if k != section}, sealed=True)
            assert verify_release(copied).verdict == "not intact", section
    for holder in (manifest, manifest["guarantee"]["network"], manifest["data"]):
        holder["kappa"] = 7.77
        rewrite(copied, copy.deepcopy(manifest), sealed=True)
        assert "statement" in failed(copied)
        del holder["kappa"]


def forge(path: Path, made: Made, change: Callable[[dict[str, Any]], None]) -> set[str]:
    """Change the manifest and seal it."""
    manifest = manifest_of(path)
    change(manifest)
    rewrite(path, manifest, sealed=True)
    return failed(path)


def test_a_smaller_noise_with_a_fitting_rho_is_found_by_the_load_model(copied: Path, made: Made) -> None:
    def halve_the_noise(manifest: dict[str, Any]) -> None:
        cost = replace(made.inputs.model.costs[0], sigma=made.inputs.model.costs[0].sigma * 2)
        manifest["load_queries"][0] = cost.to_dict()

    assert "load privacy" in forge(copied, made, halve_the_noise)


def remade(path: Path, manifest: dict[str, Any]) -> set[str]:
    """What `verify` finds when a forger makes every page and every hash fit a changed manifest."""
    stated = parse_manifest(manifest)
    pages = {"certificate.html": certificate_html(stated), "registry.yaml": registry_bytes(stated)}
    pages["README.md"] = card_bytes(stated)
    pages["quality.html"] = measure(open_corpus(path), promise_of(stated)).to_html()
    hashes = dict(stated.files)
    for name, content in pages.items():
        (path / name).write_bytes(content)
        hashes[name] = sha256(content).hexdigest()
    rest = {name: digest for name, digest in hashes.items() if name != "croissant.json"}
    (path / "croissant.json").write_bytes(croissant_bytes(stated, rest))
    hashes["croissant.json"] = sha256((path / "croissant.json").read_bytes()).hexdigest()
    rewrite(path, manifest | {"files": hashes}, sealed=True)
    return failed(path) - {SEED}


def test_an_account_about_other_neighbours_is_found_though_every_page_was_made_to_fit(copied: Path) -> None:
    manifest = manifest_of(copied)
    assert remade(copied, copy.deepcopy(manifest)) == set()
    manifest["composition"]["network"]["unit"] = "any change of any line"
    assert remade(copied, manifest) == {"statement"}


@pytest.mark.parametrize("version", [2, 6, 7])
def test_a_manifest_of_another_format_is_refused_in_one_sentence_that_names_its_reader(
    copied: Path, version: int
) -> None:
    """Nothing of it is checked, so no sentence of it can pass for one that was."""
    manifest = manifest_of(copied) | {"format": f"dp-powerflow manifest, version {version}"}
    rewrite(copied, manifest, sealed=True)
    report = verify_release(copied)
    said = next(check.sentence for check in report.checks if check.name == "manifest")
    assert "dp-powerflow 0.5.0 is the last version that reads earlier formats." in said
    assert report.verdict == "not intact"
    with pytest.raises(ReleaseError, match=r"dp-powerflow 0\.5\.0 is the last version"):
        read_manifest(copied)
    assert __version__ != LAST_READER


def test_a_model_without_its_noisy_answers_is_found(copied: Path) -> None:
    """Nothing of its costs could be recomputed."""
    old = replace(load_model(), origin=None).to_json().encode()
    (copied / "model.json").write_bytes(old)
    manifest = manifest_of(copied)
    manifest["files"]["model.json"] = sha256(old).hexdigest()
    assert "load privacy" in remade(copied, manifest)


@pytest.mark.parametrize("with_model", [False, True])
def test_a_sensitivity_that_does_not_follow_from_region_and_dimension_is_found(
    copied: Path, made: Made, with_model: bool
) -> None:
    """All costs made to fit a tenth of the sensitivity, with ρ and ε; with_model: there too."""
    model = made.inputs.model
    costs = tuple(replace(cost, sensitivity_squared=cost.sensitivity_squared // 100) for cost in model.costs)
    cheaper = replace(model, costs=costs)

    def lower_the_sensitivity(manifest: dict[str, Any]) -> None:
        manifest["load_queries"] = [cost.to_dict() for cost in costs]
        manifest["guarantee"]["loads"] |= {"rho": cheaper.rho, "epsilon": cheaper.spent_epsilon}
        if with_model:
            (copied / "model.json").write_text(cheaper.to_json())
            manifest["files"]["model.json"] = sha256(cheaper.to_json().encode()).hexdigest()

    assert "load privacy" in forge(copied, made, lower_the_sensitivity)
    found = next(c.sentence for c in verify_release(copied).failures if c.name == "load privacy")
    assert "does not follow from its region and dimension" in found


OUT_OF_RANGE = [
    (("load_queries", 0, "region"), "sphere"),
    (("load_queries", 0, "sigma"), 0),
    (("load_queries", 0, "grid_step"), -1e-9),
    (("load_queries", 0, "dimension"), 1.0),
    (("declared_public", "variance_floor"), -0.01),
    (("declared_public", "node_scales", "factor"), -1.0),
    (("declared_public", "power_factor"), 1.5),
    (("declared_public", "reactive", "spread"), -0.15),
    (("internal_report", "sha256"), "0" * 63),
    (("internal_report", "sha256"), "G" * 64),
    (("files", "model.json"), "0" * 63),
    (("release", "id"), "../other"),
    (("guarantee", "loads", "delta"), 1.0),
    (("composition", "network", "spent", "epsilon"), 5),
    (("data", "days"), "5"),
]


@pytest.mark.parametrize(("path", "value"), OUT_OF_RANGE, ids=[f"{p[-1]}={v}" for p, v in OUT_OF_RANGE])
def test_an_entry_out_of_range_or_of_another_type_is_named(
    copied: Path, made: Made, path: tuple[Any, ...], value: Any
) -> None:
    def set_it(manifest: dict[str, Any]) -> None:
        for key in path[:-1]:
            manifest = manifest[key]
        manifest[path[-1]] = value

    assert forge(copied, made, set_it) - {SEED}
    # A whole number where a figure is a fraction is told by the comparison, all else by the parser.
    if not (type(value) is int and value == 5):
        found = next(c.sentence for c in verify_release(copied).failures if c.name == "manifest")
        assert str(path[-1]) in found


def test_every_file_is_read_once(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    read_bytes, parquet = Path.read_bytes, pq.ParquetFile

    def reading(path: Path) -> bytes:
        seen.append(path.relative_to(made.path).as_posix())
        return read_bytes(path)

    looked: list[Any] = []

    def parsing(source: Any, **options: Any) -> Any:
        assert looked or not isinstance(source, str | Path)
        return parquet(source, **options)

    def looking(corpus: Corpus) -> Quality:
        looked.append(corpus.path)  # the figures of the page need files that are known to be sound
        return measure(corpus)

    monkeypatch.setattr(pipeline_quality, "measure", looking)

    monkeypatch.setattr(Path, "read_bytes", reading)
    monkeypatch.setattr(pq, "ParquetFile", parsing)
    assert verify_release(made.path).ok
    assert sorted(seen) == sorted(FILES)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"null", b"\xff\xfe", b"{", b'{"format": NaN}', b"[" * 100_000, b'{"files": 3}'],
    ids=["empty", "list", "null", "bytes", "half", "not a number", "deep", "other object"],
)
def test_what_is_no_manifest_is_not_intact_and_raises_nothing(copied: Path, content: bytes) -> None:
    (copied / "manifest.json").write_bytes(content)
    assert verify_release(copied).verdict == "not intact"


@pytest.mark.parametrize("value", [None, 0, -1, 0.0, -1.0, 1e308, 10**400, "x", [], {}, True])
def test_values_of_any_kind_in_any_entry_raise_nothing(copied: Path, value: Any) -> None:
    manifest = manifest_of(copied)
    paths = [
        p for p in leaves(manifest) if p[0] in ("guarantee", "composition", "release", "declared_public")
    ]
    paths += [p for p in leaves(manifest) if p[0] == "load_queries" and p[1] == 0]
    for path in paths[::3]:
        changed = copy.deepcopy(manifest)
        holder: Any = changed
        for key in path[:-1]:
            holder = holder[key]
        if holder[path[-1]] is value:
            continue
        holder[path[-1]] = value
        rewrite(copied, changed, sealed=True)
        assert verify_release(copied).verdict == "not intact"


def test_a_demonstration_is_intact_and_not_a_release(tmp_path: Path) -> None:
    made = make_release(tmp_path, model=load_model(insecure_seed=True), seed=4)
    report = verify_release(made.path)
    assert report.intact
    assert not report.ok
    assert report.verdict == "demonstration"
    assert [check.name for check in report.failures] == [SEED]


def test_a_node_table_that_says_more_than_declared_is_found(copied: Path, made: Made) -> None:
    layout = made.inputs.layout
    table = NodeTable(NodeTable.opaque(layout.nodes).ids, phase=(1, 2, 3, 1), bus=("b0", "b0", "b0", "b1"))
    (copied / "nodes.parquet").write_bytes(encode_nodes(layout, "r-1", table))
    assert "voltages" in failed(copied)


def test_a_directory_that_is_no_release_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="not a directory"):
        verify_release(tmp_path / "nothing")
    with pytest.raises(ReleaseError, match="finished release"):
        verify_release(tmp_path)


def test_assembled_manifests_hold_nothing_but_facts(made: Made) -> None:
    manifest = manifest_of(made.path)
    facts = read_facts(parse_manifest(manifest), made.inputs.model, validate_corpus(made.path))
    assert seal(assemble(facts), manifest["files"]).model_dump() == manifest
