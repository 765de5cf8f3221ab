"""What `inspect` prints, in both forms."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dp_powerflow._inspection import inspect_feeder
from dp_powerflow.cli import app
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.sources import open_feeder
from support.small_circuits import script


def circuit(folder: Path, settings: str = "", more: str = "") -> Feeder:
    file = folder / "c.dss"
    file.write_text(script("inspected", settings=settings, more=more))
    return open_feeder(str(file))


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["inspect", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


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
    heavy = "New Load.l bus1=x phases=3 kv=4.16 kW=50000 kvar=20000\n"
    file.write_text(script("two_loads", length=10, more=heavy))
    summary = json.loads(run(str(file), "--json"))
    assert summary["vm_min_pu"] is None
    assert any("no solution at nominal load" in note for note in summary["notes"])


# ------------------------------------------------------------------- against the program of the file


def test_the_feeder_as_operated_is_the_file_as_it_is_and_the_frozen_frame_is_not(tmp_path: Path) -> None:
    summary = inspect_feeder(circuit(tmp_path, more=script("inspected_sources")))
    assert summary.operated_error_pu is not None
    assert summary.operated_error_pu < 1e-7
    assert summary.same_states == "10 of 10"
    assert summary.same_states_error_pu == summary.operated_error_pu
    assert summary.frozen_error_pu is not None
    assert summary.frozen_error_pu > 1e-3
    assert "without 1 of class storage, 1 of class generator" in summary.compared
    # What is modelled and what is left out is counted.
    assert summary.modelled == (
        "loads one by one: 1 constant impedance, 1 constant power; 1 delta, 1 wye",
        "regulator controls: 1, 1 of them with line-drop compensation",
        "capacitors switched by a control: 1 kvar",
        "PV systems: 1, 0 with a volt-var curve and 0 with a power factor of the file",
        "generators of constant power: 1",
    )
    assert summary.left_out[:2] == ("1 generator that holds its voltage (model 3)", "1 storage unit")
    assert summary.left_out[2].startswith("1 PV systems, unless")
    assert summary.refused == ()
    frozen = [note for note in summary.notes if "controls are frozen" in note]
    assert len(frozen) == 3  # the capacitor control, the generators, the load of constant impedance


def test_a_setting_that_is_refused_is_said_and_the_frozen_frame_still_measured(tmp_path: Path) -> None:
    summary = inspect_feeder(circuit(tmp_path, settings="LDC_Z=3"))
    assert len(summary.refused) == 1
    assert summary.operated_error_pu is None
    assert summary.same_states is None
    assert summary.frozen_error_pu is not None
    output = CliRunner().invoke(app, ["inspect", str(tmp_path / "c.dss")]).output
    assert "refused: " in output
    assert "modelled: " in output


@pytest.mark.slow
@pytest.mark.parametrize("three_phase", [False, True])
def test_pandapower_nets_are_compared_with_its_own_power_flow(three_phase: bool) -> None:
    pytest.importorskip("pandapower")
    from dp_powerflow.grid.pandapower.reader import read_pandapower
    from support.pandapower_nets import unbalanced_net

    if three_phase:
        feeder = read_pandapower(unbalanced_net(), name="net")
    else:
        pytest.importorskip("simbench")
        feeder = open_feeder("simbench:1-LV-rural1--0-sw")
    summary = inspect_feeder(feeder)
    assert ("runpp_3ph" in summary.compared) == three_phase
    assert summary.operated_error_pu is not None
    assert summary.operated_error_pu < 1e-6
