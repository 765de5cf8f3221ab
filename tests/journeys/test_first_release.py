"""init → plan → release → verify on own data: first try, no hand edit, voltages of a feeder in operation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import dp_powerflow as dpf
from support.journeys import READ, ZONE, metered_voltages, released_voltages, typed, write_meters

FEEDERS = {
    "IEEE 34": "34Bus/ieee34Mod1.dss",
    "SMART-DS small": "smartds_small/opendss/Master.dss",
    "SimBench MV": "simbench:1-MV-rural--0-sw",
}
# Largest daily swing of a node, released over metered; what they are is in docs/results/demo.md.
LIKE_THE_METERS = (0.25, 4.0)


@pytest.fixture(scope="module")
def meters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_meters(tmp_path_factory.mktemp("meters") / "meters.csv")


@pytest.mark.campaign  # the walk is one of the twelve journeys; here swings are compared with the meters
@pytest.mark.parametrize("name", ["IEEE 34", "SimBench MV", "SMART-DS small"])
def test_the_first_release_on_own_data_works_at_the_first_try(
    name: str,
    meters: Path,
    foreign_cases: Path,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    source = FEEDERS[name]
    if source.startswith("simbench:"):
        pytest.importorskip(
            "simbench", reason="simbench is not installed: pip install dp-powerflow[pandapower]"
        )
    else:
        source = str(foreign_cases / source)
    config = tmp_path / "release.toml"
    own = ("--feeder", source, "--meters", meters, "--time-zone", ZONE, *READ)
    begun = typed("init", config, *own, "--days", 7)
    assert begun.exit_code == 0, begun.output
    for command in ("plan", "release"):
        result = typed(command, config)
        assert result.exit_code == 0, (command, result.output)
    verified = typed("verify", tmp_path / "release")
    assert verified.exit_code == 0, verified.output
    assert "verdict: release" in verified.stdout

    corpus = released_voltages(tmp_path / "release")
    assert corpus.lowest >= 0.9
    assert corpus.highest <= 1.1
    assert not dpf.open_corpus(tmp_path / "release").scaled_down().any()
    metered = metered_voltages(config)
    low, high = LIKE_THE_METERS
    assert low < corpus.swing / metered.swing < high
    for key, value in {"released": corpus, "metered": metered}.items():
        record_property(f"{name}, {key}", str(value))
