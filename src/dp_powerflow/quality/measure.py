"""Everything that is found of a corpus, as one result; every figure is a function of the released files.

Quantiles are order statistics: the smallest value that at least this percentage of values does not exceed.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from dp_powerflow._bits.elementary import modulus, multiply, unit
from dp_powerflow._threads import in_order
from dp_powerflow.corpus.grid import POWER_PER_KW, VM_PER_PU, vm_counts
from dp_powerflow.corpus.reader import MINUTES_PER_DAY, Corpus
from dp_powerflow.page import framed
from dp_powerflow.quality import tally as counted
from dp_powerflow.quality.tally import Found, NodeGroups, Pass, Progress, Tally
from dp_powerflow.units import FloatArray, IntArray

_SMALL = 5_000_000
"""Phasors that one thread reads before others have started."""


@dataclass(frozen=True)
class Guarantee:
    """One of the two statements of privacy, in words.

    Attributes
    ----------
    title : of what.
    figure : its main figure, such as "ε = 1".
    figure_means : what that is, in a few words.
    sentences : what it promises, and what not.
    holds : whether it is differential privacy; otherwise it is evidence, or warns.
    """

    title: str
    figure: str
    figure_means: str
    sentences: tuple[str, ...]
    holds: bool


@dataclass(frozen=True)
class Promise:
    """What a release promises.

    Attributes
    ----------
    loads, network : the two statements.
    warnings : why it protects, or says, less than a reader may expect.
    """

    loads: Guarantee
    network: Guarantee
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Extreme:
    """The lowest or highest voltage [p.u.], and where it is; the first of several."""

    value_pu: float
    day: int
    step: int
    node: str


@dataclass(frozen=True, eq=False)
class NodeFigures:
    """Per node.

    Attributes
    ----------
    ids : (node,) names.
    group : (node,) row of `Voltages.groups`.
    lowest_pu, mean_pu, highest_pu : (node,) magnitudes.
    inside_a : (node,) share of the snapshots within range A.
    """

    ids: tuple[str, ...]
    group: IntArray
    lowest_pu: FloatArray
    mean_pu: FloatArray
    highest_pu: FloatArray
    inside_a: FloatArray


@dataclass(frozen=True, eq=False)
class Correlation:
    """Of the magnitudes of some nodes, over the snapshots of some days.

    Attributes
    ----------
    nodes : (k,) rows of the node table, ordered.
    order : what they are ordered by.
    values : (k, k) coefficients, nan for a node whose voltage never moves.
    """

    nodes: IntArray
    order: str
    values: FloatArray


@dataclass(frozen=True, eq=False)
class SampleDays:
    """Some days of some nodes.

    Attributes
    ----------
    days : (day,) numbers.
    why : (day,) the rule that chose it.
    nodes : (node,) rows of the node table.
    vm_pu : (day, node, step) magnitudes.
    """

    days: tuple[int, ...]
    why: tuple[str, ...]
    nodes: tuple[int, ...]
    vm_pu: FloatArray


@dataclass(frozen=True, eq=False)
class Voltages:
    """Magnitudes of all nodes, days and steps.

    Attributes
    ----------
    count : how many.
    inside_a, inside_b : share within `RANGE_A` and `RANGE_B`, the ends included.
    lowest, highest : of all.
    groups : names of the groups of nodes, by phase or by angle.
    grouped_by : "phase", or "angle" where the release says none, or more than can be told apart.
    edges_pu : (bin + 1,) ends of the bins.
    counts : integer (group, bin).
    slots_minutes : (slot,) beginnings of the times of day of `band_pu` [minutes].
    band_pu : (1 + group, level, slot) quantiles, of all nodes first, to 0.0001 p.u. from 0.5 to 1.5 p.u.
    """

    count: int
    inside_a: float
    inside_b: float
    lowest: Extreme
    highest: Extreme
    groups: tuple[str, ...]
    grouped_by: str
    edges_pu: FloatArray
    counts: IntArray
    slots_minutes: IntArray
    band_pu: FloatArray
    nodes: NodeFigures
    correlation: Correlation
    samples: SampleDays


@dataclass(frozen=True, eq=False)
class Unbalance:
    """Negative over positive sequence of the voltages [%], IEC 61000-4-30.

    Attributes
    ----------
    buses : (bus,) names of three-phase buses.
    n_days : evenly spaced days that were measured.
    band_percent : (level, slot) quantiles over buses and days.
    largest_percent : (bus,).
    above_two : share of the values above 2 %.
    """

    buses: tuple[str, ...]
    n_days: int
    band_percent: FloatArray
    largest_percent: FloatArray
    above_two: float


@dataclass(frozen=True, eq=False)
class Power:
    """A power of the whole feeder over all days.

    Attributes
    ----------
    name : "feeder head", "loads" or "generation".
    band_kw : (level, slot) quantiles by time of day.
    duration_percent, duration_kw : (point,) for which share of the time it is at least so large.
    first_day : (period,) number of the first day of each period; a period is one day unless there are many.
    energy_mwh : (period,) mean energy per day.
    peak_kw : (period,) largest power.
    carpet_kw : (slot, period) mean power.
    largest_kw, mean_kw : over everything.
    """

    name: str
    band_kw: FloatArray
    duration_percent: FloatArray
    duration_kw: FloatArray
    first_day: IntArray
    energy_mwh: FloatArray
    peak_kw: FloatArray
    carpet_kw: FloatArray
    largest_kw: float
    mean_kw: float


@dataclass(frozen=True, eq=False)
class Controls:
    """States of regulators and capacitors.

    Attributes
    ----------
    taps : integer (regulator, 3, slot) lowest, median and highest tap over the days.
    tap_moves : (regulator,) steps moved per day, within days.
    closed : (capacitor,) share of the time closed.
    switchings : (capacitor,) per day, within days.
    locked : share of the snapshots in which a hunting control was locked.
    """

    taps: IntArray
    tap_moves: FloatArray
    closed: FloatArray
    switchings: FloatArray
    locked: float


@dataclass(frozen=True)
class ScaledDown:
    """Snapshots whose powers were scaled down until there was a solution: how many, and how often at most."""

    snapshots: int
    most: int


@dataclass(frozen=True, eq=False)
class Network:
    """The released network over some days.

    Attributes
    ----------
    buses : (bus,) names.
    pairs : integer (pair, 2) joined buses.
    kinds : (pair,) "line", "switch" or "transformer".
    source : boolean (bus,).
    coordinates : (bus, 2) where they are public, else None.
    phases : names of the phases.
    days, why : (day,) numbers, and the rule that chose them.
    minutes : (step,) times of day shown.
    vm : integer (day, phase, step, bus) magnitudes in 0.0001 p.u., from 1 to 65,535; 0 where there is no
        released node.
    """

    buses: tuple[str, ...]
    pairs: IntArray
    kinds: tuple[str, ...]
    source: tuple[bool, ...]
    coordinates: FloatArray | None
    phases: tuple[str, ...]
    days: tuple[int, ...]
    why: tuple[str, ...]
    minutes: IntArray
    vm: IntArray


@dataclass(frozen=True, eq=False)
class Quality:
    """The figures of a corpus; `dpf.quality` makes it.

    Attributes
    ----------
    release_id : name of the release.
    days, steps, nodes : shape of the corpus.
    first_date, last_date : ISO dates; None if the days have none.
    promise : both guarantees in words; None if it was not asked for.
    voltages : magnitudes.
    unbalance : None where there are no three phases.
    powers : of the feeder, where they are published.
    controls : None where they are not published.
    scaled_down : None where it is not published.
    network : None where connections are not published.
    """

    release_id: str
    days: int
    steps: int
    nodes: int
    first_date: str | None
    last_date: str | None
    promise: Promise | None
    voltages: Voltages
    unbalance: Unbalance | None
    powers: tuple[Power, ...]
    controls: Controls | None
    scaled_down: ScaledDown | None
    network: Network | None

    def to_json(self) -> str:
        """All figures as JSON; equal corpora give equal text."""
        text = json.dumps(asdict(self), default=lambda array: array.tolist())
        content = json.loads(text, parse_constant=lambda _: None)  # nan is null
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n"

    def to_html(self) -> bytes:
        """The page `quality.html`; equal corpora give equal bytes."""
        from dp_powerflow.quality.figures import page_of

        return page_of(self)

    def _repr_html_(self) -> str:
        return framed(self.to_html())

    def __repr__(self) -> str:
        inside = 100 * self.voltages.inside_a
        return (
            f"Quality({self.release_id!r}, {self.days} days, {self.nodes} nodes, "
            f"{inside:.2f} % within ANSI range A)"
        )


def measure(
    corpus: Corpus,
    promise: Promise | None = None,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Quality:
    """Read every voltage of a corpus once.

    Parameters
    ----------
    promise : both guarantees in words, for the page.
    workers : threads; None for one per core, and one for a small corpus. The result does not depend on it.
    progress : told how many days of how many were read.

    Raises
    ------
    CorpusError : a file is missing or damaged.
    """
    layout, dates = corpus.layout, corpus.dates
    if workers is None and layout.days * layout.steps * layout.nodes <= _SMALL:
        workers = 1
    groups = counted.groups_of(corpus)
    of = Pass(corpus, groups)
    tally, lowered = counted.take(of, workers, progress), corpus.extras.scaled_down
    scaled_down = ScaledDown(tally.scaled_down, tally.scaled_down_most) if lowered else None
    return Quality(
        release_id=corpus.release_id,
        days=layout.days,
        steps=layout.steps,
        nodes=layout.nodes,
        first_date=None if dates is None else str(dates[0]),
        last_date=None if dates is None else str(dates[-1]),
        promise=promise,
        voltages=voltages_of(of, tally),
        unbalance=unbalance_of(of, workers),
        powers=tuple(_power(of, NAMES[name], counts) for name, counts in tally.power.items()),
        controls=controls_of(of, tally),
        scaled_down=scaled_down,
        network=network_of(of, tally),
    )


# --- voltages -------------------------------------------------------------------------------------------


MOST_CORRELATED = 150
"""Nodes of the matrix of correlations."""
MOST_DAYS = 32
"""Days whose unbalance and correlations are measured, evenly spaced."""
DEVIATION_MOST = VM_PER_PU // 2
"""Deviations from 1 p.u. are cut here, so that sums of products do not overflow."""
MOST_BARS = 80
"""Bins of the histogram that is shown."""
_WIDTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_GROUPS_SAMPLED = 3
_OF_CORRELATION = 4


def chosen_nodes(corpus: Corpus, groups: NodeGroups) -> IntArray:
    """Nodes whose correlation is shown: at most 150, evenly spaced by group and along the feeder.

    Where connections are not published, nodes of a group stand in the order of the node table.
    """
    along = np.arange(corpus.layout.nodes)
    if corpus.connections is not None:
        along = counted.feeder_order(corpus.connections)[corpus.connections.bus_of]
    order = np.lexsort((along, groups.of))
    return np.asarray(order[counted.spread(len(order), MOST_CORRELATED)], dtype=np.int64)


def voltages_of(of: Pass, tally: Tally) -> Voltages:
    """All figures of the voltages."""
    corpus, groups = of.corpus, of.groups
    layout = corpus.layout
    snapshots = layout.days * layout.steps
    count = snapshots * layout.nodes
    inside = tally.nodes[:, [counted.INSIDE_A, counted.INSIDE_B]].sum(axis=0)
    edges, bars = _histogram(tally)
    return Voltages(
        count=count,
        inside_a=int(inside[0]) / count,
        inside_b=int(inside[1]) / count,
        lowest=_extreme(corpus, tally.lowest),
        highest=_extreme(corpus, tally.highest),
        groups=groups.names,
        grouped_by=groups.by,
        edges_pu=edges,
        counts=bars,
        slots_minutes=of.minutes,
        band_pu=_bands(tally),
        nodes=NodeFigures(
            ids=corpus.nodes.ids,
            group=groups.of,
            lowest_pu=tally.nodes[:, counted.LOWEST] / VM_PER_PU,
            mean_pu=(tally.nodes[:, counted.SUM] + snapshots // 2) // snapshots / VM_PER_PU,
            highest_pu=tally.nodes[:, counted.HIGHEST] / VM_PER_PU,
            inside_a=tally.nodes[:, counted.INSIDE_A] / snapshots,
        ),
        correlation=_correlation(of, tally),
        samples=_samples(of, tally),
    )


def _extreme(corpus: Corpus, found: Found) -> Extreme:
    return Extreme(found.grid_count / VM_PER_PU, found.day, found.step, corpus.nodes.ids[found.node])


def _histogram(tally: Tally) -> tuple[FloatArray, IntArray]:
    """Ends of bins [p.u.], a round number wide, and counts (group, bin) between the lowest and highest."""
    fine = tally.counts.sum(axis=1)
    used = np.flatnonzero(fine.sum(axis=0))
    first, last = int(used[0]) + counted.FIRST_BIN, int(used[-1]) + counted.FIRST_BIN
    width = next(width for width in _WIDTHS if last // width - first // width < MOST_BARS)
    start, bars = first // width * width, last // width - first // width + 1
    row = (np.arange(counted.BINS) + counted.FIRST_BIN - start) // width
    inside = (row >= 0) & (row < bars)
    counts = np.zeros((len(fine), bars), dtype=np.int64)
    np.add.at(counts.T, row[inside], fine[:, inside].T)
    # A bin of 0.0001 p.u. holds what is rounded to it, so it ends half a bin to each side.
    halves = 2 * (start + width * np.arange(bars + 1)) - 1
    return np.asarray(halves / (2 * counted.BINS_PER_PU)), counts


def _bands(tally: Tally) -> FloatArray:
    """(1 + group, level, slot) quantiles [p.u.], of all nodes first."""
    bins = counted.used_bins(tally.nodes)
    counts = tally.counts[:, :, bins]
    each = np.concatenate([counts.sum(axis=0, keepdims=True), counts])
    rows = np.moveaxis(counted.quantile_bins(each, counted.LEVELS), 0, 1)
    return np.asarray((rows + bins.start + counted.FIRST_BIN) / counted.BINS_PER_PU)


def _correlation(of: Pass, tally: Tally) -> Correlation:
    """From exact sums over some days; Python's integers do not overflow."""
    order = "phase" if of.groups.by == "phase" else "angle"
    nodes = chosen_nodes(of.corpus, of.groups)
    if of.corpus.connections is None:
        nodes = nodes[np.lexsort((nodes, -tally.nodes[nodes, counted.SUM], of.groups.of[nodes]))]
        order += ", then mean voltage, the highest first"
    else:
        order += ", then the way along the feeder from its source"
    vm_pu = of.corpus.phasors(counted.spread(of.corpus.layout.days, MOST_DAYS), nodes).vm_pu
    moved = np.clip(vm_counts(vm_pu).reshape(-1, len(nodes)) - VM_PER_PU, -DEVIATION_MOST, DEVIATION_MOST)
    snapshots, sums, products = len(moved), moved.sum(axis=0).tolist(), (moved.T @ moved).tolist()
    values = np.full((len(nodes), len(nodes)), np.nan)
    spreads = [snapshots * products[k][k] - sums[k] * sums[k] for k in range(len(nodes))]
    for a in range(len(nodes)):
        for b in range(a + 1):
            if spreads[a] and spreads[b]:
                together = snapshots * products[a][b] - sums[a] * sums[b]
                value = together / math.sqrt(spreads[a]) / math.sqrt(spreads[b])
                values[a, b] = values[b, a] = round(min(1.0, max(-1.0, value)), _OF_CORRELATION)
    return Correlation(nodes, order, values)


def notable_days(of: Pass, tally: Tally) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The first and the middle day, and those with the lowest and the highest voltage; each once."""
    days = of.corpus.layout.days
    named: dict[int, list[str]] = {}
    reasons = ("first day", "middle day", "lowest voltage", "highest voltage")
    for day, why in zip((0, days // 2, tally.lowest.day, tally.highest.day), reasons, strict=True):
        named.setdefault(day, []).append(why)
    return tuple(named), tuple(", ".join(why) for why in named.values())


def _samples(of: Pass, tally: Tally) -> SampleDays:
    """Of the three largest groups the nodes with the lowest and the highest mean voltage."""
    days, why = notable_days(of, tally)
    means, nodes = tally.nodes[:, counted.SUM], []
    sizes = np.bincount(of.groups.of, minlength=len(of.groups.names))
    for group in sorted(np.argsort(-sizes, kind="stable")[:_GROUPS_SAMPLED].tolist()):
        members = np.flatnonzero(of.groups.of == group)
        nodes += [members[np.argmin(means[members])], members[np.argmax(means[members])]]
    rows = list(dict.fromkeys(int(node) for node in nodes))
    vm = vm_counts(of.corpus.phasors(days, rows).vm_pu)
    rounded = (vm + counted.BIN // 20) // (counted.BIN // 10) / (10 * counted.BINS_PER_PU)
    return SampleDays(days, why, tuple(rows), np.ascontiguousarray(rounded.transpose(0, 2, 1)))


# --- unbalance ------------------------------------------------------------------------------------------
# On some days only: angles are the larger half of a corpus.


MOST_UNBALANCED = 200
"""Buses that are measured, evenly spaced in the order of the node table."""
PER_PERCENT = 10_000


def unbalance_of(of: Pass, workers: int | None = None) -> Unbalance | None:
    """Of three-phase buses; None where there are none, or buses are not published.

    `workers` are threads, None for one per core.
    """
    names, nodes = counted.three_phase_buses(of.corpus)
    if not names:
        return None
    chosen = counted.spread(of.corpus.layout.days, MOST_DAYS)
    shown = counted.spread(len(names), MOST_UNBALANCED)
    # Days of one row group together: it is read as a whole.
    days = [chosen[block.rows] for block in of.corpus.layout.blocks(chosen)]
    measured = in_order(partial(_unbalanced, of.corpus, nodes=nodes[shown]), days, workers)
    counts = np.concatenate(list(measured))
    by_slot = [counts[:, of.slot == slot].ravel() for slot in range(of.slots)]
    band = np.stack([counted.order_statistics(values, counted.LEVELS) for values in by_slot], axis=1)
    return Unbalance(
        buses=tuple(names[k] for k in shown),
        n_days=len(counts),
        band_percent=np.asarray(band / PER_PERCENT),
        largest_percent=np.asarray(counts.max(axis=(0, 1)) / PER_PERCENT),
        above_two=int(np.count_nonzero(counts > 2 * PER_PERCENT)) / counts.size,
    )


def _unbalanced(corpus: Corpus, days: IntArray, nodes: IntArray) -> IntArray:
    """Smaller over larger rotating sequence (day, step, bus), in 1e-4 %."""
    found = corpus.phasors(days, nodes.ravel()).complex()
    one, two, three = np.moveaxis(found.reshape(*found.shape[:2], len(nodes), 3), -1, 0)
    turn, back = unit(np.array([120.0])), unit(np.array([-120.0]))
    forth = modulus(one + multiply(two, turn) + multiply(three, back))
    other = modulus(one + multiply(two, back) + multiply(three, turn))
    larger = np.maximum(forth, other)
    ratio = np.minimum(forth, other) / np.where(larger > 0.0, larger, 1.0)
    return np.asarray(np.rint(ratio * (100 * PER_PERCENT)), dtype=np.int64)


# --- powers, controls, network --------------------------------------------------------------------------


NAMES = {"head": "feeder head", "loads": "loads", "generation": "generation"}
MOST_PERIODS = 366
"""Points along the days; more days than that are taken together, as many to a point."""
MOST_CARPET = 48
"""Times of day of the carpet; more are averaged."""
DURATION_POINTS = 201
MOST_BUSES = 20_000
"""A network with more buses is not drawn."""
MOST_VALUES = 150_000
"""Voltages that a drawn network holds per day: with many buses fewer times of day are shown."""
MOST_COUNT = 2**16 - 1
"""Largest voltage of a drawn network, in 0.0001 p.u.: more is shown as this."""
_DECIMALS = 3


def _power(of: Pass, name: str, counts: IntArray) -> Power:
    """From grid counts (day, step)."""
    days, steps = counts.shape
    each = (counts[:, of.slot == slot].ravel() for slot in range(of.slots))
    by_slot = [counted.order_statistics(values, counted.LEVELS) for values in each]
    falling = np.sort(counts.ravel())[::-1]
    points = np.arange(DURATION_POINTS) * (falling.size - 1) // (DURATION_POINTS - 1)
    width = -(-days // MOST_PERIODS)
    first = np.arange(0, days, width)
    sums = np.add.reduceat(counts.sum(axis=1), first)
    lengths = np.diff([*first.tolist(), days])
    hours = MINUTES_PER_DAY / 60 / steps
    return Power(
        name=name,
        band_kw=_kw(np.stack(by_slot, axis=1)),
        duration_percent=np.arange(DURATION_POINTS) * 100 / (DURATION_POINTS - 1),
        duration_kw=_kw(falling[points]),
        first_day=first,
        energy_mwh=np.round(sums * hours / (lengths * (POWER_PER_KW * 1000)), 4),
        peak_kw=_kw(np.maximum.reduceat(counts.max(axis=1), first)),
        carpet_kw=_carpet(counts, first, lengths),
        largest_kw=float(_kw(falling[:1])[0]),
        mean_kw=float(_kw(counts.sum() / np.array([counts.size]))[0]),
    )


def _kw(counts: IntArray | FloatArray) -> FloatArray:
    return np.asarray(np.round(counts / POWER_PER_KW, _DECIMALS))


def _carpet(counts: IntArray, first: IntArray, lengths: IntArray) -> FloatArray:
    """Mean power (slot, period) [kW]."""
    steps = counts.shape[1]
    slots = min(steps, MOST_CARPET)
    starts = -(-np.arange(slots) * steps // slots)
    widths = np.diff([*starts.tolist(), steps])
    sums = np.add.reduceat(np.add.reduceat(counts, starts, axis=1), first, axis=0)
    return np.asarray(np.round(sums / (lengths[:, None] * widths * POWER_PER_KW), 1).T)


def controls_of(of: Pass, tally: Tally) -> Controls | None:
    """States of regulators and capacitors; None where they are not published."""
    layout, extras = of.corpus.layout, of.corpus.extras
    if not extras.states:
        return None
    there = tally.taps > 0
    lowest, highest = np.argmax(there, axis=2), there.shape[2] - 1 - np.argmax(there[:, :, ::-1], axis=2)
    median = counted.quantile_bins(tally.taps, (50,))[0]
    snapshots = layout.days * layout.steps
    return Controls(
        taps=np.stack([lowest, median, highest], axis=1) - counted.TAPS_MOST,
        tap_moves=np.round(tally.moves / layout.days, _DECIMALS),
        closed=tally.closed / snapshots,
        switchings=np.round(tally.switchings / layout.days, _DECIMALS),
        locked=tally.locked / snapshots,
    )


def network_of(of: Pass, tally: Tally) -> Network | None:
    """The network on the middle day and the day of the lowest voltage; None where it cannot be drawn."""
    corpus, connections = of.corpus, of.corpus.connections
    if connections is None or connections.n_buses > MOST_BUSES:
        return None
    phases = np.unique(connections.phase)
    if len(phases) > counted.MOST_PHASES:
        return None
    steps = counted.spread(corpus.layout.steps, max(1, MOST_VALUES // (connections.n_buses * len(phases))))
    wanted = {corpus.layout.days // 2, tally.lowest.day}
    rules = [(day, why) for day, why in zip(*notable_days(of, tally), strict=True) if day in wanted]
    days = tuple(day for day, _ in rules)
    vm = np.zeros((len(days), len(phases), len(steps), connections.n_buses), dtype=np.int64)
    for k, day in enumerate(days):
        counts = (vm_counts(corpus.phasors([day]).vm_pu[0, steps]) + counted.BIN // 2) // counted.BIN
        for p, phase in enumerate(phases):
            nodes = np.flatnonzero(connections.phase == phase)
            # 0 stands for no node, so the smallest voltage is 1.
            vm[k, p][:, connections.bus_of[nodes]] = np.clip(counts[:, nodes], 1, MOST_COUNT)
    return Network(
        buses=connections.bus_ids,
        pairs=connections.pairs,
        kinds=connections.kinds,
        source=tuple(connections.source.tolist()),
        coordinates=connections.coordinates,
        phases=tuple(f"phase {phase}" for phase in phases),
        days=days,
        why=tuple(why for _, why in rules),
        minutes=steps * MINUTES_PER_DAY // corpus.layout.steps,
        vm=vm,
    )
