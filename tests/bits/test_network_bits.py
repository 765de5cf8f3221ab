"""Network → twin → power flow → phasors: the same bits on every processor, in any order, on any threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dp_powerflow._bits import elementary as phasors
from support.processors import PROCESSORS, WITHOUT_FMA, output_of

CHILD = "support.network_bits"
OTHERS = PROCESSORS | {"no fused multiply-add": WITHOUT_FMA}
LONG = ("haswell", "no fused multiply-add")
"""A BLAS between the other two, with which releases are compared, and runs that compile everything."""


@pytest.fixture(scope="module")
def native() -> dict[str, str]:
    found: dict[str, str] = output_of(CHILD, PROCESSORS["native"])
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "processor",
    # Of the other kinds `make test` compares what is released: test_release_bits.
    [pytest.param(name, marks=pytest.mark.campaign) for name in ("nehalem", *LONG)],
)
def test_networks_twins_and_voltages_have_the_same_bits_on_every_processor(
    processor: str, native: dict[str, str]
) -> None:
    found = output_of(CHILD, OTHERS[processor])
    assert {key for key in native if found[key] != native[key]} == set()
    assert len(native) > 50


@pytest.mark.slow
def test_networks_and_voltages_have_the_same_bits_without_fused_multiply_add(native: dict[str, str]) -> None:
    """Where an instruction does both, a function of the C library takes its place."""
    found = output_of(CHILD, WITHOUT_FMA, "--fused")
    assert {"ieee13: far, plain", "ieee13: far, volt-var"} <= found.keys()
    assert found.items() <= native.items()


@pytest.mark.slow
def test_a_pandapower_net_is_compared(native: dict[str, str]) -> None:
    pytest.importorskip("pandapower")
    assert sum(key.startswith("pandapower: ") for key in native) > 15


RNG = np.random.default_rng(0)
VALUES = RNG.standard_normal(2000) + 1j * RNG.standard_normal(2000)
OTHER = RNG.standard_normal(2000) + 1j * RNG.standard_normal(2000)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (lambda: phasors.multiply(VALUES, OTHER), lambda: VALUES * OTHER),
        (lambda: phasors.divide(VALUES, OTHER), lambda: VALUES / OTHER),
        (lambda: phasors.modulus(VALUES), lambda: np.abs(VALUES)),
        (lambda: phasors.degrees(VALUES), lambda: np.angle(VALUES, deg=True)),
        (lambda: phasors.unit(200.0 * VALUES.real), lambda: np.exp(1j * np.deg2rad(200.0 * VALUES.real))),
    ],
)
def test_complex_helpers_agree_with_numpy(
    found: Callable[[], np.ndarray], expected: Callable[[], np.ndarray]
) -> None:
    np.testing.assert_allclose(found(), expected(), rtol=2e-15, atol=2e-15)


def test_angles_are_exact_where_they_can_be() -> None:
    at = np.array([1, 1j, -1, -1j, 1 + 1j, -1 - 1j, complex(-1.0, -0.0), complex(-1.0, -1e-300), 0.0])
    assert phasors.degrees(at).tolist() == [0.0, 90.0, 180.0, -90.0, 45.0, -135.0, 180.0, 180.0, 0.0]
    assert phasors.unit(np.array([0.0, 90.0, 180.0, -90.0, 720.0])).tolist() == [1, 1j, -1, -1j, 1]
    assert np.isnan(phasors.degrees(np.array([complex(np.nan, 1.0)]))).all()


def test_the_small_solver_agrees_with_lapack_and_refuses_a_singular_matrix() -> None:
    matrix = (VALUES[:36] + 3.0 * np.eye(6, dtype=np.complex128).ravel()).reshape(6, 6)
    np.testing.assert_allclose(
        phasors.solve(matrix, OTHER[:6]), np.linalg.solve(matrix, OTHER[:6]), rtol=1e-13
    )
    with pytest.raises(np.linalg.LinAlgError):
        phasors.solve(np.ones((2, 2), dtype=np.complex128), OTHER[:2])
