"""INTERNAL. Voltages, node loads and feeder head of a release against the meters on the true feeder.

The meters are solved on the true network as the release is solved, half by half: half B is what the release
is compared with, and half A, on other days, gives the floor. Only some days of the corpus are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dp_powerflow.corpus.reader import Corpus
from dp_powerflow.fidelity.metrics import wasserstein_1
from dp_powerflow.fidelity.verdicts import Effort, Finding, titled
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.pipeline.metered import Ground, days_on
from dp_powerflow.units import FloatArray, IntArray

ANSI_A = (0.95, 1.05)
"""Range A of ANSI C84.1 [p.u.]."""
MOST_CELLS = 4_000_000
"""Voltages of a sample of days, at most."""
BINS = 60
SHARES = np.linspace(0.0, 100.0, 101)
_MILLI = 1e3


@dataclass(frozen=True, eq=False)
class Sample:
    """INTERNAL. Days of one side.

    Attributes
    ----------
    v : (day, step, node) [p.u.]; nodes of all samples are in the same order, where it is known.
    head_kw : (day, step) [kW]; None where the release does not publish it.
    load_kw : (day, step, node) [kW]; None likewise.
    """

    v: FloatArray
    head_kw: FloatArray | None
    load_kw: FloatArray | None


@dataclass(frozen=True, eq=False)
class NetworkCurves:
    """INTERNAL. What the figures of a page show.

    Attributes
    ----------
    edges : (bin + 1,) of the voltages [p.u.].
    drawn_share, real_share : (bin,) of all voltages [%].
    drawn_head, real_head : (share of the time,) of the feeder head, falling [kW]; None where there is none.
    """

    edges: FloatArray
    drawn_share: FloatArray
    real_share: FloatArray
    drawn_head: FloatArray | None
    real_head: FloatArray | None


@dataclass(frozen=True, eq=False)
class NetworkComparison:
    """INTERNAL. Figures of voltages and loads.

    Attributes
    ----------
    findings : every figure with its floor.
    curves : for the page.
    matched : how nodes of the release were matched with those of the true feeder, in words.
    mended : snapshots of the meters that had no power-flow solution as metered.
    days : of one sample.
    """

    findings: tuple[Finding, ...]
    curves: NetworkCurves
    matched: str
    mended: int
    days: int


@dataclass(frozen=True, eq=False, repr=False)
class TrueSide:
    """PRIVATE. The true network and the meters.

    Attributes
    ----------
    ground : the true network; its nodes are in the order of the corpus where `known`.
    columns : (node,) columns of the corpus that have a node in `ground`.
    known : whether the order of the nodes is known.
    """

    ground: Ground
    history: LoadHistory
    columns: IntArray
    known: bool

    @property
    def matched(self) -> str:
        """How nodes are matched."""
        if self.known:
            return "by the secret order of the release"
        return "by the rank of their means, since the secret order is not known: a lower bound"


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
    triples, mended = [], 0
    for split in range(effort.network_splits):
        rng = np.random.default_rng([seed, 8, split])
        own = np.sort(rng.permutation(layout.days)[:days])
        customers, dates = (rng.permutation(n) for n in (true.history.n_load_points, true.history.n_days))
        halves = []
        for side in range(2):
            half = customers[side::2]
            part = true.history.select([true.history.load_points[k] for k in np.sort(half)])
            found = days_on(true.ground, part, np.sort(dates[side * days : (side + 1) * days]))
            halves.append(Sample(found.magnitude, found.head_kw, found.load_kw))
            mended += found.mended
        triples.append((_read(corpus, own, true.columns), halves[0], halves[1]))
        on_split(split + 1, effort.network_splits)
    findings = tuple(_findings(triples, true.known))
    return NetworkComparison(findings, _curves(triples), true.matched, mended, days)


def _read(corpus: Corpus, days: IntArray, columns: IntArray) -> Sample:
    """Some days of the corpus."""
    holds = corpus.holds
    loads = corpus.loads(days)[:, :, columns].real if "loads" in holds else None
    head = corpus.head(days).real.sum(axis=2) if "head" in holds else None
    return Sample(corpus.phasors(days).vm_pu[:, :, columns].astype(np.float64), head, loads)


Triple = tuple[Sample, Sample, Sample]
"""Release, real half A, real half B."""


def _findings(triples: list[Triple], known: bool) -> Iterator[Finding]:
    """A finding for every figure: from distances of two samples, or from figures of one."""
    measures: dict[str, Callable[[Sample, Sample], tuple[float, ...]]] = {
        "voltage_distances": lambda a, b: voltage_distances(a.v, b.v, known),
        "voltage_figures": lambda a, _: voltage_figures(a.v),
    }
    if triples[0][0].head_kw is not None:
        measures |= {
            "head_distances": lambda a, b: head_distances(_head(a), _head(b)),
            "head_figures": lambda a, _: head_figures(_head(a)),
        }
    if triples[0][0].load_kw is not None:
        measures |= {
            "node_distances": lambda a, b: node_distances(_loads(a), _loads(b), known),
            "node_figures": lambda a, _: (node_peak(_loads(a)),),
        }
    for by, measure in measures.items():
        drawn = np.transpose([measure(own, second) for own, _, second in triples]).tolist()
        first = np.transpose([measure(a, second) for _, a, second in triples]).tolist()
        for k, one in enumerate(titled(by)):
            if by.endswith("figures"):
                second = [measure(b, b)[k] for _, _, b in triples]
                yield one.of_figures(drawn[k], first[k], second)
            else:
                yield one.of_distances(drawn[k], first[k])


def voltage_distances(first: FloatArray, second: FloatArray, known: bool = True) -> tuple[float, float]:
    """W1 of all voltages (day, step, node), and of the node where it is largest [10⁻³ p.u.].

    Parameters
    ----------
    known
        Whether nodes are in the same order; otherwise they are ranked by their means.
    """
    pooled = wasserstein_1(first.ravel(), second.ravel())
    one, other = (_by_node(v, known) for v in (first, second))
    worst = max(wasserstein_1(a, b) for a, b in zip(one, other, strict=True))
    return _MILLI * pooled, _MILLI * worst


def voltage_figures(v: FloatArray) -> tuple[float, float, float]:
    """Mean voltage [p.u.], share within ANSI range A, mean swing of a node in a day [p.u.]."""
    inside = np.mean((v >= ANSI_A[0]) & (v <= ANSI_A[1]))
    return float(v.mean()), float(inside), float(np.mean(v.max(axis=1) - v.min(axis=1)))


def head_distances(first: FloatArray, second: FloatArray) -> tuple[float, float]:
    """Difference of the mean days, W1 of step changes [% of the second's mean]; of powers (day, step)."""
    mean = float(second.mean())
    profile = np.mean(np.abs(first.mean(axis=0) - second.mean(axis=0)))
    changes = wasserstein_1(*(np.diff(power, axis=1).ravel() for power in (first, second)))
    return 100 * float(profile) / abs(mean), 100 * changes / abs(mean)


def head_figures(power: FloatArray) -> tuple[float, float, float, float]:
    """Mean [kW], peak [kW], load factor, sd of the daily energy over its mean."""
    mean, peak, daily = float(power.mean()), float(power.max()), power.mean(axis=1)
    return mean, peak, mean / peak, float(daily.std() / abs(mean))


def node_distances(first: FloatArray, second: FloatArray, known: bool = True) -> tuple[float, float]:
    """Mean error of a node's mean load, W1 of step changes over the node's mean [%]; of (day, step, node)."""
    means = [load.mean(axis=(0, 1)) for load in (first, second)]
    if not known:
        means = [np.sort(mean) for mean in means]
    error = float(np.mean(np.abs(means[0] - means[1]))) / float(means[1].mean())
    changes = [
        (np.diff(load, axis=1) / load.mean(axis=(0, 1))).ravel() for load in (_loaded(first), _loaded(second))
    ]
    return 100 * error, 100 * wasserstein_1(*changes)


def node_peak(load: FloatArray) -> float:
    """Peak of a node's load over its mean, median over nodes with a load."""
    loaded = _loaded(load)
    return float(np.median(loaded.max(axis=(0, 1)) / loaded.mean(axis=(0, 1))))


def _loaded(load: FloatArray) -> FloatArray:
    return load[:, :, load.mean(axis=(0, 1)) > 0.0]


def _by_node(v: FloatArray, known: bool) -> FloatArray:
    """(node, value), ranked by their means where their order is not known."""
    nodes = v.reshape(-1, v.shape[2]).T
    return nodes if known else nodes[np.argsort(nodes.mean(axis=1))]


def _head(sample: Sample) -> FloatArray:
    assert sample.head_kw is not None
    return sample.head_kw


def _loads(sample: Sample) -> FloatArray:
    assert sample.load_kw is not None
    return sample.load_kw


def _curves(triples: list[Triple]) -> NetworkCurves:
    drawn, real = (np.concatenate([triple[k].v.ravel() for triple in triples]) for k in (0, 2))
    low, high = min(drawn.min(), real.min()), max(drawn.max(), real.max())
    edges = np.linspace(low, max(high, low + 1e-4), BINS + 1)
    shares = [100 * np.histogram(v, edges)[0] / v.size for v in (drawn, real)]
    heads: list[FloatArray | None] = [None, None]
    if triples[0][0].head_kw is not None:
        powers = [np.concatenate([_head(triple[k]).ravel() for triple in triples]) for k in (0, 2)]
        heads = [np.quantile(power, 1 - SHARES / 100) for power in powers]
    return NetworkCurves(edges, shares[0], shares[1], heads[0], heads[1])
