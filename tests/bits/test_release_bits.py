"""One small release, the same bytes on every processor and with any number of workers: every file."""

from __future__ import annotations

import pytest

from support.processors import PROCESSORS, output_of

CHILD = "support.release_bits"
MODES = ("true-network", "twin-network", "twin-as-operated", "twin-mended", "twin-with-histories")
OTHERS = ("haswell", "nehalem")


@pytest.fixture(scope="module", params=MODES)
def native(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    return request.param, output_of(CHILD, PROCESSORS["native"], request.param)


@pytest.mark.slow
@pytest.mark.parametrize("processor", OTHERS)
def test_every_released_file_has_the_same_bytes_on_every_processor(
    processor: str, native: tuple[str, dict[str, str]]
) -> None:
    mode, expected = native
    found = output_of(CHILD, PROCESSORS[processor], mode)
    assert found.keys() == expected.keys()
    assert {"manifest.json", "model.json", "data/part-00000.parquet"} <= expected.keys()
    assert ("connections.parquet" in expected) == (mode != "true-network")
    assert {name for name in expected if found[name] != expected[name]} == set()


@pytest.mark.slow
def test_every_released_file_has_the_same_bytes_with_two_workers(native: tuple[str, dict[str, str]]) -> None:
    mode, expected = native
    assert output_of(CHILD, PROCESSORS["native"], mode, "--workers", "2") == expected
