"""The kernels of `_bits` against mpmath and against LAPACK."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from dp_powerflow._bits import elementary, linear, normal_pairs
from dp_powerflow.model.history.numbers import ndtr

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


# --------------------------------------------------------------------------------- complex numbers

VALUES = RNG.standard_normal(2000) + 1j * RNG.standard_normal(2000)
OTHER = RNG.standard_normal(2000) + 1j * RNG.standard_normal(2000)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (lambda: elementary.multiply(VALUES, OTHER), lambda: VALUES * OTHER),
        (lambda: elementary.divide(VALUES, OTHER), lambda: VALUES / OTHER),
        (lambda: elementary.modulus(VALUES), lambda: np.abs(VALUES)),
        (lambda: elementary.unit(200.0 * VALUES.real), lambda: np.exp(1j * np.deg2rad(200.0 * VALUES.real))),
    ],
)
def test_complex_helpers_agree_with_numpy(
    found: Callable[[], np.ndarray], expected: Callable[[], np.ndarray]
) -> None:
    np.testing.assert_allclose(found(), expected(), rtol=2e-15, atol=2e-15)


def test_angles_are_exact_where_they_can_be() -> None:
    at = np.array([1, 1j, -1, -1j, 1 + 1j, -1 - 1j, complex(-1.0, -0.0), complex(-1.0, -1e-300), 0.0])
    assert elementary.degrees(at).tolist() == [0.0, 90.0, 180.0, -90.0, 45.0, -135.0, 180.0, 180.0, 0.0]
    assert elementary.unit(np.array([0.0, 90.0, 180.0, -90.0, 720.0])).tolist() == [1, 1j, -1, -1j, 1]
    assert np.isnan(elementary.degrees(np.array([complex(np.nan, 1.0)]))).all()


def test_the_small_solver_agrees_with_lapack_and_refuses_a_singular_matrix() -> None:
    matrix = (VALUES[:36] + 3.0 * np.eye(6, dtype=np.complex128).ravel()).reshape(6, 6)
    np.testing.assert_allclose(
        elementary.solve(matrix, OTHER[:6]), np.linalg.solve(matrix, OTHER[:6]), rtol=1e-13
    )
    with pytest.raises(np.linalg.LinAlgError):
        elementary.solve(np.ones((2, 2), dtype=np.complex128), OTHER[:2])


# ------------------------------------------------------------- kernels in the place of arrays


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 8, 9, 24, 96, 128, 129, 136, 1000, 5376, 8193, 35040, 70081])
def test_sums_of_a_row_are_those_of_numpy(size: int) -> None:
    values = np.random.default_rng(size).lognormal(0.0, 3.0, (3, size))
    squares = values * values
    for row in range(3):
        assert linear.row_sum(values[row], 0, size) == np.sum(values, axis=1)[row]
        assert linear.row_squares(values[row], 0, size) == np.sum(squares, axis=1)[row]


def test_a_part_of_a_row_is_summed_as_if_it_were_alone() -> None:
    values = np.random.default_rng(1).standard_normal(1000)
    assert linear.row_sum(values, 13, 700) == np.sum(values[13:713].copy())


@pytest.mark.parametrize("std", [1e-3, 0.05, 0.3, 1.0, 3.0, 1e3])
@pytest.mark.parametrize("mean", [-9.0, 0.0, 1.3])
def test_the_normal_law_of_many_numbers_is_the_one_of_each(mean: float, std: float) -> None:
    for size in (1, 2, 70, 141):
        at = (np.linspace(-7.0, 7.0, size) - mean) / std
        found = np.empty(size)
        normal_pairs.ndtr_each(at, found)
        np.testing.assert_array_equal(found, ndtr(at))


def test_no_number_is_passed_on() -> None:
    at, found = np.array([np.nan, 0.0, np.inf]), np.empty(3)
    normal_pairs.ndtr_each(at, found)
    np.testing.assert_array_equal(found, [np.nan, 0.5, 1.0])
