"""Nodes with generation alone in Theorem 1: every inequality against exact implied loads and determinants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_powerflow import StreamKey, open_feeder
from dp_powerflow._certify import evidence_lines
from dp_powerflow.evidence.collect import Instance, Policy, collect_evidence
from dp_powerflow.evidence.theorem import HiddenNodes, full_support_bound, hidden_nodes
from dp_powerflow.grid.reduction import Amplification
from dp_powerflow.lowlevel import ClassLaw, Generation, Network, NetworkFacts, network_facts, nominal_law
from dp_powerflow.powerflow.jacobian.matrices import diagonal_terms, real_form
from dp_powerflow_paper.losses import Admittance, injection, log_density_of_active, log_density_of_reactive
from support.laws import draw
from support.random_networks import measured_set, random_network, small_law, solve

DIRECT = Amplification(paper=1.0, exact=1.0, growth=0.0, reach=0.0)


def of_matrix(y: np.ndarray, released: np.ndarray, s_max: float) -> HiddenNodes:
    """The same norms by dense inverses."""
    hidden = np.setdiff1d(np.arange(len(y)), released)
    inverse = np.linalg.inv(y[np.ix_(hidden, hidden)])
    left, right = y[np.ix_(released, hidden)] @ inverse, inverse @ y[np.ix_(hidden, released)]
    z, on_left, on_right = np.linalg.norm(inverse, 2), np.linalg.norm(left), np.linalg.norm(right)
    return HiddenNodes(len(hidden), float(z), float(on_left), float(on_right), s_max)


def explained(network: Admittance, v: np.ndarray, hidden: np.ndarray, power: np.ndarray) -> np.ndarray:
    """v with the hidden voltages that the network gives for the released ones."""
    n = v.shape[-1]
    released = np.setdiff1d(np.arange(n), hidden)
    inverse = np.linalg.inv(network.y[np.ix_(hidden, hidden)])
    fixed = v[..., released] @ network.y[np.ix_(hidden, released)].T + network.b[hidden]
    found = v.copy()
    for _ in range(200):
        found[..., hidden] = (np.conj(power / found[..., hidden]) - fixed) @ inverse.T
    return found


def log_det_of_released(network: Admittance, v: np.ndarray, released: np.ndarray) -> np.ndarray:
    """log|det S| of the Schur complement of the normalised Jacobian: (day, step)."""
    n = v.shape[-1]
    hidden = np.setdiff1d(np.arange(n), released)
    m = real_form(network.y, *diagonal_terms(v, injection(network.y, network.b, v)))
    inner = np.concatenate([hidden, n + hidden])
    whole = np.linalg.slogdet(m)[1]
    return np.asarray(whole - np.linalg.slogdet(m[..., inner[:, None], inner])[1])


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(3, 8), seed=st.integers(0, 2**32 - 1), size=st.floats(1e-7, 1e-3), sun=st.floats(0.0, 1.5)
)
def test_no_loss_exceeds_the_bound_with_hidden_nodes(n: int, seed: int, size: float, sun: float) -> None:
    rng = np.random.default_rng(seed)
    network = random_network(n, rng)
    hidden = np.sort(rng.choice(n, size=int(rng.integers(1, n - 1)), replace=False))
    released = np.setdiff1d(np.arange(n), hidden)
    law = small_law(len(released), 3, rng, random_q=True)
    power = sun * rng.random(len(hidden)) * np.exp(1j * rng.uniform(-0.4, 0.4, len(hidden)))
    change = rng.normal(size=(n, n + 1)) + 1j * rng.normal(size=(n, n + 1))
    if rng.random() < 0.5:  # the worst is a change of the hidden rows alone
        change[released] = 0.0
    change *= size / np.linalg.norm(change)
    other = Admittance(network.y + change[:, :n], network.b + change[:, n])

    load = np.zeros((40, 3, n), dtype=complex)
    load[..., released] = draw(law, 40, rng)
    load[..., hidden] = -power
    forward, back = solve(network, load), solve(other, load)
    if not (np.isfinite(forward).all() and np.abs(forward).min() > 0.5):
        return  # the generation is beyond what the random network can carry
    measured = measured_set(network, forward)
    s_max = float(np.abs(power).max())
    facts = NetworkFacts(len(released), 1.0, n, DIRECT, hidden=of_matrix(network.y, released, s_max))
    bound = full_support_bound(facts, law, measured, size, 1e-5)
    if bound.epsilon is None:
        return
    typical = np.all(load[..., released].real >= law.lowest_load(0.5e-5), axis=(1, 2))
    for own, against, v in ((network, other, forward), (other, network, back)):
        seen = explained(against, v, hidden, power)
        implied = -injection(against.y, against.b, seen)[..., released]
        drawn = load[..., released]
        parts = [
            log_density_of_active(law, p.real) + log_density_of_reactive(law, p.real, p.imag)
            for p in (drawn, implied)
        ]
        volume = log_det_of_released(own, v, released) - log_det_of_released(against, seen, released)
        assert np.abs(volume.sum(axis=1)).max() <= bound.terms.jacobian * (1 + 1e-9)
        assert np.abs(parts[0] - parts[1])[typical].max() <= bound.terms.formula - bound.terms.jacobian
        assert np.abs((parts[0] - parts[1]) + volume.sum(axis=1))[typical].max() <= bound.epsilon


def test_hidden_norms_of_a_feeder_are_those_of_the_dense_matrix() -> None:
    feeder = open_feeder("ieee123-pv")
    network, released = Network(feeder), feeder.loaded_nodes()[0]
    peak = np.zeros(network.n)
    peak[np.setdiff1d(np.arange(network.n), released)[0]] = 0.5
    found, dense = hidden_nodes(network, released, peak), of_matrix(network.y, released, 0.5)
    assert found is not None
    assert found.count == dense.count == 12
    for name in ("z", "phi_left", "phi_right", "s_max"):
        assert getattr(found, name) == pytest.approx(getattr(dense, name), rel=1e-6), name
    assert hidden_nodes(network, np.arange(network.n), None) is None
    # Without a change nothing reaches through the hidden nodes but their own rows.
    reach = found.reach(0.0, 0.95, 10.0)
    assert reach is not None
    assert (reach.moved, reach.turned > 0.0) == (0.0, True)
    assert found.reach(1e6, 0.95, 10.0) is None


def test_evidence_covers_a_feeder_with_pv_only_nodes() -> None:
    """An error before: the certificate printed nothing at all."""
    feeder = open_feeder("ieee123-pv")
    released, _ = feeder.loaded_nodes()
    nominal = -feeder.nominal_injection[feeder.retained][released]
    lag = np.abs(np.subtract.outer(np.arange(2), np.arange(2)))
    of_class = ClassLaw.gaussian(np.full(2, -0.05), 0.1 * 0.5**lag, margins=(0.2, 3.0), q_covariance=0.5**lag)
    law = replace(nominal_law(nominal, of_class, 0.3), positions=released)
    sun = Generation.from_irradiance(feeder, np.array([[0.0, 1.0], [0.2, 0.5]]))
    network = Network(feeder)
    policy = Policy(radius=1e-12, epsilon=1.0, delta=0.9, days=2, calibration_days=20)
    key = StreamKey.from_insecure_seed(0)
    evidence = collect_evidence(Instance(network, law, sun), policy, key)
    assert (evidence.n, evidence.hidden, evidence.days_of_generation) == (96, 12, 2)
    told = " ".join(evidence_lines(evidence))
    assert "12 more carry public generation alone" in told
    assert "the mean over them" in told
    full = next(row for row in evidence.rows if row.mode == "full-support")
    assert full.day.epsilon is not None
    without = network_facts(network, released=released, generation=sun)
    assert without.hidden is not None
    alone = full_support_bound(
        replace(without, hidden=None), law, evidence.monte_carlo.operating, 1e-12, 1e-5
    )
    hidden = full_support_bound(without, law, evidence.monte_carlo.operating, 1e-12, 1e-5)
    assert alone.epsilon is not None
    assert hidden.epsilon is not None
    assert alone.epsilon < hidden.epsilon < 10.0 * alone.epsilon
