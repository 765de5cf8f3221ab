"""Self-contained HTML pages with charts: what a page says, and the bytes that it becomes.

A page makes no request: scripts, style and data are in it. It knows nothing of corpora or releases.
"""

from dp_powerflow.page.charts import (
    Axis,
    Band,
    Bars,
    Chart,
    Choice,
    Duration,
    Heatmap,
    Histogram,
    Limit,
    Lines,
    NetworkMap,
    Option,
    Quantiles,
    Series,
    Steps,
)
from dp_powerflow.page.document import Callout, Card, Figure, Item, Link, Page, Section, Table

__all__ = [
    "Axis",
    "Band",
    "Bars",
    "Callout",
    "Card",
    "Chart",
    "Choice",
    "Duration",
    "Figure",
    "Heatmap",
    "Histogram",
    "Item",
    "Limit",
    "Lines",
    "Link",
    "NetworkMap",
    "Option",
    "Page",
    "Quantiles",
    "Section",
    "Series",
    "Steps",
    "Table",
]
