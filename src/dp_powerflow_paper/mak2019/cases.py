"""Feeders with generators by LinDistFlow: what is public of them, and their private loads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dp_powerflow.units import FloatArray
from dp_powerflow_paper.dvorkin2020.case import Case, read_feeder15
from dp_powerflow_paper.mak2019.linear import LinearGrid, LinearLimits


@dataclass(frozen=True, eq=False)
class TrueFeeder:
    """A feeder with its true loads.

    Attributes
    ----------
    served : everything else.
    active : PRIVATE (load,) active powers [p.u.].
    """

    served: LinearGrid
    active: FloatArray


def linear_feeder(case: Case, tightened: float = 1.0) -> TrueFeeder:
    """A case of private dispatch whose loads are restored instead.

    Parameters
    ----------
    tightened : share of the lines' ratings that is taken, so that some lines bind.
    """
    places = np.flatnonzero(case.load_p > 0.0)
    generators = case.generators
    served = LinearGrid(
        network=case.network,
        limits=LinearLimits(tightened * case.s_max, case.u_min, case.u_max),
        generators=generators,
        price=case.cost[generators],
        most=case.p_max[generators],
        places=places,
        tan_theta=case.load_q[places] / case.load_p[places],
    )
    return TrueFeeder(served, case.load_p[places])


def feeder15(folder: Path, tightened: float = 1.0) -> TrueFeeder:
    """The 15-node feeder of the reference cases."""
    return linear_feeder(read_feeder15(folder), tightened)
