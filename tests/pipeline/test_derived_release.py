"""Derived releases: what they are made from, what they cost, and that every changed byte is found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import dp_powerflow as dpf
from dp_powerflow.cli import app
from dp_powerflow.config import Config
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.errors import ConfigError, CorpusError, DpPowerflowError, PrivacyError
from dp_powerflow.grid.feeder import BusGraph
from dp_powerflow.manifest.model import DIGEST, ReleaseError
from dp_powerflow.manifest.verify import VerifyReport
from dp_powerflow.page import Table
from dp_powerflow.pipeline import inputs as assembly
from dp_powerflow.pipeline.deriving.derived import derived_schema
from dp_powerflow.pipeline.deriving.owner import basis_of_config
from dp_powerflow.pipeline.deriving.source import StudySettings, basis_of_release
from dp_powerflow.pipeline.modes.twin import TwinMode
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.studies.study import KINDS, Findings
from dp_powerflow.twin.draw import Twin
from pipeline.test_twin_release import longer_line
from support.derived_kind import PLACE, LowestVoltage
from support.made import Released, twin_config
from support.small import small_config, tree_hash
from support.tampering import leaves, rewrite, with_leaf

KIND = "lowest-voltage"
SCHEMA = Path(__file__).parents[2] / "docs" / "derived.schema.json"
OPERATED: dict[str, Any] = {
    **{"mode": "twin-network", "id": "t1", "epsilon": 1.0, "change": 0.05, "released": "loaded"},
    **{"controls": "day", "also_publish": ["connections"]},
}


def operated_config(folder: Path) -> Config:
    """A small release of three days on a twin as operated, with a secret key, that publishes no twin."""
    return small_config(folder, network=OPERATED, release={"days": 3, "insecure_seed": None, "keys": "keep"})


@pytest.fixture(autouse=True)
def _a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, KIND, PLACE)


@pytest.fixture(scope="module")
def published(twin_release: Released) -> Path:
    """A release that publishes its twin with its loads."""
    return twin_release.folder


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("operated")
    run_release(operated_config(folder), workers=1)
    return folder


@pytest.fixture(scope="module")
def derived(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A derived release of the published twin, from its files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(KINDS, KIND, PLACE)
        target = tmp_path_factory.mktemp("derived") / "found"
        dpf.derive(KIND, published / "out", target, workers=1)
    return target


def failed(report: VerifyReport) -> set[str]:
    return {check.name for check in report.failures}


def test_from_released_files_it_is_computed_again_by_anybody(published: Path, derived: Path) -> None:
    assert failed(dpf.verify(derived)) == {"random source"}
    report = dpf.verify(derived, source=published / "out")
    assert report.verdict == "demonstration"  # as the release, whose noise came from a seed
    assert {"release", "derivation"} <= {check.name for check in report.checks}
    assert not any("SHA-256 only" in words for words in report.attested)


def test_from_the_private_state_it_is_a_release_that_its_owner_computes_again(
    operated: Path, tmp_path: Path
) -> None:
    config = operated_config(operated)
    found = dpf.derive(KIND, config, tmp_path / "a", settings={"days": 3}, workers=1)
    report = dpf.verify(tmp_path / "a")
    assert report.ok
    assert any("SHA-256 only" in words for words in report.attested)
    audited = dpf.verify(tmp_path / "a", private=operated / "state", config=config)
    assert audited.ok
    assert not any("SHA-256 only" in words for words in audited.attested)
    assert dpf.verify(tmp_path / "a", source=operated / "out").ok
    released = json.loads((operated / "out" / "manifest.json").read_text())
    assert found.guarantee == released["guarantee"]
    assert found.table("nodes")["node"].to_pylist() == list(open_corpus(operated / "out").nodes.ids)
    lowest = np.abs(open_corpus(operated / "out").voltages()).min(axis=(0, 1))
    np.testing.assert_allclose(found.table("nodes")["lowest_pu"].to_numpy(), lowest, atol=2e-6)
    assert found.figures["customers"] > 0
    assert found.tables == ("days", "nodes")
    assert found.table("days").num_rows == 6
    assert list(found.to_pandas("nodes").columns) == ["node", "lowest_pu"]


def test_nothing_of_the_private_state_changes(operated: Path, tmp_path: Path) -> None:
    before = tree_hash(operated)
    dpf.derive(KIND, operated_config(operated), tmp_path / "a", workers=1)
    assert tree_hash(operated) == before
    assert any("ledger" in name for name in before)


SMALL: dict[str, dict[str, Any]] = {
    KIND: {},
    "opf": {"every": 12, "v_min_pu": 0.9, "v_max_pu": 1.1},
    "hosting-capacity": {"v_max_pu": 1.1},
    "reliability": {"years": 200},
}
"""Every kind, with settings that keep a test short."""


def test_another_true_network_with_the_same_twin_gives_the_same_bytes(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SMALL.keys() == KINDS.keys()
    for kind, settings in SMALL.items():
        dpf.derive(kind, twin_config(published), tmp_path / "one" / kind, settings=settings, workers=1)
    kept = next((published / "state/internal/twin-t1").glob("twin-*.json"))
    original = assembly.feeder_of
    monkeypatch.setattr(assembly, "feeder_of", lambda config, *_: longer_line(original(config)))
    monkeypatch.setattr(TwinMode, "_draw", lambda *_: Twin.from_json(kept.read_text()))
    other = twin_config(tmp_path)
    run_release(other, workers=1)
    for kind, settings in SMALL.items():
        dpf.derive(kind, other, tmp_path / "two" / kind, settings=settings, workers=1)
    assert tree_hash(tmp_path / "one") == tree_hash(tmp_path / "two")
    monkeypatch.undo()
    monkeypatch.setitem(KINDS, KIND, PLACE)
    with pytest.raises(PrivacyError, match="run the release first"):  # the true network has no twin there
        dpf.derive(KIND, other, tmp_path / "three", workers=1)


@pytest.mark.slow
def test_every_kind_is_derived_and_computed_again(published: Path, operated: Path, tmp_path: Path) -> None:
    """From the state of a release as operated, and what needs no lengths from released files."""
    config = operated_config(operated)
    for kind, settings in SMALL.items():
        dpf.derive(kind, config, tmp_path / kind, settings=settings, workers=1)
        assert dpf.verify(tmp_path / kind, private=operated / "state", config=config).ok
        if kind == "reliability":
            with pytest.raises(DpPowerflowError, match="length"):
                dpf.derive(kind, published / "out", tmp_path / "no", settings=settings)
            continue
        read = tmp_path / f"{kind}-read"
        found = dpf.derive(kind, published / "out", read, settings=settings, workers=1)
        assert failed(dpf.verify(read, source=published / "out")) == {"random source"}
        assert found.guarantee["network"]["epsilon"] == 1.0


def test_a_study_of_the_files_is_that_of_the_owner(published: Path) -> None:
    own = basis_of_config(twin_config(published), StudySettings()).study
    files = basis_of_release(published / "out", StudySettings()).study
    assert own.node_ids == files.node_ids
    assert own.irradiance is not None
    assert files.irradiance is not None
    np.testing.assert_array_equal(own.irradiance, files.irradiance)
    assert files.customers is None
    assert own.customers is not None
    assert len(own.customers) == len(own.feeder.loads)
    assert len(files.feeder.lines) > 5
    assert all(line.length_m is None for line in files.feeder.lines)
    assert len(files.feeder.loaded_nodes()[0])
    for line in files.feeder.lines:  # a line of Y, and nothing beside it
        half = len(line.nodes) // 2
        between = files.feeder.y[np.ix_(line.nodes[:half], line.nodes[half:])]
        np.testing.assert_allclose(np.asarray(between.todense()), line.primitive[:half, half:])


def test_buses_of_published_tables_form_the_tree_of_the_connections(published: Path) -> None:
    """Tables merge switches, under a secret order: their nodes still stand at the buses of the release."""
    study = basis_of_release(published / "out", StudySettings()).study
    graph, connections = BusGraph.of(study.feeder), study.connections
    assert connections is not None
    switches = connections.kinds.count("switch")
    assert switches == 1
    assert len(graph.names) == connections.n_buses - switches
    assert len(graph.kind_of) == connections.n_pairs - switches == len(graph.names) - 1
    assert sorted(graph.kind_of.values()).count("transformer") == connections.kinds.count("transformer")
    np.testing.assert_array_equal(graph.phase[study.released], connections.phase)


def test_a_study_has_nothing_of_the_file_that_no_noise_covers(operated: Path) -> None:
    """Codes of lines whose R and X are protected would give their figures per length back."""
    feeder = basis_of_config(operated_config(operated), StudySettings()).study.feeder
    assert all(line.code is None for line in feeder.lines)
    assert (feeder.coordinates, feeder.origin, feeder.notes) == ({}, None, ())


def test_a_name_of_the_feeders_file_is_never_published(
    operated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = operated_config(operated)
    for found in (
        Findings({"x.parquet": pa.table({"bus": ["671"]})}, {}),
        Findings({"x.parquet": pa.table({"nodes": [["671.1"], []]})}, {}),
        Findings({}, {"worst": {"loads": ["634a"]}}),
        Findings({}, {}, (Table(("load",), (("634a",),)),)),
    ):
        monkeypatch.setattr(LowestVoltage, "find", lambda *_, found=found, **__: found)
        with pytest.raises(PrivacyError, match="a name of the feeder's file"):
            dpf.derive(KIND, config, tmp_path / "a", workers=1)
    assert not list(tmp_path.iterdir())
    number = Findings({}, {"nodes": "671"}, (Table(("kW",), (("671.1",),)),))
    monkeypatch.setattr(LowestVoltage, "find", lambda *_, **__: number)
    dpf.derive(KIND, config, tmp_path / "a", workers=1)  # a figure may look like a bus


# --- the command ------------------------------------------------------------------------------------------


def test_the_command_derives_beside_the_release_and_verifies(published: Path, tmp_path: Path) -> None:
    shutil.copytree(published / "out", tmp_path / "corpus")
    (tmp_path / "settings.toml").write_text("days = 3\n[study]\nlatitude_deg = 50.0\n")
    options = ["--settings", str(tmp_path / "settings.toml"), "--workers", "1"]
    made = CliRunner().invoke(app, ["derive", KIND, str(tmp_path / "corpus"), *options, "--json"])
    assert made.exit_code == 0, made.output
    found = json.loads(made.stdout)
    assert found["derived"] == str(tmp_path / f"corpus-{KIND}")
    assert found["tables"] == ["days", "nodes"]
    assert dpf.open_derived(found["derived"]).settings["days"] == 3
    checked = CliRunner().invoke(app, ["verify", found["derived"], "--release", str(tmp_path / "corpus")])
    assert checked.exit_code == 0, checked.output
    assert "computed again" in checked.stdout
    assert "verdict: demonstration: intact" in checked.stdout
    (tmp_path / f"corpus-{KIND}" / "README.md").write_text("nothing")
    assert CliRunner().invoke(app, ["verify", found["derived"]]).exit_code == 1


# --- what is refused --------------------------------------------------------------------------------------


def test_the_true_network_is_refused(true_release: Released, tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match="resistances of its paths"):
        dpf.derive(KIND, true_release.config, tmp_path / "a")
    with pytest.raises(PrivacyError, match="experiments may"):
        dpf.derive(KIND, true_release.path, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_release_that_is_not_finished_is_to_be_run_first(published: Path, tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="run the release first"):
        dpf.derive(KIND, operated_config(tmp_path), tmp_path / "a")
    assert not list(tmp_path.iterdir())  # no private state is made
    shutil.copytree(published / "out", tmp_path / "out")
    with pytest.raises(PrivacyError, match="run the release first"):
        dpf.derive(KIND, twin_config(tmp_path), tmp_path / "a")


def test_a_twin_that_is_not_published_needs_the_config(operated: Path, tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match=r"network\.publish"):
        dpf.derive(KIND, operated / "out", tmp_path / "a")


@pytest.mark.parametrize(
    "changed", [{"nodes": {"kw_per_customer": 20.0}}, {"network": {"released": "loaded"}}]
)
def test_a_config_that_is_not_that_of_the_release_is_refused(
    published: Path, tmp_path: Path, changed: dict[str, Any]
) -> None:
    with pytest.raises(ReleaseError, match=r"other voltages|other settings"):
        dpf.derive(KIND, twin_config(published, **changed), tmp_path / "a")


@pytest.mark.parametrize(
    ("kind", "settings", "sentence"),
    [
        ("weather", {}, "choose one of opf, hosting-capacity, reliability"),
        (KIND, {"limit": 0.9}, "limit"),
        (KIND, {"limit_pu": "low"}, "limit_pu"),
        (KIND, {"days": 0}, "days"),
        (KIND, {"days": 100}, "set days to less"),
        (KIND, {"study": {"latitude_deg": 91.0}}, r"study\.latitude_deg"),
        (KIND, {"study": {"longitude": 1.0}}, r"study\.longitude"),
    ],
)
def test_wrong_kinds_and_settings_are_one_sentence(
    published: Path, tmp_path: Path, kind: str, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        dpf.derive(kind, published / "out", tmp_path / "a", settings=settings)
    assert not list(tmp_path.iterdir())


def test_an_existing_target_is_refused_and_stays(published: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(CorpusError, match="exists already"):
        dpf.derive(KIND, published / "out", tmp_path / "a")
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


def test_the_sun_of_new_pv_is_a_public_setting(published: Path, tmp_path: Path) -> None:
    north = dpf.derive(KIND, published / "out", tmp_path / "a", settings={"study": {"latitude_deg": 69.0}})
    assert north.figures["largest irradiance"] < 0.8
    assert "latitude 69.0 degrees" in north.manifest.study.irradiance
    assert dpf.verify(tmp_path / "a", source=published / "out").intact


# --- written whole or not at all --------------------------------------------------------------------------


def test_a_computation_or_a_disk_that_fails_leaves_nothing(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        if path.name == "manifest.json" and "source" not in path.parts:
            raise OSError(28, "No space left on device")
        path.write_bytes(content)

    with pytest.raises(ConfigError, match="told to fail"):
        dpf.derive(KIND, published / "out", tmp_path / "a", settings={"fails": True})
    monkeypatch.setattr("dp_powerflow.corpus.storage.write_whole", full)
    with pytest.raises(DpPowerflowError, match="space"):
        dpf.derive(KIND, published / "out", tmp_path / "a")
    assert not list(tmp_path.iterdir())


# --- verify finds every change ----------------------------------------------------------------------------
def test_a_changed_bit_of_any_file_is_found(derived: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(derived, tmp_path / "copy"))
    for name in sorted(tree_hash(copy)):
        content = (copy / name).read_bytes()
        changed = bytearray(content)
        changed[len(content) // 2] ^= 1
        (copy / name).write_bytes(changed)
        assert dpf.verify(copy).verdict == "not intact", name
        if name == "nodes.parquet":
            with pytest.raises(CorpusError, match="damaged"):
                dpf.open_derived(copy).table("nodes")
        (copy / name).write_bytes(content)


def test_a_changed_entry_of_the_manifest_is_found_though_it_is_sealed_anew(
    published: Path, derived: Path, tmp_path: Path
) -> None:
    content = json.loads((derived / "manifest.json").read_text())
    shutil.copytree(derived, tmp_path / "a")
    declared = []  # what only a computation finds: pages that a forger made anew would agree
    for path in leaves({key: value for key, value in content.items() if key not in (DIGEST, "software")}):
        rewrite(tmp_path / "a", with_leaf(content, path), sealed=True)
        report = dpf.verify(tmp_path / "a")
        assert report.verdict == "not intact", path
        if failed(report) <= {"pages", "random source"}:
            declared.append(path)
    assert {path[0] for path in declared} <= {"figures", "settings", "study"}
    for path in declared[::5]:
        rewrite(tmp_path / "a", with_leaf(content, path), sealed=True)
        assert "derivation" in failed(dpf.verify(tmp_path / "a", source=published / "out")), path


def test_another_release_is_not_the_one_it_came_from(derived: Path, operated: Path) -> None:
    report = dpf.verify(derived, source=operated / "out")
    assert {"release", "derivation"} <= failed(report)


def test_what_cannot_be_asked_of_verify_is_one_sentence(published: Path, derived: Path) -> None:
    with pytest.raises(ConfigError, match="no derived release"):
        dpf.verify(published / "out", source=published / "out")
    with pytest.raises(ConfigError, match="config of its release"):
        dpf.verify(derived, private=published / "state")
    with pytest.raises(ReleaseError, match="needs nothing private"):
        dpf.verify(derived, private=published / "state", config=twin_config(published))


def test_the_schema_is_generated_and_the_manifest_follows_it(derived: Path) -> None:
    schema = json.loads(SCHEMA.read_text())
    assert schema == derived_schema()
    jsonschema.validate(json.loads((derived / "manifest.json").read_text()), schema)


def test_every_page_says_that_it_is_a_demonstration_and_what_is_protected(derived: Path) -> None:
    for name in ("certificate.html", "README.md", "derived.html"):
        text = (derived / name).read_text().lower()
        assert "demonstration, not a release" in text, name
        assert "differential privacy" in text, name
    assert "://" not in (derived / "certificate.html").read_text()
