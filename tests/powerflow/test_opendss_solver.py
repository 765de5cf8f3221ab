"""OpenDSS behind the solver interface, against the batched solver and against its own failures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dp_powerflow import BatchSolver, Feeder
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import PVSystem
from dp_powerflow.grid.opendss.engine import DssOrigin
from dp_powerflow.grid.opendss.reader import read_dss
from dp_powerflow.lowlevel import Network, VoltVar
from dp_powerflow.powerflow.devices import CATEGORY_B
from support.opendss_solver import OpenDssSolver

AGREEMENT = 1e-7
"""Largest difference of a voltage between the engines [p.u.]."""


def random_load(feeder: Feeder, snapshots: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    nominal = -feeder.nominal_injection[feeder.retained]
    return nominal * rng.lognormal(-0.2, 0.5, (snapshots, len(nominal)))


@pytest.fixture(scope="module")
def solver13(ieee13: Feeder) -> OpenDssSolver:
    return OpenDssSolver(ieee13)


@pytest.mark.parametrize("name", ["ieee13", "ieee123"])
@pytest.mark.parametrize("nodes", ["retained", "all"])
def test_voltages_agree_with_the_batched_solver(
    name: str, nodes: Any, request: pytest.FixtureRequest
) -> None:
    feeder = request.getfixturevalue(name)
    load = random_load(feeder, 25)
    reference = OpenDssSolver(feeder).solve(load, nodes=nodes)
    batch = BatchSolver(feeder).solve(load, nodes=nodes)
    assert reference.converged.all()
    assert reference.v.shape == batch.v.shape
    assert np.max(np.abs(reference.v - batch.v)) < AGREEMENT


def test_taps_of_the_feeder_are_the_taps_that_are_solved(ieee13: Feeder) -> None:
    load = random_load(ieee13, 2)
    assert ieee13.taps
    moved = tuple(replace(tap, ratio=1.0) for tap in ieee13.taps)
    assert isinstance(ieee13.origin, DssOrigin)
    other = read_dss(ieee13.origin, name="moved", taps=moved)
    reference = OpenDssSolver(other).solve(load)
    assert np.max(np.abs(reference.v - BatchSolver(other).solve(load).v)) < AGREEMENT
    assert np.max(np.abs(reference.v - OpenDssSolver(ieee13).solve(load).v)) > 1e-2


def test_load_stays_constant_power_at_low_voltage(ieee13: Feeder) -> None:
    # OpenDSS would turn a load into an impedance below 0.95 p.u.; ours must not.
    load = random_load(ieee13, 1) * 1.9
    reference = OpenDssSolver(ieee13).solve(load)
    assert reference.converged.all()
    assert np.min(np.abs(reference.v)) < 0.9
    network = Network(ieee13)
    injected = reference.v[0] * np.conj(network.y @ reference.v[0] + network.b)
    assert np.max(np.abs(injected + load[0])) < 1e-7


def test_what_the_engine_calls_converged_is_not_believed(ieee13: Feeder) -> None:
    solution = OpenDssSolver(ieee13, tolerance=1e-15).solve(random_load(ieee13, 2))
    assert not solution.converged.any()
    assert np.isnan(solution.v).all()
    assert np.all(solution.mismatch > 1e-15)


def test_generation_is_injected(solver13: OpenDssSolver, ieee13: Feeder) -> None:
    load = random_load(ieee13, 3)
    generation = 1.3 * load.real.astype(np.complex128)
    reference = solver13.solve(load, generation)
    batch = BatchSolver(ieee13).solve(load, generation)
    assert np.max(np.abs(reference.v - batch.v)) < AGREEMENT
    assert np.mean(np.abs(reference.v)) > np.mean(np.abs(solver13.solve(load).v)) + 0.01


def test_volt_var_agrees_with_the_batched_solver(ieee13: Feeder) -> None:
    load = random_load(ieee13, 3)
    chosen = ieee13.retained[::3]
    pv = tuple(PVSystem(f"pv{k}", ((int(k), -1),), kva=100.0, kw_peak=90.0) for k in chosen)
    feeder = replace(ieee13, pv=pv)
    voltvar = VoltVar.for_feeder(feeder, CATEGORY_B)
    generation = np.zeros_like(load)
    generation[:, voltvar.nodes] = 0.1
    reference = OpenDssSolver(feeder, voltvar=voltvar).solve(load, generation)
    batch = BatchSolver(feeder, voltvar=voltvar).solve(load, generation)
    plain = OpenDssSolver(feeder).solve(load, generation)
    assert reference.converged.all()
    assert np.max(np.abs(reference.v - batch.v)) < AGREEMENT
    assert np.max(np.abs(reference.v - plain.v)) > 1e-4


def test_feeder_changed_after_reading_is_refused(ieee13: Feeder) -> None:
    with pytest.raises(PowerFlowError, match="not those of the OpenDSS file"):
        OpenDssSolver(replace(ieee13, y=ieee13.y * 1.0001))
    renamed = ("elsewhere.1", *ieee13.nodes[1:])
    with pytest.raises(PowerFlowError, match="1 nodes of feeder"):
        OpenDssSolver(replace(ieee13, nodes=renamed))
