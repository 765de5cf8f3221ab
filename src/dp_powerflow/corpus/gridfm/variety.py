"""Perturbed networks and loads of a published twin: other graphs to learn from, at no cost of privacy.

Everything here is a function of released tables and a public seed. A line that is taken out is replaced by a
tie of its own phases and about its own impedance between the part that lost supply and the rest, so that all
load stays supplied. Where a feeder really has its ties the tables do not tell.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dp_powerflow.corpus.gridfm.network import (
    GridfmBranches,
    PublishedLine,
    PublishedNetwork,
    places_of,
    supplied,
    with_shares,
)
from dp_powerflow.corpus.gridfm.scenarios import BusStates
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

PLAUSIBLE_PU = (0.8, 1.2)
"""Perturbed scenarios with a voltage outside are drawn again; how many is reported."""
_TRIES = 40


@dataclass(frozen=True)
class GridfmVariety:
    """What is drawn at random, all factors uniformly.

    Attributes
    ----------
    scenarios : how many perturbed scenarios.
    seed : of the draws, public.
    per_network : scenarios on each drawn network.
    switched : share of the networks in which a line is out and a tie closed, where the feeder is radial.
    line_spread : admittances of lines are multiplied by up to 1 + this, or divided by it.
    load_levels : factor of all loads of a scenario.
    load_spread : factor of every single load, 1 ± this.
    pv_share : share of the loaded buses with PV of their own, drawn per network.
    pv_level : largest PV of such a bus, as a multiple of its mean load.
    """

    scenarios: int
    seed: int = 0
    per_network: int = 8
    switched: float = 0.5
    line_spread: float = 0.3
    load_levels: tuple[float, float] = (0.4, 1.4)
    load_spread: float = 0.2
    pv_share: float = 0.3
    pv_level: float = 3.0


@dataclass(frozen=True, eq=False)
class Variant:
    """A perturbed network.

    Attributes
    ----------
    opened : branches of the released network that it does not have; None if it has them all.
    pv : boolean (loaded,) buses with PV of their own.
    """

    network: PublishedNetwork
    opened: GridfmBranches | None
    pv: BoolArray


def draw_variant(released: Released, variety: GridfmVariety, rng: np.random.Generator) -> Variant:
    """One perturbed network."""
    network, lines = released.network, released.lines
    strength = rng.uniform(-variety.line_spread, variety.line_spread, len(lines))
    factor = np.where(strength < 0.0, 1.0 / (1.0 - strength), 1.0 + strength)
    switches = rng.uniform() < variety.switched
    pv = rng.uniform(size=len(network.loaded)) < variety.pv_share
    changed = with_shares(network, lines, factor - 1.0)
    if switches:
        changed = _switched(changed, _scaled(lines, factor), rng)
    return Variant(changed, _opened(network.branches, changed.branches), pv)


@dataclass(frozen=True, eq=False)
class Released:
    """What is perturbed.

    Attributes
    ----------
    network : as it is exported.
    lines : its lines.
    demand, static : complex (scenario, loaded) net demand and generation of inverters [MW + j·Mvar].
    """

    network: PublishedNetwork
    lines: tuple[PublishedLine, ...]
    demand: ComplexArray
    static: ComplexArray

    @cached_property
    def usual(self) -> FloatArray:
        """(loaded,) mean active load [MW], not negative."""
        return np.asarray(np.maximum((self.demand + self.static).real.mean(axis=0), 0.0))


@dataclass(frozen=True, eq=False)
class Batch:
    """Perturbed scenarios on one network.

    Attributes
    ----------
    opened : branches of the released network that it does not have; None if it has them all.
    picked : (scenario,) released scenario whose loads were perturbed.
    refused : scenarios without a plausible solution, which are not here.
    """

    network: PublishedNetwork
    opened: GridfmBranches | None
    picked: IntArray
    states: BusStates
    refused: int


def draw_batch(released: Released, variety: GridfmVariety, count: int, rng: np.random.Generator) -> Batch:
    """Some scenarios on a drawn network."""
    variant = draw_variant(released, variety, rng)
    network = variant.network
    picked = rng.integers(len(released.demand), size=count)
    demand, static = _drawn_powers(released, picked, variant, variety, rng)
    v = network.solve(-demand, allow_failures=True)
    size = np.abs(v)
    good = ((size > PLAUSIBLE_PU[0]) & (size < PLAUSIBLE_PU[1])).all(axis=1)  # false of NaN
    at_buses = np.zeros((2, int(np.sum(good)), network.n), dtype=np.complex128)
    at_buses[:, :, network.loaded] = demand[good], static[good]
    states = BusStates(at_buses[0], at_buses[1], v[good])
    return Batch(network, variant.opened, picked[good], states, int(np.sum(~good)))


def _drawn_powers(
    released: Released, picked: IntArray, variant: Variant, variety: GridfmVariety, rng: np.random.Generator
) -> tuple[ComplexArray, ComplexArray]:
    """Complex (scenario, loaded) net demand and generation under other levels of load and PV."""
    demand, static = released.demand[picked], released.static[picked]
    count, buses = demand.shape
    level = rng.uniform(*variety.load_levels, (count, 1))
    single = rng.uniform(1.0 - variety.load_spread, 1.0 + variety.load_spread, (count, buses))
    own_sun = rng.uniform(0.0, 1.0, (count, 1))
    sun = rng.uniform(0.0, variety.pv_level, (count, 1)) * rng.uniform(0.0, 1.0, (1, buses))
    generation = static * own_sun + np.where(variant.pv, sun * released.usual, 0.0)
    load = (demand + static) * level * single
    return np.asarray(load - generation), np.asarray(generation, dtype=np.complex128)


def _scaled(lines: tuple[PublishedLine, ...], factor: FloatArray) -> tuple[PublishedLine, ...]:
    return tuple(
        replace(line, series=line.series * share) for line, share in zip(lines, factor.tolist(), strict=True)
    )


def _switched(
    network: PublishedNetwork, lines: tuple[PublishedLine, ...], rng: np.random.Generator
) -> PublishedNetwork:
    """The network with one line out, and a tie closed where that would leave nodes without supply.

    Where no tie of `_TRIES` draws supplies all nodes again, the network stays as it is.
    """
    place = places_of(network)
    for _ in range(_TRIES):
        line = lines[int(rng.integers(len(lines)))]
        without = with_shares(network, (line,), np.array([-1.0]))
        fed = supplied(without)
        if fed.all():
            return without
        lost, rest = (_end(network, place, line, side, rng) for side in (~fed, fed))
        strength = float(rng.uniform(0.5, 1.5))
        if lost is None or rest is None:
            continue
        tie = PublishedLine(lost, rest, line.series)
        if np.array_equal(np.sort(tie.nodes), np.sort(line.nodes)):
            continue
        closed = with_shares(without, (tie,), np.array([strength]))
        if supplied(closed).all():
            return closed
    return network


def _end(
    network: PublishedNetwork, place: IntArray, line: PublishedLine, side: BoolArray, rng: np.random.Generator
) -> IntArray | None:
    """Nodes of a random place on one side that has every phase of the line; None if there is none."""
    angles = network.angle_deg[line.first]
    candidates = [
        nodes
        for number in np.unique(place[side])
        for nodes in [_phases(network, np.flatnonzero((place == number) & side), angles)]
        if nodes is not None and not np.isin(nodes, network.reference).any()
    ]
    return candidates[int(rng.integers(len(candidates)))] if candidates else None


def _phases(network: PublishedNetwork, nodes: IntArray, angles: FloatArray) -> IntArray | None:
    """The nodes of a place with these nominal angles, in their order; None if one is missing."""
    found = {float(network.angle_deg[node]): int(node) for node in nodes}
    if any(float(angle) not in found for angle in angles):
        return None
    return np.array([found[float(angle)] for angle in angles], dtype=np.int64)


def _opened(before: GridfmBranches, now: GridfmBranches) -> GridfmBranches | None:
    """Branches that are no more."""
    left = set(zip(now.from_bus.tolist(), now.to_bus.tolist(), strict=True))
    pairs = zip(before.from_bus.tolist(), before.to_bus.tolist(), strict=True)
    gone = np.array([pair not in left for pair in pairs])
    return before.at(np.flatnonzero(gone)) if gone.any() else None
