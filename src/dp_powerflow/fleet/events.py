"""What a run of a fleet tells while it runs: which feeder is in which state.

Events hold public names and counts, so that whoever listens may show them. That a feeder failed is INTERNAL.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

FeederState = Literal["waiting", "checking", "paid", "solving", "released", "failed"]
"""In the order in which a feeder goes through them; the last two are ends."""

STATES: tuple[FeederState, ...] = get_args(FeederState)
ENDS: tuple[FeederState, ...] = ("released", "failed")
UNDER_WAY: tuple[FeederState, ...] = ("checking", "paid", "solving")


@dataclass(frozen=True)
class FeederEvent:
    """A feeder is in a state now, or has come further in it.

    A feeder whose first event says "released" was there before the run, and no rate counts it. A failed
    feeder may wait again.

    Attributes
    ----------
    name : its public name.
    state : where it is.
    done, total : of its parts, while it is solved; 0 of 0 where nobody counts.
    """

    name: str
    state: FeederState
    done: int = 0
    total: int = 0


class OnEvent(Protocol):
    """Hears events; one at a time, from the thread that runs the fleet."""

    def __call__(self, event: FeederEvent, /) -> None: ...


def hear_nothing(_: FeederEvent) -> None:
    """For a run that nobody watches."""


def counted(on_progress: Callable[[int, int], None]) -> OnEvent:
    """Hears events, and tells how many feeders are released or failed, and of how many."""
    ended: dict[str, bool] = {}
    done = 0

    def hear(event: FeederEvent) -> None:
        nonlocal done
        before, now = ended.get(event.name, False), event.state in ENDS
        ended[event.name] = now
        done += now - before
        if now != before:
            on_progress(done, len(ended))

    return hear
