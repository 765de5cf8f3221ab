"""Learned loads, DP-FedAvg and DPWGAN: accounting, clipping, limits, audits from below with a canary."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from dp_powerflow.lowlevel import simulate_load_history
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.learned.accounting import SampledGaussian
from dp_powerflow_paper.learned.forecaster import (
    HIDDEN,
    INPUTS,
    Clients,
    Federation,
    Local,
    LocalTraining,
    LogMargins,
    aggregate,
    clients_of,
    draw_clients,
    start_weights,
    train_federated,
)
from dp_powerflow_paper.learned.wgan import SLOPE, Critic, WganSettings, private_gradient, train_wgan
from dp_powerflow_paper.recovery.training import one_thread
from support.auditing import epsilon_lower_bound

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install 'dp-powerflow[ml]'")

MARGINS = LogMargins(0.002, 1.0)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def seeded(seed: int) -> Any:
    return torch.Generator().manual_seed(seed)


def some_clients(count: int, seed: int = 3, days: int = 3) -> Clients:
    """Simulated customers, hourly."""
    history = simulate_load_history(count, n_days=days, step_minutes=60, seed=seed)
    assert history.scale_kw is not None
    weekend = np.array([day.weekday() >= 5 for day in history.days])
    return clients_of(MARGINS.scaled(history.load_kw / history.scale_kw[:, None, None]), weekend)


@pytest.mark.parametrize(
    ("clients", "rate", "noise", "expected"),
    [(91, 0.1, 1.0, 7.90), (91, 0.1, 4.0, 1.08), (1000, 0.02, 1.0, 1.84), (5000, 0.01, 1.0, 1.21)],
)
def test_epsilon_of_the_rounds_is_that_of_dp_accounting(
    clients: int, rate: float, noise: float, expected: float
) -> None:
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    accountant = RdpAccountant()
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, 100))
    found = Federation(clients, rate, 0.1, noise, 100).spent().epsilon(1e-5)
    assert found == pytest.approx(accountant.get_epsilon(1e-5), abs=1e-6)
    assert found == pytest.approx(expected, abs=0.006)


def test_a_replaced_record_costs_what_a_removal_and_an_addition_do() -> None:
    spent = SampledGaussian(1.0, 4.0, 1)
    # Without sampling a replacement is a Gaussian of twice the sensitivity: the bound must not be below it.
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(2.0))
    twice = accountant.get_epsilon(1e-5)
    assert twice <= spent.replaced_epsilon(1e-5) <= 1.2 * twice


def test_one_update_of_ten_times_the_clip_norm_moves_the_aggregate_by_no_more_than_c_over_qn() -> None:
    federation = Federation(1000, 0.05, 0.3, 1.0, 1)
    others = torch.randn(50, 20, generator=seeded(1), dtype=torch.float64)
    large = torch.randn(1, 20, generator=seeded(2), dtype=torch.float64)
    large *= 10 * federation.clip / large.norm()
    start = torch.zeros(20, dtype=torch.float64)
    without = aggregate(start, others, federation, seeded(3))
    with_it = aggregate(start, torch.cat([others, large]), federation, seeded(3))
    moved = float((with_it - without).norm())
    assert moved == pytest.approx(federation.clip / federation.expected, rel=1e-9)


def test_every_client_is_in_a_round_by_itself_with_the_rate() -> None:
    federation, generator = Federation(400, 0.1, 1.0, 1.0, 1), seeded(4)
    rounds = [draw_clients(federation, generator) for _ in range(500)]
    sizes = np.array([len(chosen) for chosen in rounds])
    # Binomial(400, 0.1): mean 40, variance 36; a fixed size would have no variance.
    assert sizes.mean() == pytest.approx(40.0, abs=1.5)
    assert 25.0 < sizes.var() < 50.0
    seen = np.bincount(torch.cat(rounds).numpy(), minlength=400)
    assert seen.min() > 20
    assert seen.max() < 90


def test_a_round_without_clients_is_noise_alone() -> None:
    federation = Federation(4, 0.5, 2.0, 1.5, 1)
    none = torch.zeros(0, 4000, dtype=torch.float64)
    moved = aggregate(torch.zeros(4000, dtype=torch.float64), none, federation, seeded(5))
    assert float(moved.std()) == pytest.approx(1.5 * 2.0 / 2.0, rel=0.05)


def fedavg(start: Any, clients: Clients, local: Local, rounds: int) -> Any:
    """Average of all clients' weights, each trained by torch's own modules and optimizer."""
    weights = start.clone()
    for _ in range(rounds):
        results = []
        for inputs, targets in zip(clients.inputs, clients.targets, strict=True):
            own = weights.clone().requires_grad_()
            optimizer = torch.optim.SGD([own], lr=local.learning_rate)
            for _ in range(local.steps):
                optimizer.zero_grad()
                first = own[: INPUTS * HIDDEN].view(INPUTS, HIDDEN)
                bias, last, end = torch.split(own[INPUTS * HIDDEN :], [HIDDEN, 2 * HIDDEN, 2])
                answer = torch.tanh(inputs @ first + bias) @ last.view(HIDDEN, 2) + end
                error = targets - (inputs[:, 0] + answer[:, 0])
                spread = (0.1 + answer[:, 1]).abs()
                ((error**2).mean() + ((error.detach().abs() - spread) ** 2).mean()).backward()
                optimizer.step()
            results.append(own.detach())
        weights = torch.stack(results).mean(dim=0)
    return weights


def test_without_noise_and_clipping_it_is_fedavg() -> None:
    clients = some_clients(8)
    doubles = Clients(clients.inputs.double(), clients.targets.double())
    start, local = start_weights(seeded(6)).double(), Local(3, 0.2)
    expected = fedavg(start, doubles, local, rounds=4)
    plain = train_federated(
        Federation(8, 1.0, math.inf, 0.0, 4), start, LocalTraining(doubles, local), seeded(7)
    )
    assert float((plain - expected).abs().max()) < 1e-6
    nearly = Federation(8, 1.0, 1e6, 1e-16, 4)
    near = train_federated(nearly, start, LocalTraining(doubles, local), seeded(7))
    assert float((near - expected).abs().max()) < 1e-6
    assert float((expected - start).norm()) > 0.05


def test_every_input_of_rolling_is_that_of_training() -> None:
    """With weights that copy the day before, rolling repeats what training would be told."""
    weekend = np.array([False, True, False])
    series = np.random.default_rng(2).uniform(-1, 1, (2, 3, 24))
    clients = clients_of(series, weekend)
    flat = series.reshape(2, -1)
    at = 40  # a step of the second day
    found = clients.inputs[:, at - 25].numpy()
    last, yesterday = flat[:, at - 1], flat[:, at - 25]
    assert found[:, 0] == pytest.approx(last, abs=1e-6)
    assert found[:, 1] == pytest.approx(2 * (last - flat[:, at - 2]), abs=1e-6)
    assert found[:, 4] == pytest.approx(last - yesterday, abs=1e-6)
    assert found[:, 5] == pytest.approx(2 * (flat[:, at - 24] - yesterday), abs=1e-6)
    assert found[:, 10] == pytest.approx(1.0)
    assert clients.targets[:, at - 25].numpy() == pytest.approx(flat[:, at], abs=1e-6)


STEPS, WIDTH = 12, 8
SMALL = WganSettings(steps=800, batch=128, hidden=32, generator_hidden=32, latent=6)


def a_critic(size: float = 0.5) -> Critic:
    generator = seeded(1)
    return Critic(
        size * torch.randn(STEPS + 1, WIDTH, generator=generator),
        size * torch.randn(WIDTH, generator=generator),
    )


def some_days(count: int) -> Any:
    return 2 * torch.rand(count, STEPS, generator=seeded(2)) - 1


def as_module(critic: Critic) -> Any:
    """The same critic of torch's own layers."""
    first, last = torch.nn.Linear(STEPS, WIDTH), torch.nn.Linear(WIDTH, 1, bias=False)
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


DELTA = 1e-2
RUNS = 5000


def federated_scores(federation: Federation, canary: float, seed: int) -> np.ndarray:
    """First weight after all rounds; client 0 pulls with `canary`, the others not at all."""
    generator, start = torch.Generator().manual_seed(seed), torch.zeros(2, dtype=torch.float64)

    def pull(weights: Any, chosen: Any) -> Any:
        updates = torch.zeros(len(chosen), 2, dtype=torch.float64)
        updates[chosen == 0, 0] = canary
        return updates

    return np.array([float(train_federated(federation, start, pull, generator)[0]) for _ in range(RUNS)])


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "rounds"), [(1.0, 1), (0.5, 2)])
def test_a_canary_client_shows_no_more_than_the_claim(rate: float, rounds: int) -> None:
    federation = Federation(3, rate, 1.0, 1.0, rounds)
    claimed = federation.spent().epsilon(DELTA)
    pulled, absent = (federated_scores(federation, pull, seed) for pull, seed in ((1e3, 1), (0.0, 2)))
    found = epsilon_lower_bound(pulled, absent, DELTA)
    assert 0.0 < found <= claimed


@pytest.mark.slow
def test_half_of_the_noise_and_missing_clipping_are_caught() -> None:
    federation = Federation(3, 1.0, 1.0, 1.0, 1)
    claimed = federation.spent().epsilon(DELTA)
    half = replace(federation, noise_multiplier=0.5)
    loose = replace(federation, clip=1e2, noise_multiplier=0.01)  # as much noise, hardly any clipping
    for broken in (half, loose):
        pulled, absent = (federated_scores(broken, pull, seed) for pull, seed in ((1e3, 3), (0.0, 4)))
        assert epsilon_lower_bound(pulled, absent, DELTA) > claimed


SETTINGS = WganSettings(batch=4, clip=1.0, steps=1)


def critic_scores(settings: WganSettings, noise: float, canary: bool, seed: int) -> np.ndarray:
    """Projection of a critic's step on the canary's own gradient; the canary is the only record."""
    generator = torch.Generator().manual_seed(seed)
    critic = Critic(torch.full((3, 2), 3.0), torch.full((2,), 3.0))
    day = torch.tensor([[0.9, -0.4]])
    direction = torch.cat([part.flatten() for part in critic.clipped_sum(day, 1.0)])
    sample = day if canary else day[:0]
    scores = []
    for _ in range(RUNS):
        step = private_gradient(critic, sample, settings, noise, generator)
        scores.append(float(torch.cat([part.flatten() for part in step]) @ direction))
    return np.array(scores)


@pytest.mark.slow
def test_a_canary_day_shows_no_more_than_the_claim_and_missing_clipping_is_caught() -> None:
    claimed = SETTINGS.spent(4, 1.0).epsilon(DELTA)  # a rate of 1: every record is in the step
    present, absent = (critic_scores(SETTINGS, 1.0, there, seed) for there, seed in ((True, 5), (False, 6)))
    found = epsilon_lower_bound(present, absent, DELTA)
    assert 0.0 < found <= claimed
    # Noise of the same size on a gradient that is not cut.
    loose = replace(SETTINGS, clip=1e6)
    present, absent = (critic_scores(loose, 1e-6, there, seed) for there, seed in ((True, 7), (False, 8)))
    assert epsilon_lower_bound(present, absent, DELTA) > claimed
