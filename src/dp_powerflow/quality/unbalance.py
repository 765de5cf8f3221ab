"""Unbalance of three-phase voltages, on some days: angles are the larger half of a corpus."""

from __future__ import annotations

import numpy as np

from dp_powerflow._bits.elementary import joined, modulus, multiply, unit
from dp_powerflow._threads import in_order
from dp_powerflow.corpus.reader import Corpus
from dp_powerflow.quality.nodes import spread, three_groups, three_phase_buses
from dp_powerflow.quality.result import LEVELS, Unbalance
from dp_powerflow.quality.tally import Pass, order_statistics
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

MOST_DAYS = 32
"""Days that are looked at, evenly spaced."""
MOST_BUSES = 200
"""Buses that are looked at, evenly spaced in the order of the node table."""
PER_PERCENT = 10_000
_FINE = 1_000_000_000
"""Parts of phasors are rounded to 1e-9 p.u. before they are added, so that the order does not matter."""


def unbalance_of(of: Pass, workers: int | None = None) -> Unbalance | None:
    """Per three-phase bus; of mean phasors of three groups of nodes where buses are not published.

    None where there are no three phases. `workers` are threads, None for one per core.
    """
    names, nodes = three_phase_buses(of.corpus)
    chosen = spread(of.corpus.layout.days, MOST_DAYS)
    # Days of one row group together: it is read as a whole.
    days = [chosen[block.rows] for block in of.corpus.layout.blocks(chosen)]
    if len(names):
        shown = spread(len(names), MOST_BUSES)
        counts = np.concatenate(
            list(in_order(lambda some: _of_buses(of.corpus, some, nodes[shown]), days, workers))
        )
        return _summary(of, "each three-phase bus", tuple(names[k] for k in shown), counts)
    groups = three_groups(of.groups)
    if groups is None:
        return None
    members = np.stack(groups)
    counts = np.concatenate(list(in_order(lambda some: _of_feeder(of.corpus, some, members), days, workers)))
    return _summary(of, "the mean phasors of three groups of nodes", ("feeder",), counts)


def _of_buses(corpus: Corpus, days: IntArray, nodes: IntArray) -> IntArray:
    """Unbalance (day, step, bus) in 1e-4 %."""
    v = corpus.voltages(days, nodes.ravel()).reshape(len(days), corpus.layout.steps, len(nodes), 3)
    return _counts(np.moveaxis(v, -1, 0))


def _of_feeder(corpus: Corpus, days: IntArray, members: BoolArray) -> IntArray:
    """The same of means over groups (group, node) of nodes, as of one bus."""
    v = corpus.voltages(days)
    real, imag = (np.rint(part * _FINE).astype(np.int64) for part in (v.real, v.imag))
    means = [joined(_mean(real[..., group]), _mean(imag[..., group])) for group in members]
    return _counts(np.stack(means)[..., None])


def _mean(counts: IntArray) -> FloatArray:
    return np.asarray(counts.sum(axis=-1) / (counts.shape[-1] * _FINE))


def _counts(v: ComplexArray) -> IntArray:
    """Smaller over larger rotating sequence of phasors (phase, …), in 1e-4 %."""
    turn, back = unit(np.array([120.0])), unit(np.array([-120.0]))
    forth = modulus(v[0] + multiply(v[1], turn) + multiply(v[2], back))
    other = modulus(v[0] + multiply(v[1], back) + multiply(v[2], turn))
    larger = np.maximum(forth, other)
    ratio = np.minimum(forth, other) / np.where(larger > 0.0, larger, 1.0)
    return np.asarray(np.rint(ratio * (100 * PER_PERCENT)), dtype=np.int64)


def _summary(of: Pass, what: str, names: tuple[str, ...], counts: IntArray) -> Unbalance:
    """Of counts (day, step, bus)."""
    by_slot = [counts[:, of.slot == slot].ravel() for slot in range(of.slots)]
    band = np.stack([order_statistics(values, LEVELS) for values in by_slot], axis=1)
    return Unbalance(
        of=what,
        buses=names,
        n_days=len(counts),
        band_percent=np.asarray(band / PER_PERCENT),
        largest_percent=np.asarray(counts.max(axis=(0, 1)) / PER_PERCENT),
        above_two=int(np.count_nonzero(counts > 2 * PER_PERCENT)) / counts.size,
    )
