"""OpenDSS files of a few buses with one control of every kind."""

from __future__ import annotations

from pathlib import Path

from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.sources import open_feeder

_CIRCUIT = """
Clear
New Circuit.small basekv=12.47 bus1=source pu={pu} r1=0.5 x1=1.5 r0=0.5 x0=1.5
New Line.first bus1=source bus2=a r1=0.30 x1=0.60 r0=0.9 x0=1.8 c1=9 c0=4 length=3 units=km
New Transformer.reg phases=3 windings=2 buses=[a r] conns=[wye wye] kvs=[12.47 12.47]
~ kvas=[9000 9000] xhl=1
{regulator}
New Line.b bus1=r bus2=b r1=0.30 x1=0.60 r0=0.9 x0=1.8 c1=9 c0=4 length=2 units=km
New Load.one bus1=b phases=3 kv=12.47 kw=2000 kvar=900 vminpu=0.5 vlowpu=0.2
New Load.two bus1=b.2 phases=1 kv=7.2 kw=300 kvar=150 vminpu=0.5 vlowpu=0.2
New Load.three bus1=b.3.1 phases=1 kv=12.47 kw=400 kvar=250 conn=delta vminpu=0.5 vlowpu=0.2
{more}
Set VoltageBases=[12.47]
CalcVoltageBases
"""
REGULATOR = (
    "New RegControl.creg transformer=reg winding=2 vreg=122 band=2 ptratio=60 ctprim=300 r=2 x=4 delay=30"
)
BANK = """
New Capacitor.bank bus1=b phases=3 kvar=900 kv=12.47
New CapControl.cc capacitor=bank element=line.b terminal=1 {settings}
"""


def small_circuit(folder: Path, *, pu: float = 1.05, regulator: str = REGULATOR, more: str = "") -> Feeder:
    """A source, a line, a regulator, a line, three loads and `more` at bus b."""
    path = folder / "feeder.dss"
    path.write_text(_CIRCUIT.format(pu=pu, regulator=regulator, more=more))
    return open_feeder(path)
