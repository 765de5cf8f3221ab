"""The dense reference: agreement with the compiled solver on heavy load."""

from __future__ import annotations

import numpy as np
import pytest

from dp_powerflow import BatchSolver, Feeder
from dp_powerflow.errors import PowerFlowError
from dp_powerflow_paper.dense import DenseSolver
from support.small_feeders import exact_voltage, one_line


def loads_of(feeder: Feeder) -> np.ndarray:
    scale = np.linspace(0.1, 2.0, 40)[:, None]
    return scale * -feeder.nominal_injection[feeder.retained]


def test_one_line_has_its_closed_form() -> None:
    solution = DenseSolver(one_line(), tolerance=1e-13).solve(np.array([[0.3 + 0.1j]]))
    assert solution.v[0, 0] == pytest.approx(exact_voltage(0.1 + 0.2j, 0.3 + 0.1j), abs=1e-12)


@pytest.mark.parametrize("nodes", ["retained", "all"])
def test_the_compiled_solver_agrees_up_to_twice_the_nominal_load(ieee123, nodes) -> None:  # type: ignore[no-untyped-def]
    load = loads_of(ieee123)
    reference = DenseSolver(ieee123, tolerance=1e-11).solve(load, nodes=nodes)
    solution = BatchSolver(ieee123, tolerance=1e-11).solve(load, nodes=nodes)
    assert reference.converged.all()
    assert solution.converged.all()
    np.testing.assert_allclose(solution.v, reference.v, rtol=0, atol=1e-9)


def test_unknown_nodes_are_refused(ieee13: Feeder) -> None:
    with pytest.raises(PowerFlowError, match="retained"):
        DenseSolver(ieee13).solve(loads_of(ieee13), nodes="some")  # type: ignore[arg-type]
