"""The data sets of the experiments: loads at the nodes, the sun of the same days, what tells them apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow import BatchSolver
from dp_powerflow.errors import MissingExtraError
from dp_powerflow_paper import datasets
from dp_powerflow_paper.datasets import Dataset, ExperimentOptions, open_dataset
from dp_powerflow_paper.mechanisms import solve_loads
from support.meter_files import median_pairwise_correlation


@pytest.fixture(scope="module")
def data(oedi: Path) -> Dataset:
    """The OEDI data set as the experiments open it."""
    return open_dataset(ExperimentOptions(out=Path(), oedi=oedi))


def test_the_oedi_year_has_its_pv_systems_at_nodes_without_load(data: Dataset) -> None:
    assert (data.network.n, len(data.loaded), data.n_days) == (108, 96, 365)
    assert data.true_load(np.array([3, 200])).shape == (2, 96, 96)
    assert data.generation is not None
    noon, night = data.generation.of(np.array([172])).sum(axis=1).real[[48, 0]]
    assert 0.2 < noon < 0.46  # nine inverters of 50 kVA, 1 MVA per phase
    assert night == 0.0
    assert data.voltvar is not None
    assert "9 PV systems under volt-var control" in data.words


def test_a_day_is_solved_under_its_own_sun(data: Dataset) -> None:
    days = np.array([172, 5])
    solver = BatchSolver(data.feeder, voltvar=data.voltvar)
    both = solve_loads(solver, data.true_load(days), data.sun(days))
    alone = solve_loads(solver, data.true_load(days[1:]), data.sun(days[1:]))
    assert np.array_equal(both[1], alone[0])
    dark = solve_loads(solver, data.true_load(days))
    assert np.abs(both[0, 48] - dark[0, 48]).max() > 1e-3
    assert np.abs(both[0, 0] - dark[0, 0]).max() < 1e-8


def test_data_sets_with_other_sun_control_days_or_loads_have_other_identities(data: Dataset) -> None:
    others = [
        replace(data, voltvar=None),
        replace(data, generation=data.sun(np.arange(365)[::-1])),
        replace(data, generation=None, voltvar=None),
        replace(data, radius=2e-4),
        replace(data, relative=1.01 * data.relative),
        data.of_days(np.arange(364)),
    ]
    identities = {other.identity for other in (data, *others)}
    assert len(identities) == 1 + len(others)
    assert replace(data).identity == data.identity


def test_without_simbench_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"dp-powerflow\[pandapower\]"):
        datasets.read_simbench()


@pytest.mark.slow
def test_simbench_has_96_profiles_with_a_median_correlation_of_014() -> None:
    pytest.importorskip("simbench")
    history = datasets.read_simbench()
    assert history.load_kw.shape == (96, 366, 96)
    assert median_pairwise_correlation(history) == pytest.approx(0.14, abs=0.01)
    customers = datasets.read_simbench(datasets.CUSTOMER_FAMILIES)
    assert customers.n_load_points == 27
    assert set(customers.class_label) == set(datasets.CUSTOMER_FAMILIES)
