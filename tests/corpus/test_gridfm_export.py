"""Published twins for gridfm-graphkit: layout, perturbed networks; nothing touches the release."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

import dp_powerflow as dpf
from dp_powerflow.cli import app
from dp_powerflow.corpus.gridfm.network import (
    PublishedNetwork,
    lines_of,
    network_of,
    places_of,
    supplied,
    with_shares,
)
from dp_powerflow.corpus.gridfm.schema import CLOSE_PU, TABLES
from dp_powerflow.corpus.gridfm.tables import GridfmData, check_tables, read_gridfm
from dp_powerflow.errors import CorpusError
from dp_powerflow.grid.feeder import Feeder
from support.made import Released
from support.small import tree_hash

NAME = "small"
PERTURBED = 30


@pytest.fixture(scope="module")
def plain(twin_release: Released) -> Path:
    """A release on a twin of IEEE 13, published with its loads."""
    return twin_release.path


@pytest.fixture(scope="module")
def exported(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "graphs"
    variety = dpf.GridfmVariety(scenarios=PERTURBED, seed=5, per_network=4)
    made = dpf.export_gridfm(plain, folder, variety=variety)
    assert made.networks[0].refused == 0
    return folder


@pytest.fixture(scope="module")
def data(exported: Path) -> GridfmData:
    return read_gridfm(exported / NAME / "raw")


@pytest.fixture(scope="module")
def released(plain: Path) -> GridfmData:
    return read_gridfm(plain / "twin")


def test_the_folder_is_that_of_graphkit_with_a_config_that_names_it(
    exported: Path, released: GridfmData
) -> None:
    assert {path.name for path in exported.iterdir()} == {NAME, "graphkit.yaml"}
    raw = exported / NAME / "raw"
    assert {path.name for path in raw.iterdir()} == {
        *(f"{table}.parquet" for table in TABLES),
        *("n_scenarios.txt", "args.log", "rows.parquet"),
    }
    config = yaml.safe_load((exported / "graphkit.yaml").read_text(encoding="utf-8"))
    assert config["data"]["networks"] == [NAME]
    assert config["data"]["scenarios"] == [len(released.scenarios) + PERTURBED]
    assert config["data"]["split_by_load_scenario_idx"] is True


def test_released_scenarios_are_copied_as_they_are(plain: Path, exported: Path, tmp_path: Path) -> None:
    dpf.export_gridfm(plain, tmp_path / "graphs")
    released = tree_hash(plain / "twin")
    assert tree_hash(tmp_path / "graphs" / NAME / "raw") == released
    raw = tree_hash(exported / NAME / "raw")
    assert {name for name, digest in released.items() if raw[name] != digest} == {"n_scenarios.txt"}


def test_perturbed_scenarios_are_power_flow_on_other_networks(data: GridfmData, released: GridfmData) -> None:
    count = len(released.scenarios)
    assert len(data.scenarios) == count + PERTURBED
    networks = {data.admittance(k).toarray().tobytes() for k in range(count, count + PERTURBED)}
    assert len(networks) == -(-PERTURBED // 4)
    assert len({data.admittance(k).toarray().tobytes() for k in range(count)}) == 1
    status, scenario = (data.branch[name].to_numpy() for name in ("br_status", "scenario"))
    out = np.unique(scenario[status == 0])
    assert len(out)
    assert out.min() >= count
    for flow in ("pf", "qt", "Yff_i", "Ytf_r"):
        assert not data.branch[flow].to_numpy()[status == 0].any()
    load = data.column("bus", "Pd")
    assert (data.column("bus", "Psgen")[count:] > 0.0).any()
    assert np.unique(load[count:].sum(axis=1).round(9)).size == PERTURBED
    # A perturbed day is in the same part of a split as the day itself.
    days = data.column("bus", "load_scenario_idx")[:, 0]
    assert set(days[count:]) <= set(days[:count])


def test_perturbations_follow_from_the_seed(plain: Path, exported: Path, tmp_path: Path) -> None:
    same, other = (dpf.GridfmVariety(scenarios=PERTURBED, seed=seed, per_network=4) for seed in (5, 6))
    dpf.export_gridfm(plain, tmp_path / "same", variety=same)
    dpf.export_gridfm(plain, tmp_path / "other", variety=other)
    assert tree_hash(tmp_path / "same") == tree_hash(exported)
    assert tree_hash(tmp_path / "other") != tree_hash(exported)


def test_a_release_stays_what_it_was_and_what_is_there_is_not_overwritten(
    plain: Path, tmp_path: Path
) -> None:
    release = tmp_path / "release"
    shutil.copytree(plain, release)
    before = tree_hash(release)
    with pytest.raises(CorpusError, match="inside the release"):
        dpf.export_gridfm(release, release / "graphs")
    (tmp_path / "there").mkdir()
    with pytest.raises(CorpusError, match="exists already"):
        dpf.export_gridfm(release, tmp_path / "there")
    dpf.export_gridfm(release, tmp_path / "graphs")
    assert tree_hash(release) == before
    with pytest.raises(CorpusError, match="two of the releases have one id"):
        dpf.export_gridfm([release, plain], tmp_path / "both")
    assert {path.name for path in tmp_path.iterdir()} == {"release", "there", "graphs"}


def test_the_command_line_exports_and_refuses_in_one_sentence(plain: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    target = tmp_path / "graphs"
    done = runner.invoke(app, ["export", "gridfm", str(plain), str(target), "--perturbed", "3", "--json"])
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    shutil.copytree(plain, tmp_path / "bare", ignore=shutil.ignore_patterns("twin"))
    assert shown["networks"][0]["name"] == NAME
    assert shown["networks"][0]["perturbed"] == 3
    for release, message in (
        (tmp_path / "bare", "holds no tables of its network"),
        (tmp_path / "nowhere", "nowhere"),
        ("s3://bucket/release", "to one first, then name the folder"),
    ):
        refused = runner.invoke(app, ["export", "gridfm", str(release), str(tmp_path / "new")])
        assert isinstance(refused.exception, CorpusError)
        assert message in str(refused.exception)
        assert not (tmp_path / "new").exists()


@pytest.fixture(scope="module")
def network(ieee13: Feeder) -> PublishedNetwork:
    nodes = network_of(ieee13)
    return nodes.merged(nodes.groups()).turned()


def test_lines_are_found_in_the_admittances_alone(ieee13: Feeder) -> None:
    """Against the elements of the feeder, which the tables do not name."""
    nodes = network_of(ieee13)
    place = places_of(nodes)
    names = np.array([node.rsplit(".", 1)[0].replace("emf(sourcebus)", "sourcebus") for node in ieee13.nodes])
    for number in np.unique(place):
        assert len(set(names[place == number])) == 1  # no place is of two buses
    lines = lines_of(nodes)
    found = {frozenset(line.nodes.tolist()): line for line in lines}
    known = [line for line in ieee13.lines if not line.is_switch]
    assert known
    for line in known:
        own = found[frozenset(line.nodes)]
        half = len(line.nodes) // 2
        position = {node: k for k, node in enumerate(line.nodes)}
        rows, columns = ([position[node] for node in side.tolist()] for side in (own.first, own.second))
        expected = -line.primitive[np.ix_(rows, columns)] * (ieee13.base_mva / 100.0)
        assert own.series.shape == (half, half)
        assert np.allclose(own.series, expected, rtol=1e-9, atol=1e-12)


def test_a_line_taken_out_and_put_back_leaves_the_network(network: PublishedNetwork) -> None:
    lines = lines_of(network)
    for line in lines[:4]:
        without = with_shares(network, (line,), np.array([-1.0]))
        assert not without.y[line.first][:, line.second].toarray().any()
        assert np.abs(without.shunt - network.shunt).max() < 1e-10
        back = with_shares(without, (line,), np.array([1.0]))
        assert abs(back.y - network.y).max() < 1e-9


def test_supply_is_lost_without_a_line_of_a_radial_feeder(network: PublishedNetwork) -> None:
    assert supplied(network).all()
    lost = [
        int(np.sum(~supplied(with_shares(network, (line,), np.array([-1.0]))))) for line in lines_of(network)
    ]
    assert min(lost) >= 1


def test_tables_with_other_voltages_are_found(twin_release: Released, tmp_path: Path) -> None:
    release = twin_release.copied(tmp_path)
    count = len(read_gridfm(release / "twin").scenarios)

    def problems(away_deg: float) -> str:
        """All angles of the first scenarios moved: the power flow stays."""
        spoilt = release / "twin" / "bus_data.parquet" / "scenario_partition=0" / "from-000000000.parquet"
        good = spoilt.read_bytes()
        table = pq.read_table(spoilt, partitioning=None)
        va = table["Va"].to_numpy() + away_deg
        pq.write_table(table.set_column(table.column_names.index("Va"), "Va", pa.array(va)), spoilt)
        (release / "manifest.json").unlink(missing_ok=True)  # its hashes would say so first
        found = " ".join(check_tables(release, "twin", count, close_pu=CLOSE_PU))
        spoilt.write_bytes(good)
        return found

    assert problems(0.0) == ""
    assert "are not those of the corpus" in problems(0.02)
    assert "are not turned back" in problems(120.0)
