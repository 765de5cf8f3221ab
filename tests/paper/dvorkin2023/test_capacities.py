"""Capacities of lines: sensitivities are bounds, ε adds up, rounds help, the repair sees nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow.errors import FeederError, PrivacyError
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.dvorkin2023.capacities import (
    AtRandom,
    CapacityMechanism,
    LargestNoisyScore,
    infeasible_share,
)
from dp_powerflow_paper.dvorkin2023.cases import matpower_case
from dp_powerflow_paper.dvorkin2023.restored import (
    ConvexRepair,
    DispatchCase,
    ExactRepair,
    NoisyCapacities,
    repair_objective,
    repaired_unasked,
)
from support.auditing import epsilon_lower_bound

Capacities = tuple[DispatchCase, FloatArray]
ROUNDS = 10


def last(mechanism: CapacityMechanism, case: DispatchCase, capacity: FloatArray, run: int) -> FloatArray:
    """What is released in the end."""
    return list(mechanism.release(case, capacity, np.random.default_rng(run)))[-1]


def test_an_overload_price_bounds_what_a_capacity_can_change(feeder_case: Capacities) -> None:
    case, capacity = feeder_case
    price, change = case.dearest, 0.02
    before = case.costs(capacity, price)
    moved = [
        np.abs(case.costs(capacity + change * np.eye(case.lines)[line], price) - before).max()
        for line in range(case.lines)
    ]
    assert max(moved) <= price * change * (1.0 + 1e-9)
    assert max(moved) > 0.0


def test_without_an_overload_price_no_bound_exists(rts: Capacities) -> None:
    """α times the largest price, which the published code takes: a capacity makes records infeasible."""
    case, capacity = rts
    change = 5.0
    few = case.only(np.arange(20))
    loaded = np.argsort(capacity)[:40]
    before = few.costs(capacity)
    moved = 0.0
    for line in loaded:
        less = capacity.copy()
        less[line] = max(less[line] - change, 0.0)
        moved = max(moved, float(np.abs(few.costs(less) - before).max()))
    tight = capacity.copy()
    tight[loaded] *= 0.55  # a legitimate network of the data universe, on the brink
    assert not np.all(np.isfinite(few.costs(tight)))
    assert np.all(np.isfinite(few.costs(tight, few.dearest)))
    assert np.isfinite(moved)


def test_the_epsilon_of_all_queries_adds_up() -> None:
    for rounds in (0, 1, 10):
        mechanism = CapacityMechanism(1.5, 5.0, rounds, 100.0)
        assert sum(query.epsilon for query in mechanism.queries) == pytest.approx(1.5)
        size = {"capacities": 5.0, "selection": 2.0 * 500.0, "cost": 500.0}
        for query in mechanism.queries:
            assert query.scale == pytest.approx(size[query.asked] / query.epsilon)


def test_dividing_by_four_rounds_instead_of_multiplying_is_far_too_little_noise() -> None:
    """The published code: scale α·c/(4T) for α·c·4T, (4T)² = 1,600 times too small at T = 10."""
    mechanism = CapacityMechanism(1.0, 5.0, ROUNDS, 100.0)
    cost = next(query for query in mechanism.queries if query.asked == "cost")
    published = 5.0 * 100.0 / (4 * ROUNDS)
    assert cost.scale / published == pytest.approx((4 * ROUNDS) ** 2)


def test_rounds_leave_fewer_infeasible_records_than_noise_with_all_of_epsilon(rts: Capacities) -> None:
    case, capacity = rts
    assert np.all(np.isfinite(case.costs(capacity)))
    runs = range(4)
    whole = CapacityMechanism(1.0, 5.0, ROUNDS, case.dearest)
    shares = np.mean([infeasible_share(case, last(whole, case, capacity, run)) for run in runs])
    plain = CapacityMechanism(1.0, 5.0, 0, case.dearest)
    alone = np.mean([infeasible_share(case, last(plain, case, capacity, run)) for run in runs])
    assert shares <= alone
    assert alone > 0.02


def test_the_exact_repair_is_at_least_as_good_as_the_convex_one(feeder_case: Capacities) -> None:
    case, capacity = feeder_case
    costs = case.costs(capacity)
    for run in range(3):
        drawn = capacity + np.random.default_rng(run).laplace(0.0, 0.06, len(capacity))
        noisy = NoisyCapacities(drawn, (0, 3), (0.97 * costs[0], 1.02 * costs[3]))
        exact, convex = (
            repair_objective(noisy, case, r(noisy, case)) for r in (ExactRepair(), ConvexRepair())
        )
        assert exact <= convex * (1.0 + 1e-4) + 1e-6


def test_costs_that_are_too_high_are_matched_by_the_exact_repair_alone(feeder_case: Capacities) -> None:
    """The convex one has no lower side: it leaves cheap dispatches cheap."""
    case, capacity = feeder_case
    free = case.costs(10.0 * capacity)
    noisy = NoisyCapacities(2.0 * capacity, (0,), (float(1.05 * free[0]),))
    exact, convex = (repair_objective(noisy, case, r(noisy, case)) for r in (ExactRepair(), ConvexRepair()))
    assert exact <= convex * (1.0 + 1e-9)


class GivenNoise(np.random.Generator):
    """Gives the noise that leads from true figures to wanted ones, whatever the true ones are."""

    def __init__(self, answers: list[FloatArray]) -> None:
        super().__init__(np.random.PCG64(0))
        self._answers = iter(answers)

    def laplace(self, *_: object, **__: object) -> Any:
        """The next answer."""
        return next(self._answers)


@pytest.mark.parametrize("repair", [ConvexRepair(), ExactRepair()], ids=["convex", "exact"])
def test_the_repair_sees_only_what_was_released(
    feeder_case: Capacities, repair: ConvexRepair | ExactRepair
) -> None:
    """Other true capacities whose noise leads to the same noisy figures: the same bytes."""
    case, capacity = feeder_case
    mechanism = CapacityMechanism(1.0, 0.1, 1, case.dearest, repair)
    wanted, cost, record = np.round(0.8 * capacity, 3), 0.9, 2
    released = []
    for true in (capacity, 1.5 * capacity[::-1]):
        costs = case.costs(true, case.dearest)
        chosen = np.where(np.arange(len(costs)) == record, 1e9, 0.0)
        noise = [wanted - true, chosen, np.array(cost - costs[record])]
        released.append(list(mechanism.release(case, true, GivenNoise(noise))))
    # Adding the noise rounds; what the repair is given agrees to the last bit but one.
    assert np.allclose(released[0][0], released[1][0], rtol=1e-15, atol=1e-15)
    assert np.allclose(released[0][1], released[1][1], rtol=0.0, atol=1e-9)
    noisy = NoisyCapacities(wanted, (record,), (cost,))
    assert repair(noisy, case).tobytes() == repair(noisy, replace(case, name="another")).tobytes()


def test_honest_noise_selects_hardly_better_than_chance(rts: Capacities) -> None:
    """At T = 10 the noise of a selection is many times every score; the public code's is random outright."""
    case, capacity = rts
    mechanism = CapacityMechanism(1.0, 5.0, ROUNDS, case.dearest)
    scale = next(query.scale for query in mechanism.queries if query.asked == "selection")
    generator = np.random.default_rng(6)
    noisy = next(mechanism.release(case, capacity, generator))
    scores = np.abs(case.costs(capacity, case.dearest) - case.costs(noisy, case.dearest))
    assert scale > 5.0 * scores.max()
    share = {
        selection: np.mean([selection(scores, scale, generator) == np.argmax(scores) for _ in range(20_000)])
        for selection in (LargestNoisyScore(), AtRandom())
    }
    by_chance = 1.0 / len(scores)
    assert share[AtRandom()] == pytest.approx(by_chance, abs=0.003)
    assert by_chance - 0.003 < share[LargestNoisyScore()] < 2.0 * by_chance


def test_without_noise_the_worst_record_is_selected() -> None:
    scores = np.array([1.0, 5.0, 2.0])
    assert {LargestNoisyScore()(scores, 1e-9, np.random.default_rng(run)) for run in range(20)} == {1}


@pytest.mark.parametrize(("noise", "holds"), [(1.0, True), (0.5, False)])
def test_an_audit_of_a_selection_finds_no_more_than_is_claimed_and_catches_half_of_the_noise(
    noise: float, holds: bool
) -> None:
    """Scores of neighbours that all move by the sensitivity: one down, the others up."""
    moved, epsilon, generator = 1.0, 1.0, np.random.default_rng(7)
    first = np.zeros(40)
    second = np.full(40, moved)
    second[0] = -moved
    scale = noise * 2.0 * moved / epsilon

    def picked(scores: FloatArray) -> FloatArray:
        return np.array([float(LargestNoisyScore()(scores, scale, generator) == 0) for _ in range(40_000)])

    found = epsilon_lower_bound(picked(first), picked(second), 0.0)
    assert found > 0.5 * epsilon
    assert (found <= epsilon) is holds


def test_a_repair_for_public_records_needs_no_question(rts: Capacities) -> None:
    """All of ε for noise, then repaired for some records: no more infeasible records than before."""
    case, capacity = rts
    plain = CapacityMechanism(1.0, 5.0, 0, case.dearest)
    shares = []
    for run in range(3):
        noisy = last(plain, case, capacity, run)
        repaired = repaired_unasked(noisy, case, 20, np.random.default_rng(run))
        shares.append([infeasible_share(case, each) for each in (noisy, repaired)])
    before, after = np.mean(shares, axis=0)
    assert after <= before


@pytest.mark.campaign
def test_rounds_leave_no_more_infeasible_records_than_noise_over_twenty_draws(rts: Capacities) -> None:
    case, capacity = rts
    whole, plain = (CapacityMechanism(1.0, 5.0, rounds, case.dearest) for rounds in (ROUNDS, 0))
    shares, alone = (
        np.mean([infeasible_share(case, last(each, case, capacity, run)) for run in range(20)])
        for each in (whole, plain)
    )
    assert shares <= alone


def test_a_repaired_feeder_serves_every_record_that_was_chosen(feeder_case: Capacities) -> None:
    case, capacity = feeder_case
    noisy = NoisyCapacities(0.3 * capacity, (0, 5, 9), tuple(case.costs(capacity)[[0, 5, 9]]))
    chosen = case.only(np.array([0, 5, 9]))
    assert not np.all(np.isfinite(chosen.costs(noisy.capacity)))
    repaired = ConvexRepair()(noisy, case) + 1e-9  # rounding of the program
    assert np.all(np.isfinite(chosen.costs(repaired)))


@pytest.mark.parametrize(("noise", "holds"), [(1.0, True), (0.5, False)])
def test_an_audit_finds_no_more_than_is_claimed_and_catches_half_of_the_noise(
    feeder_case: Capacities, noise: float, holds: bool
) -> None:
    """Noise on the capacities alone: two grids that differ in one line, the attacker reads that line."""
    case, capacity = feeder_case
    mechanism = CapacityMechanism(1.0, 0.1, 0, case.dearest)
    honest = replace(mechanism, change=mechanism.change * noise)
    generator = np.random.default_rng(8)
    other = capacity.copy()
    other[2] += mechanism.change

    def scores(true: FloatArray) -> FloatArray:
        # Far from zero, where the released capacity is not cut off.
        drawn = [next(honest.release(case, true + 50.0, generator))[2] - 50.0 for _ in range(20_000)]
        return np.array(drawn)

    found = epsilon_lower_bound(scores(other), scores(capacity), 0.0)
    assert (found <= mechanism.guarantee.epsilon) is holds


def test_generators_that_cannot_meet_the_demand_are_refused(feeder_case: Capacities) -> None:
    case, _ = feeder_case
    with pytest.raises(FeederError, match="meet the demand"):
        replace(case, records=replace(case.records, most=0.01 * case.records.most))


def test_settings_without_sense_are_refused() -> None:
    with pytest.raises(PrivacyError, match="positive"):
        CapacityMechanism(0.0, 5.0, 1, 100.0)


def test_a_missing_case_is_told(tmp_path: Path) -> None:
    with pytest.raises(FeederError, match="does not exist"):
        matpower_case(tmp_path / "no.m")
