"""Which figures of a network a twin may protect, and how all others are rounded; knows no network.

A protected figure has a level (metres, ohms, per cent, kvar …) on its own scale. What is left of an element
once its levels are taken out is its shape: ratios between phases, R/X of a transformer. Shapes are coarse:
files hold short decimals, and ratios known to nine digits would give those decimals back, level and all. All
else is the public frame, whose properties and roundings are the tables of `data/frames.toml`.
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib import resources
from typing import Literal, TypeVar

import numpy as np

from dp_powerflow.units import FloatArray

LINE, SWITCH, TRANSFORMER = "line", "switch", "transformer"
KINDS = (LINE, SWITCH, TRANSFORMER)
"""What joins two buses; a transformer is whatever is neither line nor switch, such as a regulator."""


class Quantity(StrEnum):
    """What a parameter measures; the first four are of lines."""

    LENGTH = "length"
    RESISTANCE = "resistance"
    REACTANCE = "reactance"
    CHARGING = "charging"
    TRANSFORMER = "transformer"
    CAPACITOR = "capacitor"
    PV = "pv"


@dataclass(frozen=True)
class Protected:
    """Which figures the noise of a twin covers; all else of a network is its frame: public, and rounded.

    Attributes
    ----------
    lines : "impedance": the totals of R and of X of every line; "length": of a line with a conductor code its
        length alone, the code being public (of the others R and X).
    transformers, capacitors, pv : whether their impedances, sizes, capacities are covered.
    charging : whether the total charging of a line is a level of its own; otherwise it follows from the
        twin's length of the line and a public figure per km.
    codes : whether conductor codes are drawn too; with "length" only.
    x_ohm_per_km, c_nf_per_km : public reactance and charging of a line without a code, per phase.
    """

    lines: Literal["length", "impedance"] = "impedance"
    transformers: bool = False
    capacitors: bool = False
    pv: bool = False
    charging: bool = False
    codes: bool = False
    x_ohm_per_km: float = 0.4
    c_nf_per_km: float = 10.0

    def covers(self, quantity: Quantity) -> bool:
        """Whether a figure that is not of a line is covered."""
        return any(of is quantity and getattr(self, figure) for figure, of in _MEASURED.items())


Protect = Literal["all", "if present"]
"""Whether a network must have everything declared protected, or may lack some of it."""
Figure = Literal["lengths", "codes", "charging", "transformers", "capacitors", "pv"]
"""Figures besides R and X that a twin may protect, as manifests name them."""

WITHOUT: Mapping[Figure, str] = {
    "lengths": "line with a conductor code and a length with a unit",
    "codes": "line with a conductor code",
    "charging": "charging of a line",
    "transformers": "transformer",
    "capacitors": "capacitor",
    "pv": "PV system",
}
"""What a network without a figure has none of."""

_MEASURED: Mapping[Figure, Quantity] = {
    "lengths": Quantity.LENGTH,
    "charging": Quantity.CHARGING,
    "transformers": Quantity.TRANSFORMER,
    "capacitors": Quantity.CAPACITOR,
    "pv": Quantity.PV,
}


def declared_figures(protected: Protected) -> tuple[Figure, ...]:
    """The figures besides R and X that noise is to cover."""
    lengths = protected.lines == "length"
    return tuple(f for f in WITHOUT if (lengths if f == "lengths" else getattr(protected, f)))


def absent_figures(
    protected: Protected, quantities: Collection[Quantity], *, coded: bool
) -> tuple[Figure, ...]:
    """The declared figures of which a network has none.

    Parameters
    ----------
    quantities : that the network, or its twin, has levels of.
    coded : whether a line of it has a conductor code that is drawn.
    """
    there: dict[Figure, bool] = {figure: quantity in quantities for figure, quantity in _MEASURED.items()}
    there["codes"] = coded
    return tuple(figure for figure in declared_figures(protected) if not there[figure])


# ----------------------------------------------------------------------------------------------------------
# Levels, shapes, and how public figures are rounded: the same for feeders of every source.


SHAPE_GRID = 2.0**-7
"""Grid of the entries of a shape, whose norm is about 1."""
_KEPT_BITS = 24


def level_of(values: FloatArray) -> float:
    """Frobenius norm: the level of an array of figures that change together; 0 if all are."""
    return float(np.sqrt(np.sum(values * values)))


def shape_of(values: FloatArray) -> FloatArray:
    """The figures over their level, rounded to `SHAPE_GRID`, then of norm 1; zeros if all are zero."""
    level = level_of(values)
    if level == 0.0:
        return np.zeros_like(values)
    coarse = np.asarray(np.round(values / level / SHAPE_GRID) * SHAPE_GRID)
    return coarse / level_of(coarse)


def rounded(values: FloatArray) -> FloatArray:
    """Public figures to 24 bits: what an engine computes from them in another order comes out the same."""
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(mantissa * 2.0**_KEPT_BITS), exponent - _KEPT_BITS))


def to_digits(value: float, digits: int) -> float:
    """To a number of significant decimal digits: the nearest double of that decimal."""
    return float(f"{value:.{digits - 1}e}")


def significant(values: FloatArray, digits: int) -> FloatArray:
    """`to_digits` of every figure."""
    array = np.asarray(values, dtype=np.float64)
    return np.array([to_digits(value, digits) for value in array.ravel().tolist()]).reshape(array.shape)


def to_step(value: float, step: float) -> float:
    """The nearest multiple of a step, as a short decimal; what is no number stays."""
    return float(f"{round(value / step) * step:.9f}") if math.isfinite(value) else value


def rounding(rule: str) -> Callable[[float], float]:
    """What a rule of `data/frames.toml` such as "3 digits", "4 decimals" or "0.1 step" does to a figure."""
    figure, kind = rule.split()
    if kind == "digits":
        return partial(to_digits, digits=int(figure))
    return partial(to_step, step=float(figure)) if kind == "step" else partial(round, ndigits=int(figure))


def codes_of_one_line(spans: Iterable[tuple[str, object, object]]) -> frozenset[str]:
    """Codes that one line alone uses: they state its own figures, and are no entries of a public catalogue.

    Lines between the same two buses count as one: parallel circuits share their totals too.

    Parameters
    ----------
    spans : code and two buses of every line.
    """
    used = Counter(code for code, _ in {(code, frozenset(buses)) for code, *buses in spans})
    return frozenset(code for code, count in used.items() if code and count == 1)


Rule = TypeVar("Rule")


def frame_rules(source: str, rule: Callable[[str], Rule]) -> dict[str, dict[str, Rule]]:
    """Class or table of a source → property → rule, in the order of `data/frames.toml`.

    Parameters
    ----------
    rule : what the words of a rule, such as "3 digits", stand for.
    """
    text = resources.files(__package__).joinpath("data", "frames.toml").read_text(encoding="utf-8")
    return {
        kind: {name: rule(words) for names, words in rules.items() for name in names.split()}
        for kind, rules in tomllib.loads(text)[source].items()
    }
