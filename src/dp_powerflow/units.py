"""Per-unit bases and the array types used everywhere.

Quantities are in per unit unless their name says otherwise (`load_kw`, `v_pu`, `angle_deg`).
The power base is per node: `base_mva` = 1 means 1 MVA on each node. A node of a feeder read from OpenDSS is
one phase; a node of a balanced (pandapower) feeder stands for three, and its base is three times as large.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
ComplexArray = NDArray[np.complex128]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

KW_PER_MW = 1000.0


def admittance_base_siemens(base_kv: FloatArray, base_mva: float) -> FloatArray:
    """Admittance base of every node [S], from its line-to-neutral base voltage [kV]."""
    return base_mva / base_kv**2


def kw_to_pu(power_kw: FloatArray, base_mva: float) -> FloatArray:
    """Power [kW or kvar] → [p.u.] on a base of `base_mva` per node."""
    return power_kw / (base_mva * KW_PER_MW)
