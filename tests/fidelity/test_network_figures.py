"""Voltages, feeder head and node loads: planted cases beside independent computations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import wasserstein_distance

from dp_powerflow.fidelity import comparison
from dp_powerflow.units import FloatArray


def voltages(seed: int, nodes: int = 4) -> FloatArray:
    rng = np.random.default_rng(seed)
    return 1.0 + 0.01 * np.arange(nodes) + 0.005 * rng.standard_normal((5, 24, nodes))


def test_voltage_distances_are_those_of_scipy() -> None:
    first, second = voltages(0), voltages(1)
    pooled, worst = comparison.voltage_distances(first, second)
    each = [wasserstein_distance(first[..., k].ravel(), second[..., k].ravel()) for k in range(4)]
    assert pooled == pytest.approx(1e3 * wasserstein_distance(first.ravel(), second.ravel()))
    assert worst == pytest.approx(1e3 * max(each))


def test_nodes_in_an_unknown_order_are_matched_by_the_rank_of_their_means() -> None:
    first = voltages(0)
    shuffled = first[:, :, [2, 0, 3, 1]]
    assert comparison.voltage_distances(first, shuffled, known=True)[1] > 9.0
    assert comparison.voltage_distances(first, shuffled, known=False) == (0.0, 0.0)


def test_voltage_figures_by_hand() -> None:
    v = np.array([[[0.94, 1.0], [0.96, 1.02]], [[1.0, 1.0], [1.0, 1.06]]])  # (day, step, node)
    mean, inside, swing = comparison.voltage_figures(v)
    assert mean == pytest.approx(v.mean())
    assert inside == 6 / 8
    assert swing == pytest.approx(np.mean([0.02, 0.02, 0.0, 0.06]))


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
    assert comparison.node_peak(load) == pytest.approx((1.5 + 1.0) / 2)
    doubled = load.copy()
    doubled[:, :, 2] *= 2
    error, changes = comparison.node_distances(doubled, load)
    assert error == pytest.approx(100 * (4.0 / 3) / 2.0)
    assert changes == pytest.approx(0.0, abs=1e-12)
    swapped = load[:, :, ::-1]
    assert comparison.node_distances(swapped, load, known=False)[0] == 0.0
