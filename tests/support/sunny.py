"""PV systems of a feeder in given irradiance."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.powerflow.sun import Generation
from dp_powerflow.units import ComplexArray, FloatArray
from support.small_circuits import script


def pv_generation(feeder: Feeder, irradiance: FloatArray) -> ComplexArray:
    """Nodal power of all PV systems at unit power factor, complex (snapshot, retained) [p.u.].

    Parameters
    ----------
    irradiance : (snapshot,) or (snapshot, PV system), public, 1 at peak.
    """
    h = np.asarray(irradiance, dtype=np.float64)
    return Generation.from_irradiance(feeder, h[None]).of(np.zeros(1, dtype=np.int64))


ROOF = script("roof")


def write_sunny(folder: Path, circuit: str = ROOF, steps: int = 24) -> None:
    """A feeder with a PV system, and a day of sun: `c.dss` and `sun.csv`."""
    (folder / "c.dss").write_text(circuit)
    day = np.clip(np.sin(np.linspace(-np.pi / 2, 1.5 * np.pi, steps)), 0.0, None)
    (folder / "sun.csv").write_text("\n".join(f"{value:.4f}" for value in day))
