"""What a command runs through: modules, how deep calls go, calls that go upward."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import dp_powerflow

PACKAGE = Path(dp_powerflow.__file__).parent
COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>"}
"""Functions of their own in Python 3.11, and part of the one around them since."""
Place = tuple[str, str]
"""Module and function."""


@dataclass(eq=False)
class Walk:
    """What was called, in order.

    Attributes
    ----------
    functions : of the package that began, in order.
    depth : most functions of the package that were waiting for each other.
    upward : calls from a room to one above it that is not waiting for an answer itself: caller and callee.
        A room that waits has handed in what is called.
    """

    functions: dict[Place, None] = field(default_factory=dict)
    depth: int = 0
    upward: dict[tuple[Place, Place], None] = field(default_factory=dict)

    @property
    def modules(self) -> list[str]:
        """Modules, in the order of their first call."""
        return list(dict.fromkeys(module for module, _ in self.functions))


def layers() -> dict[str, int]:
    """Rooms by their number from the bottom, as the import contract orders them."""
    contracts = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text())["tool"]["importlinter"]
    rows = contracts["contracts"][0]["layers"]
    return {
        room.strip(" ()").removeprefix("dp_powerflow."): len(rows) - k
        for k, row in enumerate(rows)
        for room in row.split("|")
    }


@contextmanager
def walking() -> Iterator[Walk]:
    """What is called within the block, in this thread."""
    walk, known, rows = Walk(), dict[Any, Place | None](), layers()
    stack: list[Place | None] = []

    def place_of(frame: FrameType) -> Place | None:
        path = Path(frame.f_code.co_filename)
        if PACKAGE not in path.parents or path.suffix != ".py":  # a page template is no module
            return None
        if frame.f_code.co_name in COMPREHENSIONS:
            return None
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        return module, frame.f_code.co_qualname.replace(".<locals>", "")

    def seen(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            code = frame.f_code
            place = known[code] if code in known else known.setdefault(code, place_of(frame))
            stack.append(place)
            if place is None or code.co_name == "<module>":
                return
            waiting = [p for p in stack[:-1] if p is not None]
            walk.functions.setdefault(place)
            walk.depth = max(walk.depth, len(waiting) + 1)
            rooms = {room_of(p) for p in waiting}
            if waiting and rows[room_of(place)] > rows[room_of(waiting[-1])] and room_of(place) not in rooms:
                walk.upward.setdefault((waiting[-1], place))
        elif event == "return" and stack:
            stack.pop()

    def room_of(place: Place) -> str:
        return place[0].split(".")[0]

    sys.setprofile(seen)
    try:
        yield walk
    finally:
        sys.setprofile(None)
