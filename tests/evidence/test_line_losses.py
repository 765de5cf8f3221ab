"""Exact losses per line: against dense references, against quadrature, against the identity."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dp_powerflow import Feeder, StreamKey
from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.lines import evidence as lines_module
from dp_powerflow.evidence.lines.evidence import LineLoss, LineLosses, Neighbour, Side, scaled_both_ways
from dp_powerflow.grid.reduction import DENSE_UP_TO
from dp_powerflow.lowlevel import LoadLaw, Network, scaled, with_change
from dp_powerflow_paper.losses import Admittance, full_support_loss, injection, jacobian_real
from support.laws import draw, given_days, nominal_days, sampler
from support.line_feeders import chain, law_of
from support.random_networks import solve

STANDARD_ERRORS = 4.5


def admittance(feeder: Feeder) -> Admittance:
    network = Network(feeder)
    return Admittance(network.y, network.b)


def losses_of(feeder: Feeder, law: LoadLaw, neighbours: list[Neighbour], days: int, seed: int) -> LineLosses:
    return LineLoss(feeder, law, threads=1).losses(neighbours, sampler(law, days, seed))


def off_identity(losses: np.ndarray) -> np.ndarray:
    """How far E[exp(−Λ)] is from 1, in standard errors."""
    ratio = np.exp(-losses)
    return np.asarray(np.abs(ratio.mean(axis=-1) - 1.0) / (ratio.std(axis=-1) / np.sqrt(ratio.shape[-1])))


def hockey_stick(losses: np.ndarray, epsilon: float) -> np.ndarray:
    return np.maximum(0.0, -np.expm1(epsilon - losses))


def quadrature(
    law: LoadLaw, own: Admittance, other: Admittance, points: int, levels: tuple[float, ...]
) -> Any:
    """δ(ε) of one step: trapezoids over the whitened loads, dense solver, dense loss."""
    n = law.n
    axis = np.linspace(-5.0, 5.0, points)
    weight = np.exp(-(axis**2) / 2.0)
    weight /= weight.sum()
    at = np.indices((points,) * (2 * n)).reshape(2 * n, -1)
    weights = np.prod(weight[at], axis=0)
    kept = weights > 1e-9 * weights.max()
    nodes, weights = axis[at[:, kept]].T, weights[kept]
    assert law.q_sigma is not None
    std = np.sqrt(law.covariance[law.class_of, 0, 0])
    p = law.scale * np.exp(law.mean[law.class_of, 0] + std * nodes[:, :n])
    q = law.tan_theta * p + law.q_sigma * nodes[:, n:]
    v = solve_quickly(own, p + 1j * q)
    with np.errstate(over="ignore"):
        loss = full_support_loss(law, own, other, v[:, None, :]).total
        return [float(weights @ hockey_stick(loss, level)) for level in levels]


def solve_quickly(network: Admittance, load: np.ndarray) -> np.ndarray:
    z = np.linalg.inv(network.y)
    idle = -z @ network.b
    v = np.broadcast_to(idle, load.shape)
    for _ in range(60):
        v = idle + np.conj(-load / v) @ z.T
    return v


@pytest.mark.parametrize(("n", "points", "x"), [(1, 151, 0.25), (2, 17, 0.1), (3, 9, -0.1)])
def test_hockey_stick_agrees_with_quadrature_in_both_directions(n: int, points: int, x: float) -> None:
    feeder = chain(n)
    law = law_of(n)
    neighbour = scaled(feeder.lines[n - 1], x)
    true, other = admittance(feeder), admittance(with_change(feeder, neighbour))
    levels = (0.0, 0.3, 1.0)
    found = losses_of(feeder, law, [neighbour], 20_000, 7).by_direction[0]
    for drawn, (own, against) in zip(found, ((true, other), (other, true)), strict=True):
        exact = quadrature(law, own, against, points, levels)
        for level, value in zip(levels, exact, strict=True):
            sample = hockey_stick(drawn, level)
            error = sample.std() / np.sqrt(len(sample))
            assert value > 1e-3
            # The coarse grid of three nodes has an error of its own, below one per cent.
            assert sample.mean() == pytest.approx(value, abs=4.0 * error + 0.01 * value)


@pytest.mark.parametrize("bug", ["none", "determinant dropped", "variance halved"])
def test_planted_bugs_are_caught_by_quadrature(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    feeder, law = chain(1), law_of(1)
    neighbour = scaled(feeder.lines[0], 0.1)
    exact = quadrature(law, admittance(feeder), admittance(with_change(feeder, neighbour)), 151, (0.3,))[0]
    used = law
    if bug == "determinant dropped":
        monkeypatch.setattr(Side, "log_volume", lambda self, seen: np.zeros(len(seen.v)))
    if bug == "variance halved":
        used = law.with_gaussians(law.mean, law.covariance / 2.0)
    found = LineLoss(feeder, used, threads=1).losses([neighbour], sampler(law, 20_000, 3))
    sample = hockey_stick(found.by_direction[0, 0], 0.3)
    off = abs(sample.mean() - exact) / (sample.std() / np.sqrt(len(sample)))
    assert bool(off > STANDARD_ERRORS) is (bug != "none")


@pytest.mark.parametrize("dense_up_to", [DENSE_UP_TO, 0], ids=["dense", "as a large feeder"])
def test_bulk_losses_are_the_dense_ones_in_both_directions(ieee123: Feeder, dense_up_to: int) -> None:
    law = nominal_days(ieee123, 3)
    picked = [line for line in ieee123.lines if line.name in {"l115", "l20", "l49", "l104", "sw2"}]
    neighbours = scaled_both_ways(picked, 0.02)
    load = draw(law, 3, np.random.default_rng(0))
    bulk = LineLoss(ieee123, law, threads=1, dense_up_to=dense_up_to)
    found = bulk.losses(neighbours, given_days(law, load))
    true = admittance(ieee123)
    on_true = solve(true, load)
    for k, neighbour in enumerate(neighbours):
        other = admittance(with_change(ieee123, neighbour))
        forth = full_support_loss(law, true, other, on_true).total
        back = full_support_loss(law, other, true, solve(other, load)).total
        assert found.by_direction[k] == pytest.approx(np.stack([forth, back]), rel=1e-6, abs=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("every", [24, pytest.param(8, marks=pytest.mark.campaign)])
def test_identity_holds_in_both_directions_on_quiet_lines_of_ieee123(ieee123: Feeder, every: int) -> None:
    days = 3000
    neighbours = [scaled(line, 0.03) for line in ieee123.lines[::every]]
    law = nominal_days(ieee123, 1)
    found = losses_of(ieee123, law, neighbours, days, 12).by_direction
    with np.errstate(invalid="ignore"):
        quiet = np.isfinite(found).all(axis=-1) & (found.var(axis=-1) <= 0.5) & (found.var(axis=-1) > 1e-6)
    assert quiet.sum() >= 2
    assert off_identity(found[quiet]).max() < STANDARD_ERRORS


@pytest.mark.parametrize("dropped", [False, True])
def test_identity_holds_on_every_quiet_line(dropped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """E[exp(−Λ)] = 1 where Var Λ ≤ 0.5, in both directions; not without the determinant."""
    if dropped:
        monkeypatch.setattr(Side, "log_volume", lambda self, seen: np.zeros(len(seen.v)))
    feeder = chain(5, empty=(1, 3))
    found = losses_of(feeder, law_of(3, 2), list(scaled_both_ways(feeder.lines, 0.03)), 8000, 5).by_direction
    quiet = found.var(axis=-1) <= 0.5
    assert quiet.sum() >= 12
    assert bool((off_identity(found)[quiet] > STANDARD_ERRORS).any()) is dropped


def test_hidden_pv_nodes_are_explained_by_each_network_itself() -> None:
    """Paper correction 12: the identity with a PV-only node, and the volume against finite differences."""
    feeder = chain(4, pv_only=(1,))
    released = np.array([0, 2, 3])
    law = replace(law_of(3, 2), positions=released)
    generation = np.zeros((2, 4), dtype=complex)
    generation[:, 1] = 0.2 + 0.05j
    generation[:, 0] = 0.02
    rng = np.random.default_rng(4)
    engine = LineLoss(feeder, law, generation=generation, threads=1)
    found = engine.losses(scaled_both_ways(feeder.lines, 0.03), sampler(law, 8000, 4)).by_direction
    quiet = found.var(axis=-1) <= 0.5
    assert quiet.sum() >= 12
    assert off_identity(found)[quiet].max() < STANDARD_ERRORS

    side = engine.true
    load = np.zeros((1, 4), dtype=complex)
    load[:, released] = draw(law, 1, rng)[0, :1]
    seen = side.solve(load, generation[:1])

    def loads_of(v: np.ndarray) -> np.ndarray:
        found = (generation[:1] - side.explain(v, generation[:1]).s)[0, released]
        return np.concatenate([found.real, found.imag])

    columns = []
    for node, unit in itertools.product(released, (1e-6, 1e-6j)):
        step = np.zeros((1, 4), dtype=complex)
        step[0, node] = unit
        columns.append((loads_of(seen.v + step) - loads_of(seen.v - step)) / 2e-6)
    numeric = np.linalg.slogdet(np.array(columns))[1] - 2 * np.log(np.abs(seen.v[0, released])).sum()
    assert side.log_volume(seen)[0] == pytest.approx(numeric, abs=1e-6)


def test_an_impossible_load_is_an_infinite_loss() -> None:
    feeder, law = chain(2), law_of(2)
    load = np.array([[[1e-4 + 0.0j, 0.3 + 0.1j]]])  # node 1 has hardly a load, node 2 beyond it a large one
    losses = LineLoss(feeder, law).losses(scaled_both_ways(feeder.lines[1:], 0.5), given_days(law, load))
    found = losses.by_direction[:, :, 0]
    # A stronger line beyond node 1 would carry more than arrives there.
    one, other = np.isinf(found).tolist()
    assert sorted([one, other]) == [[False, True], [True, False]]


def test_a_voltage_off_the_solvers_branch_is_not_certified() -> None:
    """The low-voltage solution of one node: same load, other branch."""
    feeder = chain(1)
    side = Side(feeder, np.array([0]))
    true = admittance(feeder)
    load = np.array([[0.5 + 0.2j]])
    high = solve(true, load)
    # v·conj(Yv + b) = s is a quadratic of |v|²; Newton from a low start finds the other root.
    low = np.array([[0.1 - 0.05j]])
    for _ in range(50):
        gap = injection(true.y, true.b, low) + load
        step = np.linalg.solve(
            jacobian_real(true.y, true.b, low)[0], np.concatenate([gap.real, gap.imag], 1)[0]
        )
        low = low - (step[:1] + 1j * step[1:])
    assert np.abs(injection(true.y, true.b, low) + load).max() < 1e-9
    assert np.abs(low - high).max() > 0.3
    none = np.zeros_like(load)
    assert side.on_branch(high, -load, none)[0]
    assert not side.on_branch(low, -load, none)[0]


def test_days_that_do_not_solve_are_infinite_losses_not_errors() -> None:
    feeder, law = chain(2), law_of(2, 2)
    load = draw(law, 3, np.random.default_rng(0))
    load[1] *= 100.0
    found = LineLoss(feeder, law, threads=1).losses([scaled(feeder.lines[0], 0.01)], given_days(law, load))
    assert np.array_equal(np.isinf(found.by_direction[0]), [[False, True, False]] * 2)


def test_blocks_and_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    feeder, law = chain(3), law_of(3, 2)
    load = draw(law, 30, np.random.default_rng(0))

    def run(threads: int, block_days: int) -> np.ndarray:
        engine = LineLoss(feeder, law, threads=threads)
        return engine.losses(
            scaled_both_ways(feeder.lines, 0.01), given_days(law, load, block_days)
        ).by_direction

    whole = run(1, 30)
    monkeypatch.setattr(lines_module, "_VALUES_IN_MEMORY", 7 * 2 * 3)
    monkeypatch.setattr(lines_module, "_SNAPSHOTS_AT_A_TIME", 4)
    at_once = LineLoss(feeder, law).draws(StreamKey.from_insecure_seed(0), 30).days_per_block
    assert at_once == 7
    assert np.allclose(run(2, at_once), whole, rtol=0.0, atol=1e-9)


def test_fixed_power_factors_and_margins_are_refused_in_words() -> None:
    feeder, law = chain(2), law_of(2)
    with pytest.raises(PrivacyError, match="fixed power factor"):
        LineLoss(feeder, replace(law, q_size=None))
    margins = replace(law.within((1.0, 2.0)), q_size=law.q_size)
    with pytest.raises(PrivacyError, match="untruncated"):
        LineLoss(feeder, margins)
    with pytest.raises(PrivacyError, match="singular"):
        LineLoss(feeder, law.with_gaussians(law.mean, np.zeros((2, 1, 1))))
    with pytest.raises(PrivacyError, match="hidden"):
        LineLoss(feeder, law_of(1))
