"""One small release, the same bytes on every processor and with any number of workers: every file."""

from __future__ import annotations

import pytest

from support.processors import PROCESSORS, output_of

CHILD = "support.release_bits"
MODES = {"true-network", "twin-network", "twin-as-operated", "twin-mended", "twin-with-histories"}
pytestmark = pytest.mark.slow

Hashes = dict[str, dict[str, str]]
"""Of every file, by mode."""


@pytest.fixture(scope="module")
def native() -> Hashes:
    found: Hashes = output_of(CHILD, PROCESSORS["native"])
    return found


def test_every_mode_is_compared(native: Hashes) -> None:
    assert native.keys() == MODES
    for mode, files in native.items():
        assert {"manifest.json", "model.json", "data/part-00000.parquet"} <= files.keys()
        assert ("connections.parquet" in files) == (mode != "true-network")


@pytest.mark.parametrize("processor", ["haswell", "nehalem"])
def test_every_released_file_has_the_same_bytes_on_every_processor(processor: str, native: Hashes) -> None:
    found = output_of(CHILD, PROCESSORS[processor])
    assert found.keys() == native.keys()
    for mode, expected in native.items():
        assert found[mode].keys() == expected.keys()
        assert {name for name in expected if found[mode][name] != expected[name]} == set(), mode


def test_every_released_file_has_the_same_bytes_with_two_workers(native: Hashes) -> None:
    assert output_of(CHILD, PROCESSORS["native"], "--workers", "2") == native
