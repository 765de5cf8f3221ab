"""What a page says, and its bytes: a function of nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dp_powerflow.page.charts import Chart, chart_data


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
    found = Environment(
        loader=ChoiceLoader([PackageLoader(package, folder), PackageLoader("dp_powerflow.page", "assets")]),
        autoescape=html,  # off for Markdown and JSON only # nosec B701
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters |= filters
    return found


_ASSETS = "assets"
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|p\.u\.|kW|MWh|kB|MB|s)(?:\W|$))")
_UNSAFE = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


@dataclass(frozen=True)
class Link:
    """Words that lead to another page, by a relative address."""

    text: str
    href: str


@dataclass(frozen=True)
class Card:
    """A figure that is read first.

    Attributes
    ----------
    label : what it is.
    value : the figure with its unit.
    note : what it means, in a few words.
    tone : whether it is just told, good, or to be looked at.
    """

    label: str
    value: str
    note: str = ""
    tone: str = "plain"


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
        """Items in order; those of a kind that are not wide and follow each other are one block."""
        block: list[Item] = []
        for item in self.items:
            narrow = isinstance(item, Callout | Figure) and not item.wide
            if block and not (narrow and type(item) is type(block[0])):
                yield block
                block = []
            block.append(item)
            if not narrow:
                yield block
                block = []
        if block:
            yield block


@dataclass(frozen=True, eq=False)
class Page:
    """A page.

    Attributes
    ----------
    title : its name.
    marking : who may see it, such as INTERNAL; None for a public page.
    lead : paragraphs below the title.
    sections : what it shows.
    cards : figures that are read first.
    footer : the last words.
    summary : key figures for programs, embedded as JSON (`read_summary`).
    """

    title: str
    marking: str | None
    lead: tuple[str, ...]
    sections: tuple[Section, ...]
    cards: tuple[Card, ...] = ()
    footer: tuple[str, ...] = ()
    summary: Mapping[str, Any] | None = None

    def to_html(self) -> bytes:
        """The page as a file; equal pages have equal bytes."""
        items = [item for section in self.sections for item in section.items]
        charts = {item.id: item.chart for item in items if isinstance(item, Figure)}
        sorts = any(isinstance(item, Table) and item.sortable for item in items)
        facts = {"page": self, "title": self.title, "marking": self.marking}
        return page_from(("dp_powerflow.page", "page.html"), charts, facts, self.summary, sorts=sorts)


def page_from(
    template: tuple[str, str],
    charts: Mapping[str, Chart],
    facts: Mapping[str, Any],
    summary: Mapping[str, Any] | None = None,
    *,
    sorts: bool = False,
) -> bytes:
    """A page as a file; equal arguments give equal bytes.

    Parameters
    ----------
    template : package and name of a template that is `page.html` or extends it.
    charts : id of a figure → what it shows.
    facts : what the template fills in.
    summary : as of a `Page`.
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
        "summary": None if summary is None else _as_is(_embedded(summary)),
        "licences": [(name, _asset(f"vendor/{file}.LICENSE.txt")) for name, file in _VENDORED],
    }
    return _environment(package).get_template(name).render(shown | dict(facts)).encode()


_VENDORED = (("D3", "d3"), ("Observable Plot", "plot"))
_OWN = ("scales.js", "charts.js", "map.js", "start.js")
"""Our own scripts, in the order in which they are read."""
_OWN_WITH_TABLE = (*_OWN, "table.js")
"""Only in pages with a sortable table: the bytes of the others do not depend on it."""


_SUMMARY = b'<script type="application/json" id="summary">'


def read_summary(page: bytes) -> dict[str, Any] | None:
    """Key figures that a page holds for programs; None if it holds none that can be read."""
    try:
        begin = page.find(_SUMMARY) + len(_SUMMARY)  # a page is long: the rest is not even decoded
        found = json.loads(page[begin : page.find(b"</script>", begin)].decode())
        json.dumps(found, allow_nan=False)  # what no page could hold was put there by somebody
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


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
