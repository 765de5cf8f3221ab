"""What real feeders hold, and a twin must take: a test per cause, and the circuits themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dp_powerflow import Feeder, Protected
from dp_powerflow.errors import FeederError
from dp_powerflow.grid.opendss.engine import DssOrigin
from dp_powerflow.grid.opendss.reader import read_dss
from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.lowlevel import Rebuilder
from support.attacks import assert_twins_agree
from support.feeder_survey import refusal, twin_config

LENGTHS = Protected(lines="length")
CODES = Protected(lines="length", codes=True)


def feeder(*commands: str) -> Feeder:
    """A source, what is stated, and a load on buses a and b each."""
    head = "New Circuit.small basekv=12.47 bus1=source pu=1.05 r1=0.5 x1=1.5 r0=0.5 x0=1.5"
    main = "New Line.main bus1=source bus2=a r1=0.3 x1=0.6 r0=0.9 x0=1.8 c1=9 c0=4 length=2 units=km"
    loads = [f"New Load.{bus} bus1={bus}.2 phases=1 kv=7.2 kw=200 kvar=90" for bus in ("a", "b")]
    tail = ["Set VoltageBases=[12.47]", "CalcVoltageBases"]
    return read_dss(DssOrigin((head, main, *commands, *loads, *tail)), name="small")


def twin_at_own_levels(true: Feeder, protected: Protected) -> Feeder:
    rebuilder = Rebuilder(true, protected)
    parameters = rebuilder.parameters()
    rebuilder.check(parameters)
    codes = {line.line: line.code for line in parameters.coded} if protected.codes else {}
    return rebuilder.build(parameters.levels, codes)


SEQUENCES = "r1=0.3 x1=0.6 r0=0.9 x0=1.8 c1=9 c0=4 units=km"


@pytest.mark.parametrize("protected", [Protected(), LENGTHS, CODES], ids=["impedance", "length", "codes"])
@pytest.mark.parametrize("nodes", [".2", ".2.3"])
def test_a_line_may_have_fewer_phases_than_its_code(nodes: str, protected: Protected) -> None:
    """Its twin got the charging of three phases: "OpenDSS cannot build a twin", as of EPRI's ckt5."""
    phases = nodes.count(".")
    drop = f"bus2=b{nodes} linecode=three phases={phases}"
    true = feeder(
        f"New Linecode.three nphases=3 {SEQUENCES}",
        f"New Line.drop bus1=a{nodes} {drop} length=0.5 units=km",
        f"New Line.other bus1=a{nodes} {drop.replace('b.', 'c.')} length=0.7 units=km",
    )
    twin = twin_at_own_levels(true, protected)
    for one, other in zip(true.lines, twin.lines, strict=True):
        np.testing.assert_allclose(one.primitive, other.primitive, rtol=0.03, atol=1e-9)
    assert [line.code for line in twin.lines] == [None, "three", "three"]


def test_a_line_with_more_phases_than_its_code_cannot_have_it_drawn() -> None:
    true = feeder(
        f"New Linecode.one nphases=1 {SEQUENCES}",
        *(f"New Line.{k} bus1=a bus2={k} linecode=one phases=3 length=1 units=km" for k in "bc"),
    )
    twin_at_own_levels(true, LENGTHS)
    with pytest.raises(FeederError, match="line 'b' has more phases than its conductor code 'one'"):
        Rebuilder(true, CODES).parameters()


def test_phases_that_are_coupled_closely_are_no_foreign_charging() -> None:
    """A cable of EPRI's J1 and M1 was refused for its charging, which was right: shapes are coarse."""
    r = "rmatrix=[0.0444 | 0.018 0.0444 | 0.018 0.018 0.0444]"
    x = "xmatrix=[0.2615 | 0.2483 0.2615 | 0.2404 0.2483 0.2615]"
    cable = f"New Line.cable bus1=a bus2=b {r} {x} cmatrix=[15 | -12 15 | -12 -12 15]"
    twin_at_own_levels(feeder(f"{cable} length=0.1"), Protected())


BANK = """New Line.b bus1=a bus2=b r1=0.3 x1=0.6 r0=0.9 x0=1.8 c1=9 c0=4 length={} units=km
New Capacitor.bank bus1=b phases=3 kv=12.47 kvar=600 states=[{}]
New CapControl.cc element=line.b capacitor=bank type=kvar onsetting=400 offsetting=-300 {}"""


def test_a_capacitor_that_a_control_switches_starts_closed_on_a_twin() -> None:
    """A file that states one open was refused, as EPRI's M1: its twin's own control finds the state."""
    left_open, left_closed = (feeder(*BANK.format(*of, "").splitlines()) for of in ((2.0, 0), (2.1, 1)))
    assert not left_open.as_operated.capacitors[0].closed
    twin = assert_twins_agree(left_open, left_closed)
    assert twin.as_operated.capacitors[0].closed
    assert "1 capacitors that a control switches start closed" in twin.notes
    rebuilder = Rebuilder(left_open, Protected(capacitors=True))
    rebuilder.check(rebuilder.parameters())
    disabled = feeder(*BANK.format(2.0, 0, "enabled=no").splitlines())
    with pytest.raises(FeederError, match="capacitor 'bank' has open steps"):
        Rebuilder(disabled).parameters()


# ----------------------------------------------------------------------------------- the circuits


MASTERS = (
    "ckt5/Master_ckt5.dss",
    "epri_dpv/J1/Master_noPV.dss",
    "epri_dpv/M1/Master_NoPV.dss",
    "8500-Node/Master.dss",
)


@pytest.mark.campaign
@pytest.mark.parametrize("name", MASTERS)
def test_a_downloaded_circuit_is_released_as_a_twin(name: str, tmp_path: Path, circuits: Path) -> None:
    config = twin_config(tmp_path, {"source": str(circuits / name)})
    assert refusal(config, release=True) is None


@pytest.mark.campaign
def test_a_downloaded_circuit_with_allocated_loads_is_released_with_a_load_table(
    tmp_path: Path, circuits: Path
) -> None:
    source = circuits / "ckt7/Master_ckt7.dss"
    refused = refusal(twin_config(tmp_path, {"source": str(source)}))
    assert refused is not None
    assert "such as that of '0862099-d1', are allocated" in refused
    rows = (f"{load.name},{load.kw:.3g},{load.kvar:.3g}" for load in open_feeder(source).loads)
    (tmp_path / "loads.csv").write_text("\n".join(["name,kw,kvar", *rows]))
    feeder = {"source": str(source), "loads": "loads.csv"}
    assert refusal(twin_config(tmp_path, feeder), release=True) is None
