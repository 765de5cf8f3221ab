"""The command `dp-powerflow fleet`, which also says how long it was busy with the ledger.

    python fleet_client.py TIMES.json fleet fleet.toml [OPTIONS]

Calls of the ledger are timed by the clock in this process alone, the outermost of calls within calls.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class _Timer:
    """Seconds within any of some functions."""

    def __init__(self) -> None:
        self.seconds, self.calls, self._within = 0.0, 0, False

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(*arguments: Any, **named: Any) -> Any:
            if self._within:
                return function(*arguments, **named)
            self._within, began = True, time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self._within = False
                self.seconds += time.perf_counter() - began
                self.calls += 1

        return called


def _time_all(kind: type, timer: _Timer) -> None:
    """Every method of a class, public ones and constructors."""
    for name, value in list(vars(kind).items()):
        if name.startswith("_"):
            continue
        if isinstance(value, classmethod):
            setattr(kind, name, classmethod(timer.timed(value.__func__)))
        elif callable(value) and not isinstance(value, staticmethod | type):
            setattr(kind, name, timer.timed(value))


def main() -> None:
    place = Path(sys.argv.pop(1))
    from dp_powerflow import Ledger
    from dp_powerflow.cli import main as command

    timer = _Timer()
    _time_all(Ledger, timer)
    try:
        command()
    finally:
        place.write_text(json.dumps({"ledger_s": timer.seconds, "ledger_calls": timer.calls}))


if __name__ == "__main__":
    main()
