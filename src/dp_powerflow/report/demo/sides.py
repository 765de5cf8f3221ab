"""Releases side by side: what each protects, what it costs, and how close it is to the truth."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from dp_powerflow.report import Rendered
from dp_powerflow.units import FloatArray

ANSI_A = (0.95, 1.05)
"""Range A of ANSI C84.1 [p.u.]."""


@dataclass(frozen=True)
class Fidelity:
    """Voltage magnitudes of a release against the true ones.

    Attributes
    ----------
    w1 : Wasserstein distance of all magnitudes, pooled [p.u.].
    within, true_within : share of the released, and of the true, magnitudes in range A.
    """

    w1: float
    within: float
    true_within: float

    @classmethod
    def of(cls, released: FloatArray, true: FloatArray) -> Fidelity:
        """Of as many released magnitudes as true ones [p.u.]."""
        ours, theirs = np.sort(released, axis=None), np.sort(true, axis=None)
        return cls(float(np.mean(np.abs(ours - theirs))), _within(released), _within(true))


def _within(magnitude: FloatArray) -> float:
    return float(np.mean((magnitude >= ANSI_A[0]) & (magnitude <= ANSI_A[1])))


@dataclass(frozen=True)
class Loading:
    """Load of the feeder on the true days, over its nominal load."""

    mean: float
    peak: float


@dataclass(frozen=True)
class Side:
    """One release, in the words of the table."""

    name: str
    customers: str
    protected: str
    unit: str
    epsilon: str
    delta: str
    advantage: str
    proved: str
    days: str
    loading: Loading
    fidelity: Fidelity
    open: str


ROWS = {
    "customers": "customers",
    "protected": "network: protected",
    "unit": "network: unit",
    "epsilon": "network: ε",
    "delta": "network: δ",
    "advantage": "network: advantage of the best test",
    "proved": "network: proved?",
    "days": "network: days covered",
}


def render_sides(sides: Sequence[Side], notes: Sequence[str]) -> Rendered:
    """The table for a terminal, and as JSON."""
    names = [side.name for side in sides]
    lines = [f"| | {' | '.join(names)} |", "|---" * (1 + len(sides)) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in rows_of(sides)]
    content = {"sides": [asdict(side) for side in sides], "notes": list(notes)}
    return Rendered([*lines, "", *(line for note in notes for line in (note, ""))], json.dumps(content))


def rows_of(sides: Sequence[Side]) -> list[list[str]]:
    """The table: name of the row, then one cell for each side."""
    rows = [[label, *(str(getattr(side, name)) for side in sides)] for name, label in ROWS.items()]
    found = [side.fidelity for side in sides]
    low, high = ANSI_A
    return [
        *rows,
        [
            "load of the feeder, of its nominal load",
            *(f"{side.loading.mean:.0%} on average, {side.loading.peak:.0%} at most" for side in sides),
        ],
        ["W1 of voltage magnitudes to the true ones [p.u.]", *(f"{item.w1:.4f}" for item in found)],
        [
            f"within {low:g} to {high:g} p.u. (ANSI range A)",
            *(f"{item.within:.2%}; of the true ones {item.true_within:.2%}" for item in found),
        ],
        ["open", *(side.open for side in sides)],
    ]
