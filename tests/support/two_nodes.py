"""A feeder of two nodes, a source and a load, and a data set on it: what audits of mechanisms are made on."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from dp_powerflow.grid.feeder import Feeder, Line
from dp_powerflow.grid.reduction import Network
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.single_days import Plain
from dp_powerflow_paper.datasets import Dataset
from support.small_feeders import one_line

Z = 0.05 + 0.1j
NOMINAL = 0.1 + 0.04j
FIRST_DAY = dt.date(1970, 1, 1)


def two_nodes(stretch: float = 1.0) -> Feeder:
    """A source, a line of admittance stretch/z, a load."""
    feeder = one_line(Z / stretch, NOMINAL)
    primitive = stretch / Z * np.array([[1.0, -1.0], [-1.0, 1.0]])
    return replace(feeder, name="two nodes", lines=(Line("line", (0, 1), primitive, None, False),))


def radius_of(stretch: float) -> float:
    """‖ΔY_full‖_F between a line and its neighbour."""
    return float(np.linalg.norm((two_nodes().y - two_nodes(stretch).y).toarray()))


def two_node_data(
    relative: np.ndarray, margins: tuple[float, float], *, stretch: float = 1.0, radius: float = 1e-3
) -> Dataset:
    """Meters (meter, day, step) of equal nominal load, all at the one load node."""
    count, days, steps = relative.shape
    feeder = two_nodes(stretch)
    history = LoadHistory(
        load_kw=relative,
        load_kvar=None,
        load_points=tuple(f"meter {k}" for k in range(count)),
        days=tuple(FIRST_DAY + dt.timedelta(days=k) for k in range(days)),
        step_minutes=1440 // steps,
        node_of=(None,) * count,
        class_label=(None,) * count,
        scale_kw=np.ones(count),
        simulated=True,
    )
    return Dataset(
        name="two nodes",
        feeder=feeder,
        network=Network(feeder),
        history=history,
        relative=relative,
        shares=sp.csr_array(np.full((1, count), NOMINAL / count)),
        nominal=np.array([NOMINAL]),
        margins=margins,
        radius=radius,
        estimator=Plain(),
        calibration_floor=0.1,
        words="meters on two nodes",
    )
