"""What Theorem 1 cannot give on a network, whatever the load model turns out to be.

Asked before the customers pay for a fit: a policy that is bound to be refused afterwards is refused here.
"""

from __future__ import annotations

import numpy as np

from dp_powerflow.errors import FeederError
from dp_powerflow.evidence.calibration import ANSI_RANGE, implied_load_range, nonsingular_on_box
from dp_powerflow.evidence.scope import Mode
from dp_powerflow.grid.reduction import Network, kron_amplification
from dp_powerflow.units import FloatArray, IntArray


def why_no_number(
    network: Network,
    bound: Mode,
    radius: float,
    margins: tuple[IntArray, FloatArray, FloatArray],
    *,
    volt_var: bool = False,
) -> str | None:
    """Why a mode will have no ε at r, in words; None where it may have one.

    Parameters
    ----------
    margins : positions among the retained nodes of those with a load, and their smallest and largest declared
        load [p.u.].
    """
    if volt_var:
        return "no bound of Theorem 1 covers volt-var control"
    try:
        kron_amplification(network).bound(radius)
    except FeederError:
        return f"r = {radius:g} is too large for a bound on κ of this network"
    if bound != "paper":
        return None
    if not nonsingular_on_box(network, ANSI_RANGE).holds:
        return "Assumption 1 (i) of the paper fails on this network"
    nodes, low, high = margins
    least, most = implied_load_range(network, ANSI_RANGE)
    if np.any(least[nodes] < low) or np.any(most[nodes] > high):
        return "Assumption 1 (ii) of the paper fails on this network"
    return None
