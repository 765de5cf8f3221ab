"""OpenDSS circuits as feeders: what is kept, what is replaced, what is refused."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow import Feeder, open_feeder
from dp_powerflow.errors import FeederError
from dp_powerflow.grid.opendss.engine import declared_voltages
from dp_powerflow.grid.sources import read_taps, write_taps
from support.tables import tables_of

TABLES = tables_of(__file__)

SMALL = TABLES["SMALL"]


def write(path: Path, more: str = "") -> Path:
    file = path / "small.dss"
    file.write_text(SMALL.format(more=more))
    return file


def test_ieee123_has_its_published_counts_and_an_admittance_free_of_loads(ieee123: Feeder) -> None:
    assert (len(ieee123.energised), len(ieee123.retained), len(ieee123.lines)) == (278, 96, 126)
    assert (len(ieee123.loads), sum(line.is_switch for line in ieee123.lines)) == (91, 8)
    assert abs(ieee123.y - ieee123.y.T).max() < 1e-9
    node = ieee123.node_index["1.1"]  # S1a: 40 kW; a shunt of it would show as 0.04 p.u. in the row sum
    near = [k for k, name in enumerate(ieee123.nodes) if name.startswith(("1.", "149.", "2.", "3.", "7."))]
    assert abs(ieee123.y[[node], :][:, near].sum()) < 1e-3


def test_emf_behind_the_source_impedance_is_the_slack(tmp_path: Path) -> None:
    feeder = open_feeder(write(tmp_path))
    assert [feeder.nodes[k] for k in feeder.slack] == ["emf(source).1", "emf(source).2", "emf(source).3"]
    assert np.allclose(np.abs(feeder.v_slack), 1.02, atol=1e-9)
    assert abs(feeder.y[feeder.node_index["source.1"], feeder.slack[0]]) > 0


def test_delta_load_splits_by_the_nominal_phasors(ieee123: Feeder) -> None:
    k = next(k for k, load in enumerate(ieee123.loads) if load.name == "s35a")
    shares = ieee123.load_shares[:, [k]].toarray().ravel()
    i, j = ieee123.node_index["35.1"], ieee123.node_index["35.2"]
    a = np.exp(-2j * np.pi / 3)
    assert shares[i] == pytest.approx(1 / (1 - a))
    assert shares.sum() == pytest.approx(1.0)
    assert shares[j] == pytest.approx(-a / (1 - a))


def test_wye_equivalents_of_wye_loads_are_exact_and_of_delta_loads_are_not(tmp_path: Path) -> None:
    from support.feeder_reference import opendss_with_wye_equivalents

    plain = open_feeder(write(tmp_path))
    assert np.abs(opendss_with_wye_equivalents(plain) - declared_voltages(plain)).max() < 1e-8
    delta = open_feeder(write(tmp_path, "New Load.d bus1=x.1.2 phases=1 conn=delta kv=4.16 kW=300 kvar=100"))
    assert np.abs(opendss_with_wye_equivalents(delta) - declared_voltages(delta)).max() > 1e-5


def test_loads_in_delta_and_between_two_hot_legs_share_out_equally(tmp_path: Path) -> None:
    more = """
New Load.d bus1=x phases=3 conn=delta kv=4.16 kW=90 kvar=30
New Transformer.t phases=1 windings=3 buses=[x.1 sec.1.0 sec.0.2] kvs=[2.4 0.12 0.12] kvas=[50 50 50]
~ xhl=2 xht=2 xlt=1
New Load.house bus1=sec.1.2 phases=1 kv=0.24 kW=10 kvar=2
"""
    feeder = open_feeder(write(tmp_path, more))
    assert [load.name for load in feeder.loads[1:]] == ["d", "house"]
    delta, house = feeder.load_shares.toarray().T[1:]
    assert np.allclose(delta[np.abs(delta) > 1e-12], [1 / 3] * 3)
    assert house[[feeder.node_index["sec.1"], feeder.node_index["sec.2"]]] == pytest.approx([0.5, 0.5])


def test_working_directory_and_output_stay_as_they_were(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = os.getcwd()
    open_feeder(write(tmp_path))
    assert os.getcwd() == before
    assert capfd.readouterr().out == ""


def test_taps_are_solved_once_or_given(tmp_path: Path, ieee123: Feeder) -> None:
    assert ieee123.taps_from == "solved once at nominal load, then frozen"
    file = tmp_path / "taps.csv"
    write_taps(file, ieee123.taps)
    given = open_feeder("ieee123", taps=read_taps(file))
    assert given.taps_from == "solved on the true network; INTERNAL"
    assert open_feeder("ieee123", taps=ieee123.taps).taps_from == "given as input"
    assert abs(given.y - ieee123.y).max() < 1e-9 * abs(ieee123.y).max()
    moved = [replace(ieee123.taps[0], ratio=1.0), *ieee123.taps[1:]]
    assert abs(open_feeder("ieee123", taps=moved).y - ieee123.y).max() > 1.0


def test_a_tap_file_says_who_declared_it(tmp_path: Path, ieee13: Feeder) -> None:
    file = tmp_path / "taps.csv"
    write_taps(file, ieee13.taps, origin="declared: the planning desk")
    assert read_taps(file).taps == ieee13.taps
    assert open_feeder("ieee13", taps=read_taps(file)).taps_from == "declared: the planning desk"


def test_zip_loads_become_constant_power_and_are_counted(foreign_cases: Path) -> None:
    feeder = open_feeder(foreign_cases / "ieee123_dss" / "IEEE123Master.dss")
    assert any("32 of 91 loads are not constant power" in note for note in feeder.notes)


def test_pv_is_recorded_and_other_generation_left_out_with_a_note(tmp_path: Path) -> None:
    more = """
New PVSystem.roof bus1=x.2 phases=1 kv=2.4 kVA=30 Pmpp=25 %cutin=20
New Generator.g bus1=x phases=3 kv=4.16 kW=100
"""
    feeder = open_feeder(write(tmp_path, more))
    assert [(pv.name, pv.kva, pv.kw_peak, pv.cut_in_fraction) for pv in feeder.pv] == [("roof", 30, 25, 0.2)]
    assert feeder.node_index["x.2"] in feeder.retained
    assert any("1 generators are left out where controls are frozen" in note for note in feeder.notes)
    assert abs(feeder.y - open_feeder(write(tmp_path)).y).max() < 1e-9


def test_a_real_feeder_of_ten_thousand_nodes_opens_without_its_islands(foreign_cases: Path) -> None:
    path = foreign_cases / "ieee9500_dss" / "Master-unbal-initial-config.dss"
    with pytest.raises(FeederError, match=r"2 nodes are islanded.*--drop-islanded"):
        open_feeder(path)
    feeder = open_feeder(path, drop_islanded=True)
    assert len(feeder.nodes) > 9000
    assert any("2 islanded nodes are left out" in note for note in feeder.notes)


@pytest.mark.parametrize(("more", "message"), TABLES["bad_circuits_are_refused_in_one_sentence"])
def test_bad_circuits_are_refused_in_one_sentence(tmp_path: Path, more: str, message: str) -> None:
    with pytest.raises(FeederError, match=message) as caught:
        open_feeder(write(tmp_path, more))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("source", "message"), TABLES["unknown_sources_are_refused"])
def test_unknown_sources_are_refused(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.dss").write_text("! nothing here\n")
    with pytest.raises(FeederError, match=message):
        open_feeder(source)


@pytest.mark.parametrize(("content", "message"), TABLES["bad_tap_files_are_refused"])
def test_bad_tap_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "taps.csv"
    file.write_text(content)
    with pytest.raises(FeederError, match=message):
        open_feeder("ieee123", taps=read_taps(file))
