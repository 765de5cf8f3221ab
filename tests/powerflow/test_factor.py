"""Order, partial reduction and refusal of matrices that cannot be solved."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dp_powerflow import BatchSolver, Feeder
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.powerflow.batch import prepare
from dp_powerflow.powerflow.factor import no_load_voltage
from dp_powerflow_paper.dense import DenseSolver
from support.small_feeders import feeder_of

Z = 0.1 + 0.2j


def test_no_load_voltage_solves_its_equation_to_the_last_bits(ieee123: Feeder) -> None:
    w = no_load_voltage(ieee123)
    rows = sp.csr_array(ieee123.y)[ieee123.energised].astype(np.clongdouble)
    everywhere = np.zeros(len(ieee123.nodes), dtype=np.clongdouble)
    everywhere[ieee123.energised], everywhere[ieee123.slack] = w, ieee123.v_slack
    residual = abs(rows @ everywhere).astype(np.float64)
    assert (residual <= 2e-16 * (abs(rows) @ abs(everywhere)).astype(np.float64)).all()


def test_partial_reduction_is_cheaper_than_none_and_than_all(ieee123: Feeder) -> None:
    plan = prepare(ieee123, None, 1e-8).plan
    entries = int(plan.lower_ptr[plan.n_core])
    assert len(ieee123.retained) < plan.n_core < len(ieee123.energised)
    assert entries < 0.6 * 871


def test_an_unsymmetric_matrix_is_solved(ieee13: Feeder) -> None:
    """A phase-shifting transformer makes Y unsymmetric; nothing may rely on symmetry."""
    y = ieee13.y.tolil(copy=True)
    i, j = (int(k) for k in ieee13.energised[:2])
    turn = np.exp(1j * np.deg2rad(20.0))
    y[i, j], y[j, i] = y[i, j] * turn + 0.3, y[j, i] / turn
    shifted = dataclasses.replace(ieee13, y=sp.csc_array(y))
    load = -ieee13.nominal_injection[ieee13.retained][None, :] * np.linspace(0.2, 1.0, 20)[:, None]
    solution = BatchSolver(shifted, tolerance=1e-10).solve(load)
    reference = DenseSolver(shifted, tolerance=1e-10).solve(load)
    assert reference.converged.all()
    np.testing.assert_allclose(solution.v, reference.v, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("nodes", "branches", "loaded", "shunts", "says"),
    [
        (4, [(0, 3, 0.1j), (1, 2, 0.1j)], 0, [], "2 nodes have no connection to a source"),
        (2, [(0, 1, 0.1j)], 1, [], "ideal source"),
        (3, [(0, 1, Z), (1, 2, Z)], 0, [(0, -1.0 / (2.0 * Z))], "singular"),
        # A shunt in resonance with its lines makes a diagonal entry vanish; nothing passive does.
        (4, [(0, 1, Z), (1, 2, Z), (2, 3, Z)], 0, [(0, -1.0 / Z), (1, -2.0 / Z)], "singular"),
    ],
)
def test_what_cannot_be_solved_is_refused(
    nodes: int, branches: Any, loaded: int, shunts: Any, says: str
) -> None:
    feeder = feeder_of(nodes, branches, [(loaded, 0.1 + 0j)], shunts=shunts)
    with pytest.raises(PowerFlowError, match=says):
        BatchSolver(feeder)
