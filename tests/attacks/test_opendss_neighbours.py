"""Two neighbouring networks, one record: the same twin to the last bit, on every OpenDSS feeder at hand.

On ffefb60 this held where taps, loads and charging were literals of the file; it failed on every feeder with
regulators whose taps were solved.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.opendss.engine import DssOrigin, build_circuit, file_origin
from dp_powerflow.grid.opendss.parameters import frame_and_parameters, read_parameters
from dp_powerflow.grid.opendss.reader import read_dss
from dp_powerflow.grid.quantities import Protected
from dp_powerflow.grid.sources import open_feeder
from support.attacks import EVERYTHING, assert_twins_agree, bits_of, record_of, twin_of

FOREIGN = (
    "ieee13_dss/IEEE13Nodeckt.dss",
    "ieee123_dss/IEEE123Master.dss",
    "34Bus/Run_IEEE34Mod2.dss",
    "4Bus-OYOD-Bal/4Bus-OYOD-Bal.DSS",
    "triplex_pv/triplex_pv.dss",
    "test_reg/main.dss",
)
UNITLESS = {"ieee123_dss/IEEE123Master.dss"}
"""Their codes have no unit of length, so that drawing them is refused."""
LENGTHS = Protected(lines="length", transformers=True, capacitors=True, pv=True, codes=True)


def stretched(origin: DssOrigin, position: int) -> DssOrigin:
    """The circuit with one line 5 % longer."""
    lines = build_circuit(origin).ActiveCircuit.Lines
    found = [(own.Name, own.Length) for own in lines if not own.IsSwitch]
    name, length = found[position % len(found)]
    return replace(
        origin,
        commands=(*origin.commands, f'Edit "Line.{name}" length={1.05 * float(length)!r}'),
        places=(),
    )


def pair(origin: DssOrigin, position: int) -> tuple[Feeder, Feeder]:
    return read_dss(origin, name="x"), read_dss(stretched(origin, position), name="x")


def origin_of(name: str, request: pytest.FixtureRequest) -> DssOrigin:
    if name.startswith("ieee") and "/" not in name:
        origin = open_feeder(name).origin
        assert isinstance(origin, DssOrigin)
        return replace(origin, public=False)
    cases: Path = request.getfixturevalue("foreign_cases")
    return file_origin(cases / name)


@pytest.mark.parametrize("name", ["ieee13", "ieee123", *FOREIGN])
@pytest.mark.parametrize("protected", [EVERYTHING, LENGTHS], ids=["impedance", "length"])
def test_neighbours_with_the_same_record_have_the_same_twin(
    name: str, protected: Protected, request: pytest.FixtureRequest
) -> None:
    origin = origin_of(name, request)
    if name in UNITLESS:
        protected = replace(protected, codes=False)
    one, other = pair(origin, 2)
    assert_twins_agree(one, other, protected)
    assert isinstance(other.origin, DssOrigin)
    assert frame_and_parameters(origin, protected)[0] == frame_and_parameters(other.origin, protected)[0]


def test_drawn_codes_replace_every_figure_of_a_code(request: pytest.FixtureRequest) -> None:
    """Neighbours in the code of a line: with the same draw nothing of the true code is left."""
    origin = origin_of("ieee13", request)
    one = read_dss(origin, name="x")
    coded = read_parameters(origin, LENGTHS).coded
    line = next(line for line in coded if len(line.candidates) > 2)
    target = next(code for code in line.candidates if code != line.code)
    changed = replace(
        origin,
        commands=(*origin.commands, f'Edit "Line.{line.line}" linecode={target} units=ft'),
    )
    other = read_dss(changed, name="x")
    record = record_of(one, LENGTHS)
    for drawn in line.candidates:
        codes = {own.line: own.code for own in coded} | {line.line: drawn}
        first, second = (twin_of(feeder, record, LENGTHS, codes) for feeder in (one, other))
        assert bits_of(first) == bits_of(second)


@pytest.mark.parametrize(
    "edit",
    [
        "Edit Transformer.xfm1 xhl=2.1 %rs=[0.5775 0.5775]",
        "Edit Capacitor.cap1 kvar=630",
    ],
)
def test_neighbours_in_other_elements_have_the_same_twin(edit: str, request: pytest.FixtureRequest) -> None:
    origin = origin_of("ieee13", request)
    other = replace(origin, commands=(*origin.commands, edit))
    assert_twins_agree(read_dss(origin, name="x"), read_dss(other, name="x"))


def test_public_feeders_keep_their_taps(ieee13: Feeder) -> None:
    """What is solved on a public network is public: its twins differ from it by their levels alone."""
    twin = twin_of(ieee13, record_of(ieee13))
    assert [tap.ratio for tap in twin.taps] == pytest.approx([tap.ratio for tap in ieee13.taps])
