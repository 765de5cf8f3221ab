"""One engine compiles many circuits: none of them leaves anything to the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from dp_powerflow import open_feeder
from dp_powerflow.errors import FeederError
from dp_powerflow.grid.opendss.engine import engine_of, file_origin
from dp_powerflow.lowlevel import Rebuilder
from dp_powerflow.pipeline.inputs import network_chunks
from support.fleet_small import circuit

HZ_50 = "Clear\nSet DefaultBaseFrequency=50\n"
EARTH = "Set EarthModel=Carson\nSet VoltageBases"


def _written(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.dss"
    path.write_text(text)
    return path


def _bytes(path: Path) -> bytes:
    """A feeder and a twin of it."""
    feeder = open_feeder(path)
    source = Rebuilder(feeder)
    twin = source.build({key: 1.1 * level for key, level in source.parameters().levels.items()})
    return b"".join([*network_chunks(feeder), *network_chunks(twin)])


def test_a_feeder_is_the_same_after_any_other(tmp_path: Path) -> None:
    plain = [_written(tmp_path, f"plain-{km}", circuit(km)) for km in (1.0, 2.0)]
    others = [
        _written(tmp_path, "other-50", circuit(1.0).replace("Clear\n", HZ_50)),
        _written(tmp_path, "other-earth", circuit(1.0).replace("Set VoltageBases", EARTH)),
    ]
    broken = _written(tmp_path, "broken", circuit(1.0).replace("New Line.second", "New Lnie.second"))
    first = {path: _bytes(path) for path in plain}
    assert len(set(first.values())) == len(first)
    for other in others:
        seen = _bytes(other)
        assert {path: _bytes(path) for path in plain} == first
        assert _bytes(other) == seen
    with pytest.raises(FeederError):
        open_feeder(broken)
    assert {path: _bytes(path) for path in reversed(plain)} == first


def test_only_circuits_that_set_nothing_for_the_whole_engine_share_it(tmp_path: Path) -> None:
    one, two, other = (
        file_origin(_written(tmp_path, name, text))
        for name, text in (
            ("one", circuit(1.0)),
            ("two", circuit(2.0)),
            ("other", circuit(1.0).replace("Set VoltageBases", EARTH)),
        )
    )
    assert (one.plain, two.plain, other.plain) == (True, True, False)
    assert engine_of(one) is engine_of(two)
    assert engine_of(other) is not engine_of(one)
    assert engine_of(other) is engine_of(other)
