"""The published twins of a fleet are one data set for graph models: many networks, one folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dp_powerflow as dpf
from dp_powerflow.fleet.manifest import open_fleet
from dp_powerflow.fleet.run import run_fleet
from support.fleet_small import KEYS, on_twins, write_feeders
from support.here import Here


@pytest.mark.slow
def test_a_fleet_is_exported_as_one_folder_of_networks(tmp_path: Path) -> None:
    write_feeders(tmp_path, repaired=True)
    published = {"publish": "network and loads", "controls": "frozen", "graph_days": 1}
    two = [f"feeders/{key}.dss" for key in KEYS[:2]]
    assert not run_fleet(on_twins(tmp_path, network=published, fleet={"feeders": two}), engine=Here()).failed
    variety = dpf.GridfmVariety(scenarios=6, per_network=3)
    made = dpf.export_gridfm(tmp_path / "out", tmp_path / "graphs", variety=variety)
    assert len(made.networks) == len(open_fleet(tmp_path / "out").names) == 2
    admittances = set()
    for network in made.networks:
        data = dpf.read_gridfm(made.path / network.name / "raw")
        assert len(data.scenarios) == 24 + 6
        assert np.max(data.mismatch_mw()) < 1e-7
        admittances.add(data.admittance().toarray().tobytes())
    assert len(admittances) == 2
