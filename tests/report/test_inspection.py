"""What `inspect` prints, in both forms."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dp_powerflow.cli import app
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.report.inspection import INTERNAL, LABELS, inspect_feeder

PROMISED = {
    *("nodes", "retained", "zero_injection", "loads", "load_kw", "lines", "base_mva", "norm_b"),
    *("kappa_kron", "kappa_kron_paper", "sigma_min_y", "vm_min_pu", "vm_max_pu"),
}


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["inspect", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
def test_json_of_ieee123_has_the_promised_keys_and_figures() -> None:
    summary = json.loads(run("ieee123", "--json"))
    assert set(summary) >= PROMISED
    assert summary["loads"] == 91
    assert summary["load_kw"] == pytest.approx(3490.0)
    assert (summary["nodes"], summary["retained"], summary["zero_injection"]) == (278, 96, 182)
    assert summary["base_mva"] == 1.0
    assert summary["kappa_kron"] == pytest.approx(7.775, rel=1e-3)
    assert 0.9 < summary["vm_min_pu"] < summary["vm_max_pu"] < 1.1
    assert summary["marking"] == INTERNAL


def test_every_figure_has_a_label_and_the_table_is_marked_internal() -> None:
    result = CliRunner().invoke(app, ["inspect", "ieee13"])
    assert "INTERNAL" in result.stderr
    for label in LABELS.values():
        assert label in result.stdout


@pytest.mark.slow
def test_wye_equivalent_error_is_measured_against_the_declared_connections(ieee123: Feeder) -> None:
    summary = inspect_feeder(ieee123)
    assert summary.wye_error_pu == pytest.approx(5.2e-4, rel=0.05)


def test_another_base_scales_admittances_and_leaves_voltages_alone() -> None:
    one = json.loads(run("ieee13", "--json"))
    ten = json.loads(run("ieee13", "--json", "--base-mva", "10"))
    assert ten["sigma_min_y"] == pytest.approx(one["sigma_min_y"] / 10, rel=1e-9)
    assert ten["kappa_kron"] == pytest.approx(one["kappa_kron"], rel=1e-9)
    assert ten["vm_min_pu"] == pytest.approx(one["vm_min_pu"], abs=1e-7)


@pytest.mark.slow
def test_saved_taps_can_be_given_back(tmp_path: Path) -> None:
    file = tmp_path / "taps.csv"
    first = json.loads(run("ieee123", "--json", "--save-taps", str(file)))
    second = json.loads(run("ieee123", "--json", "--taps", str(file)))
    assert second["taps_from"] == "solved on the true network; INTERNAL"
    assert second["taps"] == first["taps"]
    assert np.isclose(second["vm_min_pu"], first["vm_min_pu"], atol=1e-9)


def test_an_overloaded_feeder_is_described_without_a_loaded_range(tmp_path: Path) -> None:
    file = tmp_path / "heavy.dss"
    file.write_text(
        "Clear\nNew Circuit.c basekv=4.16 bus1=s\nNew Line.a bus1=s bus2=x length=10 units=km\n"
        "New Load.l bus1=x phases=3 kv=4.16 kW=50000 kvar=20000\nSet VoltageBases=[4.16]\nCalcVoltageBases\n"
    )
    summary = json.loads(run(str(file), "--json"))
    assert summary["vm_min_pu"] is None
    assert any("no solution at nominal load" in note for note in summary["notes"])
