"""No check on config and feeder alone fails after a spend: what can be provoked leaves the ledger alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import dp_powerflow as dpf
from dp_powerflow.errors import ConfigError, DpPowerflowError, FeederError, PowerFlowError
from support.small import small_config

HEAD = """
Clear
New Circuit.c basekv=4.16 bus1=s
New Line.a bus1=s bus2=x r1=0.1 x1=0.2 r0=0.2 x0=0.4 c1=0 c0=0 length=0.5 units=km
New Line.b bus1=x bus2=y r1=0.1 x1=0.2 r0=0.2 x0=0.4 c1=0 c0=0 length=0.5 units=km
"""
LOADS = """New Load.one bus1=x.1 phases=1 kv=2.4 kW=100 kvar=30
New Load.two bus1=y.1 phases=1 kv=2.4 kW=80 kvar=20
"""
ROOF = "New PVSystem.roof bus1=y.1 phases=1 kv=2.4 kVA=300 Pmpp=250 %cutin=20\n"
TAIL = "Set VoltageBases=[4.16]\nCalcVoltageBases\n"
REGULATOR = (
    "New Transformer.reg phases=1 windings=2 buses=[y.2 z.2] kvs=[2.4 2.4] kvas=[500 500] XHL=1\n"
    "New RegControl.reg transformer=reg winding=2 vreg=122 band=2 ptratio=20\n"
    "New Load.three bus1=z.2 phases=1 kv=2.4 kW=50 kvar=10\n"
)
TWIN: dict[str, Any] = {"mode": "twin-network", "epsilon": 8.0, "id": "t1", "change": 0.05}
EVIDENCE: dict[str, Any] = {"require_evidence": True}
DAY = "\n".join(["0.5"] * 24)


@dataclass(frozen=True)
class Case:
    """A release that must be refused: where, and what it is made from."""

    says: str
    circuit: str = HEAD + LOADS + TAIL
    files: dict[str, str] = field(default_factory=dict)
    sections: dict[str, Any] = field(default_factory=dict)


def feeder(circuit: str, says: str, **sections: Any) -> Case:
    return Case(says, circuit, sections=sections)


def taps(says: str, content: str) -> Case:
    circuit, section = HEAD + LOADS + REGULATOR + TAIL, {"feeder": {"taps": "taps.csv"}}
    return Case(says, circuit, {"taps.csv": content}, section)


def table(says: str, content: str) -> Case:
    return Case(says, files={"loads.csv": content}, sections={"feeder": {"loads": "loads.csv"}})


def sun(says: str, content: str, **section: Any) -> Case:
    pv = {"irradiance": "sun.csv"} | section
    return Case(says, HEAD + LOADS + ROOF + TAIL, {"sun.csv": content}, {"pv": pv})


def twin(says: str, more: str, **section: Any) -> Case:
    return Case(says, HEAD + LOADS + more + TAIL, sections={"network": TWIN | section})


def weather(
    says: str, content: str, first_day: str = "2023-01-01", columns: str = "", **section: Any
) -> Case:
    path, release = {"path": "weather.csv"} | section, {"days": 2, "first_day": first_day}
    sections = {"weather": path, "network": TWIN, "release": release}
    return Case(says, files={"weather.csv": f"time,temperature{columns}\n{content}"}, sections=sections)


def own(says: str, **sections: Any) -> Case:
    return Case(says, sections=sections)


DAYS = "2023-01-01,5\n2023-01-02,6\n2023-01-03,7\n"
SHAPES = {"kind": "opendss-shapes", "path": "shapes"}
CASES = [
    # ---- the files of the feeder
    own("is not a feeder", feeder={"source": "ieee14"}),
    own("does not exist", feeder={"source": "gone.dss"}),
    own("does not exist", feeder={"source": "gone.json"}),
    feeder(HEAD + "Redirect c.dss\n", "redirects to itself"),
    feeder(HEAD + "Redirect gone.dss\n", "does not exist"),
    feeder(HEAD + LOADS + "Bogus x\n" + TAIL, "does not describe a circuit"),
    feeder(HEAD + LOADS + "Set Nonsense=3\n" + TAIL, "not an option"),
    feeder(HEAD + LOADS + "Set Year=5\n" + TAIL, "year=5 is not modelled"),
    feeder(HEAD + LOADS + "Set Frequency=50\n" + TAIL, "50 Hz, where"),
    feeder(
        HEAD + LOADS + "Set AllowDuplicates=yes\n" + LOADS + TAIL,
        "two elements",
    ),
    feeder(HEAD + LOADS + "Open Load.one 1\n" + TAIL, "has an open terminal"),
    feeder(
        HEAD
        + LOADS
        + "New Load.rod bus1=x.3.5 phases=1 kv=2.4 kW=80\nNew Reactor.rod bus1=x.5 phases=1 r=10 x=0\n"
        + TAIL,
        "not the one that OpenDSS solves",
        feeder={"drop_islanded": True},
    ),
    feeder("Clear\n", "defines no circuit"),
    feeder(HEAD + LOADS + "Disable Vsource.source\n" + TAIL, "no voltage source"),
    feeder(HEAD + "New Lnie.z bus1=x bus2=y\n", "OpenDSS rejects"),
    feeder(
        HEAD + LOADS + "New Load.far bus1=gone.1 phases=1 kv=2.4 kW=10\n" + TAIL,
        "which no line or transformer reaches",
    ),
    feeder(
        HEAD + LOADS + "New Load.self bus1=x.1.1 phases=1 kv=2.4 kW=10\n" + TAIL,
        "to itself or to ground",
    ),
    feeder(HEAD + LOADS + "New Line.i bus1=p bus2=q length=1\n" + TAIL, "are islanded"),
    feeder(HEAD + TAIL, "no load and no generation"),
    feeder(HEAD + ROOF + TAIL, "the release would be empty"),
    # ---- tap files and load tables
    own("does not exist", feeder={"taps": "gone.csv"}),
    taps("must have the columns", "a,b\n"),
    taps("winding must be", "transformer,winding,tap\nreg,two,1.0\n"),
    taps("between 0.5 and 1.5", "transformer,winding,tap\nreg,2,9.0\n"),
    taps("and who set these taps", "# solved\ntransformer,winding,tap\n"),
    taps("does not have", "transformer,winding,tap\nother,2,1.0\n"),
    taps("has no winding 7", "transformer,winding,tap\nreg,7,1.0\n"),
    taps("lacks winding 2", "transformer,winding,tap\n"),
    feeder(HEAD + LOADS + REGULATOR + TAIL, "takes as declared public"),
    own("does not exist", feeder={"loads": "gone.csv"}),
    table("must have the columns", "a,b\n"),
    table("one row, and a name", "name,kw,kvar\none,1,1\none,1,1\n"),
    table("must be numbers", "name,kw,kvar\none,a,1\n"),
    table("must be finite", "name,kw,kvar\none,inf,1\n"),
    table("lacks load 'two'", "name,kw,kvar\none,1,1\n"),
    # ---- classes, loads, power factors
    own("set loads.first_day", loads=SHAPES),
    own("set loads.services", loads={"kind": "wide", "path": "meters.csv"}),
    own("load class 'farms'", nodes={"load_class": "farms"}),
    own("drawn for the nodes, not declared", model={"private_classes": 2}),
    own("'nine', a load that", nodes={"class_of_load": {"nine": "residential"}}),
    feeder(
        HEAD + LOADS.replace("bus1=y", "bus1=x") + TAIL,
        "declare one class for both",
        nodes={"class_of_load": {"one": "industrial"}},
    ),
    feeder(
        HEAD + LOADS.replace("bus1=y", "bus1=x") + TAIL,
        "different power factors",
        nodes={"power_factor_of_load": {"one": 0.9}},
    ),
    own(
        "INTERNAL: with the loads of some phases",
        nodes={"scale_factor": 1000.0},
    ),
    taps(
        "takes as declared public",
        "# solved on the true network; INTERNAL\ntransformer,winding,tap\nreg,2,1.0\n",
    ),
    # ---- sun
    own("no PV system", pv={"irradiance": "sun.csv"}),
    sun("does not exist", DAY, irradiance="gone.csv"),
    sun("must hold 24 lines", "0.5\n"),
    sun("shares of the peak", DAY.replace("0.5", "7")),
    sun("one number per line", "0.5\nnoon\n"),
    sun("for 'roof'", "cellar\n" + DAY),
    sun("numbers below its header", "roof\n" + DAY.replace("0.5", "noon")),
    sun("one file for the PV system", DAY, irradiance="."),
    # ---- calendar and weather
    weather("correct weather.path", DAYS, path="gone.csv"),
    weather("needs one column 'temp'", DAYS, temperature="temp"),
    weather("holds string, not numbers", "2023-01-01,warm\n"),
    weather("have no 'time'", DAYS + ",5\n"),
    weather("is not ISO 8601", DAYS + "4.1.2023,5\n"),
    weather("fewer than two readings", "2023-01-01,5\n"),
    weather("is there twice", DAYS + "2023-01-03,5\n"),
    weather("the dates alone", "2023-01-01T12:00,5\n2023-01-02T12:00,5\n"),
    weather("look like kelvin", DAYS.replace(",", ",28")),
    weather(
        "no irradiance in W/m²",
        DAYS.replace("\n", ",1\n"),
        columns=",sun",
        irradiance="sun",
    ),
    weather(
        "no day of the weather",
        "2023-01-01T00:00,5\n2023-01-01T01:00,5\n",
    ),
    weather("lacks 2023-01-01, .* meters", DAYS.replace("-01-", "-02-"), "2023-02-01"),
    weather("lacks 2024-01-01, .* release", DAYS, "2024-01-01"),
    Case(
        "which is not a date",
        files={"holidays.txt": "Easter\n"},
        sections={"calendar": {"holidays": "holidays.txt"}, "network": TWIN},
    ),
    own("that can be read", calendar={"holidays": "gone.txt"}, network=TWIN),
    own(
        "beyond the year 9999",
        network=TWIN,
        release={"days": 3_000_000},
    ),
    # ---- evidence that is required and impossible
    own(
        "one Gaussian per class",
        network=EVIDENCE,
        model={"components": 2},
    ),
    feeder(
        HEAD + LOADS + "New Load.light bus1=x.2 phases=1 kv=2.4 kW=0.1 kvar=0\n" + TAIL,
        "1 nodes carry less load than the public minimum",
        network=EVIDENCE,
    ),
    own("a calibration of 20 days leaves", network=EVIDENCE),
    own(
        r"Assumption 1 \(i\) of the paper fails",
        network=EVIDENCE | {"bound": "paper", "calibration_days": 10000},
        release={"days": 2},
    ),
    own(
        "r = 1e.09 is too large",
        network=EVIDENCE | {"radius": 1e9, "calibration_days": 10000},
        release={"days": 2},
    ),
    Case(
        "no bound of Theorem 1 covers volt-var control",
        HEAD + LOADS + ROOF + TAIL,
        {"sun.csv": DAY},
        {
            "network": EVIDENCE | {"calibration_days": 10000},
            "release": {"days": 2},
            "pv": {"irradiance": "sun.csv", "volt_var": "category B"},
        },
    ),
    # ---- what a twin could not be drawn of
    twin("written|allocated", "AllocateLoads\n"),
    twin("whose figures would stay", "New Fault.f bus1=y.3 phases=1 r=1000\n"),
    twin(
        "open steps",
        "New Capacitor.k bus1=x phases=3 kv=4.16 numsteps=2 kvar=[10 10] states=[1 0]\n",
    ),
    Case(
        "the taps given for the network",
        HEAD + LOADS + REGULATOR + TAIL,
        {"taps.csv": "transformer,winding,tap\nreg,2,1.0125\n"},
        {"feeder": {"taps": "taps.csv"}, "network": TWIN},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.says)
def test_what_config_or_feeder_decide_is_refused_before_anything_is_spent(tmp_path: Path, case: Case) -> None:
    (tmp_path / "c.dss").write_text(case.circuit)
    for name, text in case.files.items():
        (tmp_path / name).write_text(text)
    sections = {name: dict(values) for name, values in case.sections.items()}
    sections["feeder"] = {"source": "c.dss"} | sections.get("feeder", {})
    sections["loads"] = {"load_points": 20, "days": 2} | sections.get("loads", {})
    with pytest.raises(DpPowerflowError, match=case.says) as caught:
        dpf.release(small_config(tmp_path, **sections), workers=1)
    assert isinstance(caught.value, ConfigError | FeederError | PowerFlowError)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "state" / "ledger.sqlite").exists()
    assert not (tmp_path / "out").exists()
