"""Powers of the feeder, states of its controls, and the network itself."""

from __future__ import annotations

import numpy as np

from dp_powerflow.corpus.grid import POWER_PER_KW, vm_counts
from dp_powerflow.corpus.reader import MINUTES_PER_DAY
from dp_powerflow.quality.nodes import MOST_PHASES, spread
from dp_powerflow.quality.result import LEVELS, Controls, Mended, Network, Power
from dp_powerflow.quality.tally import BIN, TAPS_MOST, Pass, Tally, order_statistics, quantile_bins
from dp_powerflow.quality.voltage import notable_days
from dp_powerflow.units import FloatArray, IntArray

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


def powers_of(of: Pass, tally: Tally) -> tuple[Power, ...]:
    """Every power that is published, summed over the feeder."""
    return tuple(_power(of, NAMES[name], counts) for name, counts in tally.power.items())


def _power(of: Pass, name: str, counts: IntArray) -> Power:
    """From grid counts (day, step)."""
    days, steps = counts.shape
    by_slot = [order_statistics(counts[:, of.slot == slot].ravel(), LEVELS) for slot in range(of.slots)]
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
    median = quantile_bins(tally.taps, (50,))[0]
    snapshots = layout.days * layout.steps
    return Controls(
        taps=np.stack([lowest, median, highest], axis=1) - TAPS_MOST,
        tap_moves=np.round(tally.moves / layout.days, _DECIMALS),
        closed=tally.closed / snapshots,
        switchings=np.round(tally.switchings / layout.days, _DECIMALS),
        locked=tally.locked / snapshots,
    )


def mended_of(of: Pass, tally: Tally) -> Mended | None:
    """None where it is not published."""
    return Mended(tally.mended, tally.mended_most) if of.corpus.extras.mended else None


def network_of(of: Pass, tally: Tally) -> Network | None:
    """The network on the middle day and on that of the lowest voltage; None where it cannot be drawn."""
    corpus, connections = of.corpus, of.corpus.connections
    if connections is None or connections.n_buses > MOST_BUSES:
        return None
    phases = np.unique(connections.phase)
    if len(phases) > MOST_PHASES:
        return None
    steps = spread(corpus.layout.steps, max(1, MOST_VALUES // (connections.n_buses * len(phases))))
    wanted = {corpus.layout.days // 2, tally.lowest.day}
    rules = [(day, why) for day, why in zip(*notable_days(of, tally), strict=True) if day in wanted]
    days = tuple(day for day, _ in rules)
    vm = np.zeros((len(days), len(phases), len(steps), connections.n_buses), dtype=np.int64)
    for k, day in enumerate(days):
        counts = (vm_counts(corpus.phasors([day]).vm_pu[0, steps]) + BIN // 2) // BIN
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
