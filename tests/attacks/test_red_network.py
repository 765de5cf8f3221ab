"""Attacks on the claim that a twin is a function of its frame and its record.

Two neighbouring networks, one line 5 % off, get the same record.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.opendss.engine import DssOrigin
from dp_powerflow.grid.opendss.parameters import read_parameters
from dp_powerflow.grid.opendss.reader import read_dss
from dp_powerflow.grid.quantities import Protected, Quantity
from dp_powerflow.grid.sources import open_feeder, read_taps
from support.attacks import assert_twins_agree, record_of, twin_of

OWN = "r1=0.3 x1=0.6 r0=0.9 x0=1.8 c1=9 c0=4"
CODED = Protected(lines="length", codes=True)


def circuit(secret: str, more: str = "") -> tuple[str, ...]:
    return (
        "New Circuit.small basekv=12.47 bus1=source pu=1.05 r1=0.5 x1=1.5 r0=0.5 x0=1.5",
        *secret.splitlines(),
        f"New Line.b bus1=a bus2=b {OWN} length=2 units=km",
        "New Load.one bus1=b phases=3 kv=12.47 kw=2000 kvar=900",
        *more.splitlines(),
        "Set VoltageBases=[12.47]",
        "CalcVoltageBases",
    )


def feeder(factor: float, secret: str = "", more: str = "") -> Feeder:
    line = secret or f"New Line.secret bus1=source bus2=a {OWN} length={8.0 * factor!r} units=km"
    return read_dss(DssOrigin(circuit(line, more)), name="x")


# ------------------------------------------------------------------------------ states of controls


@pytest.mark.parametrize("tap", [1.05, 1.05625])
def test_a_literal_tap_without_any_regulator_must_be_declared(tmp_path: Path, tap: float) -> None:
    """An exported snapshot has taps and no RegControl: two neighbours had twins with 1.05 and 1.05625."""
    more = f"""New Transformer.reg phases=3 windings=2 buses=[b r] kvs=[12.47 12.47] kvas=[9000 9000] xhl=1
Edit Transformer.reg wdg=2 tap={tap}
New Load.two bus1=r phases=3 kv=12.47 kw=20"""
    one = feeder(1.0, more=more)
    record = record_of(one)
    with pytest.raises(FeederError, match="no enabled regulator moves it"):
        twin_of(one, record)
    taps, path = tmp_path / "taps.csv", tmp_path / "x.dss"
    taps.write_text("# declared: the planning desk\ntransformer,winding,tap\nreg,2,1.025\n")
    path.write_text("\n".join(one.origin.commands))  # type: ignore[attr-defined]
    declared = open_feeder(path, taps=read_taps(taps))
    assert [tap.ratio for tap in twin_of(declared, record).taps] == [1.025]


def test_a_literal_tap_of_an_autotransformer_is_refused() -> None:
    """It passed, and no tap file could have declared it."""
    more = """New AutoTrans.reg phases=3 windings=2 buses=[b r] kvs=[12.47 13.8] kvas=[9000 9000] xhx=1
Edit AutoTrans.reg wdg=2 tap=1.05
New Load.two bus1=r phases=3 kv=13.8 kw=20"""
    with pytest.raises(FeederError, match="AutoTrans 'reg' is off neutral"):
        record_of(feeder(1.0, more=more))


def test_open_steps_of_a_capacitor_are_refused() -> None:
    """A saved circuit states the steps that a control left: one bit of the lines per step."""
    more = "New Capacitor.bank bus1=b phases=3 kvar=[300 300] kv=12.47 numsteps=2 states=[1 0]"
    with pytest.raises(FeederError, match="capacitor 'bank' has open steps"):
        record_of(feeder(1.0, more=more))


def test_coordinates_do_not_reach_a_twin() -> None:
    """A surveyed line's length is the distance of its buses, to all digits; twins had the coordinates."""
    one, other = (
        feeder(f, more=f"MakeBusList\nSetBusXY bus=a x={8 * f} y=0\nSetBusXY bus=source x=0 y=0")
        for f in (1.0, 1.05)
    )
    assert one.coordinates
    assert assert_twins_agree(one, other).coordinates == {}


# -------------------------------------------------------------------------------- conductor codes


@pytest.mark.parametrize("protected", [Protected(), Protected(lines="length")])
def test_parallel_lines_with_their_totals_as_a_code_have_no_public_code(protected: Protected) -> None:
    """Two circuits of one span shared a code with their totals, of length 1: it counted as a catalogue.

    By length, the twin's Y had the true totals times a public record; by impedance, charging over X was the
    ratio of two figures of five digits, which gives both of them back.
    """

    def parallel(f: float) -> Feeder:
        totals = " ".join(
            f"{k}={v * 8 * f!r}" for k, v in (("r1", 0.3), ("x1", 0.6), ("r0", 0.9), ("x0", 1.8))
        )
        lines = [
            f"New Linecode.span nphases=3 {totals} c1={72 * f!r} c0={32 * f!r} units=km",
            *(f"New Line.{k} bus1=source bus2=a linecode=span length=1 units=km" for k in ("s1", "s2")),
        ]
        return feeder(f, "\n".join(lines))

    assert_twins_agree(parallel(1.0), parallel(1.05), protected)


def test_a_record_without_the_drawn_code_of_a_line_is_refused() -> None:
    """The true code stood in for it."""
    codes = (
        "New Linecode.c1 nphases=3 r1=0.3 x1=0.6 units=km\nNew Linecode.c2 nphases=3 r1=0.2 x1=0.5 units=km"
    )
    one = feeder(1.0, f"{codes}\nNew Line.secret bus1=source bus2=a linecode=c1 length=8 units=km")
    with pytest.raises(FeederError, match="no code of line 'secret'"):
        twin_of(one, record_of(one, CODED), CODED)


def test_drawn_codes_need_units() -> None:
    """The unit of a drawn code without one was that of the true code."""
    codes = "New Linecode.c1 nphases=3 r1=0.3 x1=0.6 units=km\nNew Linecode.c2 nphases=3 r1=0.2 x1=0.5"
    one = feeder(1.0, f"{codes}\nNew Line.secret bus1=source bus2=a linecode=c1 length=8")
    with pytest.raises(FeederError, match="give every code units="):
        read_parameters(one.origin, CODED)  # type: ignore[arg-type]


@pytest.mark.parametrize("protected", [Protected(), Protected(lines="length"), Protected(charging=True)])
def test_a_standard_type_of_one_line_is_not_public(protected: Protected) -> None:
    """pandapower: a type per line with its totals and length 1 gave R, X and C away as OpenDSS codes did."""
    pytest.importorskip("pandapower")
    from support.pandapower_nets import CABLE, differing, feeder_of, levels_of, quiet, small_net
    from support.pandapower_nets import twin_of as pandapower_twin

    def with_type(factor: float) -> Feeder:
        net = small_net()
        figures = dict(
            zip(
                ("r_ohm_per_km", "x_ohm_per_km", "c_nf_per_km", "g_us_per_km"),
                (0.961 * factor, 1.178 * factor, 30.07 * factor, 0.0),
                strict=True,
            )
        )
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


def test_a_base_voltage_that_is_an_expression_is_refused_in_words() -> None:
    """It ended in a ValueError that quoted the file."""
    with pytest.raises(FeederError, match="must state a plain number"):
        record_of(feeder(1.0, more="MakeBusList\nSetkVBase bus=b kvll=(12 0.47 +)"))
