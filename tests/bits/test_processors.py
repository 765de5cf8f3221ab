"""Meters, models, networks, voltages and releases: the same bits on every processor, with any workers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from support.processors import PROCESSORS, WITHOUT_FMA, output_of

RUNS = PROCESSORS | {"without fused multiply-add": WITHOUT_FMA}
MODEL, NETWORK, RELEASE = "support.model_bits", "support.network_bits", "support.release_bits"
MODES = {"true-network", "twin-network", "twin-as-operated", "twin-scaled_down", "twin-with-histories"}
FUSED = {MODEL: {"days of a law", "functions"}, NETWORK: {"ieee13: far, plain", "ieee13: far, volt-var"}}
"""What uses an instruction that multiplies and adds at once."""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def native() -> Callable[[str], dict[str, Any]]:
    """Hashes of a program's results on this processor."""
    return cache(lambda program: output_of(program, RUNS["native"]))


@pytest.mark.parametrize(
    ("program", "processor"),
    [
        (MODEL, "nehalem"),
        (RELEASE, "nehalem"),
        (RELEASE, "haswell"),  # another BLAS, which models and networks do not use
        *(
            pytest.param(program, name, marks=pytest.mark.campaign)  # these compile everything
            for program, name in (
                (MODEL, "haswell"),
                (MODEL, "without fused multiply-add"),
                (NETWORK, "nehalem"),
                (NETWORK, "haswell"),
                (NETWORK, "without fused multiply-add"),
            )
        ),
    ],
)
def test_bits_are_the_same_on_every_processor(
    program: str, processor: str, native: Callable[[str], dict[str, Any]]
) -> None:
    found, expected = output_of(program, RUNS[processor]), native(program)
    assert found.keys() == expected.keys()
    assert {key for key in expected if found[key] != expected[key]} == set()


@pytest.mark.parametrize("program", FUSED)
def test_whatever_multiplies_and_adds_at_once_has_the_same_bits_without_that_instruction(
    program: str, native: Callable[[str], dict[str, Any]]
) -> None:
    """Other kernels have no such instruction, so nothing changes without it: the campaign compares them."""
    found = output_of(program, WITHOUT_FMA, "--fused")
    assert found.keys() >= FUSED[program]
    assert found.items() <= native(program).items()


def test_releases_have_the_same_bytes_with_two_workers(native: Callable[[str], dict[str, Any]]) -> None:
    assert output_of(RELEASE, PROCESSORS["native"], "--workers", "2") == native(RELEASE)


def test_everything_is_compared(native: Callable[[str], dict[str, Any]]) -> None:
    """Both methods of truncated draws, histories, a pandapower net, and every mode with its files."""
    methods = [text for name, text in native(MODEL).items() if name.endswith("rejection")]
    assert any("True" in text for text in methods)
    assert any("False" in text for text in methods)
    wanted = ("integers", "model", "population", "factor", "days")
    histories = {f"{case}: {what}" for case in ("history", "history, private") for what in wanted}
    assert histories <= native(MODEL).keys()
    pytest.importorskip("pandapower")
    assert sum(key.startswith("pandapower: ") for key in native(NETWORK)) > 15
    assert len(native(NETWORK)) > 50
    assert native(RELEASE).keys() == MODES
    for mode, files in native(RELEASE).items():
        assert {"manifest.json", "model.json", "data/part-00000.parquet"} <= files.keys()
        assert ("connections.parquet" in files) == (mode != "true-network")
