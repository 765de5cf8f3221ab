"""Sparse factors in place of a dense Jacobian: the same figures, and bounds on the safe side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dp_powerflow import BatchSolver, Feeder, open_feeder
from dp_powerflow.grid.reduction import NORM_FAILURE
from dp_powerflow.lowlevel import Network
from dp_powerflow.powerflow.jacobian.batch import JacobianBatch
from dp_powerflow.powerflow.jacobian.matrices import (
    Elimination,
    Reference,
    SparseJacobian,
    SparseSigmaBound,
    diagonal_terms,
    real_form,
)
from support.synthetic import write_synthetic


def solved(feeder: Feeder, count: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    nominal = -feeder.nominal_injection[feeder.retained]
    rng = np.random.default_rng(0)
    load = nominal * np.exp(rng.normal(-0.2, spread, (count, len(nominal))))
    solution = BatchSolver(feeder).solve(load)
    assert solution.converged.all()
    return solution.v, -load


def true_sigma(batch: JacobianBatch, v: np.ndarray, s: np.ndarray, slope: np.ndarray | None = None) -> Any:
    return np.linalg.svd(real_form(batch.y_reduced, *diagonal_terms(v, s, slope)), compute_uv=False)[..., -1]


@pytest.mark.slow
@pytest.mark.parametrize("with_slope", [False, True])
def test_sparse_bound_holds_on_ieee123_and_is_near(ieee123: Feeder, with_slope: bool) -> None:
    v, s = solved(ieee123, 60, 0.4)
    slope = None
    if with_slope:
        slope = (0.05j * np.random.default_rng(1).uniform(0.0, 1.0, v.shape)).astype(np.complex128)
    batch = JacobianBatch.from_feeder(ieee123, dense_up_to=0)
    true = true_sigma(batch, v, s, slope)
    bound = batch.sigma_min_lower_bound(v, s, slope)
    assert np.all(bound <= true)
    assert np.median(bound / true) > 0.98
    refined = batch.sigma_min_lower_bound(v, s, slope, gap=1e-3)
    assert np.all(refined <= true)
    assert refined.min() > (1.0 - 1e-3) * true.min()


def test_sparse_bound_far_from_its_reference_is_low_but_true(ieee123: Feeder) -> None:
    """Changes so large that the conditions of the theorem fail give 0, never a wrong figure."""
    v, s = solved(ieee123, 40, 0.4)
    batch = JacobianBatch.from_feeder(ieee123, dense_up_to=0)
    a, c = diagonal_terms(v, s * np.linspace(0.0, 30.0, 40)[:, None].astype(np.complex128))
    reference = SparseSigmaBound(batch.elimination, a[0], c[0])
    bound = reference(a, c)
    true = np.linalg.svd(real_form(batch.y_reduced, a, c), compute_uv=False)[:, -1]
    assert np.all(bound <= true)
    assert bound[0] > 0.999 * true[0]
    assert bound[-1] == 0.0


def test_error_of_the_reduction_lowers_the_sparse_bound(ieee123: Feeder) -> None:
    v, s = solved(ieee123, 3, 0.2)
    batch = JacobianBatch.from_feeder(ieee123, dense_up_to=0)
    plain = batch.sigma_min_lower_bound(v, s)
    careful = batch.sigma_min_lower_bound(v, s, y_error=0.05)
    assert np.all(careful <= plain - 0.04)
    unusable = v.copy()
    unusable[1, 0] = np.nan
    assert np.isnan(batch.sigma_min_lower_bound(unusable, s)[1])


def test_missed_singular_vectors_only_cost_tightness(
    ieee123: Feeder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The norm of the rest is measured, so vectors that are not the smallest still give a bound."""
    v, s = solved(ieee123, 5, 0.1)
    batch = JacobianBatch.from_feeder(ieee123, dense_up_to=0)
    a, c = diagonal_terms(v, s)
    largest = SparseJacobian._largest

    def without_the_smallest(self: SparseJacobian, k: int) -> Any:
        values, vectors = largest(self, k + 2)
        return values[:-2], vectors[:, :-2]

    monkeypatch.setattr(SparseJacobian, "_largest", without_the_smallest)
    bound = SparseSigmaBound(batch.elimination, a[0], c[0])(a, c)
    assert np.all(bound <= true_sigma(batch, v, s))


def test_sparse_determinant_and_singular_value_are_the_dense_ones(ieee123: Feeder) -> None:
    batch = JacobianBatch.from_feeder(ieee123)
    elimination, b = Elimination.from_feeder(ieee123), Network(ieee123).b
    rng = np.random.default_rng(0)
    signs = set()
    for _ in range(8):  # points of the paper's S_0, where the determinant has either sign
        v = rng.uniform(0.95, 1.05, batch.n) * np.exp(2j * np.pi * rng.random(batch.n))
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
    dense = JacobianBatch.from_feeder(feeder, dense_up_to=10_000)
    true, volume = true_sigma(dense, v, s), dense.log_abs_det(v, s)
    monkeypatch.setattr(JacobianBatch, "y_reduced", property(lambda _: pytest.fail("made a dense matrix")))
    batch = JacobianBatch.from_feeder(feeder)
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
    y = ieee13.y.toarray()[np.ix_(ieee13.energised, ieee13.energised)]
    y *= 1.0 + 0.3 * np.random.default_rng(0).random(y.shape)  # as phase shifters would, only worse
    at = np.searchsorted(ieee13.energised, ieee13.retained)
    out = np.setdiff1d(np.arange(len(y)), at)
    inner = np.linalg.inv(y[np.ix_(out, out)])
    sides = inner @ y[np.ix_(out, at)], y[np.ix_(at, out)] @ inner
    norms = [np.hypot(1.0, np.linalg.norm(side, 2)) for side in sides]
    assert abs(norms[0] - norms[1]) > 1e-3
    assert Elimination(sp.csc_array(y), at).psi == pytest.approx(max(norms), rel=1e-6)
