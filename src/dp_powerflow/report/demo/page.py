"""The demonstration as a page: both releases in figures beside the truth, and what each protects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dp_powerflow.page import (
    Axis,
    Band,
    Card,
    Figure,
    Histogram,
    Limit,
    Link,
    Page,
    Quantiles,
    Section,
    Series,
    Table,
)
from dp_powerflow.page.charts import CLOCK
from dp_powerflow.report.demo.sides import ANSI_A, Side, rows_of
from dp_powerflow.units import FloatArray

_LEVELS = (5.0, 25.0, 50.0, 75.0, 95.0)
_BIN_PU = 0.002
_RELEASED, _TRUE = "released", "true"
_VOLTAGE = Axis("voltage magnitude", "p.u.", decimals=4)
_LIMITS = tuple(Limit(value, "range A") for value in ANSI_A)


@dataclass(frozen=True, eq=False)
class Look:
    """What the figures of one release are made of.

    Attributes
    ----------
    released, true : |v| (day, step, node) [p.u.].
    released_kw, true_kw : (day, step) load of the feeder [kW]; None where no load is released.
    quality : address of the quality page of the release.
    """

    released: FloatArray
    true: FloatArray
    released_kw: FloatArray | None
    true_kw: FloatArray
    quality: str


def demo_page(sides: Sequence[Side], looks: Sequence[Look], notes: Sequence[str]) -> bytes:
    """The page, as bytes."""
    figures = [figure for side, look in zip(sides, looks, strict=True) for figure in _figures(side, look)]
    sections = (
        Section("pages", "Open", items=(_links(sides, looks),)),
        Section("beside", "Released beside true", items=tuple(figures)),
        Section("table", "What each protects, and what it costs", items=(_table(sides),)),
    )
    lead = (
        "Two releases of the same feeder (IEEE 123) and the same simulated homes: on a twin of the network, "
        "as this program does it, and on the true network, as the paper does.",
        *notes,
    )
    return Page("dp-powerflow demo", None, lead, sections, cards=tuple(_cards(sides))).to_html()


def _cards(sides: Sequence[Side]) -> list[Card]:
    return [
        card
        for side in sides
        for card in (
            Card(f"W1 of voltages, {side.name}", f"{side.fidelity.w1:.4f} p.u.", "to the true voltages"),
            Card(
                f"within range A, {side.name}",
                f"{side.fidelity.within:.1%}",
                f"of the true voltages {side.fidelity.true_within:.1%}",
            ),
        )
    ]


def _links(sides: Sequence[Side], looks: Sequence[Look]) -> Table:
    rows = tuple(
        (side.name, Link(look.quality, look.quality), Link(side.open, side.open))
        for side, look in zip(sides, looks, strict=True)
    )
    return Table(("release", "its data in figures", "its guarantees"), rows)


def _table(sides: Sequence[Side]) -> Table:
    rows = [tuple(row) for row in rows_of(sides) if row[0] != "open"]
    return Table(("", *(side.name for side in sides)), tuple(rows))


def _figures(side: Side, look: Look) -> list[Figure]:
    """Histogram and daily band of the voltages; of the load too where it is released."""
    name = "twin" if look.released_kw is not None else "paper"
    figures = [
        Figure(
            f"{name}-voltages",
            f"Voltages, {side.name}",
            "Share of all magnitudes of all nodes and days in bins of 0.002 p.u.",
            _histogram(look),
            wide=False,
        ),
        Figure(
            f"{name}-day",
            f"Voltages over a day, {side.name}",
            "Quantiles (5, 25, 50, 75, 95 %) over all nodes and days.",
            _band(look.released, look.true, _VOLTAGE, _LIMITS),
            wide=False,
        ),
    ]
    if look.released_kw is not None:
        figures.append(
            Figure(
                f"{name}-load",
                f"Load of the feeder over a day, {side.name}",
                "Quantiles (5, 25, 50, 75, 95 %) over the days: drawn customers beside the simulated homes.",
                _band(look.released_kw, look.true_kw, Axis("load of the feeder", "kW", decimals=0)),
            )
        )
    return figures


def _histogram(look: Look) -> Histogram:
    low = np.floor(min(look.released.min(), look.true.min()) / _BIN_PU)
    high = np.ceil(max(look.released.max(), look.true.max()) / _BIN_PU) + 1
    edges = np.arange(low, high) * _BIN_PU
    shares = [100 * np.histogram(values, edges)[0] / values.size for values in (look.released, look.true)]
    series = (Series(_RELEASED, shares[0].round(4)), Series(_TRUE, shares[1].round(4)))
    return Histogram(_VOLTAGE, Axis("share", "%"), edges.round(4), series, _LIMITS)


def _band(released: FloatArray, true: FloatArray, axis: Axis, limits: tuple[Limit, ...] = ()) -> Band:
    steps = released.shape[1]
    bands = tuple(
        Quantiles(name, _LEVELS, _by_step(values).round(5))
        for name, values in ((_RELEASED, released), (_TRUE, true))
    )
    return Band(CLOCK, axis, np.arange(steps) * (1440 // steps), bands, limits)


def _by_step(values: FloatArray) -> FloatArray:
    """(level, step) quantiles over days, and nodes if there are any."""
    rows = np.moveaxis(values, 1, -1).reshape(-1, values.shape[1])
    quantiles: FloatArray = np.quantile(rows, np.array(_LEVELS) / 100, axis=0)
    return quantiles
