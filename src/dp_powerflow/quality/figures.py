"""The charts of the page of a corpus; `templates/quality.html` says the rest. Days begin at midnight."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping

import numpy as np

from dp_powerflow import page
from dp_powerflow.page import Axis, Chart, Heatmap, Limit, Lines, Quantiles, Series
from dp_powerflow.quality.measure import Controls, Network, Power, Quality, Voltages
from dp_powerflow.quality.tally import BINS_PER_PU, LEVELS, RANGE_A, RANGE_B, spread
from dp_powerflow.units import IntArray

VOLTAGE = Axis("voltage magnitude", "p.u.", decimals=4)
SHARE = Axis("share", "%", decimals=2)
POWER = Axis("active power", "kW", decimals=1)
MOST_NODES = 400
"""Nodes of the figure of every node."""
MOST_REGULATORS = 12
WORST = 10
_LEAST_REACH = 0.02
_LEVELS = tuple(float(level) for level in LEVELS)


def percent(share: float) -> str:
    """A share; never rounded to all or nothing."""
    if 0.0 < share < 1.0:
        return f"{min(max(100 * share, 0.01), 99.99):.2f} %"
    return f"{100 * share:.0f} %"


class Dated:
    """Names of days: dates where there are any, else numbers."""

    def __init__(self, first_date: str | None) -> None:
        self._first = None if first_date is None else dt.date.fromisoformat(first_date)

    def day(self, number: int) -> str:
        """One day in words."""
        return f"day {number}" if self._first is None else str(self._first + dt.timedelta(days=number))

    def points(self, numbers: IntArray) -> tuple[list[str] | list[int], Axis]:
        """Places on an axis, and the axis."""
        if self._first is None:
            return numbers.tolist(), Axis("day", decimals=0)
        return [self.day(int(number)) for number in numbers], Axis("date", form="date")


def page_of(found: Quality) -> bytes:
    """The page of a corpus."""
    charts = charts_of(found)
    facts = {
        "found": found,
        "charts": charts,
        "worst": _worst_nodes(found.voltages),
        "capacitors": () if found.controls is None else _capacitors(found.controls),
        "day": Dated(found.first_date).day,
        "percent": percent,
        "tone": lambda good: "good" if good else "warning",
        "range_a": RANGE_A,
        "range_b": RANGE_B,
    }
    return page.page_from(("dp_powerflow.quality", "quality.html"), charts, facts)


def charts_of(found: Quality) -> dict[str, Chart]:
    """Every chart of the page, by the id of its figure."""
    dated, voltages, at = Dated(found.first_date), found.voltages, found.voltages.slots_minutes
    charts = {
        "voltage-histogram": _histogram(voltages),
        "voltage-day": _daily_band(voltages),
        "sample-days": _sample_days(voltages, found.steps, dated),
        "every-node": _every_node(voltages),
        "correlation": _correlation(voltages),
    }
    if found.network is not None:
        charts["network-map"] = _network_map(found.network, dated)
    if found.unbalance is not None:
        band = Quantiles("unbalance", _LEVELS, np.round(found.unbalance.band_percent, 4))
        charts["unbalance"] = page.Band(page.CLOCK, Axis("unbalance", "%", decimals=3), at, (band,))
    if found.powers:
        charts |= _powers(found.powers, at, dated)
    if found.controls is not None and len(found.controls.taps):
        charts["taps"] = _taps(found.controls, at)
    return charts


def _choice(label: str, options: Mapping[str, Chart]) -> Chart:
    """The only chart, or a choice."""
    if len(options) == 1:
        return next(iter(options.values()))
    return page.Choice(label, tuple(page.Option(name, chart) for name, chart in options.items()))


def _histogram(found: Voltages) -> Chart:
    """Magnitudes of all nodes, and by group."""
    limits = tuple(
        Limit(end, f"{name} {end:g}")
        for name, ends in (("A", RANGE_A), ("B", RANGE_B))
        for end in ends
        if found.edges_pu[0] <= end <= found.edges_pu[-1]
    )

    def bars(name: str, counts: IntArray) -> Series:
        return Series(name, [round(100 * each / max(int(counts.sum()), 1), 4) for each in counts.tolist()])

    shown: dict[str, tuple[Series, ...]] = {"all nodes": (bars("all nodes", found.counts.sum(axis=0)),)}
    if len(found.groups) > 1:
        shown[f"by {found.grouped_by}"] = tuple(map(bars, found.groups, found.counts))
    edges = np.round(found.edges_pu, 5)
    options = {name: page.Histogram(VOLTAGE, SHARE, edges, series, limits) for name, series in shown.items()}
    return _choice("Show", options)


def _daily_band(found: Voltages) -> Chart:
    """Quantiles by time of day."""
    low, high = found.band_pu.min() - 0.005, found.band_pu.max() + 0.005
    limits = tuple(Limit(end, f"range A, {end:g}") for end in RANGE_A if low <= end <= high)
    everything = Quantiles("all nodes", _LEVELS, found.band_pu[0])
    shown: dict[str, tuple[Quantiles, ...]] = {"all nodes": (everything,)}
    if len(found.groups) > 1:
        groups = list(zip(found.groups, found.band_pu[1:], strict=True))
        middle = (Quantiles(name, (25.0, 50.0, 75.0), band[2:5]) for name, band in groups)
        shown["groups together"] = tuple(middle)
        shown |= {name: (Quantiles(name, _LEVELS, band),) for name, band in groups}
    at = found.slots_minutes
    options = {name: page.Band(page.CLOCK, VOLTAGE, at, bands, limits) for name, bands in shown.items()}
    return _choice("Nodes", options)


def _sample_days(found: Voltages, steps: int, dated: Dated) -> Chart:
    """Some days of some nodes."""
    sample, at = found.samples, np.arange(steps) * 1440 // steps
    names = [f"{found.nodes.ids[node]}, {found.groups[found.nodes.group[node]]}" for node in sample.nodes]
    options = {
        f"{dated.day(day)} ({why})": Lines(page.CLOCK, VOLTAGE, at, tuple(map(Series, names, vm_pu)))
        for day, why, vm_pu in zip(sample.days, sample.why, sample.vm_pu, strict=True)
    }
    return _choice("Day", options)


def _by_lowest(found: Voltages) -> IntArray:
    """Nodes in the order of their lowest voltages."""
    return np.lexsort((np.arange(len(found.nodes.ids)), found.nodes.lowest_pu))


def _every_node(found: Voltages) -> Chart:
    """Lowest, mean and highest voltage of every node."""
    order = _by_lowest(found)
    places, nodes = spread(len(order), MOST_NODES), found.nodes
    figures = {"lowest": nodes.lowest_pu, "mean": nodes.mean_pu, "highest": nodes.highest_pu}
    series = tuple(Series(name, np.round(values[order[places]], 5)) for name, values in figures.items())
    return Lines(Axis("nodes by their lowest voltage", decimals=0), VOLTAGE, 1 + places, series)


def _worst_nodes(found: Voltages) -> list[tuple[str, ...]]:
    """Rows of a table: nodes with the lowest voltages."""
    nodes = found.nodes
    return [
        (
            nodes.ids[k],
            found.groups[nodes.group[k]],
            *(f"{values[k]:.4f} p.u." for values in (nodes.lowest_pu, nodes.mean_pu, nodes.highest_pu)),
            percent(float(nodes.inside_a[k])),
        )
        for k in _by_lowest(found)[:WORST].tolist()
    ]


def _correlation(found: Voltages) -> Chart:
    """Matrix of correlations."""
    of = found.correlation
    names = [found.nodes.ids[k] for k in of.nodes.tolist()]
    axis = Axis(f"node, by {found.grouped_by}" if len(found.groups) > 1 else "node")
    values = [[None if v != v else round(v, 3) for v in row] for row in of.values.tolist()]
    return Heatmap(axis, axis, Axis("correlation", decimals=2), names, names, values, (-1.0, 1.0), 0.0)


def _powers(powers: tuple[Power, ...], at: IntArray, dated: Dated) -> dict[str, Chart]:
    """By time of day, in falling order, over the days, and by both."""
    points, axis = dated.points(powers[0].first_day)
    daily: dict[str, Chart] = {}
    by_day: dict[str, Chart] = {}
    carpets: dict[str, Chart] = {}
    for each in powers:
        daily[each.name] = page.Band(page.CLOCK, POWER, at, (Quantiles(each.name, _LEVELS, each.band_kw),))
        for y, values in (
            (Axis("energy per day", "MWh", decimals=2), each.energy_mwh),
            (Axis("peak", "kW", decimals=1), each.peak_kw),
        ):
            series = (Series(each.name, values),)
            by_day[f"{each.name}, {y.label}"] = Lines(axis, y, points, series, filled=True)
        low, high = float(each.carpet_kw.min()), float(each.carpet_kw.max())
        ends = (low, high if low < high else low + 1.0)
        rows = np.arange(len(each.carpet_kw)) * 1440 // len(each.carpet_kw)
        value = Axis("active power", "kW", decimals=0)
        carpets[each.name] = Heatmap(axis, page.CLOCK, value, points, rows, np.round(each.carpet_kw), ends)
    falling = tuple(Series(each.name, each.duration_kw) for each in powers)
    return {
        "power-day": _choice("Power", daily),
        "power-duration": page.Duration(POWER, powers[0].duration_percent, falling),
        "power-days": _choice("Show", by_day),
        "power-carpet": _choice("Power", carpets),
    }


def _taps(found: Controls, at: IntArray) -> Chart:
    """Taps over the day."""
    bands = tuple(
        Quantiles(f"regulator {k}: {moves:.1f} steps moved per day", (0.0, 50.0, 100.0), found.taps[k])
        for k, moves in enumerate(found.tap_moves[:MOST_REGULATORS])
    )
    return page.Steps(page.CLOCK, Axis("tap", "steps", decimals=0), at, bands)


def _capacitors(found: Controls) -> list[tuple[str, str, str]]:
    """Rows of a table: how long capacitors are closed, and how often they switch."""
    both = zip(found.closed[:MOST_REGULATORS], found.switchings, strict=False)
    return [(f"capacitor {k}", percent(float(c)), f"{s:.2f}") for k, (c, s) in enumerate(both)]


def _network_map(found: Network, dated: Dated) -> Chart:
    """The network by voltage, with a slider."""
    counts = found.vm[found.vm > 0]
    reach = max(abs(int(counts.max()) / BINS_PER_PU - 1.0), abs(int(counts.min()) / BINS_PER_PU - 1.0))
    half = max(_LEAST_REACH, math.ceil(round(reach * 100, 6)) / 100)
    places = None if found.coordinates is None else np.round(found.coordinates, 6).tolist()

    drawn = found.buses, found.pairs, found.kinds, found.source, found.minutes
    ends = (round(1 - half, 4), round(1 + half, 4))

    def on_day(vm: IntArray) -> page.NetworkMap:
        views = dict(zip(found.phases, vm, strict=True))
        return page.NetworkMap(VOLTAGE, *drawn, views, BINS_PER_PU, ends, 1.0, places)

    days = zip(found.days, found.why, found.vm, strict=True)
    return _choice("Day", {f"{dated.day(day)} ({why})": on_day(vm) for day, why, vm in days})
