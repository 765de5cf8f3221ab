"""What a mode decides on config and feeder alone is refused before a spend: the ledger is left alone.

What cannot be read is refused before a mode sees it; every journey asserts the same of its commands.
"""

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


def twin(says: str, more: str, **section: Any) -> Case:
    return Case(says, HEAD + LOADS + more + TAIL, sections={"network": TWIN | section})


def own(says: str, **sections: Any) -> Case:
    return Case(says, sections=sections)


SHAPES = {"kind": "opendss-shapes", "path": "shapes"}
CASES = [
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
