"""The rule of the verdicts, and what it says of another half, of strangers and of copies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import wasserstein_distance

from dp_powerflow.fidelity import metrics
from dp_powerflow.fidelity.comparison import CustomerComparison, compare_customers
from dp_powerflow.fidelity.metrics import Setting, changes_w1_percent, high_ramp, nearest_distance, traits_of
from dp_powerflow.fidelity.verdicts import DISTANCE, QUICK, TOLD, Titled, Verdict
from dp_powerflow.units import FloatArray
from support.lived import FLOOR, WEEKEND, lived, strangers

SETTING = Setting(WEEKEND, FLOOR)
EFFORT = replace(QUICK, splits=3, customers=48)
FIGURE = Titled("customers", "name", "title")


# ------------------------------------------------------------------------------------------- the rule
@pytest.mark.parametrize(
    ("ratio", "error", "said"),
    [
        (1.0, 0.0, Verdict.SAME),
        (1.25, 0.0, Verdict.SAME),
        (1.5, 0.3, Verdict.SAME),
        (1.5, 0.1, Verdict.CLOSE),
        (3.0, 0.2, Verdict.VISIBLE),
        (4.1, 0.05, Verdict.WRONG),
        (np.inf, 0.0, Verdict.WRONG),
        (2.5, 1.5, Verdict.UNSURE),
        (0.05, 0.0, Verdict.SAME),
    ],
)
def test_the_ratio_less_its_error_decides(ratio: float, error: float, said: Verdict) -> None:
    assert DISTANCE.verdict(ratio, error) is said


def test_a_distance_far_below_its_floor_is_suspicious_and_a_small_floor_is_not() -> None:
    assert FIGURE.of_distances([0.1, 0.2], [1.0, 1.0]).verdict is Verdict.COPIES
    assert FIGURE.of_distances([0.7, 0.9], [1.0, 1.0]).verdict is Verdict.SAME
    tolerant = replace(FIGURE, matters=5.0)
    found = tolerant.of_distances([1.1, 0.9], [1.0, 1.0])
    assert (found.floor, found.verdict) == (5.0, Verdict.SAME)
    assert found.ratio == pytest.approx(0.2)
    assert FIGURE.of_distances([0.0, 0.0], [0.0, 0.0]).verdict is Verdict.SAME
    assert FIGURE.of_distances([0.1, 0.1], [0.0, 0.0]).verdict is Verdict.WRONG


def test_a_single_figure_that_is_the_same_by_chance_is_no_copy() -> None:
    found = FIGURE.of_figures([1.0, 1.0], [1.2, 0.8], [1.0, 1.0])
    assert found.verdict is Verdict.SAME
    assert (found.drawn, found.real, found.distance) == (1.0, 1.0, 0.0)
    assert found.floor == pytest.approx(0.2)


def test_a_classifier_below_chance_has_seen_copies() -> None:
    told = replace(FIGURE, scale=TOLD)
    assert told.of_areas([0.2, 0.25], [0.52, 0.5]).verdict is Verdict.COPIES
    assert told.of_areas([0.48, 0.5], [0.52, 0.5]).verdict is Verdict.SAME
    assert told.of_areas([0.98, 0.99], [0.52, 0.5]).verdict is Verdict.WRONG
    # A classifier that tells real from real: even one that is always right is 1.03 of the floor.
    assert told.of_areas([1.0, 1.0], [0.97, 0.97]).verdict is Verdict.UNSURE


# ------------------------------------------------------------------------- against independent programs


def test_step_changes_are_those_of_scipy_and_numpy() -> None:
    first, second = lived(5, 1), lived(4, 2)
    own = [load.reshape(len(load), -1) for load in (first, second)]
    relative = [np.diff(series) / series.mean(axis=1)[:, None] for series in own]
    expected = 100 * wasserstein_distance(relative[0].ravel(), relative[1].ravel())
    assert changes_w1_percent(first, second) == pytest.approx(expected, rel=1e-9)
    assert high_ramp(first) == pytest.approx(np.percentile(np.abs(relative[0]), 99))
    assert high_ramp(2.0 * first) == pytest.approx(high_ramp(first))


def test_the_nearest_customer_is_the_nearest_by_brute_force() -> None:
    side, real = lived(7, 6), lived(9, 7)
    points, others = traits_of(side), traits_of(real)
    scale = others.std(axis=0)
    each = [min(np.linalg.norm((point - other) / scale) for other in others) for point in points]
    assert nearest_distance(side, real) == pytest.approx(np.quantile(each, 0.1))
    assert nearest_distance(real, real) == pytest.approx(0.0, abs=1e-6)


# -------------------------------------------------------------------------------- halves of one population
@pytest.fixture
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at is the protocol, not how good the classifier is."""
    monkeypatch.setattr(metrics, "TREES", 40)


def compared(drawn: FloatArray, real: FloatArray) -> CustomerComparison:
    return compare_customers(drawn, real, SETTING, EFFORT)


@pytest.mark.slow
@pytest.mark.usefixtures("few_trees")
def test_another_part_of_the_same_population_is_as_close_as_real_to_real() -> None:
    found = {one.name: one for one in compared(lived(96, 21), lived(96, 22)).findings}
    distances = [
        found[name].ratio for name in ("w1_percent", "autocorrelation_error", "changes_w1", "nearest")
    ]
    assert 0.6 < np.mean(distances) < 1.6
    wrong = [one.name for one in found.values() if one.verdict not in (Verdict.SAME, Verdict.CLOSE)]
    assert len(wrong) <= 1  # of 17: with three splits one floor in a hundred is small by chance
    uses = [found[name].ratio for name in ("next_day", "auc_day")]
    assert np.mean(uses) == pytest.approx(1.0, abs=0.06)  # the floor is not beaten by more than noise


@pytest.mark.slow
@pytest.mark.usefixtures("few_trees")
def test_days_dealt_out_anew_are_wrong_where_they_are_and_right_where_they_are() -> None:
    found = {one.name: one for one in compared(strangers(lived(96, 23), 24), lived(96, 22)).findings}
    assert found["w1_percent"].verdict in (Verdict.SAME, Verdict.CLOSE)
    for name in ("autocorrelation_error", "day_to_day", "between_customers", "pairwise", "auc_week"):
        assert found[name].verdict is Verdict.WRONG


@pytest.mark.slow
@pytest.mark.usefixtures("few_trees")
def test_the_real_customers_themselves_are_told_as_copies() -> None:
    real = lived(40, 25)
    found = compare_customers(real, real, SETTING, replace(EFFORT, customers=20, splits=3))
    suspicious = {one.name for one in found.findings if one.verdict is Verdict.COPIES}
    assert "nearest" in suspicious
