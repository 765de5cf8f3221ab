"""Figures of the page, one function each. Figures over time of day begin at midnight."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from dp_powerflow.page import (
    Axis,
    Band,
    Callout,
    Card,
    Choice,
    Duration,
    Figure,
    Heatmap,
    Histogram,
    Item,
    Limit,
    Lines,
    NetworkMap,
    Option,
    Page,
    Quantiles,
    Section,
    Series,
    Steps,
    Table,
)
from dp_powerflow.page.charts import CLOCK
from dp_powerflow.quality.result import (
    LEVELS,
    RANGE_A,
    RANGE_B,
    Controls,
    Extreme,
    Guarantee,
    Network,
    Power,
    Promise,
    Unbalance,
    Voltages,
)
from dp_powerflow.quality.tally import BINS_PER_PU, spread
from dp_powerflow.units import IntArray

if TYPE_CHECKING:
    from dp_powerflow.quality.measure import Quality

VOLTAGE = Axis("voltage magnitude", "p.u.", decimals=4)
SHARE = Axis("share", "%", decimals=2)
MOST_NODES = 400
"""Nodes of the figure of every node."""
MOST_REGULATORS = 12
WORST = 10
_LEAST_REACH = 0.02
_LEVELS = tuple(float(level) for level in LEVELS)
_IN_WORDS = "The bands hold the middle 50 %, 90 % and 98 %, the line is the median."


def percent(share: float) -> str:
    """A share; never rounded to all or nothing."""
    if 0.0 < share < 1.0:
        return f"{min(max(100 * share, 0.01), 99.99):.2f} %"
    return f"{100 * share:.0f} %"


def histogram(found: Voltages) -> Figure:
    """Magnitudes of all nodes, and by group."""
    limits = tuple(
        Limit(end, f"{name} {end:g}")
        for name, ends in (("A", RANGE_A), ("B", RANGE_B))
        for end in ends
        if found.edges_pu[0] <= end <= found.edges_pu[-1]
    )

    def bars(counts: IntArray) -> list[float]:
        return [round(100 * each / max(int(counts.sum()), 1), 4) for each in counts.tolist()]

    everything = (Series("all nodes", bars(found.counts.sum(axis=0))),)
    by_group = tuple(Series(name, bars(each)) for name, each in zip(found.groups, found.counts, strict=True))
    edges = np.round(found.edges_pu, 5)
    options = [Option("all nodes", Histogram(VOLTAGE, SHARE, edges, everything, limits))]
    if len(by_group) > 1:
        options.append(Option(f"by {found.grouped_by}", Histogram(VOLTAGE, SHARE, edges, by_group, limits)))
    width = (found.edges_pu[-1] - found.edges_pu[0]) / found.counts.shape[1]
    caption = (
        f"Share of the {found.count:,} released magnitudes in bins of {width:.4f} p.u. Dashed lines are the "
        "ends of ANSI C84.1 ranges A and B, where they are in sight. Shares by group add up to 100 % each."
    )
    return Figure("voltage-histogram", "How the voltages are distributed", caption, _choice("Show", options))


def daily_band(found: Voltages) -> Figure:
    """Quantiles by time of day."""
    limits = tuple(
        Limit(end, f"range A, {end:g}")
        for end in RANGE_A
        if found.band_pu.min() - 0.005 <= end <= found.band_pu.max() + 0.005
    )
    names = ("all nodes", *(found.groups if len(found.groups) > 1 else ()))
    at, bands = found.slots_minutes, found.band_pu
    options = [
        Option(name, Band(CLOCK, VOLTAGE, at, (Quantiles(name, _LEVELS, bands[k]),), limits))
        for k, name in enumerate(names)
    ]
    if len(names) > 1:
        middle = tuple(
            Quantiles(name, (25.0, 50.0, 75.0), bands[k, 2:5]) for k, name in enumerate(names) if k
        )
        options.insert(1, Option("groups together", Band(CLOCK, VOLTAGE, at, middle, limits)))
    caption = (
        f"Quantiles over all nodes and days at each time of day, to 0.0001 p.u. {_IN_WORDS} Together, groups "
        "show their middle 50 %."
    )
    return Figure("voltage-day", "Voltage over the day", caption, _choice("Nodes", options))


def sample_days(found: Voltages, steps: int, dated: Dated) -> Figure:
    """Some days of some nodes."""
    sample, minutes = found.samples, 1440
    at = np.arange(steps) * minutes // steps
    names = [f"{found.nodes.ids[node]}, {found.groups[found.nodes.group[node]]}" for node in sample.nodes]
    options = [
        Option(
            f"{dated.day(day)} ({why})",
            Lines(
                CLOCK, VOLTAGE, at, tuple(Series(n, v) for n, v in zip(names, sample.vm_pu[k], strict=True))
            ),
        )
        for k, (day, why) in enumerate(zip(sample.days, sample.why, strict=True))
    ]
    caption = (
        "Of each of the three largest groups the nodes with the lowest and the highest mean voltage. A click "
        "on a name hides it."
    )
    return Figure("sample-days", "Single days", caption, _choice("Day", options), wide=False)


def every_node(found: Voltages) -> Figure:
    """Lowest, mean and highest voltage of every node."""
    order = np.lexsort((np.arange(len(found.nodes.ids)), found.nodes.lowest_pu))
    shown = order[spread(len(order), MOST_NODES)]
    series = tuple(
        Series(name, np.round(values[shown], 5))
        for name, values in (
            ("lowest", found.nodes.lowest_pu),
            ("mean", found.nodes.mean_pu),
            ("highest", found.nodes.highest_pu),
        )
    )
    rank = np.arange(1, len(order) + 1)[spread(len(order), MOST_NODES)]
    chart = Lines(Axis("nodes by their lowest voltage", decimals=0), VOLTAGE, rank, series)
    few = f" {len(shown)} of {len(order)} nodes, evenly spaced." if len(shown) < len(order) else ""
    caption = f"Every node over all days, in the order of its lowest voltage.{few}"
    return Figure("every-node", "Every node", caption, chart, wide=False)


def worst_nodes(found: Voltages) -> Table:
    """Nodes with the lowest voltages."""
    order = np.lexsort((np.arange(len(found.nodes.ids)), found.nodes.lowest_pu))[:WORST]
    rows = tuple(
        (
            found.nodes.ids[k],
            found.groups[found.nodes.group[k]],
            f"{found.nodes.lowest_pu[k]:.4f} p.u.",
            f"{found.nodes.mean_pu[k]:.4f} p.u.",
            f"{found.nodes.highest_pu[k]:.4f} p.u.",
            percent(float(found.nodes.inside_a[k])),
        )
        for k in order.tolist()
    )
    header = ("node", found.grouped_by, "lowest", "mean", "highest", "within range A")
    return Table(header, rows, f"The {len(rows)} nodes with the lowest voltages", frozenset(range(2, 6)))


def correlation(found: Voltages) -> Figure:
    """Matrix of correlations."""
    of = found.correlation
    names = [found.nodes.ids[k] for k in of.nodes.tolist()]
    axis = Axis(f"node, by {found.grouped_by}" if len(found.groups) > 1 else "node")
    values = [[None if v != v else round(v, 3) for v in row] for row in of.values.tolist()]
    chart = Heatmap(axis, axis, Axis("correlation", decimals=2), names, names, values, (-1.0, 1.0), 0.0)
    few = len(of.nodes) < len(found.nodes.ids)
    said = f"{len(of.nodes)} of {len(found.nodes.ids)} nodes, evenly spaced" if few else "All nodes"
    caption = f"Pearson correlation of magnitudes over all snapshots. {said}, ordered by {of.order}."
    return Figure("correlation", "Which nodes move together", caption, chart)


def unbalance(found: Unbalance, at: IntArray) -> Figure:
    """Quantiles by time of day."""
    axis = Axis("unbalance", "%", decimals=3)
    band = Quantiles("unbalance", _LEVELS, np.round(found.band_percent, 4))
    caption = (
        f"Negative over positive sequence of the voltage (IEC 61000-4-30) of {found.of}, on {found.n_days} "
        f"evenly spaced days. {_IN_WORDS} {percent(found.above_two)} of the values are above 2 %."
    )
    return Figure("unbalance", "Unbalance over the day", caption, Band(CLOCK, axis, at, (band,)))


def power_over_day(powers: tuple[Power, ...], at: IntArray) -> Figure:
    """Quantiles by time of day."""
    options = [
        Option(
            each.name,
            Band(
                CLOCK,
                Axis("active power", "kW", decimals=1),
                at,
                (Quantiles(each.name, _LEVELS, each.band_kw),),
            ),
        )
        for each in powers
    ]
    caption = f"Active power of the whole feeder: quantiles over all days. {_IN_WORDS}"
    return Figure("power-day", "Power over the day", caption, _choice("Power", options), wide=False)


def duration(powers: tuple[Power, ...]) -> Figure:
    """Powers in falling order."""
    series = tuple(Series(each.name, each.duration_kw) for each in powers)
    chart = Duration(Axis("active power", "kW", decimals=1), powers[0].duration_percent, series)
    caption = "For which share of all snapshots the power of the feeder is at least so large."
    return Figure("power-duration", "Duration curve", caption, chart, wide=False)


def power_over_days(powers: tuple[Power, ...], days: int, dated: Dated) -> Figure:
    """Daily energy and peak."""
    at, axis = dated.points(powers[0].first_day)
    options = []
    for each in powers:
        for what, unit, values in (("energy per day", "MWh", each.energy_mwh), ("peak", "kW", each.peak_kw)):
            y = Axis(what, unit, decimals=2 if unit == "MWh" else 1)
            options.append(
                Option(f"{each.name}, {what}", Lines(axis, y, at, (Series(each.name, values),), filled=True))
            )
    width = -(-days // len(at))
    several = f" A point stands for {width} days: their mean energy, their highest peak." if width > 1 else ""
    caption = f"Active energy and largest power of the feeder, day by day.{several}"
    return Figure("power-days", "Power over the days", caption, _choice("Show", options), wide=False)


def carpet(powers: tuple[Power, ...], dated: Dated) -> Figure:
    """Mean power by day and time of day."""
    options = []
    for each in powers:
        slots = len(each.carpet_kw)
        columns, axis = dated.points(each.first_day)
        ends = float(each.carpet_kw.min()), float(each.carpet_kw.max())
        ends = ends if ends[0] < ends[1] else (ends[0], ends[0] + 1.0)
        rows = np.arange(slots) * 1440 // slots
        value = Axis("active power", "kW", decimals=0)
        options.append(
            Option(each.name, Heatmap(axis, CLOCK, value, columns, rows, np.round(each.carpet_kw), ends))
        )
    caption = "Mean active power of the feeder by day and time of day: weeks, seasons and peaks at a glance."
    return Figure("power-carpet", "All days at a glance", caption, _choice("Power", options), wide=False)


def taps(found: Controls, at: IntArray) -> Figure:
    """Taps over the day."""
    shown = min(len(found.taps), MOST_REGULATORS)
    bands = tuple(
        Quantiles(
            f"regulator {k}: {found.tap_moves[k]:.1f} steps moved per day", (0.0, 50.0, 100.0), found.taps[k]
        )
        for k in range(shown)
    )
    few = f" The first {shown} of {len(found.taps)} regulators." if shown < len(found.taps) else ""
    caption = f"Median, lowest and highest tap over all days, in steps away from neutral.{few}"
    return Figure(
        "taps", "Taps over the day", caption, Steps(CLOCK, Axis("tap", "steps", decimals=0), at, bands)
    )


def capacitors(found: Controls) -> Table:
    """How long capacitors are closed, and how often they switch."""
    rows = tuple(
        (f"capacitor {k}", percent(float(closed)), f"{switched:.2f}")
        for k, (closed, switched) in enumerate(zip(found.closed, found.switchings, strict=True))
    )[:MOST_REGULATORS]
    header = ("capacitor", "closed", "switchings per day")
    few = f"; the first {len(rows)} of {len(found.closed)}" if len(rows) < len(found.closed) else ""
    return Table(header, rows, f"Capacitors: share of the time closed{few}", frozenset({1, 2}))


def network_map(found: Network, dated: Dated) -> Figure:
    """The network by voltage, with a slider."""
    counts = found.vm[found.vm > 0]
    reach = max(abs(int(counts.max()) / BINS_PER_PU - 1.0), abs(int(counts.min()) / BINS_PER_PU - 1.0))
    half = max(_LEAST_REACH, math.ceil(round(reach * 100, 6)) / 100)
    places = None if found.coordinates is None else np.round(found.coordinates, 6).tolist()
    options = [
        Option(
            f"{dated.day(day)} ({why})",
            NetworkMap(
                VOLTAGE,
                found.buses,
                found.pairs,
                found.kinds,
                found.source,
                found.minutes,
                {name: found.vm[k, p] for p, name in enumerate(found.phases)},
                BINS_PER_PU,
                (round(1 - half, 4), round(1 + half, 4)),
                1.0,
                places,
            ),
        )
        for k, (day, why) in enumerate(zip(found.days, found.why, strict=True))
    ]
    laid = (
        "Buses stand at their released coordinates, which were declared public, so lengths of lines are not "
        "protected."
        if places is not None
        else "The layout is computed from the connections alone: lengths and directions mean nothing."
    )
    caption = (
        f"{len(found.buses):,} buses and {len(found.pairs):,} connections of the released network, coloured "
        f"by voltage at {len(found.minutes)} times of the day. {laid} Pale buses have no released node."
    )
    return Figure("network-map", "The network over a day", caption, _choice("Day", options))


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


def _choice(label: str, options: list[Option]) -> Choice | Histogram | Band | Lines | Heatmap | NetworkMap:
    """The only chart, or a choice."""
    if len(options) > 1:
        return Choice(label, tuple(options))
    chart = options[0].chart
    assert isinstance(chart, Histogram | Band | Lines | Heatmap | NetworkMap)
    return chart


_GOOD = 0.99


def page_of(found: Quality) -> Page:
    """The page of a corpus."""
    minutes = 1440 // found.steps
    dates = f" from {found.first_date} to {found.last_date}" if found.first_date else ""
    lead = (
        f"{found.days:,} synthetic days{dates} of voltage phasors at {found.nodes:,} nodes of a distribution "
        f"feeder, every {minutes} minutes: {found.voltages.count:,} phasors that obey AC power flow.",
        "Everything on this page is computed from the released files and from nothing else. Whoever has them "
        "can make it again, bit by bit: dp-powerflow quality RELEASE.",
    )
    footer = (
        f"Release {found.release_id}. The figures follow from what is released, so they cost no privacy. "
        "They describe the synthetic corpus, not the feeder that it was made for.",
    )
    sections = tuple(section for section in _sections(found) if section.items)
    title, cards = f"Quality of release {found.release_id}", tuple(_cards(found))
    return Page(title, None, lead, sections, cards, footer, found.summary)


def _cards(found: Quality) -> Iterator[Card]:
    """Figures that are read first."""
    voltages, dated = found.voltages, Dated(found.first_date)
    if found.promise is not None:
        for title, kept in (("Customers", found.promise.loads), ("Network", found.promise.network)):
            yield Card(f"{title}: privacy", kept.figure, kept.figure_means, _tone(kept.holds))
    for name, ends, share in (("A", RANGE_A, voltages.inside_a), ("B", RANGE_B, voltages.inside_b)):
        words = f"of the voltages, {ends[0]:g} to {ends[1]:g} p.u."
        yield Card(f"Within ANSI range {name}", percent(share), words, _tone(share >= _GOOD))

    def place(of: Extreme) -> str:
        clock = of.step * 1440 // found.steps
        return f"node {of.node}, {dated.day(of.day)} at {clock // 60:02d}:{clock % 60:02d}"

    for label, of in (("Lowest voltage", voltages.lowest), ("Highest voltage", voltages.highest)):
        inside = RANGE_B[0] <= of.value_pu <= RANGE_B[1]
        yield Card(label, f"{of.value_pu:.4f} p.u.", place(of), _tone(inside))
    if found.powers:
        power = found.powers[0]
        yield Card(f"Peak, {power.name}", f"{power.largest_kw:,.0f} kW", f"mean {power.mean_kw:,.0f} kW")
    if found.unbalance is not None:
        top = float(found.unbalance.band_percent[-1].max())
        yield Card("Unbalance", f"{top:.2f} %", "99 % quantile at the worst time of day", _tone(top <= 2.0))
    if found.mended is not None:
        words = f"of {found.days * found.steps:,} snapshots, for lack of a power-flow solution"
        yield Card("Mended", f"{found.mended.snapshots:,}", words, _tone(not found.mended.snapshots))


def _tone(good: bool) -> str:
    return "good" if good else "warning"


def _sections(found: Quality) -> Iterator[Section]:
    dated, voltages = Dated(found.first_date), found.voltages
    if found.promise is not None:
        yield _privacy(found.promise)
    items: list[Item] = [
        histogram(voltages),
        daily_band(voltages),
        sample_days(voltages, found.steps, dated),
        every_node(voltages),
        worst_nodes(voltages),
    ]
    yield Section("voltages", "Voltages", _about_groups(found), tuple(items))
    drawn = () if found.network is None else (network_map(found.network, dated),)
    yield Section("network", "Network", (), drawn)
    items = [correlation(voltages)]
    if found.unbalance is not None:
        items.append(unbalance(found.unbalance, voltages.slots_minutes))
    yield Section("structure", "Structure", (), tuple(items))
    if found.powers:
        at = voltages.slots_minutes
        yield Section(
            "power",
            "Power",
            ("Powers of the feeder as they were solved, on the released network.",),
            (
                power_over_day(found.powers, at),
                duration(found.powers),
                power_over_days(found.powers, found.days, dated),
                carpet(found.powers, dated),
            ),
        )
    if found.controls is not None:
        yield _controls(found)


def _privacy(promise: Promise) -> Section:
    def framed(of: Guarantee) -> Callout:
        return Callout(of.title, of.sentences, "good" if of.holds else "warning")

    items: list[Item] = [framed(promise.loads), framed(promise.network)]
    if promise.warnings:
        items.insert(0, Callout("Read this first", promise.warnings, "warning", wide=True))
    words = "certificate.html beside this page says it in full, manifest.json so that a program can check it."
    return Section("privacy", "What is protected", (words,), tuple(items))


def _about_groups(found: Quality) -> tuple[str, ...]:
    voltages = found.voltages
    if len(voltages.groups) == 1:
        return ()
    if voltages.grouped_by == "phase":
        return ()
    return (
        "The release does not say the phases of its nodes, or too many of them. They are grouped by the "
        "angle of their first voltage, to the nearest multiple of 30°.",
    )


def _controls(found: Quality) -> Section:
    controls = found.controls
    assert controls is not None
    items: list[Item] = []
    if len(controls.taps):
        items.append(taps(controls, found.voltages.slots_minutes))
    if len(controls.closed):
        items.append(capacitors(controls))
    locked = "No control hunted, so none was locked."
    if controls.locked:
        locked = f"In {percent(controls.locked)} of the snapshots a control was locked because it hunted."
    return Section("controls", "Controls", (locked,), tuple(items))
