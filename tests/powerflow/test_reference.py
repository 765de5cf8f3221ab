"""The dense reference: array libraries, and agreement with the compiled solver on heavy load."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from dp_powerflow.errors import MissingExtraError, PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.powerflow.reference import ReferenceSolver
from support.small_feeders import exact_voltage, one_line


def loads_of(feeder: Feeder) -> np.ndarray:
    scale = np.linspace(0.1, 2.0, 40)[:, None]
    return scale * -feeder.nominal_injection[feeder.retained]


def test_one_line_has_its_closed_form() -> None:
    solution = ReferenceSolver(one_line(), tolerance=1e-13).solve(np.array([[0.3 + 0.1j]]))
    assert solution.v[0, 0] == pytest.approx(exact_voltage(0.1 + 0.2j, 0.3 + 0.1j), abs=1e-12)


@pytest.mark.parametrize("nodes", ["retained", "all"])
def test_the_compiled_solver_agrees_up_to_twice_the_nominal_load(ieee123, nodes) -> None:  # type: ignore[no-untyped-def]
    load = loads_of(ieee123)
    reference = ReferenceSolver(ieee123, tolerance=1e-11).solve(load, nodes=nodes)
    solution = BatchSolver(ieee123, tolerance=1e-11).solve(load, nodes=nodes)
    assert reference.converged.all()
    assert solution.converged.all()
    np.testing.assert_allclose(solution.v, reference.v, rtol=0, atol=1e-9)


def test_only_functions_of_the_array_api_standard_are_used(ieee13: Feeder) -> None:
    xp = pytest.importorskip("array_api_strict", reason="pip install array-api-strict")
    solver = ReferenceSolver(ieee13)
    load = loads_of(ieee13)
    solution = solver.solve(xp.asarray(load), xp.asarray(0.5 * load))
    assert isinstance(solution.v, type(xp.asarray(load)))
    np.testing.assert_array_equal(np.asarray(solution.v), solver.solve(load, 0.5 * load).v)


def test_torch_tensors_are_solved(ieee13: Feeder) -> None:
    torch = pytest.importorskip("torch", reason="pip install 'dp-powerflow[ml]'")
    pytest.importorskip("array_api_compat", reason="pip install array-api-compat")
    load = loads_of(ieee13)
    solution = ReferenceSolver(ieee13).solve(torch.asarray(load))
    np.testing.assert_allclose(
        np.asarray(solution.v), ReferenceSolver(ieee13).solve(load).v, rtol=0, atol=1e-8
    )


def test_foreign_tensors_without_the_bridge_name_what_to_install(
    ieee13: Feeder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tensor:
        device = "cpu"

    monkeypatch.setitem(sys.modules, "array_api_compat", None)
    with pytest.raises(MissingExtraError, match="array-api-compat"):
        ReferenceSolver(ieee13).solve(Tensor())


def test_unknown_nodes_are_refused(ieee13: Feeder) -> None:
    with pytest.raises(PowerFlowError, match="retained"):
        ReferenceSolver(ieee13).solve(loads_of(ieee13), nodes="some")  # type: ignore[arg-type]
