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
from dp_powerflow_paper.learned.accounting import SampledGaussian
from dp_powerflow_paper.learned.forecaster import (
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
    trained_alone,
)
from dp_powerflow_paper.learned.wgan import Critic, WganSettings, private_gradient, train_wgan
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


def test_without_noise_and_clipping_it_is_fedavg() -> None:
    """The average of all clients' weights, each trained alone."""
    history = simulate_load_history(8, n_days=3, step_minutes=60, seed=3)
    assert history.scale_kw is not None
    relative = history.load_kw / history.scale_kw[:, None, None]
    singles = clients_of(MARGINS.scaled(relative), np.array([day.weekday() >= 5 for day in history.days]))
    clients, local = Clients(singles.inputs.double(), singles.targets.double()), Local(3, 0.2)
    start = expected = start_weights(seeded(6)).double()
    for _ in range(4):
        expected = trained_alone(expected.expand(8, -1), clients, local).mean(dim=0)
    assert float((expected - start).norm()) > 0.05
    for federation in (Federation(8, 1.0, math.inf, 0.0, 4), Federation(8, 1.0, 1e6, 1e-16, 4)):
        found = train_federated(federation, start, LocalTraining(clients, local), seeded(7))
        assert float((found - expected).abs().max()) < 1e-6


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


def flat(parts: tuple[Any, Any]) -> Any:
    return torch.cat([part.flatten() for part in parts])


def record_gradients(critic: Critic, days: Any) -> Any:
    """(day, weight) gradients by torch.func, in the order of W₁ with b₁, w₂."""

    def score(weights: tuple[Any, Any], day: Any) -> Any:
        return Critic(*weights).score(day[None]).sum()

    found = torch.func.vmap(torch.func.grad(score), in_dims=(None, 0))((critic.first, critic.last), days)
    return torch.cat([part.flatten(1) for part in found], dim=1)


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


def batch_gradient(critic: Critic, days: Any, settings: WganSettings, noise: float, generator: Any) -> Any:
    """PLANTED BUG: noise on the gradient of the whole batch; no record is cut."""
    mean = record_gradients(critic, days).sum(dim=0) / settings.batch
    return mean + noise * settings.clip / settings.batch * torch.randn(mean.shape, generator=generator)


def test_one_record_moves_a_step_by_the_clip_norm_and_noise_without_clipping_is_caught() -> None:
    settings, critic, days = WganSettings(batch=64, clip=0.7), a_critic(5.0), some_days(64)
    days[0] *= 1e4  # a record that no margin has cut

    def influence(step: Any) -> float:
        """By how much one record moves a step's gradient, the noise being the same."""
        both, one_less = (step(critic, given, settings, 1.0, seeded(3)) for given in (days, days[1:]))
        return float((both - one_less).norm())

    bound = settings.clip / settings.batch * (1 + 1e-4)
    assert influence(lambda *asked: flat(private_gradient(*asked))) <= bound
    assert influence(batch_gradient) > 10 * bound


def test_noise_of_a_step_has_its_size_and_an_empty_sample_is_noise_alone() -> None:
    settings = WganSettings(batch=50, clip=2.0)
    generator = seeded(4)
    draws = torch.stack(
        [flat(private_gradient(a_critic(), some_days(0), settings, 3.0, generator)) for _ in range(200)]
    )
    assert float(draws.std()) == pytest.approx(3.0 * 2.0 / 50, rel=0.02)
    assert abs(float(draws.mean())) < 0.005


@pytest.mark.slow
def test_trained_days_come_near_and_noise_keeps_them_away() -> None:
    """Scaled days of two kinds of customers."""
    generator, at = np.random.default_rng(5), (np.arange(200) + 0.5) / 200
    kind, level = generator.integers(0, 2, (4000, 1)), generator.normal(-0.3, 0.1, (4000, 1))
    wave = kind * np.sin(2 * np.pi * np.arange(STEPS) / STEPS)
    data = np.clip(level + 0.4 * wave + generator.normal(0, 0.05, (4000, STEPS)), -1, 1)

    def distance(settings: WganSettings, noise: float) -> float:
        drawn = train_wgan(data, settings, noise, seed=1).days(4000, np.random.default_rng(6))
        return float(np.abs(np.quantile(drawn, at, axis=0) - np.quantile(data, at, axis=0)).mean())

    near = distance(SMALL, 0.0)
    assert near < 0.5 * distance(replace(SMALL, steps=2, average=1.0), 0.0)
    assert distance(SMALL, 200.0) > 1.5 * near


DELTA = 1e-2
RUNS = 5000


def federated_bound(federation: Federation, seed: int) -> float:
    """ε from below of the first weight after all rounds; client 0 pulls or not, the others not at all."""
    scores = []
    for side, canary in enumerate((1e3, 0.0)):
        generator, start = seeded(seed + side), torch.zeros(2, dtype=torch.float64)

        def pull(weights: Any, chosen: Any, canary: float = canary) -> Any:
            updates = torch.zeros(len(chosen), 2, dtype=torch.float64)
            updates[chosen == 0, 0] = canary
            return updates

        drawn = [float(train_federated(federation, start, pull, generator)[0]) for _ in range(RUNS)]
        scores.append(np.array(drawn))
    pulled, absent = scores
    return epsilon_lower_bound(pulled, absent, DELTA)


@pytest.mark.slow
def test_a_canary_client_shows_no_more_than_the_claim_and_less_noise_or_clipping_is_caught() -> None:
    for rate, rounds in ((1.0, 1), (0.5, 2)):
        federation = Federation(3, rate, 1.0, 1.0, rounds)
        assert 0.0 < federated_bound(federation, 1) <= federation.spent().epsilon(DELTA)
    whole = Federation(3, 1.0, 1.0, 1.0, 1)
    half = replace(whole, noise_multiplier=0.5)
    loose = replace(whole, clip=1e2, noise_multiplier=0.01)  # as much noise, hardly any clipping
    for broken in (half, loose):
        assert federated_bound(broken, 3) > whole.spent().epsilon(DELTA)


def critic_bound(settings: WganSettings, noise: float, seed: int) -> float:
    """ε from below of a critic's step along the gradient of the canary, which is the only record."""
    critic, day = Critic(torch.full((3, 2), 3.0), torch.full((2,), 3.0)), torch.tensor([[0.9, -0.4]])
    direction, scores = flat(critic.clipped_sum(day, 1.0)), []
    for side, sample in enumerate((day, day[:0])):
        generator = seeded(seed + side)
        steps = (private_gradient(critic, sample, settings, noise, generator) for _ in range(RUNS))
        scores.append(np.array([float(flat(step) @ direction) for step in steps]))
    pulled, absent = scores
    return epsilon_lower_bound(pulled, absent, DELTA)


@pytest.mark.slow
def test_a_canary_day_shows_no_more_than_the_claim_and_missing_clipping_is_caught() -> None:
    settings = WganSettings(batch=4, clip=1.0, steps=1)
    claimed = settings.spent(4, 1.0).epsilon(DELTA)  # a rate of 1: every record is in the step
    assert 0.0 < critic_bound(settings, 1.0, 5) <= claimed
    # Noise of the same size on a gradient that is not cut.
    assert critic_bound(replace(settings, clip=1e6), 1e-6, 7) > claimed
