"""Recovery: who sees which days, what is trained with which noise, chosen, written and taken up again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from dp_powerflow.errors import LoadDataError, PrivacyError
from dp_powerflow.privacy.budget import rho_to_epsilon
from dp_powerflow.units import FloatArray, IntArray
from dp_powerflow_paper.datasets import ExperimentOptions, silent
from dp_powerflow_paper.mechanisms.gaussian import noise_free
from dp_powerflow_paper.recovery import columns, methods, training
from dp_powerflow_paper.recovery import runs as recovery_runs
from dp_powerflow_paper.recovery.report import Part, kept, to_json, to_markdown, write_all
from dp_powerflow_paper.recovery.runs import Run, Shared
from dp_powerflow_paper.wasserstein.evaluation import WORST, Outcome
from dp_powerflow_paper.wasserstein.experiment import missing_fits
from dp_powerflow_paper.wasserstein.search import Configuration
from support.tables import tables_of

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install 'dp-powerflow[ml]'")
pytest.importorskip("opacus", reason="opacus is not installed: pip install 'dp-powerflow[ml]'")

TABLES = tables_of(__file__)
SHORT = training.Schedule(epochs=3, patience=3, batch=32, learning_rate=3e-3)
SMALL = methods.Plan(adam=SHORT, dp_sgd=SHORT, rates=(0.01, 0.05), clips=(0.1,), **TABLES["SMALL"])
CLAIM = {"network": {"epsilon": 48.0, "unit": "step", "proved": False}, "loads": None}
LITERAL, RUNS = Configuration("literal", None, 0.1, 1.5), {WORST: [47.0, 48.0]}
OUTCOME = Outcome(LITERAL, (1e-3, 1e-4), (2e-3, 1e-4), 0.0, CLAIM, {"noise": 0.25}, {}, None, None, RUNS)
FOUND = columns.Chosen(OUTCOME, (47.0, 49.5))


def voltages(days: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    wave = np.sin(np.arange(96) / 96 * 2 * np.pi)[None, :, None]
    return 1.0 + generator.normal(0.0, 0.01, (days, 1, 5)) + 0.02 * wave


def source(name: str = "released", fails: Iterable[int] = ()) -> methods.Source:
    """A method whose days of those numbers have one snapshot without power flow."""

    def release(run: int, generator: np.random.Generator, days: IntArray) -> FloatArray:
        vm = voltages(len(days), int(generator.integers(1 << 30)))
        vm[np.isin(days, list(fails)), 7] = np.nan
        return vm

    split = methods.split_days(24, 4, np.random.default_rng(0))
    return methods.Source(voltages(24, 0), split, {name: release}, epsilon_step=50.0, delta=1e-5)


def recovered(given: methods.Source, folder: Path, plan: methods.Plan = SMALL) -> methods.Recovery:
    return methods.run_recovery(given, plan, folder, seed=0, workers=1, progress=silent)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> methods.Recovery:
    return recovered(source(), tmp_path_factory.mktemp("runs"))


def test_days_held_out_are_nobodys_training_days() -> None:
    split = methods.split_days(365, 60, np.random.default_rng(0))
    together = np.concatenate([split.train, split.evaluation, split.test])
    assert sorted(together) == list(range(365))
    assert (len(split.evaluation), len(split.test)) == (60, 60)
    with pytest.raises(LoadDataError, match="give at least 180"):
        methods.split_days(179, 60, np.random.default_rng(0))


def test_every_method_has_all_runs_and_the_budget_is_that_of_all_days(found: methods.Recovery) -> None:
    assert list(found.curves) == [methods.NOISE_FREE, "released", methods.DP_SGD]
    assert all(len(runs) == 2 for runs in found.curves.values())
    assert found.days == 13  # 10 windows a day
    assert (found.calibration.epsilon, found.calibration.steps) == (50.0 * 96 * 13, 3 * 4)
    assert found.dp_sgd[1].noise_multiplier == found.calibration.leading_order
    assert set(found.searched) == {(0.1, 0.01), (0.1, 0.05)}
    best = min(found.searched, key=lambda pair: found.searched[pair])
    assert found.dp_sgd[0].learning_rate == pytest.approx(best[1] / best[0])


def test_tables_and_figures_say_what_was_found(found: methods.Recovery, tmp_path: Path) -> None:
    chosen: dict[str, columns.Chosen | str] = {
        "released": FOUND,
        "never": "the formula is at least 60; lower r",
    }
    written = write_all("made up", [Part(50.0, found, chosen)], tmp_path / "new")
    assert [path.suffix for path in written.files] == [".md", ".json", *2 * [".svg", ".png"]]
    assert all(path.stat().st_size for path in written.files)
    assert f"| DP-SGD | {1e6 * kept(found.curves[methods.DP_SGD], 'test')[0]:.3g} ± " in written.text
    assert [line for line in TABLES["WRITTEN"] if line not in written.text] == []
    stored = json.loads(written.files[1].read_text(encoding="utf-8"))
    assert stored["insecure_seed"] is True
    part = stored["epsilons"][0]
    assert part["chosen"]["released"]["outcome"]["claim"]["network"]["proved"] is False
    assert part["methods"][methods.NOISE_FREE]["best_epoch"] == [
        run.best + 1 for run in found.curves[methods.NOISE_FREE]
    ]
    # A run that diverged is null in JSON, and not hidden.
    nan = np.full(3, np.nan)
    diverged = {**found.curves, methods.DP_SGD: (training.Curves(nan, nan, nan, 0, 2),)}
    parts = [Part(50.0, replace(found, curves=diverged), chosen)]
    stored = json.loads(json.dumps(to_json("made up", parts), allow_nan=False))
    assert stored["epsilons"][0]["methods"][methods.DP_SGD]["test_mse"] == [None]
    assert "| DP-SGD | nan" in to_markdown("made up", parts)


def test_a_run_is_not_trained_twice_and_a_changed_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[str, int]] = []
    real = recovery_runs.execute

    def counted(runs: Sequence[Run], shared: Shared) -> list[training.Curves]:
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
    assert {name for name, _ in trained} == {methods.NOISE_FREE, "released e50"}
    trained.clear()
    recovered(replace(source(), epsilon_step=25.0), tmp_path, slower)
    again = {name for name, _ in trained}
    assert "DP-SGD e25" in again  # other noise
    assert methods.NOISE_FREE not in again


def test_days_without_power_flow_are_left_out_and_others_drawn_and_a_method_without_any_is_told(
    tmp_path: Path,
) -> None:
    order = methods.training_days(source().split, 0, 0)
    found = recovered(source("holes", order[:2]), tmp_path / "some", replace(SMALL, samples=60))
    told = found.holes["holes"]
    assert len(found.curves["holes"]) == 2
    assert np.isfinite(found.curves["holes"][0].test).all()
    assert (told.without, told.left_out >= 2, 0 < told.failed < 1 / 96) == (0, True, True)
    text = to_markdown("made up", [Part(50.0, found, {"holes": FOUND})])
    assert f"| holes | 50 | {100 * told.failed:.2g} % | {told.left_out} | 0 of 2 |" in text

    # 3 days of 10 windows, of at most 12 that are drawn.
    found = recovered(source("holes", range(24)), tmp_path / "none", replace(SMALL, samples=30))
    assert list(found.curves) == [methods.NOISE_FREE, methods.DP_SGD]
    told = found.holes["holes"]
    assert told == replace(told, failed=1 / 96, left_out=2 * 3 * methods.MOST_DRAWS, without=2)
    written = write_all("made up", [Part(50.0, found, {"holes": FOUND})], tmp_path / "written")
    assert "| holes | no training set: 1 % of the snapshots have no power flow |" in written.text


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> columns.Bench:
    return columns.open_bench(
        options_in(tmp_path_factory.mktemp("recovery")), replace(methods.QUICK, runs=2), (200.0,)
    )


def options_in(folder: Path, days: int = 20) -> ExperimentOptions:
    return ExperimentOptions(out=folder, data="simulated", quick=True, calibration_days=days)


@pytest.mark.slow
def test_nothing_is_fitted_to_days_held_out(bench: columns.Bench) -> None:
    held_out = np.concatenate([bench.split.evaluation, bench.split.test])
    all_days = bench.data.history.days
    assert not {all_days[day] for day in held_out} & set(bench.lab.data.history.days)
    assert bench.lab.data.history.n_days == len(all_days) - len(held_out)
    # The days the search measures distances to are training days too.
    truth = bench.data.true_load(np.sort(bench.split.train))
    days = bench.lab.data.spread_days(bench.lab.scale.days)
    np.testing.assert_array_equal(bench.lab.setting.true_load, truth[days])


@pytest.mark.slow
def test_every_run_has_a_fit_of_its_own_and_the_days_it_is_asked_for(bench: columns.Bench) -> None:
    source, chosen = columns.source_at(bench, columns.search(bench.lab), 200.0)
    assert list(chosen) == [column.label for column in columns.COLUMNS]
    assert len(chosen) == len(columns.COLUMNS)  # no two have one label
    found = {name: one for name, one in chosen.items() if isinstance(one, columns.Chosen)}
    assert set(source.releases) == set(found)
    assert not any(one.network["proved"] for one in found.values())
    assert source.delta == bench.lab.delta
    days = bench.split.train[:2]
    for release in source.releases.values():
        assert release(0, np.random.default_rng(0), days).shape == (2, 96, len(bench.data.loaded))
    release = source.releases[columns.Column("dp-powerflow").label]
    one, other = (release(run, np.random.default_rng(0), days) for run in (0, 1))
    assert np.isfinite(one).all()
    assert not np.array_equal(one, other)
    free = columns.on_days(noise_free(bench.lab.setting), bench.data, days)
    np.testing.assert_allclose(np.abs(free.release(np.random.default_rng(1), 2)), bench.true[days], atol=1e-9)


def test_other_processes_make_the_fits_that_are_missing(tmp_path: Path) -> None:
    plan, point = replace(methods.QUICK, runs=2), Configuration("full-support", 200.0, 5.0)
    lab = columns.open_bench(options_in(tmp_path), plan, (200.0,)).lab
    wanted = missing_fits(lab, [point], 2)
    assert wanted == [(5.0, 0, 1.0), (5.0, 1, 1.0)]
    columns.Fits(options_in(tmp_path), plan, (200.0,), tuple(wanted)).start(None)(1)
    assert missing_fits(lab, [point], 2) == [(5.0, 0, 1.0)]


@pytest.mark.slow
def test_the_literal_recipe_is_within_epsilon_or_says_its_smallest(bench: columns.Bench) -> None:
    column = columns.Column("literal")
    outcomes = columns.search(bench.lab, [column])
    refused = columns.choose(bench.lab, outcomes, column, 1e-3)
    assert isinstance(refused, str)
    assert refused.startswith("its smallest ε is ")
    found = columns.choose(bench.lab, outcomes, column, np.inf)
    assert isinstance(found, columns.Chosen)
    claims = [
        found.configuration.variant.build(bench.lab, found.configuration, run).cost().network
        for run in range(bench.lab.scale.runs)
    ]
    assert found.epsilon == (min(c.epsilon for c in claims if c), max(c.epsilon for c in claims if c))


def test_a_calibration_that_fails_is_not_taken_for_a_mechanism_that_cannot_reach_epsilon(
    tmp_path: Path,
) -> None:
    bench = columns.open_bench(options_in(tmp_path, 3), methods.QUICK, (200.0,))
    with pytest.raises(PrivacyError, match="at least 20 days"):
        columns.search(bench.lab, [columns.Column("gmm-noise")])


def test_a_day_of_96_steps_has_two_windows_that_share_three_hours() -> None:
    assert [training.windows_per_day(steps) for steps in (96, 48, 120)] == [2, 1, 3]
    vm = np.arange(3 * 96 * 5, dtype=float).reshape(3, 96, 5)
    windows = training.cut_windows(vm).reshape(3, 2, 5, 48)
    for number, begin in enumerate((0, 36)):
        np.testing.assert_array_equal(windows[:, number], vm[:, begin : begin + 48].transpose(0, 2, 1))


def test_hidden_blocks_are_contiguous_24_long_and_equally_likely() -> None:
    hidden = training.hide_blocks(20_000, np.random.default_rng(0))
    assert (hidden.sum(axis=1) == 24).all()
    edges = np.abs(np.diff(hidden.astype(int), axis=1, prepend=0, append=0)).sum(axis=1)
    assert (edges == 2).all()  # one beginning and one end: one block
    counts = np.bincount(hidden.argmax(axis=1), minlength=25)
    assert len(counts) == 25
    assert np.abs(counts - 800).max() < 5 * np.sqrt(800)


def test_zcdp_conversion_gives_the_number_worked_out_by_hand_and_is_the_papers() -> None:
    # √(24 + 1) − √24 = 0.1010205, squared
    assert methods.zcdp(methods.SampleBudget(1.0, 24.0)) == pytest.approx(0.010205144, rel=1e-6)
    # It inverts ε = ρ + 2√(ρ ln 1/δ).
    rho = methods.zcdp(methods.SampleBudget(0.5, 30.0))
    assert rho + 2 * math.sqrt(rho * 30.0) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta"),
    [(1.0, 0.01, 1000, 1e-5), (2.0, 0.064, 1600, 1e-5), (20.0, 0.064, 2400, 1e-7), (1.2, 0.064, 50, 1e-6)],
)
def test_epsilon_of_the_accountant_is_that_of_dp_accounting(
    noise: float, rate: float, steps: int, delta: float
) -> None:
    ours = methods.sampled_epsilon(noise, rate, steps, math.log(1 / delta))
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    accountant = RdpAccountant(orders=[float(order) for order in range(2, 512)])
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, steps))
    library = accountant.get_epsilon(delta)
    # Ours looks at fewer orders above 64, so it may only be larger, and hardly.
    assert library * (1 - 1e-9) <= ours <= library * 1.01


def test_calibrated_noise_meets_the_budget_of_one_window_and_hardly_more() -> None:
    found = methods.calibrate(50.0, 1e-5, samples=1000, batch=64, steps=1600)
    target = found.sample

    def spent(noise: float) -> float:
        return methods.sampled_epsilon(noise, 0.064, 1600, target.log_inverse_delta)

    assert spent(found.exact) <= target.epsilon
    assert spent(0.99 * found.exact) > target.epsilon
    # ε′ = 0.05, ln 1/δ′ = ln 1e8 + 49.95; S·q²/2σ² = ρ.
    log_inverse_delta = math.log(1e8) + 49.95
    rho = (math.sqrt(log_inverse_delta + 0.05) - math.sqrt(log_inverse_delta)) ** 2
    assert found.rho == pytest.approx(rho, rel=1e-9)
    assert 1600 * 0.064**2 / (2 * found.leading_order**2) == pytest.approx(rho, rel=1e-9)
    assert 1600 / (2 * found.without_sampling**2) == pytest.approx(rho, rel=1e-9)


def test_whole_batch_noise_is_a_gaussian_mechanism_at_the_networks_budget() -> None:
    found = methods.calibrate(50.0, 1e-5, samples=1000, batch=64, steps=1600)
    rho = 1600 * (2 * 64) ** 2 / (2 * found.whole_batch**2)
    assert 50.0 * (1.0 - 1e-4) <= rho_to_epsilon(rho, 1e-5) <= 50.0


ONE_STEP = training.Schedule(epochs=1, patience=1, batch=64, learning_rate=0.5)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with training.one_thread():
        yield


def lines_of(count: int, seed: int = 0) -> training.Samples:
    """Straight lines of random height and slope."""
    generator = np.random.default_rng(seed)
    height, slope = generator.normal(1.0, 0.02, (count, 1)), generator.normal(0.0, 5e-4, (count, 1))
    return training.Samples(height + slope * (np.arange(48) - 23.5), training.hide_blocks(count, generator))


def seeded(seed: int) -> Any:
    return torch.Generator().manual_seed(seed)


def weights(model: Any) -> Any:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def change(privacy: training.Privacy, samples: training.Samples) -> Any:
    """What one step of DP-SGD on these samples does to the weights."""
    model = training.make_mlp(seeded(0))
    before = weights(model).clone()
    private = training.PrivateSteps(model, privacy, ONE_STEP, seeded(1))
    private.step(training.to_tensors(samples))
    return weights(model) - before


def test_runs_trained_together_are_trained_as_if_alone() -> None:
    schedule = training.Schedule(epochs=4, patience=4, batch=64, learning_rate=3e-3)
    trains, evaluation, test = [lines_of(200, seed) for seed in (5, 6, 7)], lines_of(100, 2), lines_of(100, 3)
    together = training.train_adam(trains, evaluation, test, schedule, [10, 11, 12])
    for train, seed, curves in zip(trains, (10, 11, 12), together, strict=True):
        (alone,) = training.train_adam([train], evaluation, test, schedule, [seed])
        np.testing.assert_allclose(curves.test, alone.test, rtol=1e-3)
        np.testing.assert_allclose(curves.train, alone.train, rtol=1e-3)


def test_training_stops_by_the_evaluation_set_and_keeps_the_best_epoch() -> None:
    assert training.best_and_last(np.array([3.0, 2.0, 2.5, 2.4, 1.0]), 3) == (4, 4)
    assert training.best_and_last(np.array([3.0, np.nan, np.nan, np.nan]), 2) == (0, 2)
    # The evaluation set is of another kind, so learning the training set makes it worse soon.
    evaluation = replace(lines_of(200, 2), values=np.full((200, 48), 1.0))
    train = replace(lines_of(200, 1), values=np.full((200, 48), 1.2))
    schedule = training.Schedule(epochs=80, patience=5, batch=64, learning_rate=1e-2)
    (curves,) = training.train_adam([train], evaluation, evaluation, schedule, [0])
    assert curves.stopped == curves.best + 5 < 79
    assert len(curves.test) == 80
    assert (curves.test[curves.stopped + 1 :] == curves.test[curves.best]).all()
    assert curves.evaluation.min() == curves.evaluation[curves.best]


def test_without_noise_or_clipping_the_private_step_is_plain_sgd() -> None:
    model, samples = training.make_mlp(seeded(0)), lines_of(64)
    training.sample_losses(model, training.to_tensors(samples)).mean().backward()
    expected = -0.5 * torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    actual = change(training.Privacy(0.0, 1e6), samples)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-7)


def test_one_sample_cannot_move_the_model_by_more_than_the_clip_norm() -> None:
    cut, loose = training.Privacy(0.0, 0.01), training.Privacy(0.0, 1e9)
    wild = training.Samples(np.full((1, 48), 50.0), training.hide_blocks(1, np.random.default_rng(0)))
    limit = 0.5 * cut.clip / 64  # learning rate · C / expected batch
    assert float(change(cut, wild).norm()) == pytest.approx(limit, rel=1e-3)
    # The same sample unclipped goes far beyond: the bound above is the clipping's doing.
    assert float(change(loose, wild).norm()) > 1000 * limit
    # Clipping is per sample and before the sum: beside 63 others, the wild one still adds C at the most.
    calm = lines_of(63)
    both = training.Samples(np.vstack([calm.values, wild.values]), np.vstack([calm.hidden, wild.hidden]))
    assert float((change(cut, both) - change(cut, calm)).norm()) == pytest.approx(limit, rel=1e-2)


@pytest.mark.parametrize(("noise", "clip"), [(3.0, 0.1), (24.0, 1.0)])
def test_noise_added_has_the_calibrated_variance(noise: float, clip: float) -> None:
    # An empty batch has no gradient, so a step is -rate · N(0, (σC)²)/B and nothing else.
    nothing = training.Samples(np.empty((0, 48)), np.empty((0, 48), dtype=bool))
    model = training.make_mlp(seeded(0))
    private = training.PrivateSteps(model, training.Privacy(noise, clip), ONE_STEP, seeded(1))
    path = [weights(model).double()]
    for _ in range(40):
        private.step(training.to_tensors(nothing))
        path.append(weights(model).double())
    moved = torch.diff(torch.stack(path), dim=0).flatten()
    deviation = 0.5 * noise * clip / 64
    count = len(moved)
    # Standard errors of mean and variance of `count` independent normal draws; five of them.
    assert abs(float(moved.mean())) < 5 * deviation / math.sqrt(count)
    assert float(moved.var()) == pytest.approx(deviation**2, rel=5 * math.sqrt(2 / count))


def test_poisson_batches_have_the_binomials_mean_and_variance() -> None:
    generator = seeded(0)
    sizes = np.array([len(training.draw_batch(1000, 64, True, generator)) for _ in range(4000)])
    variance = 64 * (1 - 0.064)
    assert abs(sizes.mean() - 64) < 5 * math.sqrt(variance / 4000)
    assert sizes.var() == pytest.approx(variance, rel=0.12)
    fixed = training.draw_batch(1000, 64, False, generator)
    assert len(fixed) == len(torch.unique(fixed)) == 64


def test_more_noise_makes_dp_sgd_worse() -> None:
    schedule = training.Schedule(epochs=12, patience=12, batch=64, learning_rate=0.3)
    sets = lines_of(500, 1), lines_of(200, 2), lines_of(200, 3)
    little, much = (
        training.train_dp_sgd(*sets, schedule, training.Privacy(noise, 1.0), seed=0) for noise in (0.1, 30.0)
    )
    assert little.test[little.best] < 0.5 * much.test[much.best]
