"""Which feeders the config of a fleet names, and what the release of each is made with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dp_powerflow.errors import ConfigError
from dp_powerflow.fleet.feeders import FleetFeeder, feeder_config, feeders_of, find_sources
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import PrivateState
from support.fleet_small import KEYS, circuit, fleet_config, write_feeders


def feeders(folder: Path, **sections: Any) -> list[FleetFeeder]:
    config = fleet_config(folder, **sections)
    state = PrivateState.open(config.fleet.state, insecure_seed=7)
    return list(feeders_of(config, state, Ledger.open(state)))


def test_a_feeder_is_called_by_its_path_from_the_first_wildcard_on(tmp_path: Path) -> None:
    for name in ("a/x/Master.dss", "a/y/Master.dss", "b/one.dss", "b/net.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    patterns = ["a/*/Master.dss", "b/one.dss", "b/*.json", "ieee13", "simbench:1-LV-rural1--0-sw"]
    config = fleet_config(tmp_path, fleet={"feeders": patterns})
    assert find_sources(config) == {
        "x/Master": str(tmp_path / "a/x/Master.dss"),
        "y/Master": str(tmp_path / "a/y/Master.dss"),
        "one": str(tmp_path / "b/one.dss"),
        "net": str(tmp_path / "b/net.json"),
        "ieee13": "ieee13",
        "simbench:1-LV-rural1--0-sw": "simbench:1-LV-rural1--0-sw",
    }


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"fleet": {"feeders": ["nowhere/*.dss"]}}, "no file matches"),
        ({"fleet": {"feeders": ["feeders/*"]}}, "end in .dss or .json"),
        ({"fleet": {"feeders": ["feeders/*.dss", "more/*.dss"]}}, "two feeders of the fleet are called"),
        ({"fleet": {"names": {"gone": "one"}}}, "fleet.names names the feeder 'gone'"),
        ({"overrides": {"gone": {}}}, "overrides names the feeder 'gone'"),
        ({"overrides": {KEYS[0]: {"network": {"bound": "paper"}}}}, "belong to the fleet"),
        ({"overrides": {KEYS[0]: {"nodes": {"clas": "x"}}}}, "unknown key 'nodes.clas'"),
        ({"fleet": {"names": {KEYS[0]: "same", KEYS[1]: "same"}}}, "the same public name"),
        ({"fleet": {"names": {KEYS[0]: "under_score"}}}, "fleet.names"),
        ({"fleet": {"state": "s3://bucket/state"}}, "name a directory of this machine"),
        ({"fleet": {"names": {KEYS[0]: "same", KEYS[1]: "Same"}}}, "differ in case only"),
        ({"fleet": {"continues": "north"}}, "cannot continue itself"),
        ({"loads": {"kind": "opendss-shapes", "path": "shapes"}}, "belongs to one feeder"),
    ],
)
def test_a_config_that_is_not_usable_is_refused_with_its_reason(
    tmp_path: Path, sections: dict[str, Any], says: str
) -> None:
    write_feeders(tmp_path)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / f"{KEYS[0]}.dss").write_text(circuit(1.0))
    with pytest.raises(ConfigError) as refused:
        feeders(tmp_path, **sections)
    assert says in str(refused.value)


def test_overrides_taps_and_declared_names_reach_the_release_of_their_feeder(tmp_path: Path) -> None:
    write_feeders(tmp_path)
    (tmp_path / "taps").mkdir()
    (tmp_path / "taps" / f"{KEYS[1]}.csv").write_text("")
    found = {
        feeder.key: feeder
        for feeder in feeders(
            tmp_path,
            fleet={"names": {KEYS[2]: "rural-1"}},
            feeder={"taps": "taps"},
            overrides={KEYS[0]: {"nodes": {"scale_factor": 2.5}, "feeder": {"taps": "own.csv"}}},
        )
    }
    assert found[KEYS[0]].config.nodes.scale_factor == 2.5
    assert found[KEYS[0]].config.feeder.taps == tmp_path / "own.csv"
    assert found[KEYS[1]].config.feeder.taps == tmp_path / "taps" / f"{KEYS[1]}.csv"
    assert found[KEYS[3]].config.feeder.taps is None
    assert found[KEYS[3]].config.nodes.scale_factor == 0.05
    assert found[KEYS[2]].release_id == "north_rural-1"
    assert found[KEYS[2]].config.model.reuse == "north"


def test_a_feeder_has_its_own_sun_instead_of_that_of_the_fleet(tmp_path: Path) -> None:
    write_feeders(tmp_path)
    own = {"pv": {"latitude": -33.9, "first_day_of_year": 100}}
    shared = {"irradiance": "sun.csv", "volt_var": "category B"}
    found = {each.key: each.config.pv for each in feeders(tmp_path, pv=shared, overrides={KEYS[0]: own})}
    mine, others = found[KEYS[0]], found[KEYS[1]]
    assert mine is not None
    assert (mine.irradiance, mine.latitude, mine.volt_var) == (None, -33.9, "category B")
    assert others is not None
    assert (others.irradiance, others.latitude) == (tmp_path / "sun.csv", None)


def test_a_folder_whose_name_would_be_taken_for_a_glob_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has a wildcard in its name"):
        fleet_config(tmp_path / "fleet[1]")


def test_mistakes_of_all_feeders_are_told_at_once(tmp_path: Path) -> None:
    write_feeders(tmp_path)
    many, unknown = {"network": {"epsilon": "many"}}, {"network": {"raduis": 1.0}}
    with pytest.raises(ConfigError) as error:
        feeders(tmp_path, overrides={KEYS[0]: many, KEYS[1]: many, KEYS[2]: unknown})
    told, (one, two, three, *_) = str(error.value), KEYS
    assert "3 feeders have no usable config" in told
    assert f"1. 2 feeders ({one}, {two}): of feeder '{one}', the config's 'network.epsilon'" in told
    assert f"2. 1 feeder ({three}): of feeder '{three}', the config has an unknown key" in told


def test_an_override_may_name_another_file(tmp_path: Path) -> None:
    """It was once replaced without a word by the file that the list has."""
    other = str(tmp_path / "other.dss")
    config = fleet_config(tmp_path, overrides={KEYS[0]: {"feeder": {"source": other}}})
    made = feeder_config(config, KEYS[0], "listed.dss", "public", "account")
    assert made.feeder.source == other
