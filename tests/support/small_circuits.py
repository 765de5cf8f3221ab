"""OpenDSS files of a few buses with one control of every kind."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.sources import open_feeder


def script(name: str, **blanks: object) -> str:
    """A script of the folder `circuits`, its blanks filled in; those that are not given stay empty."""
    text = Path(__file__).with_name("circuits").joinpath(f"{name}.dss").read_text(encoding="utf-8")
    return text.format_map(defaultdict(str, blanks))


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
    path.write_text(script("small", pu=pu, regulator=regulator, more=more))
    return open_feeder(path)
