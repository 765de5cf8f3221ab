"""Releases with powers and states beside the voltages: what they say, and what `verify` finds of a change."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dp_powerflow.config import parse_config
from dp_powerflow.corpus.gridfm.tables import read_gridfm
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.corpus.schema import NOTHING, ExtrasLayout
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import ConfigError
from dp_powerflow.manifest.build import make_statement
from dp_powerflow.manifest.model import ReleaseError, parse_manifest
from dp_powerflow.manifest.render import certificate_html, croissant_bytes, published_tables
from dp_powerflow.manifest.verify import SEED, verify_release
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.release import run_release
from support.corpora import EXTRAS
from support.manifest_releases import Made, config, load_model, make_inputs, make_release, said, twin_config
from support.small import RAW, small_config, tree_hash
from support.tampering import failed, manifest_of

LOADS, FEEDER = "loads/part-00001.parquet", "feeder/part-00000.parquet"
CHECK = "voltages"
FOUND = {"voltages", "statement"}
STEPS = 24
CIRCUIT = """
Clear
New Circuit.c basekv=4.16 bus1=s
New Line.a bus1=s bus2=x length=0.5 units=km
New Line.b bus1=x bus2=y length=0.5 units=km
New Load.one bus1=x.1 phases=1 kv=2.4 kW=100 kvar=30
New Load.two bus1=y.1 phases=1 kv=2.4 kW=80 kvar=20
New PVSystem.roof bus1=y.1 phases=1 kv=2.4 kVA=300 Pmpp=250
Set VoltageBases=[4.16]
CalcVoltageBases
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_release(tmp_path_factory.mktemp("made"), twin_config(), load_model(), extras=EXTRAS)


@pytest.fixture
def copied(made: Made, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.path, tmp_path / "copy"))


# ------------------------------------------------------------------------------------- what a release says
def test_a_release_with_everything_beside_its_voltages_verifies(made: Made) -> None:
    report = verify_release(made.path)
    assert report.verdict == "release", report.failures
    sentence = next(check.sentence for check in report.checks if check.name == CHECK)
    assert "loads, generation, head, taps, capacitors, locked, mended: 1,320 powers" in sentence


def test_the_manifest_states_what_there_is_and_what_it_follows_from(made: Made) -> None:
    manifest = manifest_of(made.path)
    stated = manifest["data"]["extras"]
    assert stated["holds"] == list(EXTRAS.holds)
    assert (stated["source_phases"], stated["regulators"], stated["capacitors"]) == (3, 2, 12)
    tables = {
        table.name: [column.name for column in table.columns]
        for table in published_tables(parse_manifest(manifest))
    }
    columns = set(tables["feeder"])
    assert {"day", "s0_p_kw", "s2_q_kvar", "r1_tap", "c11_closed", "locked"} <= columns
    for name in ("loads", "feeder"):
        stored = pq.read_schema(made.path / f"{name}/part-00000.parquet").names
        assert tables[name] == stored
    words = said(manifest, "after_noise")
    assert "taps of the regulators; states of the switched capacitors" in words
    assert "nor the loads behind the voltages are released" not in words
    assert "the powers and states published with them" in said(manifest, "scope")
    assert "With the voltages</dt>" in (made.path / "certificate.html").read_text()


def test_a_release_of_voltages_says_nothing_of_powers(tmp_path: Path) -> None:
    inputs, _ = make_inputs(tmp_path, twin_config(), load_model())
    statement = make_statement(inputs)
    assert statement.data.extras is None
    assert "Neither the twin nor the loads behind the voltages are released." in said(
        statement, "after_noise"
    )
    assert b"With the voltages</dt>" not in certificate_html(statement)


def test_the_croissant_describes_every_column_and_links_resolve(made: Made) -> None:
    statement = make_statement(made.inputs)
    dataset = json.loads(croissant_bytes(statement, manifest_of(made.path)["files"]))
    ids = [item["@id"] for item in dataset["distribution"]]
    assert len(set(ids)) == len(ids)
    records = {item["@id"]: item["field"] for item in dataset["recordSet"]}
    assert [field["name"] for field in records["loads"]] == [
        *("day", "node", "p_kw", "q_kvar", "g_kw", "g_kvar")
    ]
    kinds = {field["name"]: field["dataType"] for field in records["feeder"]}
    assert (kinds["s0_p_kw"], kinds["r0_tap"], kinds["locked"]) == ("sc:Float", "sc:Integer", "sc:Boolean")
    for name in ("loads", "feeder"):
        assert {field["source"]["fileSet"]["@id"] for field in records[name]} <= set(ids)


def test_the_true_network_publishes_voltages_only(tmp_path: Path) -> None:
    inputs, _ = make_inputs(tmp_path, config(), load_model(), extras=EXTRAS)
    with pytest.raises(ReleaseError, match="holds more than voltages, which its mode does not publish"):
        make_statement(inputs)
    with pytest.raises(ConfigError, match="also_publish"):
        parse_config({**RAW, "network": {**RAW["network"], "also_publish": ["loads"]}}, base=tmp_path)


# --------------------------------------------------------------------------------- a release, from a config
TWIN: dict[str, Any] = {
    **{"mode": "twin-network", "epsilon": 8.0, "id": "t1", "change": 0.05, "released": "all"},
    **{"controls": "frozen", "publish": "network and loads", "also_publish": ["head", "loads"]},
}


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A feeder with PV under volt-var control."""
    folder = tmp_path_factory.mktemp("solved")
    (folder / "c.dss").write_text(CIRCUIT)
    day = np.clip(np.sin(np.linspace(-np.pi / 2, 1.5 * np.pi, STEPS)), 0.0, None)
    (folder / "sun.csv").write_text("\n".join(f"{value:.4f}" for value in day))
    run_release(release_of(folder), workers=1)
    return folder


def release_of(folder: Path, **network: Any) -> Any:
    return small_config(
        folder,
        feeder={"source": "c.dss"},
        pv={"irradiance": "sun.csv", "volt_var": "category B"},
        network=TWIN | network,
        release={"days": 3},
    )


def test_the_released_powers_are_those_of_the_published_twin(solved: Path) -> None:
    assert failed(solved / "out") == {SEED}
    corpus, tables = open_corpus(solved / "out"), read_gridfm(solved / "out" / "twin")
    assert corpus.holds == ("voltages", "loads", "generation", "head", "mended")
    nodes = corpus.layout.nodes

    def of_tables(name: str) -> np.ndarray:
        """In kW or kvar: the tables hold injections, generation beside the slack as negative load."""
        balance = tables.column("bus", f"{name}g") - tables.column("bus", f"{name}d")
        return np.asarray(1000.0 * balance).reshape(3, STEPS, -1)

    injected = of_tables("P") + 1j * of_tables("Q")
    two_roundings = 2e-3
    assert np.abs(corpus.generation() - corpus.loads() - injected[..., :nodes]).max() < two_roundings
    assert np.abs(corpus.generation()).max() > 100.0
    assert np.abs(corpus.head() - injected[..., nodes:]).max() < two_roundings
    losses = (corpus.head().sum(-1) - corpus.loads().sum(-1) + corpus.generation().sum(-1)).real
    assert losses.min() > -two_roundings
    assert losses.max() > 0.1


def test_the_voltages_do_not_depend_on_what_is_beside_them(solved: Path, tmp_path: Path) -> None:
    for name in ("c.dss", "sun.csv"):
        shutil.copy(solved / name, tmp_path)
    run_release(release_of(tmp_path, also_publish=[]), workers=1)
    both = tree_hash(tmp_path / "out"), tree_hash(solved / "out")
    data = [{name: digest for name, digest in found.items() if name.startswith("data/")} for found in both]
    assert data[0] == data[1]
    assert not (tmp_path / "out" / "loads").exists()


def test_a_run_that_died_after_the_loads_of_a_part_ends_in_the_same_bytes(
    solved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("c.dss", "sun.csv"):
        shutil.copy(solved / name, tmp_path)
    write = CorpusWriter.write_files

    def killed(writer: Any, files: dict[str, memoryview]) -> dict[str, str]:
        *beside, voltages = files
        assert beside
        assert voltages.startswith("data/")
        write(writer, {name: files[name] for name in beside})
        raise KeyboardInterrupt

    monkeypatch.setattr(CorpusWriter, "write_files", killed)
    with pytest.raises(KeyboardInterrupt):
        run_release(release_of(tmp_path), workers=1)
    monkeypatch.undo()
    run_release(release_of(tmp_path), workers=1)
    assert tree_hash(tmp_path / "out") == tree_hash(solved / "out")


def test_what_is_published_is_part_of_the_request_in_any_order(solved: Path) -> None:
    asked = (["head", "loads"], ["loads", "head", "loads"], ["loads"])
    requests = [plan(release_of(solved, also_publish=also)).plan.request_sha256 for also in asked[:2]]
    assert requests[0] == requests[1]
    assert release_of(solved, also_publish=asked[2]).network != release_of(solved).network


def test_a_fixed_frame_has_no_states(tmp_path: Path) -> None:
    asked = small_config(tmp_path, network=TWIN | {"also_publish": ["states"]}, release={"days": 2})
    run_release(asked, workers=1)
    assert open_corpus(tmp_path / "out").holds == ("voltages", "mended")


def test_by_default_powers_and_states_are_published_too() -> None:
    everything = ("loads", "head", "states", "connections")
    assert twin_config().network.also_publish == everything  # type: ignore[union-attr]
    assert replace(EXTRAS, loads=False, generation=False).folders == ("feeder",)
    assert ExtrasLayout() == NOTHING
