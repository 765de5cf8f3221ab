"""Every inequality of the theorem against exact losses on small networks, and the domain of each mode."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_powerflow.evidence import symbols
from dp_powerflow.evidence.theorem import (
    corrected_bound,
    exit_probability,
    full_support_bound,
    over_neighbours,
    paper_bound,
)
from dp_powerflow.grid.reduction import Amplification
from dp_powerflow.lowlevel import LoadLaw, NetworkFacts, OperatingSet
from dp_powerflow.powerflow.jacobian.matrices import diagonal_terms, real_form
from dp_powerflow_paper.losses import Admittance, full_support_loss, implied_load, injection, manifold_loss
from support.laws import draw
from support.random_networks import changed, inverse_norms, measured_set, random_network, small_law, solve

# κ = 1 and any radius: the tests perturb the reduced network itself.
DIRECT = Amplification(paper=1.0, exact=1.0, growth=0.0, reach=0.0)


def facts_of(n: int) -> NetworkFacts:
    return NetworkFacts(n=n, slack_norm=1.0, d_max=n, amplification=DIRECT)


def truncated(law: LoadLaw, width: float) -> LoadLaw:
    """Every class within so many standard deviations."""
    low = np.exp((law.mean - width * law.std).min(axis=1))
    high = np.exp((law.mean + width * law.std).max(axis=1))
    classes = tuple(
        replace(part, margins=(float(a), float(b))) for part, a, b in zip(law.classes, low, high, strict=True)
    )
    return replace(law, classes=classes).within()


@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 8), seed=st.integers(0, 2**32 - 1), size=st.floats(1e-7, 1e-3))
def test_full_support_terms_never_exceed_their_bounds(n: int, seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    network = random_network(n, rng)
    law = small_law(n, 3, rng, random_q=True)
    other = changed(network, size, rng)
    load = draw(law, 50, rng)
    v = solve(network, load)
    bound = full_support_bound(facts_of(n), law, measured_set(network, v), size, 1e-5)
    if bound.epsilon is None:
        return
    terms = bound.terms
    loss = full_support_loss(law, network, other, v)
    typical = np.all(load.real >= law.lowest_load(0.5e-5), axis=(1, 2))
    assert np.abs(loss.term_ii).max() <= terms.jacobian * (1 + 1e-9)
    assert np.abs(loss.term_i[typical]).max() <= terms.tail + terms.quadratic + terms.mean
    # The reverse direction, on voltages of the neighbour with the same loads.
    back = full_support_loss(law, other, network, solve(other, load))
    assert np.abs(back.term_ii).max() <= terms.jacobian * (1 + 1e-9)
    assert np.abs(back.total[typical]).max() <= bound.epsilon


@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 8), seed=st.integers(0, 2**32 - 1), size=st.floats(1e-6, 1e-3))
def test_corrected_terms_never_exceed_their_bounds_on_the_manifold(n: int, seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    network = random_network(n, rng)
    law = truncated(small_law(n, 3, rng, random_q=False), 3.0)
    # A real scaling of rows is what keeps the manifold (paper correction 4).
    rows = rng.normal(size=n)
    whole = np.column_stack([network.y, network.b])
    change = rows[:, None] * whole
    change *= size / np.linalg.norm(change)
    other = Admittance(network.y + change[:, :n], network.b + change[:, n])
    load = draw(law, 80, rng)
    low, high = law.scale * law.p_min[law.class_of], law.scale * law.p_max[law.class_of]
    load = load[np.all((load.real >= low) & (load.real <= high), axis=(1, 2))]
    v = solve(network, load)
    bound = corrected_bound(facts_of(n), law, measured_set(network, v), size, 1e-5)
    loss = manifold_loss(law, network, other, v)
    inside = np.isfinite(loss.term_i)
    if bound.terms.alpha < 0.25:
        assert np.abs(loss.term_ii).max() <= bound.terms.jacobian * (1 + 1e-9)
    if inside.any():
        limit = bound.terms.tail + bound.terms.quadratic + bound.terms.mean
        assert np.abs(loss.term_i[inside]).max() <= limit


@settings(max_examples=30, deadline=None)
@given(n=st.integers(2, 8), seed=st.integers(0, 2**32 - 1), size=st.floats(1e-5, 0.3))
def test_operating_set_over_neighbours_holds_for_the_same_loads(n: int, seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    network = random_network(n, rng)
    law = small_law(n, 2, rng, random_q=True)
    other = changed(network, size, rng)
    load = draw(law, 30, rng)
    reached = over_neighbours(facts_of(n), measured_set(network, solve(network, load)), size)
    if not math.isfinite(reached.mu):
        return
    moved = solve(other, load)
    assert np.abs(moved).min() >= reached.v_min
    assert np.abs(moved).max() <= reached.v_max
    assert inverse_norms(other.y, other.b, moved).max() <= reached.mu


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 6), seed=st.integers(0, 2**32 - 1), size=st.floats(1e-6, 0.5))
def test_change_of_mtilde_is_within_c_star(n: int, seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    network = random_network(n, rng)
    other = changed(network, size, rng)
    v = rng.uniform(0.9, 1.1, n) * np.exp(2j * np.pi * rng.random(n))
    moved = [real_form(net.y, *diagonal_terms(v, injection(net.y, net.b, v))) for net in (network, other)]
    v_kept = math.hypot(math.sqrt(n) * np.abs(v).max(), 1.0)
    assert np.linalg.norm(moved[1] - moved[0]) <= symbols.c_star(v_kept, np.abs(v).min()) * size * (1 + 1e-9)


def test_tau_bounds_the_tail_of_chi_square() -> None:
    from scipy.stats import chi2

    for m in (1, 10, 1000):
        for delta in (0.1, 1e-5, 1e-12):
            tail = chi2.sf(symbols.tau(m, math.log(1 / delta)) ** 2, m)
            assert tail <= delta
            assert tail > delta**3  # and not uselessly loose


def test_exit_probability_bounds_the_simulated_one(rng: np.random.Generator) -> None:
    law = small_law(3, 2, rng, random_q=False)
    cut = truncated(law, 2.5)
    low, high = cut.p_min, cut.p_max
    load = draw(law, 100_000, rng).real
    box_low, box_high = law.scale * low[law.class_of], law.scale * high[law.class_of]
    inside = np.all((load >= box_low) & (load <= box_high), axis=1)
    accept = np.array([inside[:, law.class_of == ell].mean() for ell in range(2)])
    assert np.allclose(np.exp(cut.log_accept), accept, atol=0.005)
    kept = load[inside.all(axis=1)]
    shift = 1e-3
    share = np.full(3, shift / np.sqrt(3))
    near = np.any((kept < box_low + share) | (kept > box_high - share), axis=(1, 2)).mean()
    claimed = exit_probability(cut, shift)
    assert near <= claimed
    assert claimed < 20 * near


def test_printed_terms_follow_the_printed_formulae(rng: np.random.Generator) -> None:
    """Theorem 1 term by term, written out once more."""
    n, steps, r, delta = 4, 3, 1e-5, 1e-4
    law = truncated(small_law(n, steps, rng, random_q=False), 3.0)
    operating = OperatingSet(0.95, 1.05, 0.1, 2.0, 1e-3, "given")
    facts = NetworkFacts(n, 1.0, 3, Amplification(paper=5.0, exact=1.0, growth=0.0, reach=0.0))
    bound = paper_bound(facts, law, operating, r, delta)
    total, mean = 0.0, 0.0
    for ell in range(2):
        p_min = law.scale[law.class_of == ell].min() * law.p_min[ell]
        d = 1.05**2 * math.sqrt(3) / p_min
        g = np.abs(np.linalg.inv(law.covariance[ell])).sum()
        total += d**2 * g
        mean += d * math.sqrt(g * 2) * math.sqrt(law.covariance[ell].sum())
    psi = 5.0 * r * math.sqrt(total)
    x = math.log(1 / delta)
    tau = math.sqrt(n * steps + 2 * math.sqrt(n * steps * x) + 2 * x)
    a = 2.0 * math.sqrt(2) * (1 + math.sqrt(n) * 1.05 / 0.95) * 5.0 * r
    expected = (
        steps * math.sqrt(n) * a * (2 + a) / (2 * (1 - 4 * a)) + psi**2 / 2 + 5.0 * r * mean + psi * tau
    )
    assert bound.epsilon == pytest.approx(expected, rel=1e-12)
    assert bound.delta == pytest.approx(delta + 1e-3)


def test_rows_of_several_classes_share_one_budget() -> None:
    weights = np.array([4.0, 9.0])
    assert symbols.psi_bar(1.0, weights) == 3.0
    assert symbols.psi_bar_printed(1.0, np.array([2.0, 3.0]), np.array([1.0, 1.0])) == pytest.approx(13**0.5)


@pytest.mark.parametrize(
    ("amplification", "mu", "delta", "radius", "says"),
    [
        (DIRECT, 1e4, 0.0, 1e-4, "α"),
        (DIRECT, 1e4, 0.0, 1.0, "α"),
        (Amplification(1.0, 1.0, 1e3, 1e3), 0.1, 0.0, 2e-3, "κ"),
        (DIRECT, 0.1, 1.0, 1e-8, "adds up"),
    ],
)
def test_out_of_its_domain_it_says_so_and_gives_no_number(
    amplification: Amplification, mu: float, delta: float, radius: float, says: str, rng: np.random.Generator
) -> None:
    law = small_law(4, 2, rng, random_q=True)
    facts = replace(facts_of(4), amplification=amplification)
    bound = full_support_bound(facts, law, OperatingSet(0.95, 1.05, 0.1, mu, delta, "given"), radius, 1e-5)
    assert bound.epsilon is None
    assert any(says in text for text in bound.violations)


def test_a_singular_covariance_needs_a_floor(rng: np.random.Generator) -> None:
    law = small_law(2, 3, rng, random_q=True)
    singular = law.with_gaussians(law.mean, np.ones((2, 3, 3)))
    operating = OperatingSet(0.95, 1.05, 0.1, 0.1, 0.0, "given")
    assert full_support_bound(facts_of(2), singular, operating, 1e-9, 1e-5).epsilon is None
    assert (
        full_support_bound(facts_of(2), singular.with_floor(0.1), operating, 1e-9, 1e-5).epsilon is not None
    )


def test_spread_does_not_move_the_mean_load(rng: np.random.Generator) -> None:
    law = small_law(2, 2, rng, random_q=False)
    wide = law.with_floor(0.3)
    mean = np.exp(law.mean + law.std**2 / 2)
    assert np.allclose(np.exp(wide.mean + wide.std**2 / 2), mean)


def test_implied_load_gives_the_loads_back(rng: np.random.Generator) -> None:
    network = random_network(5, rng)
    load = draw(small_law(5, 2, rng, random_q=True), 10, rng)
    assert np.allclose(implied_load(network, solve(network, load)), load, atol=1e-12)
