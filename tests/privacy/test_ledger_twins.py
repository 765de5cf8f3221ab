"""Accounts of twins: pure and Gaussian costs, of all elements or of some, compose to the worst element."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_powerflow import Ledger, PrivateState
from dp_powerflow.cli.checks import render_ledger
from dp_powerflow.errors import PrivacyError
from dp_powerflow.lowlevel import PrivacyUnit, gdp_epsilon, gdp_mu
from dp_powerflow.manifest.build import account_of
from dp_powerflow.manifest.model import TwinAccount
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
DELTA = 1e-6
REQUEST = "a" * 64


def pure(epsilon: float, **scope: tuple[str, ...]) -> PureCost:
    return PureCost(epsilon, LINE, Scope(**scope))


def gaussian(mu: float, **scope: tuple[str, ...]) -> GdpCost:
    return GdpCost(mu, LINE, Scope(**scope))


def promised(costs: Sequence[TwinCost], delta: float = DELTA) -> float:
    return TwinCap(50.0, delta, LINE).promised(costs).epsilon


def exact_delta(epsilon: float, epsilons: Sequence[float], mu: float) -> float:
    """δ of randomised responses and a Gaussian together, in closed form: a sum over all answers.

    A randomised response has loss ±ε with odds exp(ε) : 1; given the sum s of these, the Gaussian has
    δ(ε − s; μ), which holds for negative ε − s as well.
    """

    def phi(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    total = 0.0
    for signs in itertools.product((1, -1), repeat=len(epsilons)):
        odds = math.prod(
            math.exp(e * (sign > 0)) / (1 + math.exp(e)) for e, sign in zip(epsilons, signs, strict=True)
        )
        rest = epsilon - sum(sign * e for e, sign in zip(epsilons, signs, strict=True))
        total += odds * (phi(mu / 2 - rest / mu) - math.exp(rest) * phi(-mu / 2 - rest / mu))
    return total


@pytest.mark.parametrize("delta", [0.0, 1e-12, 1e-2])
def test_pure_costs_add_up_exactly_and_at_every_delta(delta: float) -> None:
    cap = TwinCap(1.0, delta, LINE)
    assert cap.promised([pure(0.1)] * 10).epsilon == 1.0
    assert cap.promised([]).epsilon == 0.0
    assert promised([pure(1.0)], delta=DELTA) == 1.0 < gdp_epsilon(1.0, DELTA)
    # docs/reference/ledger.md: four Laplace twins at 1 and a Gaussian one of μ = 0.5.
    assert composed_epsilon((1.0,) * 4, 0.5, DELTA) == 6.116
    assert 4.0 + gdp_epsilon(0.5, DELTA) == pytest.approx(6.254, abs=1e-3)


@pytest.mark.parametrize(
    ("epsilons", "mu"),
    [((1.0,), 0.2), ((0.3,), 0.01), ((1.0,) * 4, 0.5), ((0.5, 1.0, 1.7), 1.0), ((8.3,), 0.2), ((0.1,), 2.0)],
)
@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-3])
def test_mixed_costs_are_safe_and_tight(epsilons: tuple[float, ...], mu: float, delta: float) -> None:
    """Against the closed form, and against distributions composed by dp_accounting on a finer grid."""
    found = promised([gaussian(mu), *(pure(epsilon) for epsilon in epsilons)], delta)
    assert exact_delta(found, epsilons, mu) <= delta
    low = max(sum(epsilons), gdp_epsilon(mu, delta))
    assert low <= found <= sum(epsilons) + gdp_epsilon(mu, delta)
    if found > low:
        assert exact_delta(found * (1 - 2e-3), epsilons, mu) > delta


COSTS = st.one_of(
    st.builds(pure, st.sampled_from([0.1, 0.5, 1.0])),
    st.builds(gaussian, st.sampled_from([0.1, 0.5])),
    st.builds(pure, st.sampled_from([0.1, 1.0]), replaced=st.sampled_from([("a",), ("b",), ("a", "b")])),
    st.builds(gaussian, st.sampled_from([0.1, 0.5]), added=st.sampled_from([("c",), ("d",)])),
)


@given(costs=st.lists(COSTS, max_size=5), cost=COSTS)
@settings(max_examples=12, deadline=None)
def test_a_further_cost_never_lowers_the_promise_and_adds_at_most_its_price(
    costs: list[TwinCost], cost: TwinCost
) -> None:
    before, after = promised(costs), promised([*costs, cost])
    assert after >= before
    assert after <= (before + promised([cost])) * (1 + 1e-3)


@pytest.fixture
def state(tmp_path: Path) -> PrivateState:
    return PrivateState.open(tmp_path / "state")


@pytest.fixture
def ledger(state: PrivateState) -> Ledger:
    return Ledger.open(state)


def account(ledger: Ledger, state: PrivateState, cap: TwinCap) -> ledgers.Opened:
    return ledgers.account(ledger, state.identity("network", [b"feeder"]), cap)


def test_an_account_of_twins_is_charged_for_the_element_that_changed(
    state: PrivateState, ledger: Ledger
) -> None:
    twins = account(ledger, state, TwinCap(2.0, DELTA, LINE))
    assert twins.name == "network-twin-1"
    a, b_and_c = pure(1.0, replaced=("line.a",)), pure(1.0, replaced=("line.b",), added=("line.c",))
    stood = {}
    for name, cost in (("north", pure(1.0)), ("north-2", a), ("north-3", b_and_c)):
        spend = ledgers.spend(ledger, twins, name, REQUEST, cost)
        stood[spend] = ledgers.remaining(ledger, twins)
    assert ledgers.remaining(ledger, twins).promise.epsilon == 2.0
    assert ledgers.remaining(ledger, twins).left == {"epsilon": 0.0}
    with pytest.raises(PrivacyError, match="nothing was spent"):
        ledgers.spend(ledger, twins, "north-4", REQUEST, pure(0.1, replaced=("line.a",)))
    ledgers.spend(ledger, twins, "north-4", REQUEST, pure(1.0, replaced=("line.c",)))
    with pytest.raises(PrivacyError, match="another request"):
        ledgers.spend(ledger, twins, "north-4", REQUEST, pure(1.0, replaced=("line.d",)))
    anew = Ledger.open(state)
    assert anew.summary() == ledger.summary()
    for spend, balance in stood.items():  # as of every charge, from memory and from the file
        for each in (anew, ledger):
            assert ledgers.remaining(each, twins, as_of=spend) == balance
    shown = render_ledger(ledger.summary())
    assert "; replaced line.b; added line.c |" in "\n".join(shown.lines)
    spends = json.loads(shown.json_text)["accounts"][0]["spends"]
    assert spends[2]["scope"] == {"replaced": ["line.b"], "added": ["line.c"]}
    assert "scope" not in spends[0]


def test_gaussian_noise_needs_a_delta(state: PrivateState, ledger: Ledger) -> None:
    cap = TwinCap(2.0, 0.0, LINE)
    twins = account(ledger, state, cap)
    with pytest.raises(PrivacyError, match="no epsilon at delta 0"):
        ledgers.spend(ledger, twins, "north", REQUEST, gaussian(0.1))
    with pytest.raises(PrivacyError, match="no epsilon at delta 0"):
        ledgers.preview(ledger, twins.dataset, cap, gaussian(0.1))
    ledger.change_figures(twins.name, None, DELTA, "the board, 12 May: Gaussian twins as well")
    twins = account(ledger, state, TwinCap(2.0, DELTA, LINE))
    ledgers.spend(ledger, twins, "north", REQUEST, gaussian(0.1))
    with pytest.raises(PrivacyError, match="no epsilon at delta 0"):
        ledger.change_figures(twins.name, None, 0.0, "back")
    ledger.change_figures(twins.name, 0.3, None, "less")
    assert ledgers.remaining(ledger, twins).cap == TwinCap(0.3, DELTA, LINE)
    assert ledgers.remaining(ledger, twins).promise.epsilon == gdp_epsilon(0.1, DELTA)
    shown = render_ledger(ledger.summary())
    assert "cap from then on: epsilon 0.3, delta 1e-06. Reason: less" in "\n".join(shown.lines)
    reasons = [change["reason"] for change in json.loads(shown.json_text)["accounts"][0]["changes"]]
    assert reasons[-2:] == ["the board, 12 May: Gaussian twins as well", "less"]


def test_what_is_left_is_stated_for_the_noise_in_use(state: PrivateState, ledger: Ledger) -> None:
    twins = account(ledger, state, TwinCap(4.0, DELTA, LINE))
    half = gdp_mu(4.0, DELTA) / math.sqrt(2)
    ledgers.spend(ledger, twins, "north", REQUEST, gaussian(half))
    available = ledgers.remaining(ledger, twins).available.epsilon
    assert available == pytest.approx(gdp_epsilon(half, DELTA), rel=1e-6)
    assert not ledgers.preview(ledger, twins.dataset, twins.cap, gaussian(half * 1.001)).affordable
    preview = ledgers.preview(ledger, twins.dataset, twins.cap, gaussian(half * 0.999))
    assert preview.affordable
    assert preview.after.composed == ComposedCosts.of([gaussian(half), gaussian(half * 0.999)])
    ledgers.spend(ledger, twins, "south", REQUEST, pure(0.5))
    left = ledgers.remaining(ledger, twins).available.epsilon
    assert left == pytest.approx(4.0 - ledgers.remaining(ledger, twins).promise.epsilon, abs=1e-9)


@pytest.mark.parametrize("costs", [[pure(0.5), pure(0.2)], [gaussian(0.3)], [pure(0.5), gaussian(0.3)]])
def test_a_manifest_states_what_touched_the_worst_element_and_the_promise_follows(
    state: PrivateState, ledger: Ledger, costs: list[TwinCost]
) -> None:
    twins = account(ledger, state, TwinCap(4.0, DELTA, LINE))
    for number, cost in enumerate(costs):
        ledgers.spend(ledger, twins, f"twin-{number}", REQUEST, cost)
    section = account_of(ledgers.remaining(ledger, twins))
    assert TwinAccount.model_validate(json.loads(section.model_dump_json())).recomputed() == section
    assert section.promise.epsilon == ledgers.remaining(ledger, twins).promise.epsilon
    assert section.promise.epsilon == pytest.approx(promised(costs), rel=1e-9)


@pytest.mark.parametrize("names", [("a", "a"), (" ",), ("",)])
def test_a_scope_names_every_element_once(names: tuple[str, ...]) -> None:
    with pytest.raises(PrivacyError, match="name each once"):
        Scope(replaced=names)
    with pytest.raises(PrivacyError, match="name each once"):
        Scope(replaced=("a",), added=(*names, "a"))


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


ADDITIVE: list[tuple[Cap, Callable[[float, float], Cost]]] = [
    (LoadsCap(1.0, 1e-5), lambda one, _: LoadsCost(one, PrivacyUnit.LOAD_POINT)),
    (InstanceCap(1.0, 1e-5, LINE), lambda one, other: InstanceCost(one, other, LINE)),
]


@pytest.mark.parametrize(("cap", "cost"), ADDITIVE, ids=["loads", "network"])
@given(figures=st.lists(st.tuples(AMOUNTS, AMOUNTS), max_size=30))
@settings(deadline=None, max_examples=100)
def test_sums_are_exact_whatever_the_order(
    cap: Cap, cost: Callable[[float, float], Cost], figures: list[tuple[float, float]]
) -> None:
    costs = [cost(*pair) for pair in figures]
    kept: dict[str, Fraction] = dict(cap.spent_by(cap.tally(costs)))
    anew = {name: sum((cost.amounts()[name] for cost in costs), Fraction(0)) for name in kept}
    backwards = cap.spent_by(cap.tally(costs[::-1]))
    assert kept == anew == backwards
    assert kept.keys() == cap.limits().keys()
