"""Twins of OpenDSS feeders are functions of their frame and record: results of the true network stay out.

Each attack takes two neighbouring networks, one line 5 % longer, gives both the same record of a twin, and
compares what is built. On ffefb60 this held where taps, loads and charging were literals of the file.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import Feeder, ParameterKey
from dp_powerflow.grid.opendss.engine import DssOrigin, build_circuit
from dp_powerflow.grid.opendss.parameters import frame_and_parameters, read_parameters
from dp_powerflow.grid.opendss.reader import read_dss
from dp_powerflow.grid.opendss.script import read_script
from dp_powerflow.grid.quantities import Protected, Quantity
from dp_powerflow.grid.sources import LoadTable, open_feeder, read_loads, read_taps, write_taps
from support.attacks import EVERYTHING, assert_twins_agree, bits_of, record_of, twin_of
from support.small_circuits import script
from support.tiny_feeder import two_lines

LINE = "New Line.secret bus1=source bus2=a {figures} length={length!r} units=km"
CASES: dict[str, Any] = json.loads(Path(__file__).with_name("opendss_cases.json").read_bytes())
"""Files that freeze or state what was solved, what no twin models or holds, and tables of loads.

An exported snapshot has taps and no RegControl, a saved circuit the steps that a control left: a bit of the
lines per step; no tap file could have declared the tap of an AutoTrans.
"""
OWN = "r1=0.30 x1=0.60 r0=0.9 x0=1.8 c1=9 c0=4"


def scripted(length: float, *, regulated: bool = True, secret: str = "", **parts: str) -> str:
    """The script of a feeder with a line whose length is a secret."""
    regulator = script("attacked_regulator", **parts) if regulated else ""
    line = secret or LINE.format(figures=OWN, length=length)
    bus = "r" if regulated else "a"
    return script("attacked", secret=line, regulator=regulator, from_bus=bus, **parts)


def written(folder: Path, length: float, **parts: Any) -> Feeder:
    """That feeder, opened from a file."""
    path = folder / f"feeder {length}.dss"
    path.write_text(scripted(length, **parts))
    return open_feeder(path)


def neighbours(folder: Path, **parts: Any) -> tuple[Feeder, Feeder]:
    return written(folder, 8.0, **parts), written(folder, 8.4, **parts)


def feeder(factor: float, secret: str = "", more: str = "") -> Feeder:
    """The same without a regulator, read without a file."""
    text = scripted(8.0 * factor, regulated=False, secret=secret, more=more)
    return read_dss(DssOrigin(tuple(text.splitlines())), name="x")


def declared_taps(folder: Path, ratio: float, by: str = "the planning desk") -> Any:
    path = folder / "taps.csv"
    path.write_text(f"# declared: {by}\ntransformer,winding,tap\nreg,2,{ratio}\n")
    return read_taps(path)


@pytest.mark.parametrize("protected", [Protected(), Protected(charging=True), Protected(lines="length")])
def test_taps_are_solved_on_the_twin(tmp_path: Path, protected: Protected) -> None:
    """On ffefb60 a twin had the taps of the true network: 1.06875 against 1.075 of its neighbour."""
    one, other = neighbours(tmp_path)
    twin = assert_twins_agree(one, other, protected)
    assert len(twin.taps) == 1
    assert twin.taps_from == "solved once at nominal load, then frozen"


@pytest.mark.parametrize("end", CASES["ends that freeze"])
def test_a_file_that_solves_and_disables_its_regulator_gives_nothing_away(tmp_path: Path, end: str) -> None:
    """On ffefb60 the tap that the file's own solution left was the twin's: 1.06875 against 1.075."""
    one, other = neighbours(tmp_path, end=end)
    assert one.taps == other.taps == ()
    assert_twins_agree(one, other)


@pytest.mark.parametrize("parts", CASES["literal taps"])
def test_a_tap_that_no_enabled_regulator_moves_must_be_declared(
    tmp_path: Path, parts: dict[str, Any]
) -> None:
    """A saved circuit states solved taps as literals. On ffefb60 they were the twin's."""
    one = written(tmp_path, 8.0, **parts)
    with pytest.raises(FeederError, match="no enabled regulator moves it"):
        twin_of(one, record_of(one))
    declared = open_feeder(tmp_path / "feeder 8.0.dss", taps=declared_taps(tmp_path, 1.0251))
    assert [tap.ratio for tap in twin_of(declared, record_of(declared)).taps] == [1.025]


def test_taps_saved_by_inspect_are_refused_for_a_twin(tmp_path: Path) -> None:
    """On ffefb60 they were taken as declared: a solved tap in every release of the twin."""
    one = written(tmp_path, 8.0)
    file = tmp_path / "taps.csv"
    write_taps(file, one.taps)
    internal = open_feeder(tmp_path / "feeder 8.0.dss", taps=read_taps(file))
    with pytest.raises(FeederError, match="were solved on it"):
        twin_of(internal, record_of(internal))
    file.write_text("\n".join(file.read_text().splitlines()[1:]) + "\n")
    unsigned = open_feeder(tmp_path / "feeder 8.0.dss", taps=read_taps(file))
    with pytest.raises(FeederError, match="may follow from it"):
        twin_of(unsigned, record_of(unsigned))


def test_declared_taps_are_the_twin_s_on_their_steps(tmp_path: Path) -> None:
    """On ffefb60 a declared ratio passed with all its digits, 53 bits of anything."""
    neighbours(tmp_path)
    one, other = (
        open_feeder(tmp_path / f"feeder {length}.dss", taps=declared_taps(tmp_path, ratio, "desk"))
        for length, ratio in ((8.0, 1.0371234), (8.4, 1.0384321))
    )
    twin = assert_twins_agree(one, other)
    assert [tap.ratio for tap in twin.taps] == [1.0375]
    assert twin.taps_from == "declared: desk"


@pytest.mark.parametrize("control", ["", "enabled=no"])
def test_states_that_a_capacitor_control_left_are_not_in_the_twin(tmp_path: Path, control: str) -> None:
    """Solved, the file switches a step off in one neighbour (117.98 V), not in the other (117.62 V)."""
    more = f"""
New Capacitor.bank bus1=b phases=3 kvar=900 kv=12.47 numsteps=3 states=[1 1 1]
New CapControl.cc element=line.b terminal=2 capacitor=bank type=voltage ptratio=60
~ onsetting=100 offsetting=117.8 {control}
"""
    end = "Solve controlmode=static\nDisable CapControl.cc"
    one, other = neighbours(tmp_path, more=more, regulated=False, end=end)
    twin = assert_twins_agree(one, other)
    assert abs(twin.y - one.y).max() < 0.5 * abs(one.y).max()
    assert one.nodes == twin.nodes


def test_a_twin_is_operated_by_the_file_s_controls_to_public_steps(tmp_path: Path) -> None:
    """Settings that differ in digits nobody sets give the same twin; all states are those of the twin."""
    shown = {"delay": "30", "on": "400", "vmin": "116.5", "kw": "312", "pf": "-0.95", "knee": "0.98"}
    hidden = {
        **{"delay": "30.0734", "on": "400.0321", "vmin": "116.5077"},
        **{"kw": "312.0771", "pf": "-0.9500821", "knee": "0.9800347"},
    }
    one = written(tmp_path, 8.0, more=script("attacked_operated", **shown))
    other = written(tmp_path, 8.4, more=script("attacked_operated", **hidden))
    twin = assert_twins_agree(one, other)
    operation = twin.as_operated
    assert [each.name for each in operation.regulators] == ["creg"]
    (bank,) = operation.capacitors
    assert (bank.control.kind, bank.control.on, bank.control.delay_on_s) == ("kvar", 400.0, 30.0)
    assert bank.control.override_v == (116.5, 128.0)
    assert bank.closed
    assert [(each.name, each.kw) for each in operation.generators] == [("g", 312.0)]
    roof, curved = twin.pv
    assert roof.tan_theta == pytest.approx(-0.3287, abs=1e-4)
    assert curved.curve is not None
    assert 0.98 in curved.curve.voltage
    assert set(operation.left_out) == {"1 generator that holds its voltage (model 3)", "1 storage unit"}
    assert operation.refused == one.as_operated.refused == ()


@pytest.mark.parametrize("more", CASES["not modelled"])
def test_what_the_solver_does_not_model_is_refused_on_a_twin_too(tmp_path: Path, more: str) -> None:
    """A control that the twin cannot have must not vanish."""
    feeder = written(tmp_path, 8.0, more=more)
    twin = twin_of(feeder, record_of(feeder))
    assert len(twin.as_operated.refused) == 1


def test_the_law_of_a_load_is_the_twin_s(tmp_path: Path) -> None:
    feeder = written(tmp_path, 8.0, load="model=8 zipv=[0.2 0.3 0.5 0.1 0.4 0.5 0] vlowpu=0.4 vminpu=0.85")
    twin = twin_of(feeder, record_of(feeder))
    assert [load.response for load in twin.loads] == [load.response for load in feeder.loads]
    assert twin.loads[0].response.cut == 0.4


def test_line_drop_settings_are_rounded_to_a_volt_and_named(tmp_path: Path) -> None:
    """Settings R, X follow from the line's impedance: taps of 1.075 and 1.08125 on ffefb60."""
    one = written(tmp_path, 8.0, settings="R=3.0912 X=6.1824")
    other = written(tmp_path, 8.4, settings="R=3.2458 X=6.4915")
    twin = assert_twins_agree(one, other)
    assert any("line-drop settings R, X" in note and "not protected" in note for note in twin.notes)


@pytest.mark.parametrize("parts", CASES["allocated"])
def test_allocated_loads_are_refused_without_a_declared_table(tmp_path: Path, parts: dict[str, str]) -> None:
    """On ffefb60 loads that AllocateLoads had fitted were the twin's: 1571.2375402 kW and 1564.4540864."""
    one, other = neighbours(tmp_path, **parts)
    with pytest.raises(FeederError, match=r"declare a load table.* in feeder\.loads"):
        record_of(one)
    table = LoadTable({"one": (2001.0, 902.0), "two": (500.0, 100.0)})
    declared = [open_feeder(tmp_path / f"feeder {length}.dss", loads=table) for length in (8.0, 8.4)]
    twin = assert_twins_agree(declared[0], declared[1])
    assert [(load.kw, load.kvar) for load in twin.loads] == [(2000.0, 902.0), (500.0, 100.0)]
    assert [(load.kw, load.kvar) for load in declared[0].loads] == [(2001.0, 902.0), (500.0, 100.0)]
    assert other.loads == one.loads


@pytest.mark.parametrize(("content", "message"), CASES["bad load tables"])
def test_bad_load_tables_are_refused(tmp_path: Path, content: str, message: str) -> None:
    written(tmp_path, 8.0)
    table = tmp_path / "loads.csv"
    table.write_text(content)
    with pytest.raises(FeederError, match=message):
        open_feeder(tmp_path / "feeder 8.0.dss", loads=read_loads(table))


def test_a_load_table_states_the_loads_of_a_pandapower_net_too(tmp_path: Path) -> None:
    pandapower = pytest.importorskip("pandapower")
    net = pandapower.networks.simple_four_bus_system()
    path = tmp_path / "net.json"
    pandapower.to_json(net, str(path))
    stated = open_feeder(path)
    table = LoadTable({load.name.lower(): (10.0 + k, 2.0) for k, load in enumerate(stated.loads)})
    declared = open_feeder(path, loads=table)
    assert [load.kw for load in declared.loads] == pytest.approx([kw for kw, _ in table.powers.values()])
    assert [load.kvar for load in declared.loads] == pytest.approx([2.0] * len(stated.loads))
    assert declared.nodes == stated.nodes


def test_total_charging_of_a_line_of_length_one_is_not_in_the_twin(tmp_path: Path) -> None:
    """On ffefb60 cmatrix passed to 24 bits: with a public C per km, the length to 2.5e-8."""
    feeders = []
    for length in (8.0, 8.4):
        figures = f"rmatrix=[{0.3 * length}] xmatrix=[{0.6 * length}] cmatrix=[{9.123456 * length}]"
        line = f"New Line.own bus1=b.1 bus2=e.1 phases=1 {figures} length=1"
        feeders.append(written(tmp_path, length, regulated=False, more=line))
    twin = assert_twins_agree(feeders[0], feeders[1])
    assert next(line for line in twin.lines if line.name == "own").length_m is not None
    charged = Protected(charging=True)
    record = record_of(feeders[0], charged)
    key = ParameterKey(Quantity.CHARGING, "own")
    more = twin_of(feeders[0], {**record, key: 2.0 * record[key]}, charged)
    assert abs(more.y - twin_of(feeders[0], record, charged).y).max() > 0.0


@pytest.mark.parametrize("more", CASES["in no twin"])
def test_what_no_twin_may_hold_is_refused(more: str) -> None:
    """On ffefb60 the resistance of a Fault was in the twin, unprotected and unnamed."""
    one = feeder(1.0)
    assert isinstance(one.origin, DssOrigin)
    changed = replace(one, origin=DssOrigin((*one.origin.commands, *more.splitlines())))
    with pytest.raises(FeederError, match=CASES["in no twin"][more]):
        record_of(changed)


def test_a_record_that_lacks_a_figure_is_refused_and_the_true_one_is_never_used(tmp_path: Path) -> None:
    """On ffefb60 a figure without a level kept its true value."""
    one = written(tmp_path, 8.0)
    record = record_of(one)
    for key in record:
        with pytest.raises(FeederError, match="record of the twin has no"):
            twin_of(one, {other: level for other, level in record.items() if other != key})
    with pytest.raises(FeederError, match="which the feeder does not"):
        twin_of(one, {**record, ParameterKey(Quantity.LENGTH, "secret"): 1.0})


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
        origin, commands=(*origin.commands, f'Edit "Line.{name}" length={1.05 * float(length)!r}'), places=()
    )


def pair(origin: DssOrigin, position: int) -> tuple[Feeder, Feeder]:
    return read_dss(origin, name="x"), read_dss(stretched(origin, position), name="x")


def origin_of(name: str, request: pytest.FixtureRequest) -> DssOrigin:
    if name.startswith("ieee") and "/" not in name:
        origin = open_feeder(name).origin
        assert isinstance(origin, DssOrigin)
        return replace(origin, public=False)
    cases: Path = request.getfixturevalue("foreign_cases")
    return read_script(cases / name)


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
        origin, commands=(*origin.commands, f'Edit "Line.{line.line}" linecode={target} units=ft')
    )
    other = read_dss(changed, name="x")
    record = record_of(one, LENGTHS)
    for drawn in line.candidates:
        codes = {own.line: own.code for own in coded} | {line.line: drawn}
        first, second = (twin_of(feeder, record, LENGTHS, codes) for feeder in (one, other))
        assert bits_of(first) == bits_of(second)


def test_public_feeders_keep_their_taps(ieee13: Feeder) -> None:
    """What is solved on a public network is public: its twins differ from it by their levels alone."""
    twin = twin_of(ieee13, record_of(ieee13))
    assert [tap.ratio for tap in twin.taps] == pytest.approx([tap.ratio for tap in ieee13.taps])


CODED = Protected(lines="length", codes=True)


# -------------------------------------------------------------------------------- conductor codes


def with_totals_as_a_code(factor: float, lines: tuple[str, ...]) -> Feeder:
    """Lines of length 1 between the same two buses, whose code has their totals."""
    figures = {"r1": 0.3, "x1": 0.6, "r0": 0.9, "x0": 1.8, "c1": 9.0, "c0": 4.0}
    totals = " ".join(f"{key}={8 * factor * value!r}" for key, value in figures.items())
    code = f"New Linecode.span nphases=3 {totals} units=km"
    own = [f"New Line.{k} bus1=source bus2=a linecode=span length=1 units=km" for k in lines]
    return feeder(factor, "\n".join([code, *own]))


@pytest.mark.parametrize("protected", [Protected(), Protected(lines="length")])
@pytest.mark.parametrize("lines", [("own",), ("s1", "s2")])
def test_a_code_of_one_span_is_not_a_public_catalogue(lines: tuple[str, ...], protected: Protected) -> None:
    """A code per line, or per two circuits of one span, with their totals of length 1 counted as a catalogue.

    By length, the twin's Y had the true totals times a public record, and its length in km told the noise; by
    impedance, charging over X was the ratio of two figures of five digits, which gives both of them back.
    """
    one, other = (with_totals_as_a_code(factor, lines) for factor in (1.0, 1.05))
    twin = assert_twins_agree(one, other, protected)
    assert any("1 conductor codes belong to one line each" in note for note in twin.notes)


@pytest.mark.parametrize("units", [" units=km", ""])
def test_drawn_codes_need_units_and_a_record_of_the_draw(units: str) -> None:
    """The true code stood in for a drawn one, and its unit for that of a drawn code without one."""
    codes = (
        f"New Linecode.c1 nphases=3 r1=0.3 x1=0.6 units=km\nNew Linecode.c2 nphases=3 r1=0.2 x1=0.5{units}"
    )
    one = feeder(1.0, f"{codes}\nNew Line.secret bus1=source bus2=a linecode=c1 length=8{units}")
    with pytest.raises(FeederError, match="no code of line 'secret'" if units else "give every code units="):
        twin_of(one, record_of(one, CODED), CODED)


@pytest.mark.parametrize("protected", [Protected(), Protected(lines="length"), Protected(charging=True)])
def test_a_standard_type_of_one_line_is_not_public(protected: Protected) -> None:
    """pandapower: a type per line with its totals and length 1 gave R, X and C away as OpenDSS codes did."""
    pytest.importorskip("pandapower")
    from support.pandapower_nets import CABLE, differing, feeder_of, levels_of, quiet, small_net
    from support.pandapower_nets import twin_of as pandapower_twin

    def with_type(factor: float) -> Feeder:
        net = small_net()
        totals = {"r_ohm_per_km": 0.961, "x_ohm_per_km": 1.178, "c_nf_per_km": 30.07, "g_us_per_km": 0.0}
        figures = {name: factor * value for name, value in totals.items()}
        with quiet() as pp:
            pp.create_std_type(net, {**figures, "max_i_ka": 0.3, "type": "ol"}, "segment 17", element="line")
        for column, value in {**figures, "length_km": 1.0, "std_type": "segment 17"}.items():
            net.line.loc[0, column] = value
        return feeder_of(net)

    one, other = with_type(1.0), with_type(1.05)
    levels = levels_of(one, protected)
    assert not any(key.quantity is Quantity.LENGTH and key.element == "own" for key in levels)
    first, second = (pandapower_twin(net, protected, levels) for net in (one, other))
    assert differing(first, second) == []
    assert CABLE in {line.code for line in first.lines}  # a type of the library stays public


def fed_by(load: str) -> Feeder:
    """A feeder whose only load at bus e is the one given."""
    line = "New Line.last phases=3 bus1=b bus2=e r1=0.2 x1=0.4 r0=0.5 x0=1.2 length=1.0 units=km"
    return two_lines(more=f"{line}\nNew Load.odd phases=1 conn=delta kv=12.47 {load}")


@pytest.mark.parametrize("kvar", [300, -300, 173.3])
def test_a_load_with_a_negative_share_keeps_its_total_and_both_nodes(kvar: float) -> None:
    feeder = fed_by(f"bus1=e.1.2 kw=100 kvar={kvar}")
    positions, kw = feeder.loaded_nodes()
    at = dict(zip(feeder.retained[positions].tolist(), kw.tolist(), strict=True))
    assert [at[feeder.node_index[node]] for node in ("e.1", "e.2")] == pytest.approx([50.0, 50.0])
    assert sum(at.values()) == pytest.approx(sum(load.kw for load in feeder.loads))
    assert sum("draw negative power at one of them" in note for note in feeder.notes) == 1
    assert replace(feeder, name="again").notes == feeder.notes
    # The power flow of the file keeps the exact equivalent.
    assert -feeder.nominal_injection[feeder.node_index["e.1"]].real != pytest.approx(0.05)


def test_a_load_with_two_positive_shares_keeps_its_wye_equivalent() -> None:
    feeder = fed_by("bus1=e.1.2 kw=100 kvar=100")
    nominal_kw = -feeder.nominal_injection.real * feeder.base_mva * 1000.0
    np.testing.assert_array_equal(feeder.nominal_kw, nominal_kw)
    assert not any("negative" in note for note in feeder.notes)
