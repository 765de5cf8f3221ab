"""DPWGAN: its accounting, the gradients of its critic, and what its days look like."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dp_powerflow.errors import LoadDataError, PrivacyError
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.learned.accounting import SampledGaussian
from dp_powerflow_paper.learned.forecaster import LogMargins
from dp_powerflow_paper.learned.wgan import SLOPE, Critic, WganSettings, private_gradient, train_wgan
from dp_powerflow_paper.recovery.training import one_thread

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install 'dp-powerflow[ml]'")

STEPS, HIDDEN = 12, 8
SMALL = WganSettings(steps=800, batch=128, hidden=32, generator_hidden=32, latent=6)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def seeded(seed: int) -> Any:
    return torch.Generator().manual_seed(seed)


def a_critic(size: float = 0.5) -> Critic:
    generator = seeded(1)
    return Critic(
        size * torch.randn(STEPS + 1, HIDDEN, generator=generator),
        size * torch.randn(HIDDEN, generator=generator),
    )


def some_days(count: int) -> Any:
    return 2 * torch.rand(count, STEPS, generator=seeded(2)) - 1


def as_module(critic: Critic) -> Any:
    """The same critic of torch's own layers."""
    first, last = torch.nn.Linear(STEPS, HIDDEN), torch.nn.Linear(HIDDEN, 1, bias=False)
    with torch.no_grad():
        first.weight.copy_(critic.first[:-1].T)
        first.bias.copy_(critic.first[-1])
        last.weight.copy_(critic.last[None])
    return torch.nn.Sequential(first, torch.nn.LeakyReLU(SLOPE), last)


def record_gradients(critic: Critic, days: Any) -> Any:
    """(day, weight) gradients by torch.func, in the order of W₁, b₁, w₂."""
    module = as_module(critic)
    weights = {name: value.detach() for name, value in module.named_parameters()}

    def score(own: Any, day: Any) -> Any:
        return torch.func.functional_call(module, own, (day[None],)).sum()

    found = torch.func.vmap(torch.func.grad(score), in_dims=(None, 0))(weights, days)
    return torch.cat(
        [found["0.weight"].transpose(1, 2).flatten(1), found["0.bias"], found["2.weight"].flatten(1)], dim=1
    )


def flat(parts: tuple[Any, Any]) -> Any:
    return torch.cat([part.flatten() for part in parts])


@pytest.mark.parametrize(
    ("batch", "steps", "noise", "expected"), [(64, 10_000, 1, 1.19), (256, 5_000, 2, 1.21)]
)
def test_epsilon_is_that_of_the_published_settings(
    batch: int, steps: int, noise: float, expected: float
) -> None:
    settings = WganSettings(batch=batch, steps=steps)
    assert settings.spent(91 * 365, noise).epsilon(1e-5) == pytest.approx(expected, abs=0.005)


def test_noise_meets_the_target_for_a_replaced_record() -> None:
    settings = WganSettings()
    noise = settings.noise(91 * 365, 1.0, 1e-5)
    spent = settings.spent(91 * 365, noise)
    assert 0.99 < spent.replaced_epsilon(1e-5) <= 1.0
    assert spent.epsilon(1e-5) < 1.0
    assert spent == SampledGaussian(256 / (91 * 365), noise, 3000)


def test_sum_of_clipped_gradients_is_that_of_torch_func() -> None:
    critic, days = a_critic(), some_days(40)
    gradients = record_gradients(critic, days)
    norms = gradients.norm(dim=1)
    clip = float(norms.median())  # half of them are cut
    expected = (gradients * (clip / norms.clamp(min=clip))[:, None]).sum(dim=0)
    torch.testing.assert_close(flat(critic.clipped_sum(days, clip)), expected, rtol=1e-4, atol=1e-5)


def test_record_gradients_are_those_of_opacus() -> None:
    opacus: Any = pytest.importorskip("opacus", reason="opacus is not installed")
    critic, days = a_critic(), some_days(10)
    module = opacus.GradSampleModule(as_module(critic), loss_reduction="sum")
    module(days.requires_grad_()).sum().backward()
    squares = sum(own.grad_sample.flatten(1).pow(2).sum(dim=1) for own in module.parameters())
    torch.testing.assert_close(critic.gradient_norms(days.detach(), 1e9), squares.sqrt())


def test_no_record_adds_more_than_the_clip_norm() -> None:
    critic, clip = a_critic(5.0), 0.7
    days = some_days(200)
    days[0] *= 1e4  # a record that no margin has cut
    unclipped = record_gradients(critic, days).norm(dim=1)
    assert float(unclipped.min()) > clip
    assert float(critic.gradient_norms(days, clip).max()) <= clip * (1 + 1e-6)
    for k in range(3):
        assert float(flat(critic.clipped_sum(days[k : k + 1], clip)).norm()) <= clip * (1 + 1e-5)


def batch_gradient(critic: Critic, days: Any, settings: WganSettings, noise: float, generator: Any) -> Any:
    """PLANTED BUG: noise on the gradient of the whole batch; no record is cut."""
    mean = record_gradients(critic, days).sum(dim=0) / settings.batch
    return mean + noise * settings.clip / settings.batch * torch.randn(mean.shape, generator=generator)


def influence(step: Any, settings: WganSettings) -> float:
    """By how much one record moves a step's gradient, the noise being the same."""
    critic, days = a_critic(5.0), some_days(64)
    moved = step(critic, days, settings, 1.0, seeded(3)) - step(critic, days[1:], settings, 1.0, seeded(3))
    return float(moved.norm())


def test_one_record_moves_a_step_by_the_clip_norm_and_noise_without_clipping_is_caught() -> None:
    settings = WganSettings(batch=64, clip=0.7)
    bound = settings.clip / settings.batch * (1 + 1e-4)

    def ours(*asked: Any) -> Any:
        return flat(private_gradient(*asked))

    assert influence(ours, settings) <= bound
    assert influence(batch_gradient, settings) > 10 * bound


def test_noise_of_a_step_has_its_size_and_an_empty_sample_is_noise_alone() -> None:
    settings = WganSettings(batch=50, clip=2.0)
    generator = seeded(4)
    draws = torch.stack(
        [flat(private_gradient(a_critic(), some_days(0), settings, 3.0, generator)) for _ in range(200)]
    )
    assert float(draws.std()) == pytest.approx(3.0 * 2.0 / 50, rel=0.02)
    assert abs(float(draws.mean())) < 0.005


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(PrivacyError, match="use more days"):
        WganSettings(batch=100).rate(99)
    with pytest.raises(LoadDataError, match="margins"):
        LogMargins(0.0, 1.0)


def test_margins_scale_there_and_back() -> None:
    margins = LogMargins(0.01, 4.0)
    values = np.array([0.001, 0.01, 0.2, 4.0, 9.0])
    assert margins.scaled(values)[[1, 3]] == pytest.approx([-1.0, 1.0])
    assert margins.relative(margins.scaled(values)) == pytest.approx(np.clip(values, 0.01, 4.0))


def waves(count: int) -> FloatArray:
    """Scaled days of two kinds of customers."""
    generator = np.random.default_rng(5)
    kind = generator.integers(0, 2, (count, 1))
    course = np.sin(2 * np.pi * np.arange(STEPS) / STEPS)
    level = generator.normal(-0.3, 0.1, (count, 1))
    return np.clip(level + 0.4 * kind * course + generator.normal(0, 0.05, (count, STEPS)), -1, 1)


def distance(drawn: FloatArray, true: FloatArray) -> float:
    grid = (np.arange(200) + 0.5) / 200
    return float(np.abs(np.quantile(drawn, grid, axis=0) - np.quantile(true, grid, axis=0)).mean())


@pytest.mark.slow
def test_trained_days_come_near_and_noise_keeps_them_away() -> None:
    data = waves(4000)
    scores = {}
    for noise in (0.0, 200.0):
        trained = train_wgan(data, SMALL, noise, seed=1)
        scores[noise] = distance(trained.days(4000, np.random.default_rng(6)), data)
    untrained = train_wgan(data, replace(SMALL, steps=2, average=1.0), 0.0, seed=1)
    start = distance(untrained.days(4000, np.random.default_rng(6)), data)
    assert scores[0.0] < 0.5 * start
    assert scores[200.0] > 1.5 * scores[0.0]


def test_the_same_seed_gives_the_same_generator_and_another_one_does_not() -> None:
    data, short = waves(300), replace(SMALL, steps=6, batch=32)
    first, again, other = (train_wgan(data, short, 1.0, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first.layers, again.layers, strict=True))
    assert not np.array_equal(first.layers[0], other.layers[0])
    days = first.days(7, np.random.default_rng(1))
    assert days.shape == (7, STEPS)
    assert np.abs(days).max() <= 1.0
