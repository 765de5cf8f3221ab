"""PV systems of a feeder in given irradiance."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.powerflow.sun import Generation
from dp_powerflow.units import ComplexArray, FloatArray


def pv_generation(feeder: Feeder, irradiance: FloatArray) -> ComplexArray:
    """Nodal power of all PV systems at unit power factor, complex (snapshot, retained) [p.u.].

    Parameters
    ----------
    irradiance : (snapshot,) or (snapshot, PV system), public, 1 at peak.
    """
    h = np.asarray(irradiance, dtype=np.float64)
    return Generation.from_irradiance(feeder, h[None]).of(np.zeros(1, dtype=np.int64))


ROOF = """
Clear
New Circuit.c basekv=4.16 bus1=s
New Line.a bus1=s bus2=x length=0.5 units=km
New Line.b bus1=x bus2=y length=0.5 units=km
New Load.one bus1=x.1 phases=1 kv=2.4 kW=100 kvar=30
New Load.two bus1=y.1 phases=1 kv=2.4 kW=80 kvar=20
New PVSystem.roof bus1=y.1 phases=1 kv=2.4 kVA=300 Pmpp=250 %cutin=20
Set VoltageBases=[4.16]
CalcVoltageBases
"""


def write_sunny(folder: Path, circuit: str = ROOF, steps: int = 24) -> None:
    """A feeder with a PV system, and a day of sun: `c.dss` and `sun.csv`."""
    (folder / "c.dss").write_text(circuit)
    day = np.clip(np.sin(np.linspace(-np.pi / 2, 1.5 * np.pi, steps)), 0.0, None)
    (folder / "sun.csv").write_text("\n".join(f"{value:.4f}" for value in day))
