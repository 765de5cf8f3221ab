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
    patterns = ["a/*/Master.dss", "b/one.dss", "b/*.json"]
    config = fleet_config(tmp_path, fleet={"feeders": patterns})
    assert find_sources(config) == {
        "x/Master": str(tmp_path / "a/x/Master.dss"),
        "y/Master": str(tmp_path / "a/y/Master.dss"),
        "one": str(tmp_path / "b/one.dss"),
        "net": str(tmp_path / "b/net.json"),
    }


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"fleet": {"feeders": ["nowhere/*.dss"]}}, "no file matches"),
        ({"fleet": {"feeders": ["feeders/*"]}}, "end in .dss or .json"),
        ({"fleet": {"feeders": ["feeders/*.dss", "more/*.dss"]}}, "two feeders of the fleet are called"),
        ({"overrides": {"gone": {}}}, "overrides names the feeder 'gone'"),
        ({"overrides": {KEYS[0]: {"nodes": {"clas": "x"}}}}, "unknown key 'nodes.clas'"),
        ({"fleet": {"feeders": ["ieee13"]}}, "end in .dss or .json"),
        ({"fleet": {"state": "s3://bucket/state"}}, "name a directory of this machine"),
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


def test_overrides_reach_the_release_of_their_feeder(tmp_path: Path) -> None:
    write_feeders(tmp_path)
    own = {"nodes": {"scale_factor": 2.5}, "feeder": {"taps": "own.csv"}}
    found = {feeder.key: feeder for feeder in feeders(tmp_path, overrides={KEYS[0]: own})}
    assert found[KEYS[0]].config.nodes.scale_factor == 2.5
    assert found[KEYS[0]].config.feeder.taps == tmp_path / "own.csv"
    assert found[KEYS[3]].config.feeder.taps is None
    assert found[KEYS[3]].config.nodes.scale_factor == 0.05
    assert found[KEYS[2]].config.model.reuse == "north"


def test_a_folder_whose_name_would_be_taken_for_a_glob_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has a wildcard in its name"):
        fleet_config(tmp_path / "fleet[1]")


def test_an_override_may_name_another_file(tmp_path: Path) -> None:
    """It was once replaced without a word by the file that the list has."""
    other = str(tmp_path / "other.dss")
    config = fleet_config(tmp_path, overrides={KEYS[0]: {"feeder": {"source": other}}})
    made = feeder_config(config, KEYS[0], "listed.dss", "public", "account")
    assert made.feeder.source == other
