"""M̃, J and DG against their definitions, and their figures for many snapshots against dense algebra."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_powerflow import BatchSolver, Feeder, open_feeder
from dp_powerflow._bits.elementary import joined
from dp_powerflow.grid.reduction import NORM_FAILURE
from dp_powerflow.lowlevel import Network, VoltVar
from dp_powerflow.powerflow.devices import CATEGORY_B
from dp_powerflow.powerflow.jacobian.batch import JacobianBatch
from dp_powerflow.powerflow.jacobian.matrices import (
    Elimination,
    Reference,
    SparseJacobian,
    dense_reference,
    diagonal_terms,
    real_form,
)
from dp_powerflow.units import ComplexArray, FloatArray
from dp_powerflow_paper.losses import dg, injection, jacobian_real, log_volume
from support.small_feeders import feeder_of
from support.synthetic import write_synthetic

CAPACITY = 0.3
"""Generation γ·h of every node with volt-var [p.u.]."""


@dataclass(frozen=True, eq=False)
class RandomNetwork:
    """A feeder, and its dense reduced Y and b."""

    feeder: Feeder
    y: ComplexArray
    b: ComplexArray

    @property
    def n(self) -> int:
        return len(self.b)

    def operating_point(
        self, rng: np.random.Generator, snapshots: int, loading: float
    ) -> tuple[ComplexArray, ComplexArray]:
        """Solved snapshots (v, s) by the fixed point to rounding.

        `loading` below 1 is max_k Σ_j |z_kj·s_j| in units of the 1/4 up to which a solution must exist.
        """
        z = np.linalg.inv(self.y)
        w = -z @ self.b
        share = rng.lognormal(0.0, 0.5, (snapshots, self.n))
        s = -share * (1.0 + 1j * rng.uniform(-0.2, 0.6, (snapshots, self.n)))
        drop = np.max(np.abs(s) @ np.abs(z).T, axis=1, keepdims=True)
        s *= 0.25 * loading * np.min(np.abs(w)) ** 2 / drop
        v = np.tile(w, (snapshots, 1))
        for _ in range(300):
            v = w + np.conj(s / v) @ z.T
        assert np.max(np.abs(v * np.conj(v @ self.y.T + self.b) - s)) < 1e-9
        return v, s


def random_network(seed: int, nodes: int, *, loops: int = 0, retained_share: float = 0.5) -> RandomNetwork:
    """A tree of `nodes` nodes behind one slack, plus `loops` more branches; impedances of about 0.01 p.u."""
    rng = np.random.default_rng(seed)
    ends = [(int(rng.integers(max(0, node - 4), node)), node) for node in range(1, nodes + 1)]
    for _ in range(loops if nodes > 1 else 0):
        first, second = rng.choice(np.arange(1, nodes + 1), 2, replace=False)
        ends.append((int(first), int(second)))
    # Node 0 is the slack, which `feeder_of` has at the end.
    branches = [
        ((i - 1) % (nodes + 1), j - 1, complex(rng.uniform(0.005, 0.02), rng.uniform(0.005, 0.03)))
        for i, j in ends
    ]
    shunts = [(node, 1j * rng.uniform(0.0, 0.02)) for node in range(nodes + 1)]
    count = max(1, round(retained_share * nodes))
    retained = np.sort(rng.choice(nodes, count, replace=False)).astype(np.int64)
    feeder = feeder_of(nodes + 1, branches, [(int(k), 0.1 + 0.0j) for k in retained], shunts=shunts)
    others = np.setdiff1d(np.arange(nodes), retained)
    dense = feeder.y.toarray()
    kept = dense[retained]
    if len(others):
        inner = np.linalg.solve(dense[np.ix_(others, others)], dense[others])
        kept = kept - dense[np.ix_(retained, others)] @ inner
    return RandomNetwork(feeder, kept[:, retained], kept[:, -1])


def singular_values(y: ComplexArray, *terms: ComplexArray) -> Any:
    """All singular values of M̃ for a and c: (..., 2n), descending."""
    return np.linalg.svd(real_form(y, *terms), compute_uv=False)


# ------------------------------------------------------------------------------ one point, by definition


@pytest.fixture(scope="module")
def network() -> RandomNetwork:
    return random_network(3, 9, loops=2, retained_share=0.7)


@pytest.fixture(scope="module")
def point(network: RandomNetwork) -> ComplexArray:
    """Voltages between two corners of the curve of category B, where it is not flat."""
    v, _ = network.operating_point(np.random.default_rng(1), 3, 0.5)
    return np.asarray(v / np.abs(v) * (0.95 + 0.01 * np.sin(np.arange(network.n))))


@pytest.fixture(scope="module")
def voltvar(network: RandomNetwork) -> VoltVar:
    return VoltVar((CATEGORY_B,), np.where(np.arange(network.n) % 2 == 0, 0, -1))


def turned(voltvar: VoltVar, v: ComplexArray) -> ComplexArray:
    """Generation under volt-var (Eq. voltvar)."""
    return CAPACITY * (voltvar.curve_of >= 0) * voltvar.rotation(np.abs(v))


def slope_of(voltvar: VoltVar, v: ComplexArray) -> ComplexArray:
    return 1j * voltvar.slope(np.abs(v)) * turned(voltvar, v)


def pack(x: ComplexArray) -> FloatArray:
    return np.concatenate([x.real, x.imag], axis=-1)


def unpack(x: FloatArray) -> ComplexArray:
    n = x.shape[-1] // 2
    return x[..., :n] + 1j * x[..., n:]


def derivative(function: Callable[[FloatArray], FloatArray], x: FloatArray) -> FloatArray:
    """By central differences."""
    step = 1e-6
    columns = [(function(x + step * e) - function(x - step * e)) / (2.0 * step) for e in np.eye(len(x))]
    return np.stack(columns, axis=-1)


def mtilde(y: ComplexArray, v: ComplexArray, s: ComplexArray, slope: ComplexArray | None) -> ComplexArray:
    """M̃ as the paper prints it, or M̃ − D(v)⁻¹J_Γh with the Wirtinger derivatives of the generation."""
    found = np.block([[np.diag(s / v**2), np.conj(y)], [y, np.diag(np.conj(s / v**2))]])
    if slope is None:
        return found
    by_v, by_conj = slope * np.conj(v) / (2 * np.abs(v)), slope * v / (2 * np.abs(v))
    of = np.block([[np.diag(by_v), np.diag(by_conj)], [np.diag(np.conj(by_conj)), np.diag(np.conj(by_v))]])
    return np.asarray(found - np.diag(np.concatenate([1.0 / v, 1.0 / np.conj(v)])) @ of)


@pytest.fixture(params=[False, True], ids=["without volt-var", "volt-var"])
def slope(request: pytest.FixtureRequest, point: ComplexArray, voltvar: VoltVar) -> ComplexArray | None:
    return slope_of(voltvar, point[0]) if request.param else None


def test_jacobian_is_the_derivative_of_the_injection(
    network: RandomNetwork, point: ComplexArray, voltvar: VoltVar, slope: ComplexArray | None
) -> None:
    v, generating = point[0], slope is not None

    def left(x: FloatArray) -> FloatArray:
        return pack(injection(network.y, network.b, unpack(x)) - generating * turned(voltvar, unpack(x)))

    expected = derivative(left, pack(v))
    found = jacobian_real(network.y, network.b, v, slope)
    assert np.max(np.abs(found - expected)) < 1e-6 * np.max(np.abs(expected))
    assert slope is None or np.max(np.abs(slope)) > 1.0


def test_mtilde_is_the_matrix_of_the_paper(
    network: RandomNetwork, point: ComplexArray, slope: ComplexArray | None
) -> None:
    """The real form has its singular values."""
    v, s = point[0], injection(network.y, network.b, point[0])
    expected = np.linalg.svd(mtilde(network.y, v, s, slope), compute_uv=False)
    found = singular_values(network.y, *diagonal_terms(v, s, slope))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_determinant_of_j_is_the_product_of_voltages_and_of_mtilde(
    network: RandomNetwork, point: ComplexArray, slope: ComplexArray | None
) -> None:
    v, s = point[0], injection(network.y, network.b, point[0])
    of_j = np.linalg.slogdet(jacobian_real(network.y, network.b, v, slope))[1]
    of_mtilde = np.linalg.slogdet(mtilde(network.y, v, s, slope))[1]
    assert of_j == pytest.approx(2.0 * np.sum(np.log(np.abs(v))) + of_mtilde, rel=1e-12)


def solve_newton(
    network: RandomNetwork, start: ComplexArray, tan_theta: FloatArray, voltvar: VoltVar, active: FloatArray
) -> FloatArray:
    """v with injection generation − p(1 + j·tanθ), by Newton's method."""
    x = pack(start)
    for _ in range(30):
        v = unpack(x)
        left = injection(network.y, network.b, v) - turned(voltvar, v) + active * (1.0 + 1j * tan_theta)
        x = x - np.linalg.solve(jacobian_real(network.y, network.b, v, slope_of(voltvar, v)), pack(left))
    assert np.max(np.abs(left)) < 1e-11
    return x


def test_dg_is_the_derivative_of_the_voltage_by_the_active_load(
    network: RandomNetwork, voltvar: VoltVar
) -> None:
    rng = np.random.default_rng(5)
    active, tan_theta = rng.uniform(0.2, 0.4, network.n), rng.uniform(0.1, 0.5, network.n)
    start = -np.linalg.solve(network.y, network.b).astype(np.complex128)
    v = unpack(solve_newton(network, start, tan_theta, voltvar, active))
    found = dg(network.y, network.b, v, tan_theta, slope_of(voltvar, v))
    expected = derivative(lambda p: solve_newton(network, v, tan_theta, voltvar, p), active)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    volume = np.sum(np.log(np.linalg.svd(found, compute_uv=False)))
    assert log_volume(found) == pytest.approx(volume, rel=1e-10)
    assert log_volume(np.zeros((4, 2))) == -np.inf


# ------------------------------------------------------------------------ log|det| of many snapshots


networks = st.builds(
    random_network,
    seed=st.integers(0, 10**6),
    nodes=st.integers(1, 14),
    loops=st.integers(0, 3),
    retained_share=st.sampled_from([0.1, 0.5, 1.0]),
)


@settings(max_examples=40, deadline=None)
@given(network=networks, seed=st.integers(0, 10**6), size=st.floats(0.0, 300.0))
def test_arbitrary_voltages_and_injections_agree_with_dense_algebra(
    network: RandomNetwork, seed: int, size: float
) -> None:
    # Far from any operating point, through collapse and beyond: the sign of det M̃ differs between rows.
    rng = np.random.default_rng(seed)
    shape = (11, network.n)
    angle, size_v = rng.uniform(0, 6, shape), rng.uniform(0.5, 1.3, shape)
    v = joined(size_v * np.cos(angle), size_v * np.sin(angle))
    s = joined(size * rng.standard_normal(shape), size * rng.standard_normal(shape))
    found = JacobianBatch(network.feeder, threads=1).log_abs_det(v, s)
    expected = singular_values(network.y, *diagonal_terms(v, s))
    safe = expected[:, -1] > 1e-3
    assert np.allclose(found[safe], np.sum(np.log(expected), axis=1)[safe], rtol=0, atol=1e-7)


@pytest.mark.parametrize("short_of", [0.0, 1e-12])
@pytest.mark.parametrize("dense_up_to", [0, 300])
def test_a_vanishing_pivot_falls_back_on_pivoting(short_of: float, dense_up_to: int) -> None:
    # At every node c = conj(s) is the node's own admittance: the first pivot block is singular, M̃ is not.
    network = random_network(4, 8, retained_share=1.0)
    v = np.ones((2, network.n), dtype=np.complex128)
    s = (np.tile(np.conj(network.feeder.y.diagonal()[:-1]), (2, 1)) * (1.0 - short_of)).astype(np.complex128)
    s[1] *= 0.01
    batch = JacobianBatch(network.feeder, dense_up_to=dense_up_to)
    expected = np.sum(np.log(singular_values(network.y, *diagonal_terms(v, s))), axis=1)
    assert np.allclose(batch.log_abs_det(v, s), expected, rtol=0, atol=1e-8)


def test_a_snapshot_depends_on_itself_alone() -> None:
    """Not on its batch, on threads, or on others that are no numbers."""
    network = random_network(6, 10, loops=1)
    v, s = network.operating_point(np.random.default_rng(0), 2000, 0.5)
    one, three = (JacobianBatch(network.feeder, threads=count) for count in (1, 3))
    clean = one.log_abs_det(v, s)
    assert np.array_equal(clean, three.log_abs_det(v, s))
    assert np.array_equal(clean[5:6], one.log_abs_det(v[5:6], s[5:6]))
    v[4, 0], s[7, -1] = np.nan, np.inf
    spoilt = one.log_abs_det(v, s)
    assert np.array_equal(np.flatnonzero(np.isnan(spoilt)), [4, 7])
    assert np.array_equal(np.delete(spoilt, [4, 7]), np.delete(clean, [4, 7]))


# ------------------------------------------------------------------- the proved lower bound on σ_min


def draw(rng: np.random.Generator, shape: int | tuple[int, ...], scale: float) -> Any:
    return scale * (rng.standard_normal(shape) + 1j * rng.standard_normal(shape))


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    nodes=st.integers(1, 12),
    vectors=st.integers(1, 12),
    size=st.floats(0.0, 30.0),
    spread=st.floats(0.0, 10.0),
    with_voltvar=st.booleans(),
    local=st.booleans(),
)
def test_bound_never_exceeds_the_true_singular_value(
    seed: int, nodes: int, vectors: int, size: float, spread: float, with_voltvar: bool, local: bool
) -> None:
    network = random_network(seed, nodes, loops=seed % 3)
    rng = np.random.default_rng(seed)
    shape = (8, network.n)
    reference_c = draw(rng, network.n, size)
    reference_a = draw(rng, network.n, 0.3 * size) if with_voltvar else np.zeros(network.n, dtype=complex)
    mask = (np.arange(network.n) == seed % network.n) if local else np.ones(network.n)
    c = reference_c + mask * draw(rng, shape, spread)
    a = reference_a + mask * (draw(rng, shape, 0.3 * spread) if with_voltvar else np.zeros(shape))
    bound = dense_reference(network.y, reference_a, reference_c, vectors=vectors)(a, c)
    assert np.all(bound >= 0.0)
    assert np.all(bound <= singular_values(network.y, a, c)[:, -1])


@pytest.mark.parametrize("seed", range(5))
def test_bound_survives_the_worst_change_of_a_given_size(seed: int) -> None:
    # The change that lowers σ_min fastest, to first order: random changes seldom find it.
    network = random_network(seed, 10, retained_share=1.0)
    c = np.full(network.n, 0.5 + 0.2j)
    zero = np.zeros_like(c)
    left, values, right = np.linalg.svd(real_form(network.y, zero, c))
    n = network.n
    u, x = left[:n, -1] + 1j * left[n:, -1], right[-1, :n] + 1j * right[-1, n:]
    worst = -u * x / np.maximum(np.abs(u * x), 1e-300)
    changed = c + np.array([0.0, 0.01, 0.1, 0.3, 1.0, 3.0])[:, None] * worst
    bound = dense_reference(network.y, zero, c)(0.0 * changed, changed)
    truth = singular_values(network.y, 0.0 * changed, changed)[:, -1]
    assert truth[1] < values[-1]
    assert np.all(bound <= truth)
    assert bound[0] > (1.0 - 1e-7) * truth[0]  # at the reference but for rounding
    assert bound[1] > 0.99 * truth[1]


def test_a_singular_reference_gives_zero_and_no_number_stays_none() -> None:
    y, zero = np.array([[1.0 + 0.0j]]), np.zeros(1, dtype=complex)
    c = np.array([[1.0 + 0.0j], [0.9 + 0.0j], [np.nan]])
    bound = dense_reference(y, zero, c[0])(0 * c, c)
    assert bound[0] == 0.0
    assert bound[1] <= singular_values(y, 0 * c[:2], c[:2])[1, -1]
    assert np.isnan(bound[2])
    network = random_network(1, 5)
    nothing = np.full((2, network.n), np.nan, dtype=np.complex128)
    batch = JacobianBatch(network.feeder)
    assert np.isnan(batch.sigma_min_lower_bound(nothing, nothing)).all()


# ----------------------------------------------------------------------------- on feeders, dense and sparse


def solved(feeder: Feeder, count: int, spread: float) -> tuple[ComplexArray, ComplexArray]:
    nominal = -feeder.nominal_injection[feeder.retained]
    rng = np.random.default_rng(0)
    load = nominal * np.exp(rng.normal(-0.2, spread, (count, len(nominal))))
    solution = BatchSolver(feeder).solve(load)
    assert solution.converged.all()
    return solution.v, -load


@pytest.mark.slow
@pytest.mark.parametrize(("dense_up_to", "near"), [(300, 0.996), (0, 0.98)], ids=["dense", "sparse"])
@pytest.mark.parametrize("with_slope", [False, True])
def test_bound_is_tight_on_ieee123_and_refined_to_any_gap(
    ieee123: Feeder, dense_up_to: int, near: float, with_slope: bool
) -> None:
    v, s = solved(ieee123, 100, 0.4)
    slope = None
    if with_slope:
        slope = (0.05j * np.random.default_rng(1).uniform(0.0, 1.0, v.shape)).astype(np.complex128)
    batch = JacobianBatch(ieee123, dense_up_to=dense_up_to)
    a, c = diagonal_terms(v, s, slope)
    true = singular_values(batch.y_reduced, a, c)[:, -1]
    bound = batch.sigma_min_lower_bound(v, s, slope)
    assert np.all(bound <= true)
    assert np.median(bound / true) > near
    refined = batch.sigma_min_lower_bound(v, s, slope, gap=1e-3)
    assert np.all((refined <= true) & (refined >= bound))
    assert refined.min() > (1.0 - 1e-3) * true.min()
    # Weyl's inequality from the same reference is far coarser.
    change = np.max(np.abs(a - a.mean(axis=0)) + np.abs(c - c.mean(axis=0)), axis=1)
    weyl = singular_values(batch.y_reduced, a.mean(axis=0), c.mean(axis=0))[-1] - change
    assert np.median(1.0 - weyl / true) > 10 * np.median(1.0 - bound / true)


def test_sparse_bound_far_from_its_reference_is_low_but_true(
    ieee123: Feeder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the conditions of the theorem fail it is 0, and missed singular vectors only cost tightness."""
    v, s = solved(ieee123, 40, 0.4)
    batch = JacobianBatch(ieee123, dense_up_to=0)
    a, c = diagonal_terms(v, s * np.linspace(0.0, 30.0, 40)[:, None].astype(np.complex128))
    true = singular_values(batch.y_reduced, a, c)[:, -1]
    bound = SparseJacobian(batch.elimination, a[0], c[0]).reference()(a, c)
    assert np.all(bound <= true)
    assert bound[0] > 0.999 * true[0]
    assert bound[-1] == 0.0
    largest = SparseJacobian._largest

    def without_the_smallest(self: SparseJacobian, k: int) -> Any:
        values, vectors = largest(self, k + 2)
        return values[:-2], vectors[:, :-2]

    monkeypatch.setattr(SparseJacobian, "_largest", without_the_smallest)
    assert np.all(SparseJacobian(batch.elimination, a[0], c[0]).reference()(a, c) <= true)


def test_sparse_determinant_and_singular_value_are_the_dense_ones(ieee123: Feeder) -> None:
    batch = JacobianBatch(ieee123)
    elimination, b = Elimination(ieee123), Network(ieee123).b
    rng = np.random.default_rng(0)
    signs = set()
    for _ in range(8):  # points of the paper's S_0, where the determinant has either sign
        v = rng.uniform(0.95, 1.05, len(b)) * np.exp(2j * np.pi * rng.random(len(b)))
        a, c = diagonal_terms(v, v * np.conj(batch.y_reduced @ v + b))
        sparse, dense = SparseJacobian(elimination, a, c), real_form(batch.y_reduced, a, c)
        sign, log_det = np.linalg.slogdet(dense)
        assert sparse.sign == sign
        assert sparse.log_abs_det == pytest.approx(log_det, rel=1e-8)
        assert sparse.sigma_min == pytest.approx(np.linalg.svd(dense, compute_uv=False)[-1], rel=1e-5)
        signs.add(sign)
    assert signs == {-1.0, 1.0}


def test_large_network_is_never_written_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feeder = open_feeder(write_synthetic(tmp_path / "f.dss", 700))
    v, s = solved(feeder, 24, 0.5)
    dense = JacobianBatch(feeder, dense_up_to=10_000)
    true = singular_values(dense.y_reduced, *diagonal_terms(v, s))[:, -1]
    volume = dense.log_abs_det(v, s)
    monkeypatch.setattr(JacobianBatch, "y_reduced", property(lambda _: pytest.fail("made a dense matrix")))
    batch = JacobianBatch(feeder)
    assert batch.large
    assert np.allclose(batch.log_abs_det(v, s), volume, rtol=0, atol=1e-8)
    references: list[Reference] = []
    bound = batch.sigma_min_lower_bound(v, s, gap=1e-2, references=references)
    assert np.all(bound <= true)
    assert bound.min() > 0.99 * true.min()
    made = len(references)
    again = batch.sigma_min_lower_bound(v, s, gap=1e-2, references=references)
    assert len(references) == made
    assert np.allclose(again, bound, rtol=1e-9)
    assert batch.failure(made) == 3 * made * NORM_FAILURE
    assert dense.failure(made) == 0.0


def test_norm_of_the_elimination_covers_both_sides_of_an_asymmetric_network(ieee13: Feeder) -> None:
    whole = ieee13.y.toarray()
    whole *= 1.0 + 0.3 * np.random.default_rng(0).random(whole.shape)  # as phase shifters would, only worse
    y = whole[np.ix_(ieee13.energised, ieee13.energised)]
    at = np.searchsorted(ieee13.energised, ieee13.retained)
    out = np.setdiff1d(np.arange(len(y)), at)
    inner = np.linalg.inv(y[np.ix_(out, out)])
    sides = inner @ y[np.ix_(out, at)], y[np.ix_(at, out)] @ inner
    norms = [np.hypot(1.0, np.linalg.norm(side, 2)) for side in sides]
    assert abs(norms[0] - norms[1]) > 1e-3
    assert Elimination(replace(ieee13, y=sp.csc_array(whole))).psi == pytest.approx(max(norms), rel=1e-6)
