"""Warnings of many feeders, as few sentences: those that differ in figures only are one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_FIGURE = re.compile(r"\d[\d.,]*(?:e[-+]?\d+)?")


@dataclass(eq=False)
class Warned:
    """What the feeders of a fleet were warned of, in the order in which it came up."""

    _of_all: dict[str, None] = field(default_factory=dict)
    _of_feeders: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def of_all(self, *sentences: str) -> None:
        """What holds for the whole fleet, or for all feeders alike."""
        self._of_all.update(dict.fromkeys(sentences))

    def of_feeder(self, name: str, *sentences: str) -> None:
        """What holds for one feeder, by its public name."""
        for sentence in sentences:
            self._of_feeders.setdefault(_FIGURE.sub("#", sentence), []).append((name, sentence))

    def sentences(self) -> tuple[str, ...]:
        """All of it."""
        return (*map(_in_one, self._of_feeders.values()), *self._of_all)


def _in_one(told: list[tuple[str, str]]) -> str:
    name, sentence = min(told)
    others = f" and {len(told) - 1:,} more, with figures of their own" if len(told) > 1 else ""
    return f"{name}{others}: {sentence}"
