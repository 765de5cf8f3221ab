"""What must hold of a feeder whatever its source."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import Feeder

_NAMES_SHOWN = 3


def check_feeder(feeder: Feeder) -> None:
    """Raise a `FeederError` that names the first thing wrong with the feeder."""
    if not len(feeder.slack):
        raise FeederError("the feeder has no voltage source; add one (Vsource or external grid)")
    if not np.all(np.isfinite(feeder.y.data)):
        raise FeederError(
            "an element of the feeder has zero impedance; give it a small one, such as 1e-6 ohm"
        )
    islanded = islanded_nodes(feeder)
    if islanded:
        shown = ", ".join(islanded[:_NAMES_SHOWN]) + (", …" if len(islanded) > _NAMES_SHOWN else "")
        raise FeederError(
            f"{len(islanded)} nodes are islanded, with no path to a source ({shown}); "
            "close a switch that feeds them, remove them, or leave them out with --drop-islanded"
        )
    if not len(feeder.retained):
        raise FeederError("the feeder has no load and no generation; add loads before using it")


def islanded_nodes(feeder: Feeder) -> list[str]:
    """Names of the nodes that no chain of admittances connects to a slack node."""
    pattern = sp.csr_array(feeder.y != 0)
    _, component = connected_components(pattern, directed=False)
    fed = np.isin(component, component[feeder.slack])
    return [feeder.nodes[k] for k in np.flatnonzero(~fed)]
