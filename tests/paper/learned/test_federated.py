"""DP-FedAvg: its accounting, its aggregate, FedAvg as its limit, and what the customers gain by it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from dp_powerflow.errors import LoadDataError, PrivacyError
from dp_powerflow.lowlevel import simulate_load_history
from dp_powerflow_paper.learned.accounting import SampledGaussian, noise_for
from dp_powerflow_paper.learned.forecaster import (
    HIDDEN,
    INPUTS,
    WEIGHTS,
    Clients,
    Federation,
    Local,
    LocalTraining,
    LogMargins,
    aggregate,
    clients_of,
    clipped,
    draw_clients,
    losses,
    mean_absolute_error,
    predict,
    roll_forward,
    start_weights,
    train_federated,
    trained_alone,
)
from dp_powerflow_paper.recovery.training import one_thread

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


def test_noise_is_the_smallest_that_meets_the_target() -> None:
    noise = noise_for(1.0, 1e-5, 0.1, 100)
    assert SampledGaussian(0.1, noise, 100).replaced_epsilon(1e-5) <= 1.0
    assert SampledGaussian(0.1, 0.998 * noise, 100).replaced_epsilon(1e-5) > 1.0
    assert noise_for(math.inf, 1e-5, 0.1, 100) == 0.0


def test_impossible_federations_are_refused() -> None:
    with pytest.raises(PrivacyError, match="clip norm"):
        Federation(10, 0.1, math.inf, 1.0, 5)
    with pytest.raises(PrivacyError, match="rate"):
        Federation(10, 0.0, 1.0, 1.0, 5)
    with pytest.raises(PrivacyError, match="positive ε"):
        noise_for(0.0, 1e-5, 0.1, 10)
    with pytest.raises(PrivacyError, match="δ"):
        SampledGaussian(0.1, 1.0, 10).epsilon(0.0)
    with pytest.raises(LoadDataError, match="two days"):
        clients_of(np.zeros((2, 1, 24)), np.zeros(1, dtype=bool))


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


def test_updates_that_are_not_finite_count_as_none_and_short_ones_are_kept() -> None:
    updates = torch.tensor([[math.nan, 1.0], [math.inf, 0.0], [0.3, 0.4], [30.0, 40.0]])
    assert clipped(updates, 1.0).numpy() == pytest.approx(np.array([[0, 0], [0, 0], [0.3, 0.4], [0.6, 0.8]]))


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


def test_customers_who_train_together_do_so_as_if_alone() -> None:
    clients, local = some_clients(5), Local(4, 0.2)
    start = start_weights(seeded(8))
    together = trained_alone(start.expand(5, -1), clients, local)
    for k in range(5):
        one = Clients(clients.inputs[k : k + 1], clients.targets[k : k + 1])
        torch.testing.assert_close(
            trained_alone(start[None], one, local)[0], together[k], rtol=1e-4, atol=1e-6
        )


def test_the_start_tells_the_step_before_and_training_improves_on_it() -> None:
    clients = some_clients(20)
    start = start_weights(seeded(9))
    mean, spread = predict(start, clients.inputs)
    assert torch.equal(mean, clients.inputs[..., 0])
    assert spread.numpy() == pytest.approx(0.1)
    trained = trained_alone(start.expand(20, -1), clients, Local(30, 0.2))
    assert bool((losses(trained, clients) < losses(start.expand(20, -1), clients)).all())


def test_rolled_days_stay_within_the_margins_and_forget_the_first_day() -> None:
    weights = torch.zeros(WEIGHTS, dtype=torch.float64)
    days = roll_forward(weights, np.zeros(3, dtype=bool), 24, 500, np.random.default_rng(1))
    assert days.shape == (3, 24, 500)
    assert np.abs(days).max() <= 1.0
    # The start is a walk with Laplace steps of scale 0.1 between walls: after a week it is anywhere between.
    assert days[0, 0].std() > 0.4


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


@pytest.mark.slow
def test_private_training_lies_between_training_alone_and_fedavg() -> None:
    """N = 5,000 simulated customers with one day of samples each, scored on the next day; four seeds."""
    history = simulate_load_history(5000, n_days=3, step_minutes=60, seed=20)
    assert history.scale_kw is not None
    scaled = MARGINS.scaled(history.load_kw / history.scale_kw[:, None, None])
    weekend = np.array([day.weekday() >= 5 for day in history.days])
    train, test = clients_of(scaled[:, :2], weekend[:2]), clients_of(scaled[:, 1:], weekend[1:])
    local = Local()
    scores: dict[str, list[float]] = {"fedavg": [], "private": [], "alone": []}
    for seed in range(4):
        for name, clip, noise in (("fedavg", math.inf, 0.0), ("private", 0.1, 1.0)):
            generator = seeded(seed)
            start = start_weights(generator).double()
            federation = Federation(5000, 0.01, clip, noise, 100)
            weights = train_federated(federation, start, LocalTraining(train, local), generator)
            scores[name].append(mean_absolute_error(weights, test, MARGINS))
        start = start_weights(seeded(seed))
        few = Clients(train.inputs[:500], train.targets[:500])
        own = trained_alone(start.expand(500, -1), few, Local(100, 0.1))
        scores["alone"].append(
            mean_absolute_error(own, Clients(test.inputs[:500], test.targets[:500]), MARGINS)
        )
    mean = {name: float(np.mean(found)) for name, found in scores.items()}
    assert mean["alone"] > mean["private"] > mean["fedavg"]
