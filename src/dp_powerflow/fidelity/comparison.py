"""INTERNAL. A release against what is real, half by half: customers, then voltages, node loads, feeder head.

Drawn and real customers are compared in samples of the same size. In every split half A of the real customers
stands in for the drawn ones once, which gives the floor.

The meters are solved on the true network as the release is solved: half B is what the release is compared
with, and half A, on other days, gives the floor. Only some days of the corpus are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.stats import wasserstein_distance

from dp_powerflow.corpus.reader import Corpus
from dp_powerflow.fidelity.metered import Ground, days_on
from dp_powerflow.fidelity.metrics import Fidelity, Setting, autocorrelation, compare
from dp_powerflow.fidelity.verdicts import Effort, Finding, titled
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.fit import ONE_CLASS
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.customers import days_off
from dp_powerflow.units import BoolArray, FloatArray, IntArray

BAND = (0.1, 0.5, 0.9)
"""Quantiles over customers and days that a daily profile is shown by."""


@dataclass(frozen=True, eq=False)
class Curves:
    """INTERNAL. What the figures of a page show of both sides.

    Attributes
    ----------
    bands : side → (quantile of `BAND`, step) loads over the mean of all [1].
    memories : side → (lag,) autocorrelation; half A is the floor.
    """

    bands: dict[str, FloatArray]
    memories: dict[str, FloatArray]


@dataclass(frozen=True, eq=False)
class CustomerComparison:
    """INTERNAL. All figures of customers, and their curves."""

    findings: tuple[Finding, ...]
    curves: Curves


def compare_customers(
    drawn: FloatArray,
    real: FloatArray,
    setting: Setting,
    effort: Effort,
    on_split: Callable[[int, int], None] = lambda done, total: None,
) -> CustomerComparison:
    """INTERNAL. Every figure of drawn customers, its floor and its verdict.

    Parameters
    ----------
    drawn, real
        Loads (customer, day, step) [kW] on the same days.
    setting
        Calendar, resolution of the meters, seed.
    effort
        Number of splits, and customers of a half.
    """
    pairs = []
    for index, (own, first, second) in enumerate(_thirds(len(drawn), len(real), setting.seed, effort)):
        halves = drawn[own], real[first], real[second]
        pairs.append((compare(halves[0], halves[2], setting), compare(halves[1], halves[2], setting)))
        on_split(index + 1, effort.splits)
    return CustomerComparison(tuple(_customer_findings(pairs)), _customer_curves(halves))


def _thirds(n_drawn: int, n_real: int, seed: int, effort: Effort) -> Iterator[tuple[IntArray, ...]]:
    """Drawn customers, half A and half B, all of the same size, for every split."""
    size = min(n_real // 2, n_drawn, effort.customers)
    for split in range(effort.splits):
        rng = np.random.default_rng([seed, 7, split])
        drawn, real = rng.permutation(n_drawn), rng.permutation(n_real)
        yield drawn[:size], real[:size], real[size : 2 * size]


def _customer_findings(pairs: list[tuple[Fidelity, Fidelity]]) -> Iterator[Finding]:
    """Of every split: the drawn side against B, and A against B."""
    drawn, floor = ([pair[side] for pair in pairs] for side in range(2))
    for by in ("distances", "uses", "areas"):
        for one in titled(by):
            values = [[found.between[one.name] for found in side] for side in (drawn, floor)]
            yield one.of_areas(*values) if by == "areas" else one.of_distances(*values)
    for one in titled("figures"):
        own, first = ([found.drawn[one.name] for found in side] for side in (drawn, floor))
        yield one.of_figures(own, first, [found.real[one.name] for found in floor])


def _customer_curves(halves: tuple[FloatArray, FloatArray, FloatArray]) -> Curves:
    drawn, first, second = halves
    mean, steps = float(second.mean()), drawn.shape[2]
    memories = {"release": drawn, "real, half B": second, "real, half A (floor)": first}
    return Curves(
        {
            name: np.quantile(load.reshape(-1, steps) / mean, BAND, axis=0)
            for name, load in (("release", drawn), ("real", second))
        },
        {name: autocorrelation(load) for name, load in memories.items()},
    )


# --- the meters -------------------------------------------------------------------------------------------


MOST_DIGITS = 4
_EXACT = 1e-3  # of a quantum
_NEARLY_ALL = 0.99
_COMMON = 0.1  # share of the customers


@dataclass(frozen=True, eq=False, repr=False)
class Customers:
    """PRIVATE. Some customers and days of a history, with what the release's model says of them.

    Attributes
    ----------
    history : the meters.
    off : (day,) whether it is a day off.
    floor_kw : (customer,) lowest load that the model knows [kW].
    """

    history: LoadHistory
    off: BoolArray
    floor_kw: FloatArray

    @property
    def load_kw(self) -> FloatArray:
        """(customer, day, step) raised to the floor, as the fit does [kW]."""
        return np.maximum(self.history.load_kw, self.floor_kw[:, None, None])


def some_customers(
    model: LoadModel, history: LoadHistory, most: tuple[int, int], rng: np.random.Generator
) -> Customers:
    """PRIVATE. Some customers, drawn at random, and some first days.

    Parameters
    ----------
    most : customers and days, at most.
    """
    chosen = np.sort(rng.permutation(history.n_load_points)[: most[0]])
    names = [history.load_points[k] for k in chosen]
    part = history.select(names, history.days[: most[1]])
    return Customers(part, days_off(model, part), _floors(model, part))


def quantum_of(history: LoadHistory) -> float | None:
    """INTERNAL. Resolution of the meters [kW], None where none is seen.

    Energies of an interval with up to four digits, or powers: the coarsest of which, for one customer in ten
    or more, nearly all readings are multiples. A lowest reading, such as a floor, does not count.
    """
    per_hour = 60.0 / history.step_minutes
    grids = {scale * 10.0**-digits for digits in range(MOST_DIGITS + 1) for scale in (1.0, per_hour)}
    some = history.load_kw[:: max(1, history.n_load_points // 200)]
    some = some.reshape(len(some), -1)
    thin = max(1, some.shape[1] // 1000)
    for quantum in sorted(grids, reverse=True):
        fitting = [_multiples(own[::thin], quantum) for own in some]
        if np.mean(fitting) >= _COMMON:
            return quantum
    return None


def _multiples(values: FloatArray, quantum: float) -> bool:
    """Whether nearly all values above the lowest are multiples of a quantum, and not one and the same."""
    above = values[values > values.min()]
    if np.unique(above).size < 2:
        return False
    return bool(np.mean(np.abs(above / quantum - np.round(above / quantum)) < _EXACT) > _NEARLY_ALL)


def _floors(model: LoadModel, history: LoadHistory) -> FloatArray:
    low = {part.name: part.bounds[0] for part in model.classes}
    lowest = min(low.values())
    each = np.array([low.get(label or ONE_CLASS, lowest) for label in history.class_label])
    return each * history.scale_kw if model.scaled and history.scale_kw is not None else each


# --- the network ------------------------------------------------------------------------------------------


ANSI_A = (0.95, 1.05)
"""Range A of ANSI C84.1 [p.u.]."""
MOST_CELLS = 4_000_000
"""Voltages of a sample of days, at most."""
BINS = 60
SHARES = np.linspace(0.0, 100.0, 101)
_MILLI = 1e3


Sample = dict[str, FloatArray]
"""INTERNAL. Days of one side: "voltages" (day, step, node) [p.u.], and what the release publishes of "head"
(day, step) [kW] and "nodes" (day, step, node) [kW]; nodes of all samples are in the same order."""


@dataclass(frozen=True, eq=False)
class NetworkCurves:
    """INTERNAL. What the figures of a page show.

    Attributes
    ----------
    edges : (bin + 1,) of the voltages [p.u.].
    shares : side → (bin,) of all voltages [%].
    heads : side → (share of the time,) of the feeder head, falling [kW]; empty where there is none.
    """

    edges: FloatArray
    shares: dict[str, FloatArray]
    heads: dict[str, FloatArray]


@dataclass(frozen=True, eq=False)
class NetworkComparison:
    """INTERNAL. Figures of voltages and loads.

    Attributes
    ----------
    findings : every figure with its floor.
    curves : for the page.
    scaled_down : snapshots of the meters whose powers were scaled down until there was a power-flow solution.
    days : of one sample.
    """

    findings: tuple[Finding, ...]
    curves: NetworkCurves
    scaled_down: int
    days: int


@dataclass(frozen=True, eq=False, repr=False)
class TrueSide:
    """PRIVATE. The true network and the meters.

    Attributes
    ----------
    ground : the true network; its nodes are in the order of the corpus.
    columns : (node,) columns of the corpus that have a node in `ground`.
    """

    ground: Ground
    history: LoadHistory
    columns: IntArray


def compare_network(
    corpus: Corpus,
    true: TrueSide,
    effort: Effort,
    seed: int = 0,
    on_split: Callable[[int, int], None] = lambda done, total: None,
) -> NetworkComparison:
    """INTERNAL. Every figure of voltages and loads, its floor and its verdict."""
    layout = corpus.layout
    most = max(1, MOST_CELLS // (layout.steps * layout.nodes))
    days = min(effort.network_days, most, layout.days, true.history.n_days // 2)
    triples, scaled_down = [], 0
    for split in range(effort.network_splits):
        rng = np.random.default_rng([seed, 8, split])
        own = np.sort(rng.permutation(layout.days)[:days])
        customers, dates = (rng.permutation(n) for n in (true.history.n_load_points, true.history.n_days))
        samples = [_read(corpus, own, true.columns)]
        for side in range(2):
            half = customers[side::2]
            part = true.history.select([true.history.load_points[k] for k in np.sort(half)])
            found = days_on(true.ground, part, np.sort(dates[side * days : (side + 1) * days]))
            samples.append({"voltages": found.magnitude, "head": found.head_kw, "nodes": found.load_kw})
            scaled_down += found.scaled_down
        triples.append((samples[0], samples[1], samples[2]))
        on_split(split + 1, effort.network_splits)
    return NetworkComparison(tuple(_network_findings(triples)), _network_curves(triples), scaled_down, days)


def _read(corpus: Corpus, days: IntArray, columns: IntArray) -> Sample:
    """Some days of the corpus."""
    found = {"voltages": corpus.phasors(days).vm_pu[:, :, columns].astype(np.float64)}
    if "head" in corpus.holds:
        found["head"] = corpus.head(days).real.sum(axis=2)
    if "loads" in corpus.holds:
        found["nodes"] = corpus.loads(days)[:, :, columns].real
    return found


Triple = tuple[Sample, Sample, Sample]
"""Release, real half A, real half B."""


def _network_findings(triples: list[Triple]) -> Iterator[Finding]:
    """A finding for every figure: from distances of two samples, or from figures of one."""
    for what, (distances, figures) in MEASURES.items():
        if what not in triples[0][0]:
            continue
        own, first, second = ([triple[k][what] for triple in triples] for k in range(3))
        apart = [np.transpose(list(map(distances, side, second))).tolist() for side in (own, first)]
        for one, *values in zip(titled(f"{what}_distances"), *apart, strict=True):
            yield one.of_distances(*values)
        single = [np.transpose(list(map(figures, side))).tolist() for side in (own, first, second)]
        for one, *values in zip(titled(f"{what}_figures"), *single, strict=True):
            yield one.of_figures(*values)


def voltage_distances(first: FloatArray, second: FloatArray) -> tuple[float, float]:
    """W1 of all voltages (day, step, node), and of the node where it is largest [10⁻³ p.u.]."""
    pooled = wasserstein_distance(first.ravel(), second.ravel())
    nodes = (v.reshape(-1, v.shape[2]).T for v in (first, second))
    worst = max(wasserstein_distance(*pair) for pair in zip(*nodes, strict=True))
    return _MILLI * pooled, _MILLI * worst


def voltage_figures(v: FloatArray) -> tuple[float, float, float]:
    """Mean voltage [p.u.], share within ANSI range A, mean swing of a node in a day [p.u.]."""
    inside = np.mean((v >= ANSI_A[0]) & (v <= ANSI_A[1]))
    return float(v.mean()), float(inside), float(np.mean(v.max(axis=1) - v.min(axis=1)))


def head_distances(first: FloatArray, second: FloatArray) -> tuple[float, float]:
    """Difference of the mean days, W1 of step changes [% of the second's mean]; of powers (day, step)."""
    mean = float(second.mean())
    profile = np.mean(np.abs(first.mean(axis=0) - second.mean(axis=0)))
    changes = wasserstein_distance(*(np.diff(power, axis=1).ravel() for power in (first, second)))
    return 100 * float(profile) / abs(mean), 100 * changes / abs(mean)


def head_figures(power: FloatArray) -> tuple[float, float, float, float]:
    """Mean [kW], peak [kW], load factor, sd of the daily energy over its mean."""
    mean, peak, daily = float(power.mean()), float(power.max()), power.mean(axis=1)
    return mean, peak, mean / peak, float(daily.std() / abs(mean))


def node_distances(first: FloatArray, second: FloatArray) -> tuple[float, float]:
    """Mean error of a node's mean load, W1 of step changes over the node's mean [%]; of (day, step, node)."""
    means = [load.mean(axis=(0, 1)) for load in (first, second)]
    error = float(np.mean(np.abs(means[0] - means[1]))) / float(means[1].mean())
    changes = [
        (np.diff(load, axis=1) / load.mean(axis=(0, 1))).ravel() for load in (_loaded(first), _loaded(second))
    ]
    return 100 * error, 100 * wasserstein_distance(*changes)


def node_figures(load: FloatArray) -> tuple[float]:
    """Peak of a node's load over its mean, median over nodes with a load."""
    loaded = _loaded(load)
    return (float(np.median(loaded.max(axis=(0, 1)) / loaded.mean(axis=(0, 1)))),)


def _loaded(load: FloatArray) -> FloatArray:
    return load[:, :, load.mean(axis=(0, 1)) > 0.0]


MEASURES: dict[str, tuple[Callable[..., tuple[float, ...]], Callable[..., tuple[float, ...]]]] = {
    "voltages": (voltage_distances, voltage_figures),
    "head": (head_distances, head_figures),
    "nodes": (node_distances, node_figures),
}
"""Part of a `Sample` → distances of two, figures of one, as `metrics.csv` lists them."""


def _network_curves(triples: list[Triple]) -> NetworkCurves:
    def pooled(what: str) -> dict[str, FloatArray]:
        return {
            name: np.concatenate([triple[k][what].ravel() for triple in triples])
            for name, k in (("release", 0), ("real", 2))
        }

    voltages, heads = pooled("voltages"), pooled("head") if "head" in triples[0][0] else {}
    low, high = (float(end(list(map(end, voltages.values())))) for end in (np.min, np.max))
    edges = np.linspace(low, max(high, low + 1e-4), BINS + 1)
    shares = {name: 100 * np.histogram(v, edges)[0] / v.size for name, v in voltages.items()}
    falling = {name: np.quantile(power, 1 - SHARES / 100) for name, power in heads.items()}
    return NetworkCurves(edges, shares, falling)
