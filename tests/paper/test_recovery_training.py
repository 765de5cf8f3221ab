"""Recovery: windows, the network and its training, the private step, its noise against numbers by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from dp_powerflow.privacy.budget import rho_to_epsilon
from dp_powerflow_paper.recovery.methods import SampleBudget, calibrate, sampled_epsilon, zcdp
from dp_powerflow_paper.recovery.training import (
    Privacy,
    PrivateSteps,
    Samples,
    Schedule,
    best_and_last,
    cut_windows,
    draw_batch,
    hide_blocks,
    make_mlp,
    one_thread,
    sample_losses,
    to_tensors,
    train_adam,
    train_dp_sgd,
    windows_per_day,
)


def test_a_day_of_96_steps_has_two_windows_that_share_three_hours() -> None:
    assert [windows_per_day(steps) for steps in (96, 48, 120)] == [2, 1, 3]
    vm = np.arange(3 * 96 * 5, dtype=float).reshape(3, 96, 5)
    windows = cut_windows(vm)
    assert windows.shape == (3 * 2 * 5, 48)
    for day in range(3):
        for node in range(5):
            early, late = windows[(day * 2 + 0) * 5 + node], windows[(day * 2 + 1) * 5 + node]
            np.testing.assert_array_equal(early, vm[day, :48, node])
            np.testing.assert_array_equal(late, vm[day, 36:84, node])
            np.testing.assert_array_equal(early[36:], late[:12])


def test_hidden_blocks_are_contiguous_24_long_and_equally_likely() -> None:
    hidden = hide_blocks(20_000, np.random.default_rng(0))
    assert (hidden.sum(axis=1) == 24).all()
    edges = np.abs(np.diff(hidden.astype(int), axis=1, prepend=0, append=0)).sum(axis=1)
    assert (edges == 2).all()  # one beginning and one end: one block
    counts = np.bincount(hidden.argmax(axis=1), minlength=25)
    assert len(counts) == 25
    assert np.abs(counts - 800).max() < 5 * np.sqrt(800)


def test_zcdp_conversion_gives_the_number_worked_out_by_hand_and_is_the_papers() -> None:
    # √(24 + 1) − √24 = 0.1010205, squared
    assert zcdp(SampleBudget(1.0, 24.0)) == pytest.approx(0.010205144, rel=1e-6)
    # It inverts ε = ρ + 2√(ρ ln 1/δ).
    rho = zcdp(SampleBudget(0.5, 30.0))
    assert rho + 2 * math.sqrt(rho * 30.0) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta"),
    [(1.0, 0.01, 1000, 1e-5), (2.0, 0.064, 1600, 1e-5), (20.0, 0.064, 2400, 1e-7), (1.2, 0.064, 50, 1e-6)],
)
def test_epsilon_of_the_accountant_is_that_of_dp_accounting(
    noise: float, rate: float, steps: int, delta: float
) -> None:
    ours = sampled_epsilon(noise, rate, steps, math.log(1 / delta))
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    accountant = RdpAccountant(orders=[float(order) for order in range(2, 512)])
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, steps))
    library = accountant.get_epsilon(delta)
    # Ours looks at fewer orders above 64, so it may only be larger, and hardly.
    assert library * (1 - 1e-9) <= ours <= library * 1.01


def test_calibrated_noise_meets_the_budget_of_one_window_and_hardly_more() -> None:
    found = calibrate(50.0, 1e-5, samples=1000, batch=64, steps=1600)
    target = found.sample

    def spent(noise: float) -> float:
        return sampled_epsilon(noise, 0.064, 1600, target.log_inverse_delta)

    assert spent(found.exact) <= target.epsilon
    assert spent(0.99 * found.exact) > target.epsilon
    # ε′ = 0.05, ln 1/δ′ = ln 1e8 + 49.95; S·q²/2σ² = ρ.
    log_inverse_delta = math.log(1e8) + 49.95
    rho = (math.sqrt(log_inverse_delta + 0.05) - math.sqrt(log_inverse_delta)) ** 2
    assert found.rho == pytest.approx(rho, rel=1e-9)
    assert 1600 * 0.064**2 / (2 * found.leading_order**2) == pytest.approx(rho, rel=1e-9)
    assert 1600 / (2 * found.without_sampling**2) == pytest.approx(rho, rel=1e-9)


def test_whole_batch_noise_is_a_gaussian_mechanism_at_the_networks_budget() -> None:
    found = calibrate(50.0, 1e-5, samples=1000, batch=64, steps=1600)
    rho = 1600 * (2 * 64) ** 2 / (2 * found.whole_batch**2)
    assert rho_to_epsilon(rho, 1e-5) == pytest.approx(50.0, rel=1e-4)
    assert rho_to_epsilon(rho, 1e-5) <= 50.0


torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install 'dp-powerflow[ml]'")
pytest.importorskip("opacus", reason="opacus is not installed: pip install 'dp-powerflow[ml]'")

ONE_STEP = Schedule(epochs=1, patience=1, batch=64, learning_rate=0.5)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def made(count: int, seed: int = 0) -> Samples:
    """Straight lines of random height and slope."""
    generator = np.random.default_rng(seed)
    height, slope = generator.normal(1.0, 0.02, (count, 1)), generator.normal(0.0, 5e-4, (count, 1))
    return Samples(height + slope * (np.arange(48) - 23.5), hide_blocks(count, generator))


def seeded(seed: int) -> Any:
    return torch.Generator().manual_seed(seed)


def weights(model: Any) -> Any:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def change(model: Any, privacy: Privacy, samples: Samples) -> Any:
    """What one step of DP-SGD on these samples does to the weights."""
    before = weights(model).clone()
    private = PrivateSteps(model, privacy, ONE_STEP, seeded(1))
    private.step(to_tensors(samples))
    return weights(model) - before


def test_runs_trained_together_are_trained_as_if_alone() -> None:
    schedule = Schedule(epochs=4, patience=4, batch=64, learning_rate=3e-3)
    trains, evaluation, test = [made(200, seed) for seed in (5, 6, 7)], made(100, 2), made(100, 3)
    together = train_adam(trains, evaluation, test, schedule, [10, 11, 12])
    for train, seed, curves in zip(trains, (10, 11, 12), together, strict=True):
        (alone,) = train_adam([train], evaluation, test, schedule, [seed])
        np.testing.assert_allclose(curves.test, alone.test, rtol=1e-3)
        np.testing.assert_allclose(curves.train, alone.train, rtol=1e-3)


def test_training_stops_by_the_evaluation_set_and_keeps_the_best_epoch() -> None:
    assert best_and_last(np.array([3.0, 2.0, 2.5, 2.4, 1.0]), 3) == (4, 4)
    assert best_and_last(np.array([3.0, np.nan, np.nan, np.nan]), 2) == (0, 2)
    # The evaluation set is of another kind, so learning the training set makes it worse soon.
    evaluation = replace(made(200, 2), values=np.full((200, 48), 1.0))
    train = replace(made(200, 1), values=np.full((200, 48), 1.2))
    schedule = Schedule(epochs=80, patience=5, batch=64, learning_rate=1e-2)
    (curves,) = train_adam([train], evaluation, evaluation, schedule, [0])
    assert curves.stopped == curves.best + 5 < 79
    assert len(curves.test) == 80
    assert (curves.test[curves.stopped + 1 :] == curves.test[curves.best]).all()
    assert curves.evaluation.min() == curves.evaluation[curves.best]


def test_without_noise_or_clipping_the_private_step_is_plain_sgd() -> None:
    model, samples = make_mlp(seeded(0)), made(64)
    sample_losses(model, to_tensors(samples)).mean().backward()
    expected = -0.5 * torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    actual = change(make_mlp(seeded(0)), Privacy(0.0, 1e6), samples)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-7)


def test_one_sample_cannot_move_the_model_by_more_than_the_clip_norm() -> None:
    clip = 0.01
    wild = Samples(np.full((1, 48), 50.0), hide_blocks(1, np.random.default_rng(0)))
    limit = 0.5 * clip / 64  # learning rate · C / expected batch
    assert float(change(make_mlp(seeded(0)), Privacy(0.0, clip), wild).norm()) == pytest.approx(
        limit, rel=1e-3
    )
    # The same sample unclipped goes far beyond: the bound above is the clipping's doing.
    assert float(change(make_mlp(seeded(0)), Privacy(0.0, 1e9), wild).norm()) > 1000 * limit
    # Clipping is per sample and before the sum: beside 63 others, the wild one still adds C at the most.
    calm = made(63)
    both = Samples(np.vstack([calm.values, wild.values]), np.vstack([calm.hidden, wild.hidden]))
    moved = change(make_mlp(seeded(0)), Privacy(0.0, clip), both) - change(
        make_mlp(seeded(0)), Privacy(0.0, clip), calm
    )
    assert float(moved.norm()) == pytest.approx(limit, rel=1e-2)


@pytest.mark.parametrize(("noise", "clip"), [(3.0, 0.1), (24.0, 1.0)])
def test_noise_added_has_the_calibrated_variance(noise: float, clip: float) -> None:
    # An empty batch has no gradient, so a step is -rate · N(0, (σC)²)/B and nothing else.
    nothing = Samples(np.empty((0, 48)), np.empty((0, 48), dtype=bool))
    model = make_mlp(seeded(0))
    private = PrivateSteps(model, Privacy(noise, clip), ONE_STEP, seeded(1))
    path = [weights(model).double()]
    for _ in range(40):
        private.step(to_tensors(nothing))
        path.append(weights(model).double())
    moved = torch.diff(torch.stack(path), dim=0).flatten()
    deviation = 0.5 * noise * clip / 64
    count = len(moved)
    # Standard errors of mean and variance of `count` independent normal draws; five of them.
    assert abs(float(moved.mean())) < 5 * deviation / math.sqrt(count)
    assert float(moved.var()) == pytest.approx(deviation**2, rel=5 * math.sqrt(2 / count))


def test_poisson_batches_have_the_binomials_mean_and_variance() -> None:
    generator = seeded(0)
    sizes = np.array([len(draw_batch(1000, 64, True, generator)) for _ in range(4000)])
    variance = 64 * (1 - 0.064)
    assert abs(sizes.mean() - 64) < 5 * math.sqrt(variance / 4000)
    assert sizes.var() == pytest.approx(variance, rel=0.12)
    fixed = draw_batch(1000, 64, False, generator)
    assert len(fixed) == len(torch.unique(fixed)) == 64


def test_more_noise_makes_dp_sgd_worse() -> None:
    schedule = Schedule(epochs=12, patience=12, batch=64, learning_rate=0.3)
    sets = made(500, 1), made(200, 2), made(200, 3)
    little, much = (train_dp_sgd(*sets, schedule, Privacy(noise, 1.0), seed=0) for noise in (0.1, 30.0))
    assert little.test[little.best] < 0.5 * much.test[much.best]
