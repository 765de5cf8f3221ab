from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dp_powerflow import Budget, Ledger, PrivateState
from dp_powerflow.errors import PrivacyError
from dp_powerflow.lowlevel import PrivacyUnit, epsilon_to_rho
from dp_powerflow.privacy.budget import Neighbours, QueryCost
from dp_powerflow.privacy.ledger.accounts import (
    Cap,
    Cost,
    GdpCost,
    InstanceCap,
    InstanceCost,
    LoadsCap,
    LoadsCost,
    PureCost,
    TwinCap,
    to_plain,
)
from dp_powerflow.privacy.ledger.book import ChargedData
from dp_powerflow.privacy.ledger.records import APPROVAL, Unrelated
from support import ledgers

LINE = Neighbours("one line, admittance scaled by up to 1 %")
REQUEST, OTHER_REQUEST = "a" * 64, "b" * 64


def query(name: str, sigma: int, cohort: str | None = None, unit: str = "load-point") -> QueryCost:
    """ρ = 1/2σ²."""
    return QueryCost(name, PrivacyUnit(unit), cohort, 3, "ball", 1, 0.1, "log kW", sigma)


@pytest.fixture
def state(tmp_path: Path) -> PrivateState:
    return PrivateState.open(tmp_path / "state")


@pytest.fixture
def ledger(state: PrivateState) -> Ledger:
    return Ledger.open(state)


@pytest.fixture
def dataset(state: PrivateState) -> str:
    return state.identity("x", [b"data"])


CAPS_AND_HALVES: list[tuple[Cap, Cost]] = [
    (LoadsCap(1.0, 1e-5), LoadsCost(epsilon_to_rho(1.0, 1e-5) / 2, PrivacyUnit.LOAD_POINT)),
    (InstanceCap(10.0, 1e-5, LINE), InstanceCost(5.0, 5e-6, LINE)),
    (TwinCap(1.0, 0.0, LINE), PureCost(0.5, LINE)),
]
KINDS = pytest.mark.parametrize(
    ("cap", "half"), CAPS_AND_HALVES, ids=[cap.kind for cap, _ in CAPS_AND_HALVES]
)


@KINDS
def test_two_halves_fit_and_nothing_more(ledger: Ledger, dataset: str, cap: Cap, half: Cost) -> None:
    account = ledgers.account(ledger, dataset, cap)
    ledgers.spend(ledger, account, "r1", REQUEST, half)
    assert ledgers.preview(ledger, dataset, cap, half).affordable
    ledgers.spend(ledger, account, "r2", REQUEST, half)
    balance = ledgers.remaining(ledger, account)
    assert set(balance.left.values()) == {0.0}
    most = {name: float(limit) for name, limit in cap.limits().items()}
    assert balance.spent == pytest.approx(most, rel=1e-12)
    assert balance.available.epsilon == 0
    assert not ledgers.preview(ledger, dataset, cap, half).affordable
    with pytest.raises(PrivacyError, match="nothing was spent"):
        ledgers.spend(ledger, account, "r3", REQUEST, half)
    assert [spend.release_id for spend in ledger.spends()] == ["r1", "r2"]
    assert ledgers.remaining(ledger, account) == balance


@KINDS
def test_resuming_a_release_charges_once_even_with_nothing_left(
    state: PrivateState, dataset: str, cap: Cap, half: Cost
) -> None:
    first = Ledger.open(state)
    account = ledgers.account(first, dataset, cap)
    spends = [ledgers.spend(first, account, release, REQUEST, half) for release in ("r1", "r2")]
    again = Ledger.open(PrivateState.open(state.root))
    assert ledgers.account(again, dataset, cap) == account
    assert [ledgers.spend(again, account, release, REQUEST, half) for release in ("r1", "r2")] == spends
    assert again.spends() == tuple(spends)


@KINDS
def test_a_release_id_is_good_for_one_request_one_cost_and_one_data_set(
    state: PrivateState, ledger: Ledger, dataset: str, cap: Cap, half: Cost
) -> None:
    account = ledgers.account(ledger, dataset, cap)
    ledgers.spend(ledger, account, "r1", REQUEST, half)
    figure = next(name for name in ("rho", "epsilon", "mu") if hasattr(half, name))
    cheaper = dataclasses.replace(half, **{figure: getattr(half, figure) / 2})
    later = state.identity("x", [b"data, corrected"])
    corrected = ledgers.account(ledger, later, cap, continues=account.name)
    others = ((account, OTHER_REQUEST, half), (account, REQUEST, cheaper), (corrected, REQUEST, half))
    for where, request, cost in others:
        with pytest.raises(PrivacyError, match="already charged"):
            ledgers.spend(ledger, where, "r1", request, cost)
    assert len(ledger.spends()) == 1


def test_a_full_account_takes_nothing_beyond_rounding(ledger: Ledger, dataset: str) -> None:
    account = ledgers.account(ledger, dataset, InstanceCap(1.0, 0.0, LINE))
    for number in range(10):  # their floating-point sum is above one
        ledgers.spend(ledger, account, f"tenth-{number}", REQUEST, InstanceCost(0.1, 0.0, LINE))
    with pytest.raises(PrivacyError, match="nothing was spent"):
        ledgers.spend(ledger, account, "r2", REQUEST, InstanceCost(1.1e-12, 0.0, LINE))
    ledgers.spend(ledger, account, "r3", REQUEST, InstanceCost(6e-13, 0.0, LINE))
    with pytest.raises(PrivacyError, match="nothing was spent"):  # rounding is granted once, not per spend
        ledgers.spend(ledger, account, "r4", REQUEST, InstanceCost(6e-13, 0.0, LINE))


def test_either_figure_of_a_network_cap_can_run_out(ledger: Ledger, dataset: str) -> None:
    account = ledgers.account(ledger, dataset, InstanceCap(10.0, 1e-5, LINE))
    ledgers.spend(ledger, account, "r1", REQUEST, InstanceCost(1.0, 9e-6, LINE))
    for figures in ((1.0, 2e-6), (9.5, 0.0)):
        with pytest.raises(PrivacyError, match="nothing was spent"):
            ledgers.spend(ledger, account, "r2", REQUEST, InstanceCost(*figures, LINE))
    ledgers.spend(ledger, account, "r4", REQUEST, InstanceCost(9.0, 1e-6, LINE))
    promise = ledgers.remaining(ledger, account).promise
    assert (promise.epsilon, promise.delta) == pytest.approx((10.0, 1e-5))
    assert "not differential privacy" in promise.definition


def test_another_cap_for_the_same_data_is_refused_until_it_is_changed_with_a_reason(
    ledger: Ledger, dataset: str
) -> None:
    old, new = LoadsCap(1.0, 1e-5), LoadsCap(2.0, 1e-5)
    account = ledgers.account(ledger, dataset, old)
    ledgers.spend(ledger, account, "r1", REQUEST, LoadsCost.reserve(Budget(1.0)))
    with pytest.raises(PrivacyError, match=r"epsilon 1\.0 at delta 1e-05 per load-point, not of epsilon 2"):
        ledgers.account(ledger, dataset, new)
    per_day = LoadsCap(2.0, 1e-5, PrivacyUnit.LOAD_POINT_DAY)
    for cap, reason, match in (
        *((new, "  ", "reason"), (per_day, "why not", "another unit")),
        (InstanceCap(2.0, 0.0, LINE), "why not", "no account"),
    ):
        with pytest.raises(PrivacyError, match=match):
            ledger.change_cap(account.name, cap, reason)
    ledger.change_cap(account.name, new, "board decision 12")
    with pytest.raises(PrivacyError, match="change it with a reason"):  # opened under the old cap
        ledgers.spend(ledger, account, "r2", REQUEST, LoadsCost.reserve(Budget(1.0)))
    account = ledgers.account(ledger, dataset, new)
    ledgers.spend(ledger, account, "r2", REQUEST, LoadsCost.reserve(Budget(1.0)))
    (summary,) = ledger.summary().accounts
    assert summary.cap == new
    changes = [(change.what, change.reason) for change in summary.changes]
    assert changes == [("opened", ""), ("cap changed", "board decision 12")]
    assert len(summary.spends) == 2


def test_a_new_version_of_the_data_does_not_start_with_a_full_budget(
    state: PrivateState, ledger: Ledger, dataset: str
) -> None:
    cap = LoadsCap(1.0, 1e-5)
    account = ledgers.account(ledger, dataset, cap)
    ledgers.spend(ledger, account, "r1", REQUEST, LoadsCost.reserve(Budget(1.0)))
    longer = state.identity("x", [b"data", b"one more day"])
    with pytest.raises(PrivacyError, match="loads-1"):
        ledgers.account(ledger, longer, cap)
    with pytest.raises(PrivacyError, match="no account 'loads-7'"):
        ledgers.account(ledger, longer, cap, continues="loads-7")
    with pytest.raises(PrivacyError, match="say one of them"):
        ledgers.account(ledger, longer, cap, continues="loads-1", unrelated=Unrelated.to(["loads-1"], "x"))
    continued = ledgers.account(ledger, longer, cap, continues="loads-1")
    for said in ({}, {"continues": "loads-1"}):
        assert ledgers.account(ledger, longer, cap, **said) == continued
    with pytest.raises(PrivacyError, match="nothing was spent"):
        ledgers.spend(ledger, continued, "r2", REQUEST, LoadsCost.of([query("mean", 20)]))
    town = Unrelated.to(["loads-1"], "another town")
    elsewhere = ledgers.account(ledger, state.identity("x", [b"other town"]), cap, unrelated=town)
    assert elsewhere.name == "loads-2"
    with pytest.raises(PrivacyError, match="belong to account loads-2"):
        ledgers.account(ledger, elsewhere.dataset, cap, continues="loads-1")
    ledgers.spend(ledger, elsewhere, "r2", REQUEST, LoadsCost.reserve(Budget(1.0)))
    first, second = ledger.summary().accounts
    assert first.datasets == (dataset, longer)
    assert second.changes[0].reason == "another town"
    assert second.changes[0].unrelated == ("loads-1",)


def test_a_reason_does_not_speak_for_the_account_that_it_opened(state: PrivateState, ledger: Ledger) -> None:
    """Left in a config, it must not give the next correction of the same data a full budget."""
    first, second, corrected = (state.identity("network", [bytes([k])]) for k in range(3))
    cap = TwinCap(1.0, 0.0, LINE)
    ledgers.account(ledger, first, cap)
    reason = Unrelated.to(["network-twin-1"], "feeder of another substation")
    opened = ledgers.account(ledger, second, cap, unrelated=reason)
    assert ledgers.account(ledger, second, cap, unrelated=reason) == opened
    line = 'unrelated_network = { accounts = ["network-twin-1", "network-twin-2"], reason = "<why>" }'
    with pytest.raises(PrivacyError, match=f"has network-twin-2 .* write {re.escape(line)}"):
        ledgers.account(ledger, corrected, cap, unrelated=reason)
    assert ledgers.account(ledger, corrected, cap, continues="network-twin-2").name == "network-twin-2"


def test_a_reason_cannot_name_an_account_before_there_is_one(state: PrivateState, ledger: Ledger) -> None:
    cap = LoadsCap(1.0, 1e-5)
    too_early = Unrelated.to(["loads-1 to loads-9"], "another town")
    with pytest.raises(PrivacyError, match="names loads-1 to loads-9, but the ledger has no account"):
        ledgers.account(ledger, state.identity("x", [b"1"]), cap, unrelated=too_early)
    ledgers.account(ledger, state.identity("x", [b"1"]), cap)
    with pytest.raises(PrivacyError, match="names loads-2 to loads-9, but the ledger has loads-1 "):
        ledgers.account(ledger, state.identity("x", [b"2"]), cap, unrelated=too_early)
    other_kind = Unrelated.to(["network-twin-1"], "another town")
    with pytest.raises(PrivacyError, match="names network-twin-1"):
        ledgers.account(ledger, state.identity("x", [b"2"]), cap, unrelated=other_kind)
    assert len(ledger.summary().accounts) == 1


def test_accounts_of_one_fleet_need_no_names_and_all_others_do(state: PrivateState, ledger: Ledger) -> None:
    cap = TwinCap(1.0, 0.0, LINE)
    datasets = [state.identity("network", [bytes([k])]) for k in range(5)]
    ledgers.account(ledger, datasets[0], cap)
    north = Unrelated(frozenset({"network-twin-1"}), "another feeder of fleet 'north'", "north")
    for dataset in datasets[1:3]:
        ledgers.account(ledger, dataset, cap, unrelated=north)
    typed = Unrelated.to(["network-twin-1"], "another feeder of fleet 'north'")  # words alone do nothing
    south = Unrelated(frozenset({"network-twin-1"}), "another feeder of fleet 'south'", "south")
    for reason in (typed, south):
        with pytest.raises(PrivacyError, match=r'accounts = \["network-twin-1 to network-twin-3"\], reason'):
            ledgers.account(ledger, datasets[3], cap, unrelated=reason)
    named = Unrelated.to(["network-twin-1 to network-twin-3"], "a mine")
    ledgers.account(ledger, datasets[3], cap, unrelated=named)
    with pytest.raises(PrivacyError, match="has network-twin-4 of the same kind"):
        ledgers.account(ledger, datasets[4], cap, unrelated=north)
    fleets = [account.fleet for account in ledger.summary().accounts]
    assert fleets == [None, "north", "north", None]


@pytest.mark.parametrize(
    ("cap", "cost"),
    [
        (LoadsCap(1.0, 1e-5), LoadsCost.of([query("q", 50, unit="load-point-day")])),
        (LoadsCap(1.0, 1e-5), InstanceCost(0.1, 0.0, Neighbours("load-point"))),
        (InstanceCap(1.0, 1e-5, LINE), InstanceCost(0.1, 0.0, Neighbours("one line, 5 %"))),
        (TwinCap(1.0, 1e-5, LINE), GdpCost(0.1, Neighbours("one line, length changed by 1.05"))),
    ],
)
def test_costs_of_another_unit_or_kind_are_refused(
    ledger: Ledger, dataset: str, cap: Cap, cost: Cost
) -> None:
    account = ledgers.account(ledger, dataset, cap)
    with pytest.raises(PrivacyError, match="same unit of privacy"):
        ledgers.spend(ledger, account, "r1", REQUEST, cost)
    with pytest.raises(PrivacyError, match="same unit of privacy"):
        ledgers.preview(ledger, dataset, cap, cost)
    assert ledger.spends() == ()


def test_preview_says_what_a_spend_would_do_and_records_nothing(ledger: Ledger, dataset: str) -> None:
    cap, cost = LoadsCap(1.0, 1e-5), LoadsCost.of([query("mean", 20)])
    before = ledger.summary()
    preview = ledgers.preview(ledger, dataset, cap, cost, release_id="r1")
    assert preview.account is None
    assert preview.affordable
    assert not preview.already_charged
    assert preview.before.spent == {"rho": 0.0}
    assert ledger.summary() == before
    account = ledgers.account(ledger, dataset, cap)
    ledgers.spend(ledger, account, "r1", REQUEST, cost)
    assert ledgers.remaining(ledger, account) == preview.after
    again = ledgers.preview(ledger, dataset, cap, cost, release_id="r1")
    assert again.already_charged
    assert again.after == preview.after
    assert ledgers.preview(ledger, dataset, cap, cost, release_id="r2").after.spent["rho"] == 2 / 800


@pytest.mark.parametrize("request_sha256", ["", "A" * 64, "a" * 63, "a" * 65])
def test_a_request_must_be_a_hash(ledger: Ledger, dataset: str, request_sha256: str) -> None:
    account = ledgers.account(ledger, dataset, InstanceCap(1.0, 0.0, LINE))
    with pytest.raises(PrivacyError, match="hash of a request"):
        ledgers.spend(ledger, account, "r1", request_sha256, InstanceCost(0.1, 0.0, LINE))
    with pytest.raises(PrivacyError, match="identity of a data set"):
        ledgers.account(ledger, "customers.csv", InstanceCap(1.0, 0.0, LINE))
    with pytest.raises(PrivacyError, match="release id"):
        ledgers.spend(ledger, account, "../r1", REQUEST, InstanceCost(0.1, 0.0, LINE))


POINT, DAY = PrivacyUnit.LOAD_POINT, PrivacyUnit.LOAD_POINT_DAY
OUT_OF_RANGE: list[tuple[Any, ...]] = [
    *((LoadsCap, *figures) for figures in ((0.0, 1e-5), (math.inf, 1e-5), (1.0, 0.0))),
    *((kind, *figures, LINE) for kind in (InstanceCap, TwinCap) for figures in ((0.0, 1e-5), (1.0, 1.0))),
    *((InstanceCap, *figures, LINE) for figures in ((math.nan, 0.0), (1.0, -1e-9))),
    *((InstanceCost, -0.1, 0.0, LINE), (InstanceCost, 0.1, math.nan, LINE)),
    *((GdpCost, -0.1, LINE), (GdpCost, math.inf, LINE), (PureCost, -0.1, LINE)),
    *((LoadsCost, -0.1, POINT), (LoadsCost, math.nan, POINT)),
    *((LoadsCost, rho, unit, (query("mean", 20),)) for rho, unit in ((1e-6, POINT), (1.0, DAY))),
    *((LoadsCost.of, []), (LoadsCost.of, [query("a", 9), query("b", 9, unit="load-point-day")])),
    *((Neighbours, words) for words in ("", " ")),
]


@pytest.mark.parametrize("asked", OUT_OF_RANGE, ids=str)
def test_a_cap_or_cost_out_of_range_is_refused(asked: tuple[Any, ...]) -> None:
    make, *figures = asked
    with pytest.raises(PrivacyError):
        make(*figures)


def test_two_roles_raise_a_cap_together_and_neither_alone(tmp_path: Path) -> None:
    officer, engineer, stranger = (Ed25519PrivateKey.generate() for _ in range(3))
    ledger = Ledger.open(PrivateState.open(tmp_path / "state"))
    cap = LoadsCap(1.0, 1e-5)
    name = ledger.account(ChargedData("a" * 64, cap)).name
    keys = {
        role: key.public_key().public_bytes_raw().hex()
        for role, key in (("officer", officer), ("engineer", engineer))
    }
    with pytest.raises(PrivacyError, match="two keys"):
        ledger.declare_roles({"officer": keys["officer"], "engineer": keys["officer"]})
    with pytest.raises(PrivacyError, match="two keys"):
        ledger.declare_roles({**keys, "board": keys["officer"]})  # who could never approve beside the officer
    ledger.declare_roles(keys)
    with pytest.raises(PrivacyError, match="they stay"):
        ledger.declare_roles(keys)
    for key in (None, stranger):
        with pytest.raises(PrivacyError, match="engineer and officer together"):
            ledger.change_figures(name, 2.0, None, "why", key)
    wanted = dataclasses.replace(cap, epsilon=2.0)
    assert ledger.change_figures(name, 2.0, None, "why", engineer) == {"officer"}
    assert ledger.change_figures(name, 2.0, None, "why", engineer) == {"officer"}  # twice is once
    assert ledger.change_figures(name, 3.0, None, "why", officer) == {"engineer"}  # something else
    assert ledger.change_figures(name, 2.0, None, "another reason", officer) == {"engineer"}
    day = dataclasses.replace(cap, unit=PrivacyUnit.LOAD_POINT_DAY)  # weaker words for the same figures
    assert ledger.change_cap(name, day, "why", restated=True, key=officer) == {"engineer"}
    assert ledger.summary().accounts[0].cap == cap
    assert not ledger.change_figures(name, 2.0, None, "why", officer)
    again = Ledger.open(PrivateState.open(tmp_path / "state"), create=False)
    assert again.summary().accounts[0].cap == wanted
    assert not again.change_figures(name, 0.5, None, "lower")  # nobody has to approve less
    # What was approved once is not approved for ever.
    assert again.change_figures(name, 2.0, None, "why", officer) == {"engineer"}
    assert again.change_figures(name, None, 1e-4, "why", officer) == {"engineer"}


def test_forged_approvals_and_caps_without_them_are_found(tmp_path: Path) -> None:
    """Also by who has the state's key, and so could chain any entry."""
    officer, engineer = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    roles = {"officer": officer, "engineer": engineer}
    for forged in ("approval", "cap"):
        state = PrivateState.open(tmp_path / forged)
        ledger = Ledger.open(state)
        name = ledger.account(ChargedData("a" * 64, LoadsCap(1.0, 1e-5))).name
        ledger.declare_roles({role: key.public_key().public_bytes_raw().hex() for role, key in roles.items()})
        ledger.change_figures(name, 2.0, None, "why", engineer)
        cap = dataclasses.replace(LoadsCap(1.0, 1e-5), epsilon=9.0)
        raised = {"cap": to_plain(cap), "reason": "x"}
        with ledger._store.reading() as books:
            given = [entry.fields for entry in books.entries if entry.event == APPROVAL][-1]
        other = (APPROVAL, name, given | {"role": "officer"})
        forged_entry = other if forged == "approval" else ("cap", name, raised)
        with (
            pytest.raises(PrivacyError, match=r"not signed by its role|without its approvals"),
            ledger._store.transaction() as transaction,
        ):
            transaction.append(*forged_entry)
        assert Ledger.open(state, create=False).summary().accounts[0].cap.epsilon == 1.0
