"""Energy that load points feed in: net loads below zero, of which a model of log loads knows nothing.

A little of it is common and harmless: a meter that counts in steps, a standby that it hardly sees, a customer
with panels among hundreds without. Much of it, raised to the floor, would be gone without a word and missing
in every voltage. So what is small is declared, and what is not stops.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.scanning import drawn_and_fed_in, on_all_cores
from dp_powerflow.units import BoolArray, FloatArray

FLOOR_KW = 0.01
"""Loads below it are raised to it, and loads above minus it are not fed in [kW]."""
MOST_EXPORT = 0.01
"""Energy that all load points may feed in, as a share of what they draw."""


@dataclass(frozen=True)
class Export:
    """INTERNAL. What load points feed in.

    Parameters
    ----------
    share
        Energy fed in by all load points over the energy that they draw.
    load_points
        Load points that feed in more than the declared share of what they draw themselves.
    of
        Load points looked at.
    """

    share: float
    load_points: int
    of: int


def find_export(
    load_kw: FloatArray,
    floor_kw: float = FLOOR_KW,
    most: float = MOST_EXPORT,
    judged: BoolArray | None = None,
) -> Export:
    """What load points feed in, looked at one at a time to save memory.

    Parameters
    ----------
    load_kw
        Net loads (load point, day, step) [kW].
    floor_kw
        A load is fed in if it is below minus this [kW].
    most
        The declared share.
    judged
        (load point,) false for what no meter read; None for all true.
    """
    found = np.empty((len(load_kw), 2))
    on_all_cores(lambda part: drawn_and_fed_in(load_kw[part], floor_kw, found[part]), len(load_kw))
    chosen = np.arange(len(load_kw)) if judged is None else np.flatnonzero(judged)
    drawn, fed_in = found[chosen, 0], -found[chosen, 1]
    share = float(fed_in.sum() / max(float(drawn.sum()), 1e-300))
    return Export(share, int(np.count_nonzero(fed_in > most * drawn)), len(chosen))


def refuse_export(found: Export, most: float, otherwise: str) -> None:
    """Refuse a history of which more than a share is fed in.

    Parameters
    ----------
    most
        The declared share.
    otherwise
        What else can be done.
    """
    if found.share > most:
        raise LoadDataError(
            f"load points feed in more than {most:g} of the energy that they draw, as with panels or "
            f"batteries behind the meter ({found.load_points} of {found.of} load points do), but the load "
            "model only knows loads above zero; give consumption without generation, or remove these load "
            "points from the list of services if it is public who they are"
            f"{otherwise}; nothing was spent"
        )
