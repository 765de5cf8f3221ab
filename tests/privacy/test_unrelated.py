"""The form of a reason why data are unrelated to those of other accounts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_powerflow.config import parse_config
from dp_powerflow.errors import ConfigError, PrivacyError
from dp_powerflow.privacy.ledger.unrelated import Unrelated, spelled

NAMES = st.builds(
    "{}-{}".format, st.sampled_from(["loads", "network-gdp", "network-instance"]), st.integers(1, 40)
)


def test_a_reason_names_accounts_and_ranges_of_them() -> None:
    reason = Unrelated.parse("not loads-2, loads-4 to loads-6: two towns: A, and B\n")
    assert reason.accounts == {"loads-2", "loads-4", "loads-5", "loads-6"}
    assert reason.reason == "not loads-2, loads-4 to loads-6: two towns: A, and B"
    assert reason.fleet is None


@given(st.sets(NAMES, min_size=1))
def test_what_a_message_asks_for_is_what_is_read(names: set[str]) -> None:
    assert Unrelated.parse(f"not {spelled(names)}: another town").accounts == names


def test_names_are_in_the_order_of_their_numbers() -> None:
    assert spelled(["loads-10", "loads-9", "loads-1", "loads-2"]) == "loads-1, loads-2, loads-9, loads-10"
    assert spelled(["loads-10", "loads-9", "loads-11"]) == "loads-9 to loads-11"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "another town",
        "a new version of loads-1",
        "not loads-1",
        "not loads-1:",
        "not loads-1:  ",
        "not loads: another town",
        "not all: another town",
        "not loads-1 and loads-2: another town",
        "not loads-1 to network-gdp-2: another town",
        "not loads-3 to loads-1: another town",
        "not loads-1 to loads-99999999: another town",
        "another feeder of fleet 'north'",
    ],
)
def test_a_reason_without_accounts_or_without_a_reason_is_refused(text: str) -> None:
    with pytest.raises(PrivacyError):
        Unrelated.parse(text)


def test_a_reason_made_in_python_is_held_to_the_same() -> None:
    with pytest.raises(PrivacyError, match="say why"):
        Unrelated("  ", frozenset({"loads-1"}))
    with pytest.raises(PrivacyError, match="such as loads-1"):
        Unrelated("another town", frozenset({"*"}))


@pytest.mark.parametrize("key", ["unrelated_loads", "unrelated_network"])
@pytest.mark.parametrize("value", ["another town", 3, {"reason": "x", "fleet": "north"}])
def test_a_config_says_which_key_is_not_usable(key: str, value: object) -> None:
    raw = {
        "feeder": {"source": "ieee13"},
        "loads": {"kind": "simulated"},
        "model": {"epsilon": 4.0, "bounds": [0.01, 2.0], "variance_floor": 0.01},
        "network": {
            "mode": "true-network",
            "bound": "full-support",
            "radius": 1e-3,
            "epsilon": 1,
            "delta": 0.1,
        },
        "release": {"id": "r", "days": 1, "output": "out", "state": "state"},
    }
    assert parse_config(raw).release.unrelated_loads is None
    raw["release"] = {**raw["release"], key: value}
    with pytest.raises(ConfigError, match=f"'release.{key}' is not usable: a reason why data are unrelated"):
        parse_config(raw)
