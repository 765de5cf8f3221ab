"""Histories against histories: planted cases, each beside an independent computation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import pearsonr

from dp_powerflow.fidelity import comparison, metrics
from dp_powerflow.fidelity.metrics import Setting, day_rows, forecast_error, told_apart
from support.lived import DAYS, FLOOR, STEPS, WEEKEND, lived, remembered, strangers

SETTING = Setting(WEEKEND, FLOOR)


def test_autocorrelation_is_the_lagged_product_over_the_variance() -> None:
    load = lived(5, 2)
    series = np.log(load).reshape(5, -1)
    for k, found in zip(metrics.lags(STEPS), metrics.autocorrelation(load), strict=True):
        each = []
        for own in series:
            full = np.correlate(own - own.mean(), own - own.mean(), mode="full")
            each.append(full[own.size - 1 + k] / (own.size - k) / own.var())
        assert found == pytest.approx(np.mean(each), rel=1e-9)
    with_constant = np.concatenate([load, np.ones((1, DAYS, STEPS))])
    np.testing.assert_allclose(metrics.autocorrelation(with_constant), metrics.autocorrelation(load))
    assert metrics.lags(96).tolist() == [1, 2, 4, 8, 16, 32, 64, 96, 192, 288, 672]  # to seven days


def test_pairwise_correlation_is_the_mean_over_all_pairs() -> None:
    load = lived(6, 4)
    energy = load.mean(axis=2)
    pairs = [pearsonr(energy[i], energy[j])[0] for i in range(6) for j in range(i)]
    assert metrics.pairwise(load) == pytest.approx(np.mean(pairs), rel=1e-9)
    assert metrics.pairwise(np.ones((3, DAYS, STEPS))) == 0.0


def test_memory_and_level_are_found_where_they_were_planted() -> None:
    rng = np.random.default_rng(5)
    days = remembered(rng.standard_normal((2000, DAYS)), 0.6)
    log_energy = 2.0 * rng.standard_normal((2000, 1)) + days
    load = np.repeat(np.exp(log_energy)[:, :, None], 2, axis=2)
    # what is left of the covariance 0.6^|i − j| once a customer's own mean is taken out
    away = np.eye(DAYS) - 1 / DAYS
    left = away @ 0.6 ** np.abs(np.subtract.outer(np.arange(DAYS), np.arange(DAYS))) @ away
    assert metrics.day_to_day(load) == pytest.approx(
        np.diag(left, 1).mean() / np.diag(left).mean(), abs=0.015
    )
    assert metrics.between_customers(load) == pytest.approx(1 - np.diag(left).mean() / 5.0, abs=0.02)
    dealt = strangers(load, 6)
    assert metrics.day_to_day(dealt) == pytest.approx(-1 / DAYS, abs=0.015)
    assert metrics.between_customers(dealt) == pytest.approx(1 / DAYS, abs=0.005)


def test_coincidence_is_one_for_copies_and_low_for_peaks_that_never_meet() -> None:
    copies = np.repeat(lived(1, 7), 60, axis=0)
    assert metrics.coincidence(copies) == pytest.approx(1.0)
    apart = np.full((STEPS, DAYS, STEPS), FLOOR)
    apart[np.arange(STEPS), 0, np.arange(STEPS)] = 1.0
    assert metrics.coincidence(apart) == pytest.approx((1 + 23 * FLOOR) / STEPS)


def test_peaks_and_the_feeder_by_hand() -> None:
    load = np.ones((3, 2, 4))
    load[0, 0, 3] = 9.0  # mean 2: peak over mean 4.5; the others 1 and 1
    load[1, 1, 1] = 3.0  # mean 1.25: 2.4
    assert metrics.peak_over_mean(load) == pytest.approx(2.4)
    daily = np.array([(12 + 8) / 12, (12 + 2) / 12])
    assert metrics.feeder_daily_sd(load) == pytest.approx(daily.std() / daily.mean())
    assert metrics.midnight_step(load) == pytest.approx((11 - 3) / (34 / 8))


def test_the_classifier_sees_a_dependence_that_no_single_feature_shows() -> None:
    rng = np.random.default_rng(9)
    of = np.arange(1500)
    same, other = rng.standard_normal((2, 1500, 2))
    same[:, 1] = np.sign(same[:, 0]) * np.abs(same[:, 1])  # each feature is normal, together they agree
    assert told_apart((same, of), (other, of)) == pytest.approx(0.75, abs=0.05)
    assert told_apart((other[:750], of[:750]), (other[750:], of[750:])) == pytest.approx(0.5, abs=0.08)


def test_the_classifier_is_tested_on_customers_it_has_not_seen() -> None:
    rng = np.random.default_rng(11)
    of = np.repeat(np.arange(100), 10)
    first, second = (np.repeat(rng.standard_normal((100, 5)), 10, axis=0) for _ in range(2))
    # every customer is the same ten times over: whoever had seen it would know it
    assert told_apart((first, of), (second, of)) == pytest.approx(0.5, abs=0.13)


@pytest.mark.slow
def test_dither_hides_the_resolution_of_the_meters_and_nothing_else() -> None:
    quantum = 0.25
    fine, other = lived(100, 12), lived(100, 13)
    metered = np.maximum(quantum * np.round(other / quantum), FLOOR)
    seen, _, _ = metrics.classifier_auc(fine, metered, SETTING)
    dithered, _, _ = metrics.classifier_auc(fine, metered, replace(SETTING, quantum_kw=quantum))
    assert seen > 0.9
    assert dithered < 0.65


def test_the_forecast_is_ridge_regression() -> None:
    drawn, real = np.log(lived(8, 14)), np.log(lived(8, 15))
    (x, y), (x_real, y_real) = (day_rows(load, WEEKEND) for load in (drawn, real))
    assert x.shape == (8 * (DAYS - 7), 3 * 24 + 2)
    np.testing.assert_array_equal(x[0, :24], drawn[0, 6])
    np.testing.assert_array_equal(x[0, 24:48], drawn[0, 0])
    np.testing.assert_allclose(x[0, 48:72], drawn[0, :7].mean(axis=0))
    # as least squares with rows of √10 below, on standardised features
    unit = (x - x.mean(axis=0)) / x.std(axis=0)
    stacked = np.vstack([unit, np.sqrt(10.0) * np.eye(unit.shape[1])])
    aim = np.vstack([y - y.mean(axis=0), np.zeros((unit.shape[1], 24))])
    weights = np.linalg.lstsq(stacked, aim, rcond=None)[0]
    forecast = (x_real - x.mean(axis=0)) / x.std(axis=0) @ weights + y.mean(axis=0)
    expected = np.sqrt(np.mean((forecast - y_real) ** 2))
    assert forecast_error((x, y), (x_real, y_real)) == pytest.approx(expected, rel=1e-9)


# ------------------------------------------------------------------ voltages, feeder head, node loads
def test_voltage_figures_by_hand() -> None:
    v = np.array([[[0.94, 1.0], [0.96, 1.02]], [[1.0, 1.0], [1.0, 1.06]]])  # (day, step, node)
    mean, inside, swing = comparison.voltage_figures(v)
    assert mean == pytest.approx(v.mean())
    assert inside == 6 / 8
    assert swing == pytest.approx(np.mean([0.02, 0.02, 0.0, 0.06]))
    moved = v + np.array([0.0, 0.004])
    assert comparison.voltage_distances(moved, v) == pytest.approx((2.0, 4.0))  # all, and the second node


def test_head_figures_by_hand() -> None:
    power = np.array([[1.0, 3.0], [2.0, 6.0]])
    mean, peak, factor, daily = comparison.head_figures(power)
    assert (mean, peak, factor) == (3.0, 6.0, 0.5)
    assert daily == pytest.approx(1.0 / 3.0)  # days of 2 and 4 about 3
    profile, changes = comparison.head_distances(power + 3.0, power)
    assert profile == pytest.approx(100.0)
    assert changes == 0.0
    assert comparison.head_distances(power, power) == (0.0, 0.0)


def test_node_loads_by_hand_and_nodes_without_load_do_not_count() -> None:
    load = np.zeros((2, 3, 3))
    load[:, :, 0] = [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]
    load[:, :, 2] = 4.0
    assert comparison.node_figures(load) == pytest.approx(((1.5 + 1.0) / 2,))
    doubled = load.copy()
    doubled[:, :, 2] *= 2
    error, changes = comparison.node_distances(doubled, load)
    assert error == pytest.approx(100 * (4.0 / 3) / 2.0)
    assert changes == pytest.approx(0.0, abs=1e-12)
