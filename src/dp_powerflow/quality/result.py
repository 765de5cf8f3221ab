"""What is found of a corpus. Every figure is a function of the released files.

Quantiles are order statistics: the smallest value that at least so many percent of the values do not exceed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from dp_powerflow.units import FloatArray, IntArray

LEVELS = (1, 5, 25, 50, 75, 95, 99)
"""Levels of all quantiles [%]."""
RANGE_A = (0.95, 1.05)
"""ANSI C84.1, service voltage, range A [p.u.]."""
RANGE_B = (0.917, 1.058)
"""The same, range B [p.u.]."""


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
    """Of the magnitudes of some nodes, over all snapshots.

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
    of : what it is of: each three-phase bus, or the mean phasors of three groups of nodes.
    buses : (bus,) names; one name for the feeder.
    n_days : evenly spaced days that were looked at.
    band_percent : (level, slot) quantiles over buses and days.
    largest_percent : (bus,).
    above_two : share of the values above 2 %.
    """

    of: str
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
class Mended:
    """Snapshots whose powers were lowered for lack of a solution: how many, and how often at most."""

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


def plain(value: Any) -> Any:
    """A result as JSON can hold it; nan is null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and value != value else value
