"""The batched solver against OpenDSS with the same constant power at every node."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dp_powerflow import BatchSolver, Feeder, open_feeder
from dp_powerflow.grid.feeder import PVSystem
from dp_powerflow.grid.opendss.engine import DssOrigin
from dp_powerflow.grid.opendss.reader import read_dss
from dp_powerflow.lowlevel import VoltVar
from dp_powerflow.powerflow.devices import CATEGORY_B
from dp_powerflow.units import ComplexArray
from support.feeder_reference import opendss_voltages


def random_load(feeder: Feeder, snapshots: int) -> ComplexArray:
    nominal = -feeder.nominal_injection[feeder.retained]
    rng = np.random.default_rng(0)
    return np.asarray(nominal * rng.lognormal(-0.2, 0.5, (snapshots, len(nominal))))


def check_agreement(
    feeder: Feeder, load: ComplexArray, generation: ComplexArray | None = None, voltvar: VoltVar | None = None
) -> ComplexArray:
    """The voltages of all energised nodes, which both find."""
    ours = BatchSolver(feeder, tolerance=1e-12, voltvar=voltvar).solve(load, generation, nodes="all").v
    theirs = opendss_voltages(feeder, load, generation, voltvar=voltvar)[:, feeder.energised]
    assert np.max(np.abs(ours - theirs)) < 1e-7
    return ours


@pytest.mark.parametrize("name", ["ieee13", "ieee123"])
def test_voltages_of_all_nodes_are_those_of_opendss(name: str, request: pytest.FixtureRequest) -> None:
    feeder = request.getfixturevalue(name)
    check_agreement(feeder, random_load(feeder, 25))


def test_load_stays_constant_power_at_low_voltage(ieee13: Feeder) -> None:
    """OpenDSS would turn a load into an impedance below 0.95 p.u., were it not told otherwise."""
    assert np.min(np.abs(check_agreement(ieee13, 1.9 * random_load(ieee13, 1)))) < 0.9


def test_taps_of_the_feeder_are_the_taps_that_are_solved(ieee13: Feeder) -> None:
    load = random_load(ieee13, 2)
    assert isinstance(ieee13.origin, DssOrigin)
    moved = read_dss(ieee13.origin, name="moved", taps=tuple(replace(tap, ratio=1.0) for tap in ieee13.taps))
    assert np.max(np.abs(check_agreement(moved, load) - check_agreement(ieee13, load))) > 1e-2


@pytest.mark.parametrize("base_mva", [1e-2, 1e3])
def test_the_power_base_changes_nothing(base_mva: float) -> None:
    feeder = open_feeder("ieee13", base_mva=base_mva)
    check_agreement(feeder, random_load(feeder, 2))


def test_generation_is_injected_and_turned_by_volt_var(ieee13: Feeder) -> None:
    load = random_load(ieee13, 3)
    check_agreement(ieee13, load, 1.3 * load.real.astype(np.complex128))
    pv = tuple(PVSystem(f"pv{k}", ((int(k), -1),), kva=100.0, kw_peak=90.0) for k in ieee13.retained[::3])
    feeder = replace(ieee13, pv=pv)
    voltvar = VoltVar.for_feeder(feeder, CATEGORY_B)
    generation = np.zeros_like(load)
    generation[:, voltvar.nodes] = 0.1
    turned = check_agreement(feeder, load, generation, voltvar)
    assert np.max(np.abs(turned - check_agreement(feeder, load, generation))) > 1e-4
