"""The kernels of `_bits` against mpmath and against LAPACK."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from dp_powerflow._bits import elementary, linear

RNG = np.random.default_rng(20240601)
NEAR_ZERO = RNG.normal(size=200) * 1e-6


def ulps(got: Iterable[float], want: Iterable[mpmath.mpf]) -> float:
    """Largest error in units in the last place of the exact value."""
    return max(
        abs(float((mpmath.mpf(float(g)) - w) / mpmath.mpf(float(np.spacing(abs(float(w)))))))
        for g, w in zip(got, want, strict=True)
    )


def phi(x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.erfc(-x / mpmath.sqrt(2)) / 2


CASES = {
    "exp": (elementary.exp, mpmath.exp, np.concatenate([RNG.uniform(-708, 709, 900), NEAR_ZERO])),
    "log": (elementary.log, mpmath.log, np.concatenate([10 ** RNG.uniform(-300, 300, 900), 1 + NEAR_ZERO])),
    "sin": (elementary.sin, mpmath.sin, np.concatenate([RNG.uniform(-1e5, 1e5, 900), NEAR_ZERO])),
    "cos": (elementary.cos, mpmath.cos, np.concatenate([RNG.uniform(-1e5, 1e5, 900), NEAR_ZERO])),
    "degrees": (
        lambda x: elementary.degrees(1.0 + 1j * x),
        lambda x: mpmath.degrees(mpmath.atan(x)),
        np.concatenate([RNG.standard_cauchy(900), NEAR_ZERO]),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_elementary_functions_are_right_to_the_last_places(name: str) -> None:
    function, exact, at = CASES[name]
    with mpmath.workdps(40):
        assert ulps(function(at), [exact(mpmath.mpf(x)) for x in at]) < (3 if name == "degrees" else 2)


@pytest.mark.parametrize(
    ("function", "exact", "at", "most"),
    [
        (elementary.log1p1, mpmath.log1p, np.concatenate([RNG.uniform(-0.999, 9, 500), NEAR_ZERO]), 2),
        (linear.ndtr1, phi, RNG.uniform(-37, 8, 500), 8),
        (linear.log_ndtr1, lambda x: mpmath.log(phi(x)), RNG.uniform(-38, 8, 500), 12),
        (linear.log_ndtr1, lambda x: mpmath.log(phi(x)), -(10 ** RNG.uniform(1, 3, 100)), 12),
    ],
)
def test_kernels_for_one_number_are_accurate(
    function: Callable[[float], float],
    exact: Callable[[mpmath.mpf], mpmath.mpf],
    at: NDArray[np.float64],
    most: float,
) -> None:
    with mpmath.workdps(40):
        assert ulps([function(float(x)) for x in at], [exact(mpmath.mpf(x)) for x in at]) < most


@pytest.mark.parametrize("deep", [False, True])
def test_quantiles_invert_the_distribution_function(deep: bool) -> None:
    logs = -(10 ** RNG.uniform(0.05, 5, 200)) if deep else np.log(RNG.uniform(0, 1, 200))
    with mpmath.workdps(40):
        for y in logs:
            exact = mpmath.mpf(y) if deep else mpmath.log(mpmath.mpf(float(np.exp(y))))
            x = mpmath.mpf(linear.ndtri_exp1(float(y)) if deep else linear.ndtri1(float(np.exp(y))))
            slope = mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mpmath.pi) / phi(x)
            error = (mpmath.log(phi(x)) - exact) / slope
            assert abs(float(error)) <= 8 * np.spacing(max(abs(float(x)), 1e-3))


def test_special_values() -> None:
    edge = np.array([0.0, -np.inf, np.inf, np.nan, -800.0, 800.0])
    np.testing.assert_array_equal(elementary.exp(edge), [1.0, 0.0, np.inf, np.nan, 0.0, np.inf])
    np.testing.assert_array_equal(
        elementary.log(np.array([0.0, -1.0, np.inf, np.nan, 1.0])), [-np.inf, np.nan, np.inf, np.nan, 0.0]
    )
    assert elementary.log(np.array([5e-324]))[0] == pytest.approx(-744.4400719213812, rel=1e-15)
    assert elementary.log1p1(-1.0) == -np.inf
    assert [linear.ndtri1(p) for p in (0.0, 0.5, 1.0)] == [-np.inf, 0.0, np.inf]
    assert [linear.ndtr1(x) for x in (-np.inf, 0.0, np.inf)] == [0.0, 0.5, 1.0]


def test_normals_are_the_quantiles_of_the_words() -> None:
    words = np.random.PCG64(3).random_raw(3000)
    drawn = linear.standard_normal(np.random.Generator(np.random.PCG64(3)), (30, 100))
    expected = [linear.ndtri1(((int(word) >> 12) + 0.5) / 2**52) for word in words]
    np.testing.assert_allclose(drawn.ravel(), expected, rtol=1e-14, atol=1e-17)


def test_a_row_of_a_product_does_not_depend_on_the_other_rows() -> None:
    left, right = RNG.normal(size=(7, 5, 97)), RNG.normal(size=(97, 31))
    whole = linear.product(left, right)
    np.testing.assert_allclose(whole, left @ right, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(linear.product(left[3, 2], right), whole[3, 2])
    np.testing.assert_array_equal(linear.product(left, np.ascontiguousarray(right[:, 0])), whole[..., 0])


@pytest.mark.parametrize("size", [1, 2, 24, 96])
def test_factors_and_eigenvectors_agree_with_lapack(size: int) -> None:
    vectors = RNG.normal(size=(size, size + 3))
    matrix = vectors @ vectors.T / size + 0.1 * np.eye(size)
    factor = linear.cholesky(matrix)
    np.testing.assert_allclose(factor, np.linalg.cholesky(matrix), rtol=1e-9, atol=1e-12)
    right = RNG.normal(size=(size, 4))
    np.testing.assert_allclose(factor @ linear.solve_lower(factor, right), right, atol=1e-9)
    np.testing.assert_allclose(factor.T @ linear.solve_upper(factor, right), right, atol=1e-9)
    indefinite = matrix - np.eye(size)
    values, columns = linear.eigh(indefinite)
    np.testing.assert_allclose(np.sort(values), np.linalg.eigvalsh(indefinite), atol=1e-12)
    np.testing.assert_allclose((columns * values) @ columns.T, indefinite, atol=1e-12)
    np.testing.assert_allclose(columns.T @ columns, np.eye(size), atol=1e-12)


def test_a_matrix_that_is_not_positive_definite_has_no_factor() -> None:
    with pytest.raises(np.linalg.LinAlgError):
        linear.cholesky(np.array([[1.0, 2.0], [2.0, 1.0]]))
    assert not linear.is_positive_definite(np.array([[1.0, 2.0], [2.0, 1.0]]))
    assert linear.is_positive_definite(np.eye(3))


def test_sums_of_outer_products_and_norms() -> None:
    vectors = RNG.normal(size=(3, 5, 4))
    np.testing.assert_allclose(linear.gram(vectors), np.einsum("ndk,ndl->nkl", vectors, vectors))
    np.testing.assert_array_equal(linear.gram(vectors), linear.gram(vectors).transpose(0, 2, 1))
    np.testing.assert_allclose(linear.norms(vectors), np.linalg.norm(vectors, axis=-1))
