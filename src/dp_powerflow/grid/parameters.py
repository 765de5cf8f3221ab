"""The positive figures of a network's elements that can be changed one by one.

A parameter has a level (metres, ohms per metre, per cent, kvar …) on its own scale. What is left of an
element once its levels are taken out is its shape: ratios between phases, R/X of a transformer. Shapes are
coarse: files hold short decimals, and ratios known to nine digits would give those decimals back, level
and all. What is not protected at all (`rounded`) keeps 24 bits, so that no last digit depends on a level.
A feeder rebuilt from other levels (`Rebuilder`) is a function of levels, shapes and public figures alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from dp_powerflow.units import FloatArray

SHAPE_GRID = 2.0**-7
"""Grid of the entries of a shape, whose norm is about 1."""
_KEPT_BITS = 24


class Quantity(StrEnum):
    """What a parameter measures; the first three are of lines."""

    LENGTH = "length"
    RESISTANCE = "resistance"
    REACTANCE = "reactance"
    TRANSFORMER = "transformer"
    CAPACITOR = "capacitor"
    PV = "pv"


LINE_QUANTITIES = (Quantity.LENGTH, Quantity.RESISTANCE, Quantity.REACTANCE)


@dataclass(frozen=True, order=True)
class ParameterKey:
    """Which figure of which element."""

    quantity: Quantity
    element: str


Levels = Mapping[ParameterKey, float]


@dataclass(frozen=True)
class CodedLine:
    """A line whose impedance per length is that of an entry of the file's catalogue of conductors.

    Attributes
    ----------
    candidates : every entry of the catalogue that fits the line's phases, in the order of their names.
    """

    line: str
    code: str
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class NetworkParameters:
    """Every parameter of a feeder; PRIVATE.

    Attributes
    ----------
    levels : all of them positive; a parameter that is zero, such as the resistance of an ideal reactance,
        has no level and stays zero.
    coded : lines with an entry of a catalogue.
    """

    levels: Levels
    coded: tuple[CodedLine, ...] = ()

    def __repr__(self) -> str:
        return f"NetworkParameters(PRIVATE, {len(self.levels)} levels)"


def level_of(values: FloatArray) -> float:
    """Frobenius norm: the level of an array of figures that change together; 0 if all are."""
    return float(np.sqrt(np.sum(values * values)))


def shape_of(values: FloatArray) -> FloatArray:
    """The figures over their level, rounded to `SHAPE_GRID`; zeros if all are zero."""
    level = level_of(values)
    if level == 0.0:
        return np.zeros_like(values)
    return np.asarray(np.round(values / level / SHAPE_GRID) * SHAPE_GRID)


def rounded(values: FloatArray) -> FloatArray:
    """Public figures to 24 bits: what an engine computes from them in another order comes out the same."""
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(mantissa * 2.0**_KEPT_BITS), exponent - _KEPT_BITS))
