"""Figures of the voltages, from what was counted."""

from __future__ import annotations

import math

import numpy as np

from dp_powerflow.corpus.grid import VM_PER_PU, vm_counts
from dp_powerflow.corpus.reader import Corpus
from dp_powerflow.quality.nodes import NodeGroups, feeder_order, spread
from dp_powerflow.quality.result import (
    LEVELS,
    Correlation,
    Extreme,
    NodeFigures,
    SampleDays,
    Voltages,
)
from dp_powerflow.quality.tally import (
    BIN,
    BINS,
    BINS_PER_PU,
    FIRST_BIN,
    HIGHEST,
    INSIDE_A,
    INSIDE_B,
    LOWEST,
    SUM,
    Found,
    Pass,
    Tally,
    quantile_bins,
    used_bins,
)
from dp_powerflow.units import FloatArray, IntArray

MOST_CORRELATED = 150
"""Nodes of the matrix of correlations."""
MOST_BARS = 80
"""Bins of the histogram that is shown."""
_WIDTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_GROUPS_SAMPLED = 3
_DECIMALS = 4


def chosen_nodes(corpus: Corpus, groups: NodeGroups) -> IntArray:
    """Nodes whose correlation is shown: at most 150, evenly spaced by group and along the feeder.

    Where connections are not published, nodes of a group stand in the order of the node table.
    """
    along = np.arange(corpus.layout.nodes)
    if corpus.connections is not None:
        along = feeder_order(corpus.connections)[corpus.connections.bus_of]
    order = np.lexsort((along, groups.of))
    return np.asarray(order[spread(len(order), MOST_CORRELATED)], dtype=np.int64)


def voltages_of(of: Pass, tally: Tally) -> Voltages:
    """All figures of the voltages."""
    corpus, groups = of.corpus, of.groups
    layout = corpus.layout
    snapshots = layout.days * layout.steps
    count = snapshots * layout.nodes
    inside = tally.nodes[:, [INSIDE_A, INSIDE_B]].sum(axis=0)
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
            lowest_pu=tally.nodes[:, LOWEST] / VM_PER_PU,
            mean_pu=_means(tally.nodes[:, SUM], snapshots),
            highest_pu=tally.nodes[:, HIGHEST] / VM_PER_PU,
            inside_a=tally.nodes[:, INSIDE_A] / snapshots,
        ),
        correlation=_correlation(of, tally, snapshots),
        samples=_samples(of, tally),
    )


def _extreme(corpus: Corpus, found: Found) -> Extreme:
    return Extreme(found.grid_count / VM_PER_PU, found.day, found.step, corpus.nodes.ids[found.node])


def _means(sums: IntArray, snapshots: int) -> FloatArray:
    """Means [p.u.] to 1e-6."""
    return np.asarray((sums + snapshots // 2) // snapshots / VM_PER_PU)


def _histogram(tally: Tally) -> tuple[FloatArray, IntArray]:
    """Ends of bins [p.u.], a round number wide, and counts (group, bin) between the lowest and highest."""
    fine = tally.counts.sum(axis=1)
    used = np.flatnonzero(fine.sum(axis=0))
    first, last = int(used[0]) + FIRST_BIN, int(used[-1]) + FIRST_BIN
    width = next(width for width in _WIDTHS if last // width - first // width < MOST_BARS)
    start, bars = first // width * width, last // width - first // width + 1
    row = (np.arange(BINS) + FIRST_BIN - start) // width
    inside = (row >= 0) & (row < bars)
    counts = np.zeros((len(fine), bars), dtype=np.int64)
    np.add.at(counts.T, row[inside], fine[:, inside].T)
    # A bin of 0.0001 p.u. holds what is rounded to it, so it ends half a bin to each side.
    halves = 2 * (start + width * np.arange(bars + 1)) - 1
    return np.asarray(halves / (2 * BINS_PER_PU)), counts


def _bands(tally: Tally) -> FloatArray:
    """(1 + group, level, slot) quantiles [p.u.], of all nodes first."""
    bins = used_bins(tally.nodes)
    counts = tally.counts[:, :, bins]
    each = np.concatenate([counts.sum(axis=0, keepdims=True), counts])
    rows = np.moveaxis(quantile_bins(each, LEVELS), 0, 1)
    return np.asarray((rows + bins.start + FIRST_BIN) / BINS_PER_PU)


def _correlation(of: Pass, tally: Tally, snapshots: int) -> Correlation:
    """From exact sums; Python's integers do not overflow."""
    order = "phase" if of.groups.by == "phase" else "angle"
    nodes, sums, products = of.chosen, tally.sums.tolist(), tally.products.tolist()
    if of.corpus.connections is None:
        means = tally.nodes[nodes, SUM]
        ranked = np.lexsort((nodes, -means, of.groups.of[nodes]))
        order += ", then mean voltage, the highest first"
    else:
        ranked = np.arange(len(nodes))
        order += ", then the way along the feeder from its source"
    values = np.full((len(nodes), len(nodes)), np.nan)
    spreads = [snapshots * products[k][k] - sums[k] * sums[k] for k in range(len(nodes))]
    for i, a in enumerate(ranked.tolist()):
        for j, b in enumerate(ranked[: i + 1].tolist()):
            if spreads[a] and spreads[b]:
                together = snapshots * products[a][b] - sums[a] * sums[b]
                value = together / math.sqrt(spreads[a]) / math.sqrt(spreads[b])
                values[i, j] = values[j, i] = round(min(1.0, max(-1.0, value)), _DECIMALS)
    return Correlation(np.asarray(nodes[ranked]), order, values)


def notable_days(of: Pass, tally: Tally) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The first and the middle day, and those with the lowest and the highest voltage; each once."""
    days = of.corpus.layout.days
    named: dict[int, list[str]] = {}
    for day, why in (
        (0, "first day"),
        (days // 2, "middle day"),
        (tally.lowest.day, "lowest voltage"),
        (tally.highest.day, "highest voltage"),
    ):
        named.setdefault(day, []).append(why)
    return tuple(named), tuple(", ".join(why) for why in named.values())


def _samples(of: Pass, tally: Tally) -> SampleDays:
    """Of the three largest groups the nodes with the lowest and the highest mean voltage."""
    days, why = notable_days(of, tally)
    means, nodes = tally.nodes[:, SUM], []
    sizes = np.bincount(of.groups.of, minlength=len(of.groups.names))
    for group in sorted(np.argsort(-sizes, kind="stable")[:_GROUPS_SAMPLED].tolist()):
        members = np.flatnonzero(of.groups.of == group)
        nodes += [members[np.argmin(means[members])], members[np.argmax(means[members])]]
    rows = list(dict.fromkeys(int(node) for node in nodes))
    vm = vm_counts(of.corpus.phasors(days, rows).vm_pu)
    rounded = (vm + BIN // 20) // (BIN // 10) / (10 * BINS_PER_PU)
    return SampleDays(days, why, tuple(rows), np.ascontiguousarray(rounded.transpose(0, 2, 1)))
