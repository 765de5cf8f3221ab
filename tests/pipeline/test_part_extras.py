"""What a part publishes is what the plain formulas say, at the released nodes in their order."""

from __future__ import annotations

import numpy as np

from dp_powerflow._bits.elementary import multiply
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.pipeline.parts import head_power, with_slack
from dp_powerflow.powerflow.operated import OperatedSolver
from dp_powerflow.units import ComplexArray


def drawn(feeder: Feeder, snapshots: int) -> ComplexArray:
    scale = np.random.default_rng(3).uniform(0.3, 0.9, (snapshots, len(feeder.loads)))
    return np.ascontiguousarray(scale * feeder.nominal_load)


def test_power_of_the_sources_has_the_bits_of_the_product_with_the_whole_matrix() -> None:
    feeder = open_feeder("ieee123")
    rng = np.random.default_rng(1)
    shape = (7, len(feeder.energised))
    v = 1.0 + 0.05 * rng.normal(size=shape) + 0.5j * rng.normal(size=shape)
    full = with_slack(feeder, v)
    current = full @ feeder.y[feeder.slack].T
    expected = multiply(full[:, feeder.slack], np.conj(current))
    assert head_power(feeder, v).tobytes() == np.ascontiguousarray(expected).tobytes()


def test_powers_of_devices_are_those_of_all_nodes_without_the_zeros() -> None:
    feeder = open_feeder("ieee123")
    solver = OperatedSolver(feeder, controls="snapshot")
    load = drawn(feeder, 70)
    solution = solver.solve(load, nodes="all")
    solution.raise_if_failed()
    everywhere = solver.powers(load, None, solution)
    for (nodes, power), of_all in zip(solver.device_powers(load, None, solution), everywhere, strict=True):
        at = np.searchsorted(feeder.energised, nodes)
        np.testing.assert_array_equal(of_all[:, at], power)
        assert not np.delete(of_all, at, axis=1).any()
        # A snapshot does not depend on those that are added up beside it.
        alone = solver.powers(load[65:66], None, solver.solve(load[65:66], nodes="all"))
        assert alone[0].tobytes() == everywhere[0][65:66].tobytes()
    total = everywhere[0].sum(axis=1)
    assert np.all(total.real > 0.5 * load.real.sum(axis=1))
