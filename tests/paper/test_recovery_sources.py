"""Voltages of the recovery experiment: who sees which days, and what is chosen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow.errors import PrivacyError
from dp_powerflow_paper.datasets import ExperimentOptions, silent
from dp_powerflow_paper.mechanisms.gaussian import NoiseFree
from dp_powerflow_paper.recovery import runs as recovery_runs
from dp_powerflow_paper.recovery.columns import (
    COLUMNS,
    Bench,
    Chosen,
    Column,
    Fits,
    choose,
    on_days,
    open_bench,
    search,
    source_at,
)
from dp_powerflow_paper.recovery.methods import DP_SGD, NOISE_FREE, QUICK, Source, run_recovery
from dp_powerflow_paper.recovery.training import Schedule
from dp_powerflow_paper.wasserstein.experiment import missing_fits
from dp_powerflow_paper.wasserstein.search import Configuration

PLAN = replace(QUICK, runs=2)
ONCE = Schedule(epochs=1, patience=1, batch=64, learning_rate=3e-3)
TINY = replace(PLAN, samples=100, held_out_samples=20, adam=ONCE, dp_sgd=ONCE)


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> ExperimentOptions:
    return ExperimentOptions(
        out=tmp_path_factory.mktemp("recovery"), data="simulated", quick=True, calibration_days=20
    )


@pytest.fixture(scope="module")
def bench(options: ExperimentOptions) -> Bench:
    return open_bench(options, PLAN, (200.0,))


@pytest.mark.slow
def test_nothing_is_fitted_to_days_held_out(bench: Bench) -> None:
    held_out = np.concatenate([bench.split.evaluation, bench.split.test])
    all_days = bench.data.history.days
    assert not {all_days[day] for day in held_out} & set(bench.lab.data.history.days)
    assert bench.lab.data.history.n_days == len(all_days) - len(held_out)
    assert bench.lab.data.n_days == len(bench.split.train)
    # The days the search measures distances to are training days too.
    truth = bench.data.true_load(np.sort(bench.split.train))
    days = bench.lab.data.spread_days(bench.lab.scale.days)
    np.testing.assert_array_equal(bench.lab.setting.true_load, truth[days])


@pytest.mark.slow
def test_every_run_has_a_fit_of_its_own_and_the_days_it_is_asked_for(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = search(bench.lab)
    source, chosen = source_at(bench, outcomes, 200.0)
    assert list(chosen) == [column.label for column in COLUMNS]
    assert len(chosen) == len(COLUMNS)  # no two have one label
    assert set(source.releases) == {name for name, found in chosen.items() if isinstance(found, Chosen)}
    assert all(not found.network["proved"] for found in chosen.values() if isinstance(found, Chosen))
    assert source.delta == bench.lab.delta
    days = bench.split.train[:2]
    for name, release in source.releases.items():
        vm = release(0, np.random.default_rng(0), days)
        assert vm.shape == (2, 96, len(bench.data.loaded)), name
    release = source.releases[Column("dp-powerflow").label]
    one, other = (release(run, np.random.default_rng(0), days) for run in (0, 1))
    assert np.isfinite(one).all()
    assert not np.array_equal(one, other)
    _every_method_trains_once(source, tmp_path, monkeypatch)
    free = on_days(NoiseFree(bench.lab.setting), bench.data, days)
    np.testing.assert_allclose(np.abs(free.release(np.random.default_rng(1), 2)), bench.true[days], atol=1e-9)


def _every_method_trains_once(source: Source, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'dp-powerflow[ml]'")
    pytest.importorskip("opacus", reason="opacus is not installed: pip install 'dp-powerflow[ml]'")
    found = run_recovery(source, TINY, folder, seed=0, workers=1, progress=silent)
    assert list(found.curves) == [NOISE_FREE, *source.releases, DP_SGD]
    assert all(len(runs) == 2 for runs in found.curves.values())
    monkeypatch.setattr(recovery_runs, "execute", None)  # training again would call it
    again = run_recovery(source, TINY, folder, seed=0, workers=1, progress=silent)
    assert again.curves.keys() == found.curves.keys()


def test_other_processes_make_the_fits_that_are_missing(options: ExperimentOptions, bench: Bench) -> None:
    point = Configuration("full-support", 200.0, 5.0)
    wanted = missing_fits(bench.lab, [point], 2)
    assert wanted == [(5.0, 0, 1.0), (5.0, 1, 1.0)]
    Fits(options, PLAN, (200.0,), tuple(wanted)).start(None)(1)
    assert missing_fits(bench.lab, [point], 2) == [(5.0, 0, 1.0)]


@pytest.mark.slow
def test_the_literal_recipe_is_within_epsilon_or_says_its_smallest(bench: Bench) -> None:
    column = Column("literal")
    outcomes = search(bench.lab, [column])
    refused = choose(bench.lab, outcomes, column, 1e-3)
    assert isinstance(refused, str)
    assert refused.startswith("its smallest ε is ")
    found = choose(bench.lab, outcomes, column, np.inf)
    assert isinstance(found, Chosen)
    claims = [
        found.configuration.variant.build(bench.lab, found.configuration, run).cost().network
        for run in range(bench.lab.scale.runs)
    ]
    assert found.epsilon == (min(c.epsilon for c in claims if c), max(c.epsilon for c in claims if c))


def test_a_calibration_that_fails_is_not_taken_for_a_mechanism_that_cannot_reach_epsilon(
    tmp_path: Path,
) -> None:
    options = ExperimentOptions(out=tmp_path, data="simulated", quick=True, calibration_days=3)
    with pytest.raises(PrivacyError, match="at least 20 days"):
        search(open_bench(options, QUICK, (200.0,)).lab, [Column("gmm-noise")])
