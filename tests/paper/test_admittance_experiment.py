"""Noise on the entries of Y in OpenDSS: the iteration is OpenDSS's own, the noise is where it should be."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow import Feeder
from dp_powerflow.errors import FeederError
from dp_powerflow.grid.opendss.engine import run as command
from dp_powerflow_paper.admittance import (
    DrivenCircuit,
    Scale,
    as_reactors,
    draw_noise,
    run_noise,
    sigma_of,
    to_markdown,
)
from dp_powerflow_paper.datasets import ExperimentOptions
from support.small_feeders import one_line


def test_driven_iteration_without_noise_is_opendss_itself(ieee13: Feeder) -> None:
    circuit = DrivenCircuit(ieee13)
    command(circuit.engine, "Set Tolerance=1e-9", circuit.origin)
    own, driven = circuit.solve(), circuit.solve_with(circuit.matrix())
    assert own.converged
    assert driven.converged
    assert np.allclose(circuit.magnitude(driven.v), circuit.magnitude(own.v), atol=1e-7, rtol=0.0)


def test_reactors_put_the_noise_on_every_entry(ieee13: Feeder) -> None:
    circuit = DrivenCircuit(ieee13)
    before = circuit.matrix()
    drawn = sigma_of(0.1) * draw_noise(len(circuit.nodes), 0, 0)
    noise = np.triu(drawn) + np.triu(drawn, 1).T
    for text in as_reactors(circuit.nodes, noise):
        command(circuit.engine, text, circuit.origin)
    after = circuit.matrix()
    assert tuple(node.lower() for node in circuit.engine.ActiveCircuit.YNodeOrder) == circuit.nodes
    assert np.allclose(after - before, noise, rtol=1e-6, atol=1e-9 * abs(before).max())


def test_experiment_on_a_small_feeder(ieee13: Feeder, tmp_path: Path) -> None:
    scale = Scale(radii=(1e-4, 1.0), draws=1, snapshots=2, reactor_radii=(1e-4,), reactor_draws=1)
    relative = np.outer([0.5, 1.0], np.ones(len(ieee13.loads)))
    result = run_noise(ieee13, relative, scale, ExperimentOptions(tmp_path))
    assert result.untouched < 1e-4
    small = [row for row in result.rows if row.radius == 1e-4]
    assert len(small) == 4
    assert all(row.converged == 1.0 and row.shift < 1e-3 for row in small)
    for row in result.rows:
        if row.radius == 1.0:
            same = next(other for other in small if (other.loads, other.unit) == (row.loads, row.unit))
            assert row.shift > 10.0 * same.shift
    assert all(row.converged == row.draws for row in result.reactors)
    assert "acting, at most 10 rounds" in to_markdown(result)
    json.dumps(asdict(result), allow_nan=False)


def test_a_feeder_of_another_kind_is_refused() -> None:
    with pytest.raises(FeederError, match="only a feeder read from OpenDSS"):
        DrivenCircuit(one_line())
