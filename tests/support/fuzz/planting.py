"""How a planted input is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dp_powerflow.errors import DpPowerflowError

Refused = Callable[[], bool]
"""Tries one planted input; whether it was refused, or reported."""
Inputs = Iterator[tuple[str, Refused]]
"""What was planted, in words, and how to try it."""


def raises(do: Callable[[], object]) -> Refused:
    """Refused means that an error of ours is raised."""

    def refused() -> bool:
        try:
            do()
        except DpPowerflowError:
            return True
        return False

    return refused
