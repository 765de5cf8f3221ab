"""Overrides of one feeder: shared keys replaced, and shared keys removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dp_powerflow.config import Config, TwinNetwork
from dp_powerflow.errors import ConfigError
from dp_powerflow.fleet.feeders import feeder_config, feeders_of
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Unrelated
from dp_powerflow.privacy.state import PrivateState
from support.fleet_mixed import circuit, mixed_config, write_feeders

LATITUDE = {"latitude": 46.5}


def own_config(folder: Path, override: dict[str, Any], **sections: dict[str, Any]) -> Config:
    config = mixed_config(folder, overrides={"a17": override}, **sections)
    source = str(folder / "feeders" / "a17.dss")
    return feeder_config(config, "a17", source, "feeder-0001", Unrelated(frozenset(), "new"))


def network_of(config: Config) -> TwinNetwork:
    assert isinstance(config.network, TwinNetwork)
    return config.network


def test_a_removed_key_is_as_if_nobody_had_set_it(tmp_path: Path) -> None:
    removed = ["network.capacitors", "network.protect", "nodes.kw_per_customer", "feeder.drop_islanded"]
    config = own_config(
        tmp_path, {"remove": removed}, network={"protect": "all"}, feeder={"drop_islanded": True}
    )
    network = network_of(config)
    assert (network.capacitors, network.transformers) == (False, True)
    assert network.protect == "if present"  # the default of a fleet, not that of a release
    assert not config.feeder.drop_islanded
    assert "kw_per_customer" not in config.nodes.model_fields_set
    others = feeder_config(
        mixed_config(tmp_path, overrides={"a17": {"remove": removed}}),
        "b3",
        "ieee13",
        "feeder-0002",
        Unrelated(frozenset(), "new"),
    )
    assert network_of(others).capacitors


def test_the_section_pv_can_be_removed_as_a_whole_or_by_key(tmp_path: Path) -> None:
    assert own_config(tmp_path, {}, pv=LATITUDE).pv is not None
    assert own_config(tmp_path, {"remove": ["pv"]}, pv=LATITUDE).pv is None
    kept = own_config(tmp_path, {"remove": ["pv.volt_var"]}, pv={**LATITUDE, "volt_var": "category A"}).pv
    assert kept is not None
    assert kept.volt_var == "none"


def test_paths_of_an_override_are_relative_to_the_fleet_file(tmp_path: Path) -> None:
    override = {"feeder": {"loads": "loads/a17.csv", "taps": "taps/a17.csv"}}
    feeder = own_config(tmp_path, override).feeder
    assert (feeder.loads, feeder.taps) == (tmp_path / "loads/a17.csv", tmp_path / "taps/a17.csv")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("network.capacitor", "network.capacitors"),
        ("node.class_of_load", "nodes.class_of_load"),
        ("capacitors", "network.capacitors"),
        ("pv.latitud", "pv.latitude"),
    ],
)
def test_an_unknown_name_is_an_error_that_names_the_nearest_key(
    tmp_path: Path, name: str, meant: str
) -> None:
    told = rf"feeder 'a17' remove an unknown key '{name}'; did you mean '{meant}'\?"
    with pytest.raises(ConfigError, match=told):
        own_config(tmp_path, {"remove": [name]})


@pytest.mark.parametrize("key", ["mode", "bound", "id"])
def test_what_belongs_to_the_fleet_cannot_be_removed(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=f"remove 'network.{key}', which belongs to the fleet"):
        own_config(tmp_path, {"remove": [f"network.{key}"]})


def test_a_key_cannot_be_set_and_removed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"both set and remove 'network.pv'"):
        own_config(tmp_path, {"remove": ["network.pv"], "network": {"pv": True}})
    with pytest.raises(ConfigError, match=r"both set and remove 'pv'"):
        own_config(tmp_path, {"remove": ["pv"], "pv": LATITUDE})


def test_mistakes_of_all_feeders_are_told_at_once(tmp_path: Path) -> None:
    write_feeders(tmp_path, {key: circuit(()) for key in ("a17", "b3", "c9")})
    lacking, unknown = {"remove": ["network.epsilon"]}, {"network": {"linse": "length"}}
    config = mixed_config(tmp_path, overrides={"a17": lacking, "b3": lacking, "c9": unknown})
    state = PrivateState.open(config.fleet.state, insecure_seed=7)
    with pytest.raises(ConfigError) as error:
        feeders_of(config, state, Ledger.open(state))
    assert "3 feeders have no usable config" in str(error.value)
    assert "1. 2 feeders (a17, b3): of feeder 'a17', the config lacks 'network.epsilon'" in str(error.value)
    assert "2. 1 feeder (c9): of feeder 'c9', the config has an unknown key 'network.linse'" in str(
        error.value
    )
