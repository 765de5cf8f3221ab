"""Circuits small enough to be rebuilt a thousand times."""

from __future__ import annotations

from collections.abc import Mapping

from dp_powerflow.grid.feeder import Feeder, Levels
from dp_powerflow.grid.opendss.engine import DssOrigin
from dp_powerflow.grid.opendss.reader import read_dss
from dp_powerflow.grid.quantities import Protected
from dp_powerflow.grid.sources import Rebuilder

EVERYTHING = Protected(transformers=True, capacitors=True, pv=True, charging=True)
KEYS = {
    **{"coded": "1.5", "length": "2.0", "r1": "0.30", "r0": "0.90", "x1": "0.60", "x0": "1.80"},
    **{"xhl": "4", "rs": "0.6", "kvar": "60", "pmpp": "40", "kva": "50"},
}


def two_lines(*, own: str | None = None, more: str = "", **changed: str) -> Feeder:
    """A source, a line, a transformer, a line, a load at either end, a capacitor, a PV system."""
    value = {**KEYS, **changed}
    commands = (
        "Clear",
        "New Circuit.tiny basekv=12.47 pu=1.0 R1=0.01 X1=0.05 R0=0.01 X0=0.05",
        "New Linecode.thin nphases=3 r1=0.30 x1=0.60 r0=0.8 x0=1.9 c1=9 c0=4 units=km",
        "New Linecode.thick nphases=3 r1=0.10 x1=0.50 r0=0.5 x0=1.7 c1=11 c0=5 units=km",
        "New Linecode.drop nphases=1 r1=0.4 x1=0.3 r0=0.4 x0=0.3 c1=3 c0=3 units=km",
        f"New Line.coded bus1=sourcebus bus2=a linecode=thin length={value['coded']} units=km",
        own
        or (
            f"New Line.own phases=3 bus1=a bus2=b r1={value['r1']} x1={value['x1']} r0={value['r0']} "
            f"x0={value['x0']} c1=8 c0=3 length={value['length']} units=km"
        ),
        "New Line.tie phases=3 bus1=b bus2=c switch=y r1=1e-4 x1=1e-4 r0=1e-4 x0=1e-4 c1=0 c0=0 length=0.001",
        f"New Transformer.step phases=3 windings=2 buses=[c d] conns=[delta wye] kvs=[12.47 0.48] "
        f"kvas=[500 500] xhl={value['xhl']} %rs=[{value['rs']} {value['rs']}]",
        f"New Capacitor.bank bus1=b phases=3 kvar={value['kvar']} kv=12.47",
        "New Load.la bus1=a phases=3 kv=12.47 kw=300 kvar=90",
        "New Load.ld bus1=d phases=3 kv=0.48 kw=200 kvar=60",
        f"New PVSystem.roof bus1=d phases=3 kv=0.48 kva={value['kva']} pmpp={value['pmpp']} irradiance=1",
        *more.splitlines(),
        "Set VoltageBases=[12.47 0.48]",
        "CalcVoltageBases",
    )
    # Public, so that a code is an entry of the catalogue though one line alone uses it.
    return read_dss(DssOrigin(commands, public=True), name="tiny")


def rebuilt(
    feeder: Feeder,
    levels: Levels,
    codes: Mapping[str, str] | None = None,
    *,
    protected: Protected = EVERYTHING,
) -> Feeder:
    """A feeder with other levels, once; by default of all that `network_parameters` reads."""
    return Rebuilder(feeder, protected).build(levels, codes)
