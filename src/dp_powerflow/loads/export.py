"""Load points that feed in: net loads below zero, of which a model of log loads knows nothing.

Small ones are common and harmless: a meter that counts in steps, a standby that it hardly sees. Panels or
batteries behind the meter are another thing: raised to the floor, half of what such a load point does would
be gone without a word. So what is small is declared, and what is not stops.
"""

from __future__ import annotations

import numpy as np

from dp_powerflow.errors import LoadDataError
from dp_powerflow.units import BoolArray, FloatArray

FLOOR_KW = 0.01
"""Loads below it are raised to it, and loads above minus it count as none [kW]."""
MOST_EXPORT = 0.01
"""Energy that a load point may feed in, as a share of what it draws."""
FIRST_DO = (
    "meter the generation apart and give what is consumed, or take these load points off the list of "
    "services if it is public who they are"
)


def feeds_in(load_kw: FloatArray, floor_kw: float = FLOOR_KW, most: float = MOST_EXPORT) -> BoolArray:
    """PRIVATE. (load point,) whether the energy fed in is more than a share of the energy drawn.

    Parameters
    ----------
    load_kw
        Net loads (load point, day, step) [kW], looked at one load point at a time to save memory.
    floor_kw
        A load is fed in if it is below minus this [kW].
    most
        The share.
    """
    found = np.zeros(len(load_kw), dtype=bool)
    for i, own in enumerate(load_kw):
        if own.min() < -floor_kw:
            found[i] = -own[own < -floor_kw].sum() > most * own[own > 0.0].sum()
    return found


def refuse_export(export: BoolArray, most: float, otherwise: str) -> None:
    """Refuse a history with load points that feed in.

    Parameters
    ----------
    export
        (load point,) as `feeds_in` found it.
    most
        The share that was allowed.
    otherwise
        What else can be done.
    """
    if export.any():
        raise LoadDataError(
            f"{np.count_nonzero(export)} of {len(export)} load points feed in more than {most:g} of the "
            "energy that they draw, as with panels or a battery behind the meter, and the load model knows "
            f"loads above zero only; {FIRST_DO}{otherwise}; nothing was spent"
        )
