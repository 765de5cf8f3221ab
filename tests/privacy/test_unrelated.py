"""The table that says why data are unrelated to those of other accounts."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.ledger.records import Unrelated, spelled, unrelated_line

NAMES = st.builds(
    "{}-{}".format, st.sampled_from(["loads", "network-gdp", "network-instance"]), st.integers(1, 40)
)


def table(*accounts: object, reason: object = "another town") -> dict[str, object]:
    return {"accounts": list(accounts), "reason": reason}


def test_a_reason_names_accounts_and_rows_of_them() -> None:
    said = Unrelated.from_table(table("loads-2", "loads-4 to loads-6", reason="two towns: A, and B"))
    assert said.accounts == {"loads-2", "loads-4", "loads-5", "loads-6"}
    assert said.reason == "two towns: A, and B"
    assert said.fleet is None


@given(st.sets(NAMES, min_size=1))
def test_what_a_message_asks_for_is_what_is_read(names: set[str]) -> None:
    """The line of a message is TOML that a config takes once its reason is filled in."""
    line = unrelated_line("unrelated_loads", names)
    asked = tomllib.loads(line)["unrelated_loads"]
    with pytest.raises(PrivacyError, match="say why"):
        Unrelated.from_table(asked)
    assert Unrelated.from_table({**asked, "reason": "another town"}).accounts == names


def test_names_are_in_the_order_of_their_numbers() -> None:
    assert spelled(["loads-10", "loads-9", "loads-1", "loads-2"]) == "loads-1, loads-2, loads-9, loads-10"
    assert spelled(["loads-10", "loads-9", "loads-11"]) == "loads-9 to loads-11"


UNUSABLE: list[object] = [
    *("another town", 3, ["loads-1"], {}, {"accounts": ["loads-1"]}, {"reason": "another town"}),
    *(table(), table(1), {**table(), "accounts": "loads-1"}, {**table("loads-1"), "fleet": "n"}),
    *(table("loads-1", reason=reason) for reason in ("", "  ", 1)),
    *(table(name) for name in ("loads", "all", "a new version of loads-1", "loads-1, loads-2")),
    *(table(f"loads-{k}") for k in ("1 to network-gdp-2", "3 to loads-1", "1 to loads-99999999", "1 to ")),
]


@pytest.mark.parametrize("value", UNUSABLE)
def test_a_reason_without_accounts_or_without_a_reason_is_refused(value: object) -> None:
    with pytest.raises(PrivacyError):
        Unrelated.from_table(value)


def test_a_reason_made_in_python_is_held_to_the_same() -> None:
    with pytest.raises(PrivacyError, match="say why"):
        Unrelated(frozenset({"loads-1"}), "  ")
    with pytest.raises(PrivacyError, match="such as loads-1"):
        Unrelated(frozenset({"*"}), "another town")
