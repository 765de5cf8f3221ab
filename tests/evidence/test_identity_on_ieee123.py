"""E[exp(−Λ)] = 1 on IEEE 123: the exact loss of a changed line, solved on the real feeder."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from dp_powerflow import BatchSolver, Feeder
from dp_powerflow.evidence.symbols import (
    Admittance,
    implied_load,
    log_density_of_active,
    log_density_of_reactive,
)
from dp_powerflow.grid.feeder import Line
from dp_powerflow.lowlevel import ClassLaw, LoadLaw, Network, nominal_law
from dp_powerflow.powerflow.jacobian.batch import JacobianBatch
from dp_powerflow.powerflow.jacobian.matrices import injection
from support.laws import draw

DRAWS = 8000
STANDARD_ERRORS = 4.0


@pytest.fixture(scope="module")
def law(ieee123: Feeder) -> LoadLaw:
    """Spread 0.3 on log p and 0.15·p̄ on q, one snapshot."""
    nominal = -ieee123.nominal_injection[ieee123.retained]
    of_class = ClassLaw.gaussian(np.array([-0.045]), np.array([[0.09]]), q_covariance=np.eye(1))
    return nominal_law(nominal, of_class, 0.15)


@pytest.fixture(scope="module")
def voltages(ieee123: Feeder, law: LoadLaw) -> np.ndarray:
    load = draw(law, DRAWS, np.random.default_rng(11))[:, 0]
    solution = BatchSolver(ieee123, tolerance=1e-11).solve(load)
    assert solution.converged.all()
    return solution.v[:, None, :]


def log_density(law: LoadLaw, network: Admittance, v: np.ndarray) -> np.ndarray:
    load = implied_load(network, v)
    return log_density_of_active(law, load.real) + log_density_of_reactive(law, load.real, load.imag)


def with_scaled_line(feeder: Feeder, line: Line, x: float) -> Feeder:
    shape = (len(feeder.nodes), len(line.nodes))
    at = sp.csc_array((np.ones(len(line.nodes)), (line.nodes, range(len(line.nodes)))), shape=shape)
    return replace(feeder, y=sp.csc_array(feeder.y + at @ (x * line.primitive) @ at.T))


def log_det(feeder: Feeder, network: Admittance, v: np.ndarray) -> np.ndarray:
    return JacobianBatch.from_feeder(feeder).log_abs_det(v[:, 0], injection(network.y, network.b, v)[:, 0])


@pytest.mark.parametrize(
    "name",
    ["l64", "l63", "l95", *(pytest.param(name, marks=pytest.mark.campaign) for name in ("l49", "l20"))],
)
def test_identity_holds_and_breaks_without_the_determinant(
    name: str, ieee123: Feeder, law: LoadLaw, voltages: np.ndarray
) -> None:
    x = 0.05
    line = next(line for line in ieee123.lines if line.name == name)
    reduced = Network(ieee123)
    change = reduced.line_change(line, x * line.primitive)
    true = Admittance(reduced.y, reduced.b)
    other = Admittance(reduced.y + change.change_of_y(), reduced.b + change.change_of_b(ieee123.v_slack))
    term_i = log_density(law, true, voltages) - log_density(law, other, voltages)
    term_ii = log_det(ieee123, true, voltages) - log_det(with_scaled_line(ieee123, line, x), other, voltages)
    assert np.var(term_i + term_ii) <= 0.5
    for terms, holds in ((term_i + term_ii, True), (term_i, False), (term_i - term_ii, False)):
        ratio = np.exp(-terms)
        off = abs(ratio.mean() - 1.0) / (ratio.std() / np.sqrt(DRAWS))
        assert bool(off < STANDARD_ERRORS) is holds
