"""Sums that are kept up charge by charge equal those of all charges, added up anew."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_powerflow import Ledger, PrivateState
from dp_powerflow.lowlevel import PrivacyUnit
from dp_powerflow.privacy.budget import Neighbours, composed_epsilon
from dp_powerflow.privacy.ledger.accounts import (
    Cap,
    ComposedCosts,
    Cost,
    Elements,
    GdpCost,
    InstanceCap,
    InstanceCost,
    LoadsCap,
    LoadsCost,
    PureCost,
    Scope,
    TwinCap,
    TwinCost,
)
from support import ledgers

LINE = Neighbours("one line, length changed by a factor up to 1.05")
REQUEST = "e" * 64
AMOUNTS = st.floats(0.0, 1e3) | st.sampled_from([0.0, 0.1, 0.5, 1.0, 5e-324, 1e-12])
NAMES = st.sets(st.sampled_from("abcd"), max_size=3)


@st.composite
def scopes(draw: st.DrawFn) -> Scope:
    replaced, added = draw(NAMES), draw(NAMES)
    return Scope(tuple(replaced), tuple(added - replaced))


TWIN_COSTS = st.builds(PureCost, AMOUNTS, st.just(LINE), scopes()) | st.builds(
    GdpCost, AMOUNTS, st.just(LINE), scopes()
)


def names_of(scope: Scope) -> set[str]:
    return {*scope.replaced, *scope.added}


def costs_of(name: str, costs: Sequence[TwinCost]) -> Iterable[TwinCost]:
    """The costs of one element by the rule in words: see the docstring of `twins`."""
    first = next(index for index, cost in enumerate(costs) if name in names_of(cost.scope))
    start = first if name in costs[first].scope.added else 0
    return (cost for cost in costs[start:] if cost.scope.all_elements or name in names_of(cost.scope))


def composed_anew(costs: Iterable[TwinCost]) -> ComposedCosts:
    costs = tuple(costs)
    pure = sorted(cost.epsilon for cost in costs if isinstance(cost, PureCost) and cost.epsilon > 0)
    squares = [Fraction(cost.mu) ** 2 for cost in costs if isinstance(cost, GdpCost)]
    return ComposedCosts(tuple(pure), sum(squares, Fraction(0)))


@given(costs=st.lists(TWIN_COSTS, max_size=12))
@settings(deadline=None, max_examples=300)
def test_what_touched_an_element_is_what_its_costs_say(costs: list[TwinCost]) -> None:
    kept = Elements()
    for number, cost in enumerate(costs, start=1):
        kept = kept.plus(cost)
        past = costs[:number]
        named = {name for each in past for name in names_of(each.scope)}
        assert kept.others == composed_anew(each for each in past if each.scope.all_elements)
        assert kept.named == {name: composed_anew(costs_of(name, past)) for name in named}


@given(costs=st.lists(st.builds(PureCost, AMOUNTS, st.just(LINE), scopes()), max_size=12))
@settings(deadline=None, max_examples=200)
def test_the_worst_element_is_the_worst_of_all(costs: list[TwinCost]) -> None:
    cap = TwinCap(1.0, 0.0, LINE)
    tally = cap.tally(costs)
    every = [tally.others, *tally.named.values()]
    assert cap.spent_by(tally)["epsilon"] == max(
        Fraction(composed_epsilon(each.pure, math.sqrt(each.mu_squared), 0.0)) for each in every
    )


ADDITIVE: list[Cap] = [LoadsCap(1.0, 1e-5), InstanceCap(1.0, 1e-5, LINE)]


def cost_of(cap: Cap, one: float, other: float) -> Cost:
    if isinstance(cap, LoadsCap):
        return LoadsCost(one, PrivacyUnit.LOAD_POINT)
    return InstanceCost(one, other, LINE)


@pytest.mark.parametrize("cap", ADDITIVE, ids=lambda cap: cap.kind)
@given(figures=st.lists(st.tuples(AMOUNTS, AMOUNTS), max_size=30))
@settings(deadline=None, max_examples=100)
def test_sums_are_exact_whatever_the_order(cap: Cap, figures: list[tuple[float, float]]) -> None:
    costs = [cost_of(cap, *pair) for pair in figures]
    kept: dict[str, Fraction] = dict(cap.spent_by(cap.tally(costs)))
    anew = {name: sum((cost.amounts()[name] for cost in costs), Fraction(0)) for name in kept}
    backwards = cap.spent_by(cap.tally(costs[::-1]))
    assert kept == anew == backwards
    assert kept.keys() == cap.limits().keys()


@given(
    figures=st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.05, 0.1, 0.3]), st.booleans(), st.sampled_from(["", "ab", "bc", "d"])
        ),
        max_size=8,
    )
)
@settings(deadline=None, max_examples=15)
def test_a_ledger_says_the_same_from_memory_and_from_its_file(
    tmp_path_factory: pytest.TempPathFactory, figures: list[tuple[float, bool, str]]
) -> None:
    """Charges of all and of some elements, with changes of the cap between: now, and as of every charge."""
    state = PrivateState.open(tmp_path_factory.mktemp("ledger") / "state")
    ledger, cap = Ledger.open(state), TwinCap(50.0, 1e-6, LINE)
    account = ledgers.account(ledger, state.identity("network", [b"1"]), cap)
    loads = ledgers.account(ledger, state.identity("loads", [b"1"]), LoadsCap(50.0, 1e-6))
    stood = []
    for number, (amount, gaussian, names) in enumerate(figures):
        kind, scope = (GdpCost if gaussian else PureCost), Scope(replaced=tuple(names))
        spend = ledgers.spend(ledger, account, f"r{number}", REQUEST, kind(amount, LINE, scope))
        also = ledgers.spend(ledger, loads, f"r{number}", REQUEST, LoadsCost(amount, PrivacyUnit.LOAD_POINT))
        stood.append(((spend, ledgers.remaining(ledger, account)), (also, ledgers.remaining(ledger, loads))))
        cap = TwinCap(cap.epsilon + 1, 1e-6, LINE)
        ledger.change_cap(account.name, cap, "test")
        account = ledgers.account(ledger, account.dataset, cap)
    anew = Ledger.open(state)
    assert anew.summary() == ledger.summary()
    for twin, of_loads in stood:
        assert (
            ledgers.remaining(anew, account, as_of=twin[0])
            == ledgers.remaining(ledger, account, as_of=twin[0])
            == twin[1]
        )
        assert ledgers.remaining(anew, loads, as_of=of_loads[0]) == of_loads[1]
    found = anew.find(cap.kind, account.dataset)
    assert found is not None
    assert found.balance == ledgers.remaining(anew, account)
