"""The attack panel: what ε allows, what honest fits give away, and that planted bugs are caught."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dp_powerflow.errors import PrivacyError
from dp_powerflow.fidelity import attacks
from dp_powerflow.fidelity.attacks import (
    KINDS,
    Allowed,
    Design,
    Guesses,
    MembershipAttack,
    PlantedAttack,
    attack_membership,
    attack_planted,
    design_of,
    gaussian_success,
    least_epsilon,
    most_success,
)
from dp_powerflow.fidelity.report import Attacks
from dp_powerflow.fidelity.verdicts import QUICK
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.fit import fit
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.options import FitOptions
from dp_powerflow.model.partition import PrivateClasses
from dp_powerflow.privacy import queries
from dp_powerflow.privacy.budget import Budget, PrivacyUnit
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import FloatArray
from support.histories import history_of
from support.lived import lived

BOUNDS = (0.05, 20.0)
BUDGET = Budget(1.0, 1e-5)
KEY = StreamKey.from_insecure_seed(11)
EFFORT = replace(QUICK, fits_per_kind=20)

pytestmark = pytest.mark.filterwarnings("ignore::dp_powerflow.model.fit.WeakBudgetWarning")


def meters(count: int = 40) -> LoadHistory:
    return history_of(lived(count, 1)[:, :14])


def model_of(history: LoadHistory, options: FitOptions | None = None, budget: Budget = BUDGET) -> LoadModel:
    return fit(history, budget=budget, options=options or FitOptions(BOUNDS), key=KEY)


def design(history: LoadHistory, model: LoadModel, most: int = 24) -> Design:
    return design_of(model, history, (most, 14), np.random.default_rng(0), one_class=True)


# ------------------------------------------------------------------------------------- what ε allows
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 0.0), (1.0, 1e-5), (3.0, 0.05)])
def test_the_most_success_is_that_of_the_worst_mechanism(epsilon: float, delta: float) -> None:
    """Randomised response that tells the truth with probability δ, else with e^ε/(1 + e^ε)."""
    truthful = delta + (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
    assert most_success(epsilon, delta) == pytest.approx(truthful)
    assert least_epsilon(most_success(epsilon, delta), delta) == pytest.approx(epsilon)
    assert (most_success(1e6, delta), most_success(0.0, 0.0), least_epsilon(0.4, delta)) == (1.0, 0.5, 0.0)
    assert math.isinf(least_epsilon(1.0, delta))
    # N(0, 1) against N(1, 1) at ρ = 0.5: the best test cuts in the middle.
    assert gaussian_success(0.5) == pytest.approx(stats.norm.cdf(0.5))


def test_what_is_certain_is_compared_with_what_is_stated() -> None:
    allowed = Allowed(1.0, 1e-5, 0.02)
    assert not allowed.exceeded_by(Guesses(45, 60))  # above 0.731 by chance
    assert allowed.exceeded_by(Guesses(59, 60))
    assert allowed.visible(60) == pytest.approx(least_epsilon(0.05 ** (1 / 60), 1e-5))
    assert allowed.by_noise < allowed.success


# ------------------------------------------------------------------------------------ planted customers
def planted_of(history: LoadHistory, model: LoadModel) -> tuple[PlantedAttack, Allowed]:
    chosen = design(history, model)
    return attack_planted(chosen, EFFORT, KEY), chosen.allowed


@pytest.mark.slow
@pytest.mark.parametrize("unit", [PrivacyUnit.LOAD_POINT, PrivacyUnit.LOAD_POINT_DAY])
def test_honest_fits_give_away_less_than_epsilon_allows(unit: PrivacyUnit) -> None:
    history = meters()
    found, allowed = planted_of(history, model_of(history, budget=Budget(1.0, 1e-5, unit)))
    assert found.guesses.keys() == KINDS.keys()
    assert all(set(np.unique(plant((3, 24), BOUNDS))) <= set(BOUNDS) for plant in KINDS.values())
    assert found.together.tried == 3 * EFFORT.fits_per_kind
    assert not allowed.exceeded_by(found.together)
    assert not found.partly


@pytest.mark.slow
def test_with_a_huge_budget_the_attack_is_always_right() -> None:
    """The attack is one: with next to no noise it tells the two apart, and ε allows it."""
    history = meters()
    found, allowed = planted_of(history, model_of(history, budget=Budget(1e5, 1e-5)))
    assert found.together.rate == 1.0
    assert not allowed.exceeded_by(found.together)


def test_fits_without_noise_are_caught_and_the_red_sentence_appears(monkeypatch: pytest.MonkeyPatch) -> None:
    history = meters()
    model = model_of(history)
    monkeypatch.setattr(queries, "add_noise", lambda total, sigma, stream: total + stream.words(1)[0] % 3)
    found, allowed = planted_of(history, model)
    assert found.together.rate > 0.95
    assert allowed.exceeded_by(found.together)
    silent = MembershipAttack(0.5, 0.0, Guesses(50, 100), "distance", np.zeros(2), np.ones(2), allowed)
    (alarm,) = Attacks(allowed, silent, found).alarms
    assert "states 1. The stated guarantee does not hold" in alarm


@pytest.mark.slow
def test_private_classes_are_attacked_as_far_as_they_can_be() -> None:
    history = meters()
    model = model_of(history, FitOptions(BOUNDS, classes=PrivateClasses(2)))
    found, allowed = planted_of(history, model)
    assert found.partly
    assert not allowed.exceeded_by(found.together)


def test_a_fit_is_attacked_with_the_budget_and_options_of_the_release() -> None:
    history = meters()
    model = model_of(history)
    chosen = design(history, model, most=10)
    assert model.origin is not None
    assert (chosen.budget.epsilon, chosen.budget.delta) == (model.epsilon, model.delta)
    assert chosen.options.to_dict() == model.origin.options.to_dict()
    assert chosen.history.n_load_points == 10
    assert chosen.bounds_kw(0) == BOUNDS
    with pytest.raises(PrivacyError, match="does not say how it was fitted"):
        design(history, replace(model, origin=None))


# ------------------------------------------------------------------------------------------ membership
def test_where_a_record_is_one_day_a_member_is_all_its_days() -> None:
    """Compared with the ε of one day, an honest release could be told to withdraw."""
    history = meters()
    by_day, whole = (
        design(history, model_of(history, budget=Budget(0.5, 1e-5, unit)))
        for unit in (PrivacyUnit.LOAD_POINT_DAY, PrivacyUnit.LOAD_POINT)
    )
    assert whole.allowed_of_customer == whole.allowed
    found = by_day.allowed_of_customer
    assert found.epsilon == 14 * by_day.allowed.epsilon
    # Day after day: delta of the next one times e^epsilon of those before.
    delta = 0.0
    for _ in range(14):
        delta = math.exp(by_day.allowed.epsilon) * delta + by_day.allowed.delta
    assert found.delta == pytest.approx(delta)
    assert by_day.allowed.exceeded_by(Guesses(90, 100))
    assert not found.exceeded_by(Guesses(90, 100))


def test_members_of_an_honest_model_are_not_found() -> None:
    history = meters(60)
    chosen = design(history, model_of(history), most=60)
    found = attack_membership(chosen, replace(EFFORT, membership_fits=4), KEY)
    assert found.area == pytest.approx(0.5, abs=0.12)
    assert np.trapezoid(found.true_rate, found.false_rate) == pytest.approx(0.5, abs=0.12)
    assert found.guesses.tried == 4 * 60
    assert not chosen.allowed.exceeded_by(found.guesses)


def test_a_model_that_draws_its_members_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws that are copies of who was fitted: the nearest drawn customer gives every member away."""
    history = meters(60)
    chosen = design(history, model_of(history), most=60)

    def copied(model: LoadModel, members: LoadHistory, key: StreamKey) -> FloatArray:
        return members.load_kw

    monkeypatch.setattr(attacks, "draw_customers", copied)
    monkeypatch.setattr(attacks, "NEAREST", 1)
    found = attack_membership(chosen, replace(EFFORT, membership_fits=2), KEY)
    assert found.area > 0.99
    assert chosen.allowed.exceeded_by(found.guesses)
