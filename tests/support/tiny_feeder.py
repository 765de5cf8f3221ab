"""Circuits small enough to be rebuilt a thousand times."""

from __future__ import annotations

from collections.abc import Mapping

from dp_powerflow.grid.feeder import Feeder, Levels
from dp_powerflow.grid.opendss.engine import DssOrigin
from dp_powerflow.grid.opendss.reader import read_dss
from dp_powerflow.grid.quantities import Protected
from dp_powerflow.grid.sources import Rebuilder
from support.small_circuits import script

EVERYTHING = Protected(transformers=True, capacitors=True, pv=True, charging=True)
KEYS = {
    **{"coded": "1.5", "length": "2.0", "r1": "0.30", "r0": "0.90", "x1": "0.60", "x0": "1.80"},
    **{"xhl": "4", "rs": "0.6", "kvar": "60", "pmpp": "40", "kva": "50"},
}


def two_lines(*, own: str | None = None, more: str = "", **changed: str) -> Feeder:
    """A source, a line, a transformer, a line, a load at either end, a capacitor, a PV system."""
    value = {**KEYS, **changed}
    line = (
        f"New Line.own phases=3 bus1=a bus2=b r1={value['r1']} x1={value['x1']} r0={value['r0']} "
        f"x0={value['x0']} c1=8 c0=3 length={value['length']} units=km"
    )
    commands = tuple(script("two_lines", **value, own=own or line, more=more).splitlines())
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
