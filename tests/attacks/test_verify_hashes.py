"""Hashes that noise is bound to: other choices, other noise, however long the choices are."""

from __future__ import annotations

import dataclasses
from datetime import date, timedelta

import numpy as np
import pytest

from dp_powerflow.errors import PrivacyError
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.fit import fit
from dp_powerflow.model.options import FitOptions, FixedPowerFactor, PublicSpread
from dp_powerflow.model.partition import PrivateClasses
from dp_powerflow.model.plain import Plain
from dp_powerflow.privacy.budget import Budget, PrivacyUnit
from dp_powerflow.privacy.random import StreamKey, canonical_bytes

BUDGET = Budget(1.0, 1e-5, PrivacyUnit.LOAD_POINT_DAY)
DAYS = 1500


def days_off(holiday: int) -> np.ndarray:
    """Whether 1,500 days are off, as an array; one day in the middle is a holiday."""
    off = np.array([False, True] * (DAYS // 2))
    off[holiday] = not off[holiday]
    return off


@pytest.mark.filterwarnings("ignore::dp_powerflow.model.fit.WeakBudgetWarning")
def test_the_same_noise_never_meets_two_choices_that_differ_in_the_middle_of_an_array() -> None:
    """The attack: fit twice, one day of 1,500 declared otherwise, and subtract the published integers.

    On the code of ffefb60 the hash of the options left out the middle of the array, both fits got the same
    noise, and the difference was what that day contributes, without any noise.
    """
    rng = np.random.default_rng(1)
    history = LoadHistory(
        load_points=("p",),
        days=tuple(date(2020, 1, 1) + timedelta(days=k) for k in range(DAYS)),
        step_minutes=720,
        load_kw=rng.uniform(0.1, 1.0, (1, DAYS, 2)),
        load_kvar=None,
        scale_kw=None,
        node_of=(None,),
        class_label=("home",),
    )
    answers = []
    for holiday in (700, 702):
        options = FitOptions((0.01, 2.0), estimator=Plain(), days=days_off(holiday))  # type: ignore[arg-type]
        model = fit(history, budget=BUDGET, options=options, key=StreamKey.from_insecure_seed(1))
        assert model.origin is not None
        answers.append((model.costs[0], model.origin.integers[0]))
    (cost, first), (_, second) = answers
    difference = np.linalg.norm((first - second).astype(float))
    assert difference > 0.1 * cost.sigma
    assert difference > 2 * cost.sensitivity_grid  # no two records explain it: it is noise


CHOICES = [
    {"bounds": (0.01, 2.5)},
    {"bounds": {"a": (0.01, 2.0)}},
    {"estimator": Plain()},
    {"classes": PrivateClasses(2)},
    {"days": (True,)},
    {"use_scale": True},
    {"n_components": 2},
    {"reactive": FixedPowerFactor({"a": 0.3})},
    {"reactive": PublicSpread(white=0.3)},
    {"variance_floor": np.nextafter(1e-3, 1.0)},
]


def test_every_choice_moves_the_hash_and_its_container_does_not() -> None:
    plain = FitOptions((0.01, 2.0))
    hashes = {plain.sha256(BUDGET)}
    hashes |= {dataclasses.replace(plain, **choice).sha256(BUDGET) for choice in CHOICES}  # type: ignore[arg-type]
    hashes |= {
        plain.sha256(dataclasses.replace(BUDGET, **choice))
        for choice in ({"epsilon": 2.0}, {"delta": 1e-6}, {"unit": PrivacyUnit.LOAD_POINT})
    }
    assert len(hashes) == 1 + len(CHOICES) + 3
    off = days_off(3)
    as_array, as_tuple = (
        dataclasses.replace(plain, days=chosen)  # type: ignore[arg-type]
        for chosen in (off, tuple(off.tolist()))
    )
    with np.printoptions(threshold=5, precision=1):
        assert as_array.sha256(BUDGET) == as_tuple.sha256(BUDGET)
    assert as_array.sha256(BUDGET) == as_tuple.sha256(BUDGET)


def test_bytes_tell_apart_what_is_written_alike() -> None:
    alike = [1, True, 1.0, "1", None, (), (1,), ((1,),), ("1",), {"1": 1}, {1: "1"}, ("a", "bc"), ("ab", "c")]
    assert len({canonical_bytes(value) for value in alike}) == len(alike)
    assert canonical_bytes({"a": 1, "b": 2}) == canonical_bytes({"b": 2, "a": 1})
    assert canonical_bytes(np.arange(3000)) != canonical_bytes(np.arange(3000) * (np.arange(3000) != 1500))


def test_a_choice_whose_content_cannot_be_told_is_refused() -> None:
    with pytest.raises(PrivacyError, match="cannot be hashed by its content"):
        canonical_bytes({"estimator": object()})
