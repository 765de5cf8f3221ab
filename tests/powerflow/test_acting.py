"""Acting controls behind the nodal interface of the paper's experiments."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dp_powerflow import BatchSolver, open_feeder
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.lowlevel import VoltVar
from dp_powerflow.powerflow.devices import CATEGORY_A, CATEGORY_B
from dp_powerflow.powerflow.operated import ActingSolver
from support.sunny import pv_generation


def test_with_fixed_taps_it_is_the_batch_solver() -> None:
    feeder = open_feeder("ieee123-pv")
    share = np.linspace(0.2, 1.1, 12)
    load = -share[:, None] * feeder.nominal_injection[feeder.retained]
    sun = pv_generation(feeder, np.linspace(0.0, 1.0, 12))
    voltvar = VoltVar.for_feeder(feeder, CATEGORY_B)
    frozen = ActingSolver(feeder, controls="frozen", voltvar=voltvar).solve(load, sun)
    batch = BatchSolver(feeder, voltvar=voltvar).solve(load, sun)
    assert frozen.converged.all()
    assert np.abs(frozen.v - batch.v).max() < 1e-7


def test_regulators_act_on_nodal_loads() -> None:
    feeder = open_feeder("ieee123")
    load = -np.linspace(0.1, 1.0, 24)[:, None] * feeder.nominal_injection[feeder.retained]
    acting = ActingSolver(feeder, controls="day", steps=24).solve(load)
    fixed = BatchSolver(feeder).solve(load)
    assert (np.abs(acting.v) <= 1.05).all()
    assert (np.abs(fixed.v) > 1.05).any()
    assert len(np.unique(acting.taps, axis=0)) > 1


def test_several_curves_are_refused() -> None:
    feeder = open_feeder("ieee123-pv")
    one = VoltVar.for_feeder(feeder, CATEGORY_B)
    with pytest.raises(PowerFlowError, match="one volt-var curve"):
        ActingSolver(feeder, voltvar=replace(one, curves=(CATEGORY_A, CATEGORY_B)))
