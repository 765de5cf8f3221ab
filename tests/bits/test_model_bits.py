"""Simulated meters, noisy integers, model and draws have the same bits on every processor."""

from __future__ import annotations

import pytest

from support.processors import PROCESSORS, WITHOUT_FMA, output_of

RUNS = PROCESSORS | {"without fused multiply-add": WITHOUT_FMA}
LONG = ("haswell", "without fused multiply-add")
"""Another BLAS, which models do not use and releases are compared with, and runs that compile everything."""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def native() -> dict[str, str]:
    found: dict[str, str] = output_of("support.model_bits", RUNS["native"])
    return found


@pytest.mark.parametrize(
    "other",
    ["nehalem", *(pytest.param(name, marks=pytest.mark.campaign) for name in LONG)],
)
def test_meters_integers_model_and_draws_have_the_same_bits(native: dict[str, str], other: str) -> None:
    assert output_of("support.model_bits", RUNS[other]) == native


def test_whatever_multiplies_and_adds_at_once_has_the_same_bits_without_that_instruction(
    native: dict[str, str],
) -> None:
    """Other kernels have no such instruction, so nothing changes without it: the campaign compares them."""
    found = output_of("support.model_bits", WITHOUT_FMA, "--fused")
    assert found.keys() == {"days of a law", "functions"}
    assert found.items() <= native.items()


def test_both_methods_of_truncated_draws_are_compared(native: dict[str, str]) -> None:
    methods = [text for name, text in native.items() if name.endswith("rejection")]
    assert any("True" in text for text in methods)
    assert any("False" in text for text in methods)


def test_fits_of_histories_and_populations_of_theirs_are_compared(native: dict[str, str]) -> None:
    wanted = ("integers", "model", "population", "factor", "days")
    assert {f"{case}: {what}" for case in ("history", "history, private") for what in wanted} <= native.keys()
