"""M̃, J and DG against their definitions: finite differences, identities, the paper's formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dp_powerflow.lowlevel import VoltVar
from dp_powerflow.powerflow.devices import CATEGORY_B
from dp_powerflow.powerflow.jacobian.matrices import (
    dg,
    diagonal_terms,
    injection,
    jacobian_real,
    log_volume,
    mtilde,
    real_form,
)
from dp_powerflow.units import ComplexArray, FloatArray
from support.jacobian_networks import RandomNetwork, random_network


@pytest.fixture(scope="module")
def network() -> RandomNetwork:
    return random_network(3, 9, loops=2, retained_share=0.7)


@pytest.fixture(scope="module")
def point(network: RandomNetwork) -> tuple[ComplexArray, ComplexArray]:
    v, s = network.operating_point(np.random.default_rng(1), 3, 0.5)
    return v, s


@pytest.fixture(scope="module")
def voltvar(network: RandomNetwork) -> VoltVar:
    return VoltVar((CATEGORY_B,), np.where(np.arange(network.n) % 2 == 0, 0, -1))


CAPACITY = 0.3
"""Generation γ·h of every node with volt-var [p.u.]."""


def turned(voltvar: VoltVar, v: ComplexArray) -> ComplexArray:
    """Generation under volt-var (Eq. voltvar)."""
    return CAPACITY * (voltvar.curve_of >= 0) * voltvar.rotation(np.abs(v))


def slope_of(voltvar: VoltVar, v: ComplexArray) -> ComplexArray:
    return 1j * voltvar.slope(np.abs(v)) * turned(voltvar, v)


def shifted_to_the_slope(v: ComplexArray) -> ComplexArray:
    """Voltages between two corners of the curve of category B, where it is not flat."""
    return v / np.abs(v) * (0.95 + 0.01 * np.sin(np.arange(v.shape[-1])))


def pack(x: ComplexArray) -> FloatArray:
    return np.concatenate([x.real, x.imag], axis=-1)


def unpack(x: FloatArray) -> ComplexArray:
    n = x.shape[-1] // 2
    return x[..., :n] + 1j * x[..., n:]


def central_difference(
    function: Callable[[FloatArray], FloatArray], x: FloatArray, step: float = 1e-6
) -> FloatArray:
    columns = [(function(x + step * e) - function(x - step * e)) / (2.0 * step) for e in np.eye(len(x))]
    return np.stack(columns, axis=-1)


def test_jacobian_is_the_derivative_of_the_injection(network: RandomNetwork, point: Any) -> None:
    v = point[0][0]
    found = jacobian_real(network.y, network.b, v)
    expected = central_difference(lambda x: pack(injection(network.y, network.b, unpack(x))), pack(v))
    assert np.max(np.abs(found - expected)) < 1e-6 * np.max(np.abs(expected))


def test_effective_jacobian_subtracts_the_derivative_of_the_volt_var_generation(
    network: RandomNetwork, point: Any, voltvar: VoltVar
) -> None:
    v = shifted_to_the_slope(point[0][0])
    slope = slope_of(voltvar, v)
    assert np.max(np.abs(slope)) > 1.0
    found = jacobian_real(network.y, network.b, v, slope)
    expected = central_difference(
        lambda x: pack(injection(network.y, network.b, unpack(x)) - turned(voltvar, unpack(x))), pack(v)
    )
    assert np.max(np.abs(found - expected)) < 1e-6 * np.max(np.abs(expected))
    without = jacobian_real(network.y, network.b, v)
    assert np.max(np.abs(without - expected)) > 0.1


def solve_newton(
    network: RandomNetwork, start: ComplexArray, tan_theta: FloatArray, voltvar: VoltVar, active: FloatArray
) -> FloatArray:
    """v with injection generation − p(1 + j·tanθ), by Newton's method."""
    x = pack(start)

    def residual(x: FloatArray) -> FloatArray:
        v = unpack(x)
        return pack(injection(network.y, network.b, v) - turned(voltvar, v) + active * (1.0 + 1j * tan_theta))

    for _ in range(30):
        v = unpack(x)
        jacobian = jacobian_real(network.y, network.b, v, slope_of(voltvar, v))
        x = x - np.linalg.solve(jacobian, residual(x))
    assert np.max(np.abs(residual(x))) < 1e-11
    return x


def test_dg_is_the_derivative_of_the_voltage_by_the_active_load(
    network: RandomNetwork, voltvar: VoltVar
) -> None:
    rng = np.random.default_rng(5)
    active = rng.uniform(0.2, 0.4, network.n)
    tan_theta = rng.uniform(0.1, 0.5, network.n)
    start = -np.linalg.solve(network.y, network.b).astype(np.complex128)
    x = solve_newton(network, start, tan_theta, voltvar, active)
    v = unpack(x)
    found = dg(network.y, network.b, v, tan_theta, slope_of(voltvar, v))
    step = 1e-6
    for k in range(network.n):
        change = step * np.eye(network.n)[k]
        higher = solve_newton(network, v, tan_theta, voltvar, active + change)
        lower = solve_newton(network, v, tan_theta, voltvar, active - change)
        assert np.allclose(found[:, k], (higher - lower) / (2.0 * step), atol=1e-6)


def test_mtilde_is_the_matrix_of_the_paper(network: RandomNetwork, point: Any) -> None:
    v, s = point[0][0], point[1][0]
    expected = np.block([[np.diag(s / v**2), np.conj(network.y)], [network.y, np.diag(np.conj(s / v**2))]])
    assert np.array_equal(mtilde(network.y, v, s), expected)


def test_effective_mtilde_subtracts_the_scaled_wirtinger_jacobian_of_the_generation(
    network: RandomNetwork, point: Any, voltvar: VoltVar
) -> None:
    v = shifted_to_the_slope(point[0][0])
    s = injection(network.y, network.b, v)
    g = slope_of(voltvar, v)
    by_v, by_conj = g * np.conj(v) / (2 * np.abs(v)), g * v / (2 * np.abs(v))
    generation = np.block(
        [[np.diag(by_v), np.diag(by_conj)], [np.diag(np.conj(by_conj)), np.diag(np.conj(by_v))]]
    )
    scale = np.diag(np.concatenate([1.0 / v, 1.0 / np.conj(v)]))
    expected = mtilde(network.y, v, s) - scale @ generation
    assert np.allclose(mtilde(network.y, v, s, g), expected, rtol=0, atol=1e-13 * np.max(np.abs(expected)))


@pytest.mark.parametrize("with_voltvar", [False, True])
def test_real_form_has_the_singular_values_of_mtilde(
    network: RandomNetwork, point: Any, voltvar: VoltVar, with_voltvar: bool
) -> None:
    v = shifted_to_the_slope(point[0])
    s = injection(network.y, network.b, v)
    slope = slope_of(voltvar, v) if with_voltvar else None
    real = np.linalg.svd(real_form(network.y, *diagonal_terms(v, s, slope)), compute_uv=False)
    paper = np.linalg.svd(mtilde(network.y, v, s, slope), compute_uv=False)
    assert real.shape == paper.shape == (3, 2 * network.n)
    assert np.allclose(real, paper, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("with_voltvar", [False, True])
def test_determinant_of_j_is_the_product_of_voltages_and_of_mtilde(
    network: RandomNetwork, point: Any, voltvar: VoltVar, with_voltvar: bool
) -> None:
    v = shifted_to_the_slope(point[0])
    s = injection(network.y, network.b, v)
    slope = slope_of(voltvar, v) if with_voltvar else None
    of_j = np.linalg.slogdet(jacobian_real(network.y, network.b, v, slope))[1]
    of_mtilde = np.linalg.slogdet(mtilde(network.y, v, s, slope))[1]
    assert np.allclose(of_j, 2.0 * np.sum(np.log(np.abs(v)), axis=1) + of_mtilde, rtol=1e-12)


def test_log_volume_is_the_sum_of_log_singular_values_of_dg(network: RandomNetwork, point: Any) -> None:
    tan_theta = np.full(network.n, 0.3)
    derivative = dg(network.y, network.b, point[0], tan_theta)
    expected = np.sum(np.log(np.linalg.svd(derivative, compute_uv=False)), axis=1)
    assert np.allclose(log_volume(derivative), expected, rtol=1e-10)


def test_log_volume_of_a_collapsed_map_is_minus_infinity() -> None:
    assert log_volume(np.zeros((4, 2))) == -np.inf
