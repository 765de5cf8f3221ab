"""Experiments as they are run: what they write, say and take up again; data sets; noise on Y in OpenDSS."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow import BatchSolver, Feeder
from dp_powerflow.errors import ConfigError, FeederError, LoadDataError, MissingExtraError
from dp_powerflow.grid.opendss.engine import run as command
from dp_powerflow_paper import datasets, theorem, twin
from dp_powerflow_paper.admittance import (
    DrivenCircuit,
    Scale,
    as_reactors,
    draw_noise,
    run_noise,
    sigma_of,
    to_markdown,
)
from dp_powerflow_paper.datasets import Dataset, ExperimentOptions, open_dataset
from dp_powerflow_paper.derived import experiment as derived
from dp_powerflow_paper.derived.studies import CASES, reliability
from dp_powerflow_paper.dvorkin2020 import experiment as dvorkin2020
from dp_powerflow_paper.fioretto2019 import experiment as fioretto2019
from dp_powerflow_paper.mak2019 import experiment as mak2019
from dp_powerflow_paper.mechanisms import solve_loads
from dp_powerflow_paper.run import run_experiment
from support.meter_files import median_pairwise_correlation
from support.small_feeders import one_line


def check_twin(content: Any) -> bool:
    (row,) = content["rows"]["ieee13"]
    assert 0.0 < row["pooled"][0] < row["worst_node"][0]
    assert (row["draws"], row["failed"]) == (2, 0)
    # The floor is that of the line that matters most.
    chains = content["floors"]["ieee13"]
    assert [chain["element"].split()[0] for chain in chains] == ["line", "capacitor"]
    return all(0.0 < chain["pooled"] < chain["node"] for chain in chains)


def check_derived(content: Any) -> bool:
    """Loads alone leave SAIFI, and a twin alone leaves the load."""
    rows = {(row["case"], row["figure"]): row for row in content["rows"]}
    _, loads, twins, both, _ = (case.words for case in CASES)
    assert rows[loads, "SAIFI"]["median"] == 0.0
    assert rows[loads, "energy not served"]["median"] != 0.0
    assert rows[twins, "SAIFI"]["median"] == rows[both, "SAIFI"]["median"] != 0.0
    assert abs(rows[both, "SAIFI"]["median"]) < 0.1
    return all(row["failed"] == 0 for row in rows.values())


@dataclass(frozen=True)
class Small:
    """An experiment made small: what stands in, what a second run may not call, what it says."""

    module: Any
    given: dict[str, Any]
    makes: str
    said: tuple[str, ...]
    check: Callable[[Any], bool]
    needs: tuple[str, ...] = ()


SMALL = {
    "dvorkin2020": Small(
        dvorkin2020,
        {"QUICK": dvorkin2020.Scale(draws=500, feeders=("ieee13",), customers=1)},
        "measure",
        ("| feeder15 | ToV | 4.636 | 4.636 | +17.1 % |",),
        lambda content: len(content["rows"]) == 6,
        ("cvxpy",),
    ),
    "fioretto2019": Small(
        fioretto2019,
        {"QUICK": fioretto2019.Scale(cases=("case14",), alphas=(0.1,), draws=2, lengths=((0.05, 0.08),))},
        "measure_case measure_feeder",
        ("| case14 | 8081.527 | 8081.527 | 20 | 25 % |",),
        lambda content: content["cases"][0]["feasible"] == 1.0,
        ("casadi", "pandapower"),
    ),
    "mak2019": Small(
        mak2019,
        {
            "QUICK": mak2019.Scale(cases=(("case14", 0.1),), draws=2),
            "measure_leak": lambda name: {"loads": 11, "worst": 1e-9, "smallest load": 0.1},
        },
        "measure_case",
        ("| case14 | 0.1 | 2 |",),
        lambda content: content["cases"][0]["draws"] == 2,
        ("casadi", "pandapower"),
    ),
    "twin": Small(
        twin,
        {
            "KINDS": {kind: (1.0,) for kind in twin.KINDS if kind.words == "Laplace on lengths"},
            "_QUICK": twin._Size(2, 0, 3),
            "settings_of": lambda options: [twin.surrogate("ieee13")],
        },
        "_table _chains",
        ("| Laplace on lengths | 1 / 8.31 | 0 | 0.393 / 0.984 |", "times its size | 1 | 1e-06 |"),
        check_twin,
    ),
    "derived": Small(
        derived,
        {"QUICK": derived.Size(1, 2), "compared": lambda: (reliability(),), "cores": lambda: 1},
        "Bench.study",
        (),
        check_derived,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_an_experiment_writes_text_data_and_pictures_and_a_second_run_computes_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    small = SMALL[name]
    for extra in small.needs:
        pytest.importorskip(extra)
    folder = request.getfixturevalue("reference") if name == "dvorkin2020" else None
    for attribute, value in small.given.items():
        monkeypatch.setattr(small.module, attribute, value)
    options = ExperimentOptions(tmp_path, data="simulated", reference=folder, quick=True)
    first = run_experiment(name, options)
    for sentence in small.said:
        assert sentence in first.text
    assert [path.suffix for path in first.files][:2] == [".md", ".json"]
    assert {path.suffix for path in first.files[2:]} <= {".svg", ".png"}
    assert all(path.stat().st_size for path in first.files)
    assert small.check(json.loads(first.files[1].read_text(encoding="utf-8")))
    stored = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/**/*.json")}
    assert stored
    for attribute in small.makes.split():
        monkeypatch.setattr(f"{small.module.__name__}.{attribute}", pytest.fail)
    assert run_experiment(name, options) == first
    assert {path: path.stat().st_mtime_ns for path in stored} == stored


@pytest.mark.slow
def test_formula_falls_with_the_floor_through_the_papers_range(oedi: Path, tmp_path: Path) -> None:
    data = open_dataset(ExperimentOptions(tmp_path, oedi=oedi))
    rows = theorem.run_theorem(data, calibration_days=40)
    assert [row.floor for row in rows] == list(theorem.FLOORS)
    found = [row.formula for row in rows]
    sums = [samples.median.formula for samples in found]
    assert sums == sorted(sums, reverse=True)
    # Beyond the paper's 200: docs/results/network.md says what explains it and what does not.
    assert 200 < sums[0] < 600
    assert 25 < sums[-1] < 100
    for row, samples in zip(rows, found, strict=True):
        assert samples.least.formula <= samples.median.formula <= samples.most.formula < samples.day.formula
        # None of it is claimed: at r = 1e-4 no mode has a bound on this feeder.
        assert all(mode.day.epsilon is None for mode in row.evidence.rows)
        assert row.evidence.amplification.exact == pytest.approx(7.575, rel=1e-3)
        assert (row.evidence.n, row.evidence.hidden) == (96, 12)
    text = theorem.to_markdown(data.words, rows)
    assert "Formula as printed, with the exact κ, not a bound here" in text
    assert "9 PV systems under volt-var control" in text
    json.dumps(theorem.to_json(rows), allow_nan=False)


def test_wrong_names_and_folders_are_refused(tmp_path: Path) -> None:
    for name, folder, error, sentence in (
        ("nope", None, ConfigError, "no experiment 'nope'"),
        ("theorem", None, ConfigError, "--oedi"),
        ("theorem", tmp_path, LoadDataError, "not the OEDI folder"),
    ):
        with pytest.raises(error, match=sentence):
            run_experiment(name, ExperimentOptions(tmp_path, oedi=folder, calibration_days=20))


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


def test_driven_iteration_without_noise_is_opendss_itself(ieee13: Feeder) -> None:
    with pytest.raises(FeederError, match="only a feeder read from OpenDSS"):
        DrivenCircuit(one_line())
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
