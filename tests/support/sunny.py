"""PV systems of a feeder in given irradiance."""

from __future__ import annotations

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
