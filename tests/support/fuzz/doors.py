"""All formats, by name."""

from __future__ import annotations

import random
from collections.abc import Callable

from support.fuzz import called, owned, released
from support.fuzz.judging import Door
from support.fuzz.texts import damaged
from support.fuzz.world import World

DOORS: dict[str, Callable[[World], Door]] = {**owned.DOORS, **released.DOORS, **called.DOORS}


def input_of(door: Door, name: str, seed: int, case: int) -> bytes:
    """The input of a number: it hangs on the format, the seed and the number alone."""
    rng = random.Random(f"{name}/{seed}/{case}")
    start = rng.choice(door.seeds)
    try:
        return door.mutate(rng, start)
    except Exception:  # changes may not go together, such as a row of a table that was dropped
        return damaged(rng, start)
