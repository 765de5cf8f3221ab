"""The recovery experiment: who sees which days, what is chosen, trained, written and taken up again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow.errors import LoadDataError, PrivacyError
from dp_powerflow.units import FloatArray, IntArray
from dp_powerflow_paper.datasets import ExperimentOptions, silent
from dp_powerflow_paper.mechanisms.gaussian import noise_free
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
from dp_powerflow_paper.recovery.methods import (
    DP_SGD,
    MOST_DRAWS,
    NOISE_FREE,
    QUICK,
    Plan,
    Recovery,
    Source,
    run_recovery,
    split_days,
    training_days,
)
from dp_powerflow_paper.recovery.report import Part, kept, to_json, to_markdown, write_all
from dp_powerflow_paper.recovery.runs import Run, Shared
from dp_powerflow_paper.recovery.training import Curves, Schedule
from dp_powerflow_paper.wasserstein.evaluation import WORST, Outcome
from dp_powerflow_paper.wasserstein.experiment import missing_fits
from dp_powerflow_paper.wasserstein.search import Configuration

pytest.importorskip("torch", reason="torch is not installed: pip install 'dp-powerflow[ml]'")
pytest.importorskip("opacus", reason="opacus is not installed: pip install 'dp-powerflow[ml]'")

SHORT = Schedule(epochs=3, patience=3, batch=32, learning_rate=3e-3)
SMALL = Plan(
    runs=2,
    samples=128,
    batch=32,
    held_out_days=4,
    held_out_samples=20,
    adam=SHORT,
    dp_sgd=SHORT,
    rates=(0.01, 0.05),
    clips=(0.1,),
    searched_runs=1,
)
OUTCOME = Outcome(
    configuration=Configuration("literal", None, 0.1, 1.5),
    pooled=(0.001, 0.0001),
    per_node=(0.002, 0.0001),
    failed=0.0,
    claim={"network": {"epsilon": 48.0, "unit": "step", "proved": False}, "loads": None},
    noise={"noise": 0.25},
    true_delta={},
    floor=None,
    refused=None,
    runs={WORST: [47.0, 48.0]},
)
FOUND = Chosen(OUTCOME, (47.0, 49.5))


def voltages(days: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    wave = np.sin(np.arange(96) / 96 * 2 * np.pi)[None, :, None]
    return 1.0 + generator.normal(0.0, 0.01, (days, 1, 5)) + 0.02 * wave


def source(name: str = "released", fails: Sequence[int] = ()) -> Source:
    """A method whose days of those numbers have one snapshot without power flow."""

    def release(run: int, generator: np.random.Generator, days: IntArray) -> FloatArray:
        vm = voltages(len(days), int(generator.integers(1 << 30)))
        vm[np.isin(days, fails), 7] = np.nan
        return vm

    split = split_days(24, 4, np.random.default_rng(0))
    return Source(voltages(24, 0), split, {name: release}, epsilon_step=50.0, delta=1e-5)


def recovered(given: Source, folder: Path, plan: Plan = SMALL) -> Recovery:
    return run_recovery(given, plan, folder, seed=0, workers=1, progress=silent)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Recovery:
    return recovered(source(), tmp_path_factory.mktemp("runs"))


def test_days_held_out_are_nobodys_training_days() -> None:
    split = split_days(365, 60, np.random.default_rng(0))
    together = np.concatenate([split.train, split.evaluation, split.test])
    assert sorted(together) == list(range(365))
    assert (len(split.evaluation), len(split.test)) == (60, 60)
    with pytest.raises(LoadDataError, match="give at least 180"):
        split_days(179, 60, np.random.default_rng(0))


def test_every_method_has_all_runs_and_the_budget_is_that_of_all_days(found: Recovery) -> None:
    assert list(found.curves) == [NOISE_FREE, "released", DP_SGD]
    assert all(len(runs) == 2 for runs in found.curves.values())
    assert found.days == 13  # 10 windows a day
    assert (found.calibration.epsilon, found.calibration.steps) == (50.0 * 96 * 13, 3 * 4)
    assert found.dp_sgd[1].noise_multiplier == found.calibration.leading_order
    assert set(found.searched) == {(0.1, 0.01), (0.1, 0.05)}
    best = min(found.searched, key=lambda pair: found.searched[pair])
    assert found.dp_sgd[0].learning_rate == pytest.approx(best[1] / best[0])


def test_tables_and_figures_say_what_was_found(found: Recovery, tmp_path: Path) -> None:
    chosen = {"released": FOUND, "never": "the formula is at least 60; lower r"}
    written = write_all("made up", [Part(50.0, found, chosen)], tmp_path / "new")
    assert [path.suffix for path in written.files] == [".md", ".json", *2 * [".svg", ".png"]]
    assert all(path.stat().st_size for path in written.files)
    for line in (
        f"| DP-SGD | {1e6 * kept(found.curves[DP_SGD], 'test')[0]:.3g} ± ",
        "| released | 50 | ε = 47 to 49.5 per step | no | 0.1 | 1.5 (1) | — | 0.25 | 1 |",
        "| never | ε not reached |",
        "| never | 50 | none: the formula is at least 60; lower r | — |",
        "Every snapshot that was trained on has a power flow.",
        "| true δ of the classical σ | 0.586 |",  # paper correction 10: at ε = 50, δ = 1e-5
    ):
        assert line in written.text
    stored = json.loads(written.files[1].read_text(encoding="utf-8"))
    assert stored["insecure_seed"] is True
    part = stored["epsilons"][0]
    assert part["chosen"]["released"]["outcome"]["claim"]["network"]["proved"] is False
    assert part["methods"][NOISE_FREE]["best_epoch"] == [run.best + 1 for run in found.curves[NOISE_FREE]]
    # A run that diverged is null in JSON, and not hidden.
    nan = np.full(3, np.nan)
    parts = [
        Part(50.0, replace(found, curves={**found.curves, DP_SGD: (Curves(nan, nan, nan, 0, 2),)}), chosen)
    ]
    stored = json.loads(json.dumps(to_json("made up", parts), allow_nan=False))
    assert stored["epsilons"][0]["methods"][DP_SGD]["test_mse"] == [None]
    assert "| DP-SGD | nan" in to_markdown("made up", parts)


def test_a_run_is_not_trained_twice_and_a_changed_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[str, int]] = []
    real = recovery_runs.execute

    def counted(runs: Sequence[Run], shared: Shared) -> list[Curves]:
        trained.extend((run.method, run.seed) for run in runs)
        return real(runs, shared)

    monkeypatch.setattr(recovery_runs, "execute", counted)
    first = recovered(source(), tmp_path)
    assert len(trained) == 2 + 3 * 2
    trained.clear()
    second = recovered(source(), tmp_path)
    assert trained == []
    for name, runs in first.curves.items():
        for one, other in zip(runs, second.curves[name], strict=True):
            np.testing.assert_array_equal(one.test, other.test)
    (tmp_path / "released-e50-1.json").write_text("{ half a fi", encoding="utf-8")
    recovered(source(), tmp_path)
    assert trained == [("released e50", 1)]
    slower = replace(SMALL, adam=replace(SHORT, learning_rate=1e-3))
    trained.clear()
    recovered(source(), tmp_path, slower)
    assert {name for name, _ in trained} == {NOISE_FREE, "released e50"}
    trained.clear()
    recovered(replace(source(), epsilon_step=25.0), tmp_path, slower)
    methods = {name for name, _ in trained}
    assert "DP-SGD e25" in methods  # other noise
    assert NOISE_FREE not in methods


def test_days_without_power_flow_are_left_out_and_others_drawn_and_a_method_without_any_is_told(
    tmp_path: Path,
) -> None:
    order = training_days(source().split, 0, 0)
    found = recovered(source("holes", order[:2]), tmp_path / "some", replace(SMALL, samples=60))
    told = found.holes["holes"]
    assert len(found.curves["holes"]) == 2
    assert np.isfinite(found.curves["holes"][0].test).all()
    assert (told.without, told.left_out >= 2, 0 < told.failed < 1 / 96) == (0, True, True)
    text = to_markdown("made up", [Part(50.0, found, {"holes": FOUND})])
    assert f"| holes | 50 | {100 * told.failed:.2g} % | {told.left_out} | 0 of 2 |" in text

    # 3 days of 10 windows, of at most 12 that are drawn.
    found = recovered(source("holes", range(24)), tmp_path / "none", replace(SMALL, samples=30))
    assert list(found.curves) == [NOISE_FREE, DP_SGD]
    told = found.holes["holes"]
    assert told == replace(told, failed=1 / 96, left_out=2 * 3 * MOST_DRAWS, without=2)
    written = write_all("made up", [Part(50.0, found, {"holes": FOUND})], tmp_path / "written")
    assert "| holes | no training set: 1 % of the snapshots have no power flow |" in written.text


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return open_bench(options_in(tmp_path_factory.mktemp("recovery")), replace(QUICK, runs=2), (200.0,))


def options_in(folder: Path, days: int = 20) -> ExperimentOptions:
    return ExperimentOptions(out=folder, data="simulated", quick=True, calibration_days=days)


@pytest.mark.slow
def test_nothing_is_fitted_to_days_held_out(bench: Bench) -> None:
    held_out = np.concatenate([bench.split.evaluation, bench.split.test])
    all_days = bench.data.history.days
    assert not {all_days[day] for day in held_out} & set(bench.lab.data.history.days)
    assert bench.lab.data.history.n_days == len(all_days) - len(held_out)
    # The days the search measures distances to are training days too.
    truth = bench.data.true_load(np.sort(bench.split.train))
    days = bench.lab.data.spread_days(bench.lab.scale.days)
    np.testing.assert_array_equal(bench.lab.setting.true_load, truth[days])


@pytest.mark.slow
def test_every_run_has_a_fit_of_its_own_and_the_days_it_is_asked_for(bench: Bench) -> None:
    source, chosen = source_at(bench, search(bench.lab), 200.0)
    assert list(chosen) == [column.label for column in COLUMNS]
    assert len(chosen) == len(COLUMNS)  # no two have one label
    found = {name: one for name, one in chosen.items() if isinstance(one, Chosen)}
    assert set(source.releases) == set(found)
    assert not any(one.network["proved"] for one in found.values())
    assert source.delta == bench.lab.delta
    days = bench.split.train[:2]
    for release in source.releases.values():
        assert release(0, np.random.default_rng(0), days).shape == (2, 96, len(bench.data.loaded))
    release = source.releases[Column("dp-powerflow").label]
    one, other = (release(run, np.random.default_rng(0), days) for run in (0, 1))
    assert np.isfinite(one).all()
    assert not np.array_equal(one, other)
    free = on_days(noise_free(bench.lab.setting), bench.data, days)
    np.testing.assert_allclose(np.abs(free.release(np.random.default_rng(1), 2)), bench.true[days], atol=1e-9)


def test_other_processes_make_the_fits_that_are_missing(tmp_path: Path) -> None:
    plan, point = replace(QUICK, runs=2), Configuration("full-support", 200.0, 5.0)
    lab = open_bench(options_in(tmp_path), plan, (200.0,)).lab
    wanted = missing_fits(lab, [point], 2)
    assert wanted == [(5.0, 0, 1.0), (5.0, 1, 1.0)]
    Fits(options_in(tmp_path), plan, (200.0,), tuple(wanted)).start(None)(1)
    assert missing_fits(lab, [point], 2) == [(5.0, 0, 1.0)]


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
    with pytest.raises(PrivacyError, match="at least 20 days"):
        search(open_bench(options_in(tmp_path, 3), QUICK, (200.0,)).lab, [Column("gmm-noise")])
