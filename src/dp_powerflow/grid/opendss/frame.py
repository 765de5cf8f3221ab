"""The frame of an OpenDSS circuit: all of it that a twin may have beside its levels, and nothing else.

A twin is a new circuit, made of `New` commands. Which properties these have is listed here, class by class,
and every figure is rounded to a public step, so that no last digit carries anything.

| figure | step |
|---|---|
| kV, kVA, PV ratings, ratios of voltage transformers, base voltages | 5 significant digits |
| kW and kvar of loads and generators; impedances of sources, reactors, switches; current transformers | 3 |
| impedances [%] of transformers and kvar of capacitors that are public | 4 |
| entries of the catalogue of conductors | 5 |
| taps | the step of the winding |
| voltage of a source | 0.0001 p.u., 0.01 degrees |
| settings of regulators | 0.1 V; line-drop R and X 1 V; delays 1 s |
| settings of capacitor controls | 4 significant digits; delays 1 s |
| limits and mixtures of load models, power factors, volt-var curves | 0.001 |
| shapes: ratios between phases of a line, between the impedances of a transformer | 2⁻⁷ |

Classes that carry no current are left out, but for controls that act on the feeder; injections other than
loads, PV and generators too. All else is refused. Where a control stands is solved on the twin: a regulated
winding starts at ratio 1, and a capacitor with open steps is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow.grid.feeder import Quantity, shape_of
from dp_powerflow.units import FloatArray

RATING, FIGURE, IMPEDANCE, CODE = 5, 3, 4, 5
"""Significant digits: ratings; loads and unprotected impedances; transformers, capacitors; conductors."""

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Code:
    """One entry of the catalogue of conductors, per its own unit of length (`metres`, None without one)."""

    phases: int
    metres: float | None
    resistance: Matrix
    reactance: Matrix
    charging: Matrix


@dataclass(frozen=True)
class LineFrame:
    """What of a line is public.

    Attributes
    ----------
    start : properties up to its figures.
    metres : of its unit of length, else of its code's; None if neither states one.
    by_length : whether its length is all that is protected, its figures being those of its code.
    resistance, reactance : shapes; None where the figure is zero.
    charging : shape where charging has a level of its own, else None.
    charged : whether it has any charging.
    switch : whether it is a switch, whose figures are all in `start`.
    """

    name: str
    start: str
    phases: int
    code: str = ""
    metres: float | None = None
    by_length: bool = False
    resistance: Matrix | None = None
    reactance: Matrix | None = None
    charging: Matrix | None = None
    charged: bool = False
    switch: bool = False


@dataclass(frozen=True)
class ElementFrame:
    """Any other element: properties that are public, and the shape of figures that follow from a level."""

    kind: str
    name: str
    properties: str
    quantity: Quantity | None = None
    shape: tuple[float, ...] = ()
    windings: int = 0


@dataclass(frozen=True)
class Frame:
    """All that twins of a circuit have in common, in the order in which the circuit was written.

    Attributes
    ----------
    start, end : commands before and after those of the elements.
    steps : (transformer, winding) → step of its tap.
    left_taps : windings off neutral that no enabled regulator moves: their taps may be solved ones.
    left_out, refused : of `Operation`, as far as a twin does not have what they are about.
    """

    start: tuple[str, ...]
    elements: tuple[LineFrame | ElementFrame, ...]
    end: tuple[str, ...]
    catalogue: tuple[tuple[str, Code], ...]
    steps: tuple[tuple[tuple[str, int], float], ...]
    left_taps: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def tap_on_step(ratio: float, step: float) -> float:
    """A ratio on the grid of its winding's taps, counted from neutral."""
    return float(f"{1.0 + round((ratio - 1.0) / step) * step:.9f}")


_REACTANCES = {
    ("transformer", 2): ("XHL",),
    ("transformer", 3): ("XHL", "XHT", "XLT"),
    ("autotrans", 2): ("XHX",),
    ("autotrans", 3): ("XHX", "XHT", "XXT"),
}
"""Class and number of windings → reactances between windings; of more windings there is one array."""


def figures_of(element: ElementFrame, values: FloatArray) -> str:
    """Properties that give an element its figures.

    Of a transformer reactances between windings, then resistances [%]; of a capacitor kvar of every step;
    of a PV system peak power [kW] and rating [kVA].
    """
    if element.kind == "capacitor":
        return f"kvar={array(values)}"
    if element.kind == "pvsystem":
        return f"Pmpp={float(values[0])!r} kVA={float(values[1])!r}"
    pairs = element.windings * (element.windings - 1) // 2
    named = _REACTANCES.get((element.kind, element.windings))
    reactances = f"Xscarray={array(values[:pairs])}"
    if named is not None:
        reactances = " ".join(f"{x}={float(values[k])!r}" for k, x in enumerate(named))
    return f"{reactances} %Rs={array(values[pairs:])}"


def array(values: FloatArray) -> str:
    """Figures as the engine reads an array."""
    return "[" + " ".join(repr(float(value)) for value in values) + "]"


def matrix(values: Matrix | FloatArray) -> str:
    """Figures as the engine reads a matrix."""
    return "[" + " | ".join(" ".join(repr(float(value)) for value in row) for row in values) + "]"


def as_matrix(values: FloatArray) -> Matrix:
    return tuple(tuple(float(value) for value in row) for row in values)


def as_shape(values: FloatArray) -> Matrix | None:
    return as_matrix(shape_of(values)) if np.any(values) else None


def rounded(value: float, digits: int) -> str:
    return repr(float(f"{value:.{digits - 1}e}"))


def nearest(value: float, step: float) -> float:
    """The multiple of a step that is nearest, as a short decimal."""
    return float(f"{round(value / step) * step:.9f}")
