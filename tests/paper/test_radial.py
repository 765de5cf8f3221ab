"""LinDistFlow of balanced radial networks."""

from __future__ import annotations

import numpy as np
import pytest

from dp_powerflow.errors import FeederError
from dp_powerflow.units import ComplexArray, FloatArray
from dp_powerflow_paper.radial import RadialNetwork


def branched(root: int = 0) -> RadialNetwork:
    """Two laterals; one line is listed from its far end."""
    start, end = np.array([0, 1, 3, 1, 4]), np.array([1, 2, 2, 4, 5])
    return RadialNetwork(
        start, end, np.array([1.0, 2, 3, 4, 5]) * 1e-3, np.array([5.0, 4, 3, 2, 1]) * 1e-3, root
    )


def ac_voltages(network: RadialNetwork, s: ComplexArray) -> FloatArray:
    """Squared magnitudes by sweeps over the tree."""
    v = np.ones(network.nodes, dtype=complex)
    for _ in range(60):
        current = np.conj(s / v)
        for node in network.order[:0:-1]:
            current[network.parent[node]] += current[node]
        for node in network.order[1:]:
            line = network.line_above[node]
            v[node] = v[network.parent[node]] - (network.r[line] + 1j * network.x[line]) * current[node]
    return np.asarray(np.abs(v) ** 2)


def test_flows_are_sums_of_what_is_drawn_below() -> None:
    network = branched()
    assert network.below.tolist() == [
        [0, 1, 1, 1, 1, 1],
        [0, 0, 1, 1, 0, 0],
        [0, 0, 0, 1, 0, 0],
        [0, 0, 0, 0, 1, 1],
        [0, 0, 0, 0, 0, 1],
    ]
    assert network.flows(np.array([0.0, 1, 2, 3, 4, 5])).tolist() == [15, 5, 3, 9, 5]
    assert network.parent.tolist() == [-1, 0, 1, 2, 1, 4]


def test_squared_voltages_follow_the_drops_line_by_line() -> None:
    network = branched()
    p, q = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5]), np.array([0.0, 0.5, 0.1, 0.0, 0.2, 0.1])
    f, g, u = network.flows(p), network.flows(q), np.full(6, 1.04)
    for node in network.order[1:]:
        line = network.line_above[node]
        u[node] = u[network.parent[node]] - 2 * (network.r[line] * f[line] + network.x[line] * g[line])
    np.testing.assert_allclose(network.squared_voltages(p, q, 1.04), u, rtol=0, atol=1e-14)


@pytest.mark.parametrize("root", [0, 3])
def test_the_gap_to_ac_power_flow_shrinks_with_the_square_of_the_load(root: int) -> None:
    network = branched(root)
    s = np.array([0.3, 0.5, 0.2, 0.4, 0.6, 0.1]) + 1j * np.array([0.1, 0.2, 0.3, 0.1, 0.0, 0.2])
    s[root] = 0.0
    gaps = []
    for scale in (1.0, 0.1):
        linear = network.squared_voltages(scale * s.real, scale * s.imag)
        gaps.append(np.abs(linear - ac_voltages(network, scale * s)).max())
    assert gaps[0] < 1e-3
    assert gaps[1] < gaps[0] / 80


def test_loops_islands_and_wrong_shapes_are_refused() -> None:
    ones = np.full(3, 1e-3)
    with pytest.raises(FeederError, match="open the line that closes a loop"):
        RadialNetwork(np.array([0, 1, 2]), np.array([1, 2, 0]), ones, ones)
    with pytest.raises(FeederError, match="numbered from 0"):
        RadialNetwork(np.array([0, 1, 2]), np.array([1, 2, 9]), ones, ones)
    with pytest.raises(FeederError, match="one entry for every line"):
        RadialNetwork(np.array([0, 1, 2]), np.array([1, 2, 3]), ones[:2], ones)
