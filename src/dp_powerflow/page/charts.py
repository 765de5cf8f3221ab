"""The kinds of charts, as data. `assets/charts.js` draws each of them, found by its `kind`.

Fields become JSON as they stand, so a caller rounds what he passes. Arrays may hold None for "no value".
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dp_powerflow.units import IntArray

Values = Sequence[float | None] | Sequence[float] | Sequence[str] | NDArray[Any]
"""Numbers, or dates as ISO strings."""


class Chart(Protocol):
    """What a figure shows."""

    kind: ClassVar[str]


@dataclass(frozen=True)
class Axis:
    """What a number means.

    Attributes
    ----------
    label : name of the quantity.
    unit : its unit; empty for a pure number.
    form : how values are written: a number, minutes after midnight, or an ISO date.
    decimals : digits after the point in tooltips.
    """

    label: str
    unit: str = ""
    form: Literal["number", "clock", "date"] = "number"
    decimals: int = 2


CLOCK = Axis("time of day", form="clock")


@dataclass(frozen=True)
class Limit:
    """A value of the main axis that is marked by a line with a label."""

    value: float
    label: str


@dataclass(frozen=True, eq=False)
class Series:
    """A named line, histogram or row of bars: one value per point."""

    name: str
    values: Values


@dataclass(frozen=True, eq=False)
class Quantiles:
    """A named band.

    Attributes
    ----------
    name : what it is of.
    levels : (level,) probabilities in percent, rising, symmetric about 50.
    values : (level, point) quantiles.
    """

    name: str
    levels: tuple[float, ...]
    values: Sequence[Values] | NDArray[Any]


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts or shares over bins; several series lie on each other.

    Attributes
    ----------
    x, y : what is counted, and in what.
    edges : (bin + 1,) ends of the bins.
    series : one value per bin.
    limits : values of `x` to mark.
    """

    kind: ClassVar[str] = "histogram"
    x: Axis
    y: Axis
    edges: Values
    series: tuple[Series, ...]
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True, eq=False)
class Band:
    """Quantiles along an axis, such as the time of day.

    Attributes
    ----------
    at : (point,) positions on `x`.
    bands : what is shown; several lie on each other.
    limits : values of `y` to mark.
    """

    kind: ClassVar[str] = "band"
    x: Axis
    y: Axis
    at: Values
    bands: tuple[Quantiles, ...]
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True, eq=False)
class Steps:
    """As `Band`, of whole numbers that jump, such as taps: one panel for each band."""

    kind: ClassVar[str] = "steps"
    x: Axis
    y: Axis
    at: Values
    bands: tuple[Quantiles, ...]


@dataclass(frozen=True, eq=False)
class Lines:
    """Several series over one axis, with a legend that shows and hides them.

    Attributes
    ----------
    at : (point,) positions on `x`.
    limits : values of `y` to mark.
    filled : whether the area below is tinted.
    """

    kind: ClassVar[str] = "lines"
    x: Axis
    y: Axis
    at: Values
    series: tuple[Series, ...]
    limits: tuple[Limit, ...] = ()
    filled: bool = False


@dataclass(frozen=True, eq=False)
class Duration:
    """Values in falling order: for which share of the time a quantity is at least so large.

    Attributes
    ----------
    at : (point,) share of the time [%].
    """

    kind: ClassVar[str] = "duration"
    y: Axis
    at: Values
    series: tuple[Series, ...]


@dataclass(frozen=True, eq=False)
class Bars:
    """Grouped bars, one group per name, one bar per series in it; None where there is no value.

    Attributes
    ----------
    value : what the length of a bar means.
    groups : (group,) names.
    series : one value per group.
    """

    kind: ClassVar[str] = "bars"
    value: Axis
    groups: tuple[str, ...]
    series: tuple[Series, ...]


@dataclass(frozen=True, eq=False)
class Heatmap:
    """A matrix in colours.

    Attributes
    ----------
    x, y : what columns and rows are.
    value : what the colour means.
    columns, rows : their names or positions.
    values : (row, column).
    domain : values of the two ends of the colours.
    middle : value of the neutral colour of a diverging scale; None for a sequential one.
    """

    kind: ClassVar[str] = "heatmap"
    x: Axis
    y: Axis
    value: Axis
    columns: Values
    rows: Values
    values: Sequence[Values] | NDArray[Any]
    domain: tuple[float, float]
    middle: float | None = None


@dataclass(frozen=True, eq=False)
class NetworkMap:
    """A network with a value at every bus, and a slider for the time.

    Attributes
    ----------
    value : what the colour means.
    buses : (bus,) names.
    pairs : (pair, 2) rows of `buses` that an element joins.
    kinds : (pair,) "line", "switch" or "transformer".
    source : (bus,) whether a source feeds it.
    at : (step,) minutes after midnight; a single one for a value without a time of day.
    views : what can be shown, such as a phase: counts (step, bus) from 0 to 65,535; 0 for no value.
    per_unit : counts per unit of `value`.
    domain : values of the two ends of the colours.
    middle : value of the neutral colour.
    coordinates : (bus, 2) places; None to lay the network out by its connections.
    """

    kind: ClassVar[str] = "map"
    value: Axis
    buses: tuple[str, ...]
    pairs: Sequence[Sequence[int]] | IntArray
    kinds: tuple[str, ...]
    source: Sequence[bool]
    at: Values
    views: Mapping[str, IntArray]
    per_unit: int
    domain: tuple[float, float]
    middle: float
    coordinates: Sequence[Sequence[float]] | None = None

    def as_data(self) -> dict[str, Any]:
        """As JSON, with the counts packed: base64 of unsigned 16-bit integers, the least byte first."""
        packed = {name: _packed(counts) for name, counts in self.views.items()}
        return _fields_of(self) | {"views": packed}


@dataclass(frozen=True, eq=False)
class Option:
    """One of several charts, by name."""

    name: str
    chart: Chart


@dataclass(frozen=True, eq=False)
class Choice:
    """Charts of which the reader sees one at a time.

    Attributes
    ----------
    label : what is chosen, such as "Phase".
    options : the first one is shown first.
    """

    kind: ClassVar[str] = "choice"
    label: str
    options: tuple[Option, ...]


def chart_data(value: Any) -> Any:
    """A chart, or a part of one, one level deep, for `json.dumps(…, default=chart_data)`."""
    if isinstance(value, NetworkMap):
        return value.as_data()
    if is_dataclass(value):
        return _fields_of(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"no chart holds a {type(value).__name__}")


def _fields_of(value: Any) -> dict[str, Any]:
    kind = {"kind": value.kind} if hasattr(value, "kind") else {}
    return kind | {field.name: getattr(value, field.name) for field in fields(value)}


def _packed(counts: IntArray) -> str:
    return base64.b64encode(np.ascontiguousarray(counts, dtype="<u2").tobytes()).decode()
