"""Self-contained HTML pages with charts: what a page says, and the bytes that it becomes.

A page makes no request: scripts, style and data are in it. It knows nothing of corpora or releases.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import Any, ClassVar, Literal

import numpy as np
from jinja2 import ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup
from numpy.typing import NDArray

from dp_powerflow import _texts
from dp_powerflow.units import IntArray

# --- charts -----------------------------------------------------------------------------------------------
# The kinds of charts, as data. `assets/charts.js` draws each of them, found by its `kind`. Fields become JSON
# as they stand, so a caller rounds what it passes. Arrays may hold None for "no value".


Values = Sequence[float | None] | Sequence[float] | Sequence[str] | NDArray[Any]
"""Numbers, or dates as ISO strings."""


class Chart:
    """What a figure shows: `assets/charts.js` finds by its kind what draws it."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.kind = {"NetworkMap": "map"}.get(cls.__name__, cls.__name__.lower())


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
class Histogram(Chart):
    """Counts or shares over bins; several series lie on each other.

    Attributes
    ----------
    x, y : what is counted, and in what.
    edges : (bin + 1,) ends of the bins.
    series : one value per bin.
    limits : values of `x` to mark.
    """

    x: Axis
    y: Axis
    edges: Values
    series: tuple[Series, ...]
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True, eq=False)
class Band(Chart):
    """Quantiles along an axis, such as the time of day.

    Attributes
    ----------
    at : (point,) positions on `x`.
    bands : what is shown; several lie on each other.
    limits : values of `y` to mark.
    """

    x: Axis
    y: Axis
    at: Values
    bands: tuple[Quantiles, ...]
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True, eq=False)
class Steps(Band):
    """As `Band`, of whole numbers that jump, such as taps: one panel for each band."""


@dataclass(frozen=True, eq=False)
class Lines(Chart):
    """Several series over one axis, with a legend that shows and hides them.

    Attributes
    ----------
    at : (point,) positions on `x`.
    limits : values of `y` to mark.
    filled : whether the area below is tinted.
    """

    x: Axis
    y: Axis
    at: Values
    series: tuple[Series, ...]
    limits: tuple[Limit, ...] = ()
    filled: bool = False


@dataclass(frozen=True, eq=False)
class Duration(Chart):
    """Values in falling order: for which share of the time a quantity is at least so large.

    Attributes
    ----------
    at : (point,) share of the time [%].
    """

    y: Axis
    at: Values
    series: tuple[Series, ...]


@dataclass(frozen=True, eq=False)
class Bars(Chart):
    """Grouped bars, one group per name, one bar per series in it; None where there is no value.

    Attributes
    ----------
    value : what the length of a bar means.
    groups : (group,) names.
    series : one value per group.
    """

    value: Axis
    groups: tuple[str, ...]
    series: tuple[Series, ...]


@dataclass(frozen=True, eq=False)
class Heatmap(Chart):
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

    x: Axis
    y: Axis
    value: Axis
    columns: Values
    rows: Values
    values: Sequence[Values] | NDArray[Any]
    domain: tuple[float, float]
    middle: float | None = None


@dataclass(frozen=True, eq=False)
class NetworkMap(Chart):
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


@dataclass(frozen=True, eq=False)
class Option:
    """One of several charts, by name."""

    name: str
    chart: Chart


@dataclass(frozen=True, eq=False)
class Choice(Chart):
    """Charts of which the reader sees one at a time.

    Attributes
    ----------
    label : what is chosen, such as "Phase".
    options : the first one is shown first.
    """

    label: str
    options: tuple[Option, ...]


def chart_data(value: Any) -> Any:
    """A chart, or a part of one, one level deep, for `json.dumps(…, default=chart_data)`.

    Counts of a map are packed: base64 of unsigned 16-bit integers, the least byte first.
    """
    if is_dataclass(value):
        found = {field.name: getattr(value, field.name) for field in fields(value)}
        if isinstance(value, NetworkMap):
            counts = {name: np.ascontiguousarray(own, dtype="<u2") for name, own in value.views.items()}
            found["views"] = {name: base64.b64encode(own.tobytes()).decode() for name, own in counts.items()}
        return {"kind": value.kind, **found} if isinstance(value, Chart) else found
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"no chart holds a {type(value).__name__}")


# --- documents --------------------------------------------------------------------------------------------
# What a page says, and its bytes: a function of nothing else.


def environment(
    package: str, folder: str, *, html: bool, filters: Mapping[str, Callable[..., Any]]
) -> Environment:
    """Where a package's templates are filled in; they may extend `page.html`.

    Parameters
    ----------
    package, folder : where they are.
    html : whether what is filled in is escaped.
    filters : what templates may call, by name.
    """
    loaders = [PackageLoader(package, folder), PackageLoader("dp_powerflow.page", "assets")]
    return _texts.environment(ChoiceLoader(loaders), html=html, filters=filters)


_ASSETS = "assets"
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|p\.u\.|kW|MWh|kB|MB|s)(?:\W|$))")
_UNSAFE = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


@dataclass(frozen=True)
class Link:
    """Words that lead to another page, by a relative address."""

    text: str
    href: str


@dataclass(frozen=True)
class Callout:
    """A framed statement, such as a guarantee.

    Attributes
    ----------
    title, paragraphs : what it says.
    tone : "plain", "good" or "warning".
    wide : as of a `Figure`.
    """

    kind: ClassVar[str] = "callout"
    title: str
    paragraphs: tuple[str, ...]
    tone: str = "plain"
    wide: bool = False


@dataclass(frozen=True)
class Table:
    """A table; cells that are numbers as text with units stand right.

    Attributes
    ----------
    header : (column,) names.
    rows : one cell per column.
    caption : what it shows.
    numeric : columns that hold numbers.
    sortable : whether a reader sorts and filters it: for a table of many rows and at most sixteen columns.
    """

    kind: ClassVar[str] = "table"
    header: tuple[str, ...]
    rows: tuple[tuple[str | Link, ...], ...]
    caption: str = ""
    numeric: frozenset[int] = frozenset()
    sortable: bool = False


@dataclass(frozen=True, eq=False)
class Figure:
    """A chart with its title and caption.

    Attributes
    ----------
    id : name within the page, fit for an address.
    title : what is shown.
    caption : how to read it, and how it was computed.
    chart : what is drawn.
    wide : whether it takes the full width; two others stand beside each other where there is room.
    """

    kind: ClassVar[str] = "figure"
    id: str
    title: str
    caption: str
    chart: Chart
    wide: bool = True


Item = Figure | Table | Callout


@dataclass(frozen=True, eq=False)
class Section:
    """A part of a page with a place in its contents."""

    id: str
    title: str
    paragraphs: tuple[str, ...] = ()
    items: tuple[Item, ...] = ()

    @property
    def blocks(self) -> Iterator[list[Item]]:
        """Items in order; narrow items of one kind that follow each other are one block."""

        def block_of(item: Item) -> object:
            narrow = isinstance(item, Callout | Figure) and not item.wide
            return type(item) if narrow else id(item)

        return (list(items) for _, items in groupby(self.items, block_of))


@dataclass(frozen=True, eq=False)
class Page:
    """A page.

    Attributes
    ----------
    title : its name.
    marking : who may see it, such as INTERNAL; None for a public page.
    lead : paragraphs below the title.
    sections : what it shows.
    footer : the last words.
    """

    title: str
    marking: str | None
    lead: tuple[str, ...]
    sections: tuple[Section, ...]
    footer: tuple[str, ...] = ()

    def to_html(self) -> bytes:
        """The page as a file; equal pages have equal bytes."""
        items = [item for section in self.sections for item in section.items]
        charts = {item.id: item.chart for item in items if isinstance(item, Figure)}
        sorts = any(isinstance(item, Table) and item.sortable for item in items)
        facts = {"page": self, "title": self.title, "marking": self.marking}
        return page_from(("dp_powerflow.page", "page.html"), charts, facts, sorts=sorts)


def page_from(
    template: tuple[str, str], charts: Mapping[str, Chart], facts: Mapping[str, Any], *, sorts: bool = False
) -> bytes:
    """A page as a file; equal arguments give equal bytes.

    Parameters
    ----------
    template : package and name of a template that is `page.html` or extends it.
    charts : id of a figure → what it shows.
    facts : what the template fills in.
    sorts : whether a reader sorts a table of it.
    """
    package, name = template
    scripts = [_asset("vendor/d3.min.js"), _asset("vendor/plot.min.js")]
    scripts.append("\n".join(_asset(script) for script in (_OWN_WITH_TABLE if sorts else _OWN)))
    shown = {
        "marking": None,
        "contents": [],
        "style": _as_is(_asset("style.css") + (_asset("table.css") if sorts else "")),
        "theme": _as_is(_asset("theme.js")),
        "scripts": [_as_is(text) for text in scripts],
        "policy": _policy([_asset("theme.js"), *scripts]),
        "data": _as_is(_embedded(charts)),
        "licences": [(name, _asset(f"vendor/{file}.LICENSE.txt")) for name, file in _VENDORED],
    }
    return _environment(package).get_template(name).render(shown | dict(facts)).encode()


_VENDORED = (("D3", "d3"), ("Observable Plot", "plot"))
_OWN = ("scales.js", "charts.js", "map.js", "start.js")
"""Our own scripts, in the order in which they are read."""
_OWN_WITH_TABLE = (*_OWN, "table.js")
"""Only in pages with a sortable table: the bytes of the others do not depend on it."""


def framed(page: bytes, height: int = 900) -> str:
    """A page within another one, such as a notebook: an inline frame of this height [pixels]."""
    text = html.escape(page.decode(), quote=True)
    style = f"width:100%;height:{height}px;border:1px solid #8886;border-radius:8px"
    return f'<iframe srcdoc="{text}" style="{style}" title="page"></iframe>'


def _embedded(value: object) -> str:
    """JSON that may stand within a script element: it cannot end it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=chart_data)
    return text.translate(_UNSAFE)


def _as_is(text: str) -> Markup:
    """A file of this package, or what `_embedded` has made safe: the only text that is not escaped."""
    return Markup(text)  # nosec B704


def _policy(scripts: list[str]) -> str:
    """Content security policy: nothing is loaded, and only these scripts run."""
    digests = (hashlib.sha256(text.encode()).digest() for text in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _asset(name: str) -> str:
    return files(__package__).joinpath(_ASSETS).joinpath(name).read_text(encoding="utf-8")


def _tied(text: str) -> str:
    """A text, or markup, whose numbers are not parted from their units at the end of a line."""
    return type(text)(_BEFORE_UNIT.sub("\u00a0", text))


@cache
def _environment(package: str) -> Environment:
    folder = _ASSETS if package == __package__ else "templates"
    return environment(package, folder, html=True, filters={"tied": _tied})
