"""Voltages of the recovery experiment: who sees which days, and what is chosen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dp_powerflow.errors import PrivacyError
from dp_powerflow.paper.datasets import ExperimentOptions
from dp_powerflow.paper.recovery.experiment import Bench, choose, claims_of, open_bench, source_at
from dp_powerflow.paper.recovery.methods import QUICK


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    options = ExperimentOptions(
        out=tmp_path_factory.mktemp("recovery"), data="simulated", quick=True, calibration_days=20
    )
    return open_bench(options, QUICK, (200.0,))


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


def test_true_voltages_are_those_of_every_day_of_the_history(bench: Bench) -> None:
    assert bench.true.shape == (bench.data.n_days, 96, bench.data.network.n)
    assert np.isfinite(bench.true).all()
    day = int(bench.split.test[0])
    again = np.abs(bench.lab.setting.solve(bench.data.true_load(np.array([day]))))
    np.testing.assert_allclose(bench.true[day], again[0], atol=1e-9)


@pytest.mark.slow
def test_every_run_of_a_mechanism_has_a_fit_of_its_own_and_no_claim_is_called_proved(bench: Bench) -> None:
    source, chosen = source_at(bench, 200.0)
    assert "DP-Powerflow" in source.releases
    assert set(chosen) == set(source.releases)
    assert source.delta == bench.lab.delta
    one, other = (source.releases["DP-Powerflow"](run, np.random.default_rng(0), 2) for run in (0, 1))
    assert one.shape == (2, 96, bench.data.network.n)
    assert np.isfinite(one).all()
    assert not np.array_equal(one, other)
    for claim in claims_of(chosen).values():
        assert claim["proved"] is False
        assert "ε = " in claim["words"]


def test_a_calibration_that_fails_is_not_taken_for_a_mechanism_that_cannot_reach_epsilon(
    tmp_path: Path,
) -> None:
    options = ExperimentOptions(out=tmp_path, data="simulated", quick=True, calibration_days=3)
    with pytest.raises(PrivacyError, match="at least 20 days"):
        source_at(open_bench(options, QUICK, (200.0,)), 200.0)


def test_a_mechanism_that_cannot_reach_epsilon_is_left_out(bench: Bench) -> None:
    assert choose(bench.lab, "dp-powerflow", 1e-3) is None


def test_stored_distances_are_used_again(bench: Bench) -> None:
    first = choose(bench.lab, "gmm-noise", 200.0)
    assert first is not None
    name = f"w1-{first.configuration.name}"
    bench.lab.store.put(name, {"w1": [0.25]})
    again = choose(bench.lab, "gmm-noise", 200.0)
    assert again is not None
    assert again.pooled_w1 == 0.25
