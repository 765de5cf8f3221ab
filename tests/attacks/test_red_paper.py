"""Attacks on the inputs of Algorithm 1.

On the code of 3da9785 every test here but those of requests failed: a load under two spellings had the second
factor, and the manifest stated both.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dp_powerflow.config import parse_config
from dp_powerflow.errors import ConfigError
from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.model.options import tan_theta_of
from dp_powerflow.pipeline.customers import declared_classes, declared_factors
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.powerflow.sun import read_irradiance
from support.own_config import CIRCUIT, with_keys, write_own
from support.small import small_config


def test_no_power_factor_is_so_small_that_it_turns_into_none() -> None:
    """tan θ of 5e-324 is infinite, and was taken for a load without a factor of its own."""
    for factor in (5e-324, -1e-200, 1e-3):
        for section in (
            {"model": {"power_factor": factor}},
            {"nodes": {"power_factor_of_load": {"671": factor}}},
        ):
            with pytest.raises(ConfigError, match="power factor of 0, or less than"):
                small_config(Path(), **section)
    assert np.isfinite(tan_theta_of(-0.01))


def test_a_load_under_two_spellings_is_refused() -> None:
    feeder = open_feeder("ieee13")
    nodes = feeder.loaded_nodes()[0]
    config = small_config(Path(), nodes={"power_factor_of_load": {"634A": 0.9, "634a": 0.8}})
    with pytest.raises(ConfigError, match="power_factor_of_load names a load twice"):
        declared_factors(config, feeder, nodes)
    config = small_config(Path(), nodes={"class_of_load": {"634A": "residential", "634a": "commercial"}})
    with pytest.raises(ConfigError, match="class_of_load names a load twice"):
        declared_classes(config, feeder, nodes, "residential")


def test_a_folder_in_place_of_a_file_of_irradiance_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "roof.csv").mkdir()
    with pytest.raises(ConfigError, match="it holds 0"):
        read_irradiance(tmp_path, 2, ["roof"])


def test_the_sun_of_two_systems_exchanged_is_another_request(tmp_path: Path) -> None:
    """The same path, the same figures, in other columns: a release that was begun is not taken up with it."""
    write_own(tmp_path)
    shed = "New PVSystem.shed bus1=a.1 phases=1 kv=7.2 kva=20 pmpp=15 irradiance=1\n"
    (tmp_path / "net.dss").write_text(CIRCUIT.replace("Set VoltageBases", shed + "Set VoltageBases"))
    raw = with_keys(pv={"irradiance": "sun.csv", "volt_var": "none"}, network={"require_evidence": False})
    config = parse_config(raw, base=tmp_path)
    rows = [f"0.{k},0.{9 - k}" for k in range(6)]
    asked = []
    for header, lines in (
        ("roof,shed", rows),
        ("shed,roof", rows),
        ("roof,shed", rows * 2),
        ("shed,roof", rows),
    ):
        (tmp_path / "sun.csv").write_text("\n".join([header, *lines]))
        asked.append(plan(config).plan.request_sha256)
    assert len(set(asked)) == 3
    assert asked[1] == asked[3]
    single = config.model_copy(update={"pv": None})
    assert plan(single).plan.request_sha256 not in asked
