"""A balanced case as a pandapower net, shared by pandapower and lightsim2grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandapower as pp
from cases import KV, Z_BASE, Branches


def net_of(branches: Branches) -> Any:
    """Buses, lines, shunts, an external grid, and one load per retained node."""
    net = pp.create_empty_network(sn_mva=1.0, f_hz=50.0)
    pp.create_buses(net, branches.n_bus, vn_kv=KV)
    pp.create_ext_grid(net, branches.source, vm_pu=abs(branches.v_source), va_degree=0.0)
    z = branches.z[:, 0, 0] * Z_BASE
    pp.create_lines_from_parameters(
        net,
        branches.ends[:, 0],
        branches.ends[:, 1],
        1.0,
        z.real,
        z.imag,
        np.zeros(len(z)),
        np.full(len(z), 1e3),
    )
    for bus, y in enumerate(branches.shunt[:, 0]):
        if abs(y) > 1e-9 and bus != branches.source:
            pp.create_shunt(net, bus, q_mvar=-y.imag, p_mw=y.real)
    pp.create_loads(net, branches.place[:, 0], np.zeros(len(branches.place)), np.zeros(len(branches.place)))
    return net
