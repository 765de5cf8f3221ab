"""Audits from below: a system is run many times on two neighbours, and a test tells them apart.

If releases on two neighbours are (ε, δ)-indistinguishable then P(A) ≤ e^ε·P′(A) + δ for every event A, so
the rates of *any* test bound ε from below. Score and threshold are chosen on a first part of the releases,
the bound is that of the rest, with 95 % confidence. A poor test only makes it weaker: 0 says nothing.

The neighbours are those of the claim, on IEEE 13 with four steps a day. Loads: one customer at the lower or
at the upper end of the public range, for a step, a day or all days. Network: one line by 5 %, or by as much
as the claim's r allows. DP-Powerflow's r-neighbours that differ on a line are audited although its own
adjacency leaves them out.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from dp_powerflow import Feeder, LoadHistory, open_feeder
from dp_powerflow.errors import DpPowerflowError, MissingExtraError
from dp_powerflow.lowlevel import Network, Plain, Rebuilder, lower_share, scaled, upper_share, with_change
from dp_powerflow.units import ComplexArray, FloatArray
from dp_powerflow_paper.datasets import Dataset
from dp_powerflow_paper.run import Store
from dp_powerflow_paper.sources import ONE_CUSTOMER, ONE_CUSTOMER_STEP, Guarantee
from dp_powerflow_paper.sources.composition import Composition
from dp_powerflow_paper.sources.networks import Twin
from dp_powerflow_paper.table1.bench import LINE_CHANGE, Bench, Scale, release, with_line
from dp_powerflow_paper.table1.rows import Row

AUDIT_CODE = 1
"""Raised whenever a change of the code makes stored audits worthless."""
CONFIDENCE = 0.95
_PILOT = 0.4
_THRESHOLDS = 41
_STEPS, _DAYS = 4, 2
_MARGINS, _LEVEL = (0.2, 1.0), 0.5
_DRAWN_DAYS = 20
"""Days that are drawn of a model, which has any number of them."""
_WITHIN = 0.999
"""Of r, so that a neighbour is one."""
_TINY = 1e-300
Scores = FloatArray
"""(score, release)."""


def lower_bound(first: Scores, second: Scores, delta: float) -> float:
    """Lower confidence bound on ε at δ from scores of releases on two neighbours; 0 where nothing shows."""
    pilot = int(_PILOT * first.shape[1])
    best, chosen = -math.inf, None
    for k, (one, other) in enumerate(zip(first, second, strict=True)):
        both = np.concatenate([one[:pilot], other[:pilot]])
        for threshold in np.quantile(both, np.linspace(0.02, 0.98, _THRESHOLDS)):
            for a, b in ((one, other), (other, one)):
                for sign in (1.0, -1.0):
                    found = _bound(sign * a[:pilot], sign * b[:pilot], sign * threshold, delta)
                    if found > best:
                        best, chosen = found, (k, a is one, sign, float(threshold))
    if chosen is None:  # no threshold is exceeded for sure more often than δ allows
        return 0.0
    k, in_order, sign, threshold = chosen
    one, other = (first[k], second[k]) if in_order else (second[k], first[k])
    return max(0.0, _bound(sign * one[pilot:], sign * other[pilot:], sign * threshold, delta))


def _bound(inside: FloatArray, outside: FloatArray, threshold: float, delta: float) -> float:
    alpha = (1.0 - CONFIDENCE) / 2.0
    low = float(lower_share(int((inside > threshold).sum()), len(inside), alpha))
    high = float(upper_share(int((outside > threshold).sum()), len(outside), alpha))
    return math.log((low - delta) / high) if low > delta else -math.inf


class _Forgetful(Store):
    """Keeps nothing: every fit of an audit is a new one."""

    def get(self, name: str) -> None:
        return None

    def put(self, name: str, result: dict[str, Any]) -> None:
        return None


# ------------------------------------------------------------------------------------ small worlds


@dataclass(frozen=True)
class _Victim:
    """Which readings of the first customer differ between neighbours."""

    days: int
    steps: int

    @classmethod
    def of(cls, claim: Guarantee) -> _Victim:
        if claim.adjacency == ONE_CUSTOMER_STEP:
            return cls(1, 1)
        return cls(_DAYS if claim.adjacency == ONE_CUSTOMER else 1, _STEPS)


def small_data(level: float = _LEVEL, victim: _Victim | None = None) -> Dataset:
    """IEEE 13, every load a customer at one level, the first at another for what differs."""
    feeder = open_feeder("ieee13")
    count = len(feeder.loads)
    relative = np.full((count, _DAYS, _STEPS), _LEVEL)
    if victim is not None:
        relative[0, : victim.days, : victim.steps] = level
    history = LoadHistory(
        load_kw=relative,
        load_kvar=None,
        load_points=tuple(f"c{k}" for k in range(count)),
        days=tuple(dt.date(2024, 1, 1) + dt.timedelta(days=k) for k in range(_DAYS)),
        step_minutes=24 * 60 // _STEPS,
        node_of=(None,) * count,
        class_label=(None,) * count,
        scale_kw=np.ones(count),
    )
    loaded = feeder.retained[feeder.loaded_nodes()[0]]
    return Dataset(
        name="audit",
        feeder=feeder,
        network=Network(feeder),
        history=history,
        relative=relative,
        shares=sp.csr_array(feeder.load_shares.tocsr()[loaded] * feeder.nominal_load[None, :]),
        nominal=np.asarray(-feeder.nominal_injection[loaded]),
        margins=_MARGINS,
        radius=1e-4,
        estimator=Plain(),
        calibration_floor=1.0,
        words="an audit",
    )


def small_bench(data: Dataset) -> Bench:
    """For as many fits as are asked for; one day is compared."""
    scale = Scale(days=1, runs=1, trainings=1, calibration_days=20, audits=0)
    return Bench(data, scale, 0, _Forgetful(Path(), "audit"))


@dataclass(frozen=True, eq=False)
class _World:
    """One neighbour: releases of a row on it.

    Attributes
    ----------
    number : of the neighbour; its draws are its own.
    """

    row: Row
    bench: Bench
    number: int

    def made(self, release_number: int) -> Composition:
        """The system with a fit of its own."""
        assert self.row.make is not None
        made = self.row.make(self.bench, 2 * release_number + self.number)
        assert isinstance(made, Composition)
        return made

    def generator(self, release_number: int) -> np.random.Generator:
        return self.bench.generator(f"audit of {self.row.key}, {self.number}", release_number)

    @cached_property
    def clean(self) -> ComplexArray:
        """Voltages of the true loads."""
        return self.bench.truth.voltages


def audit_row(row: Row, releases: int) -> dict[str, Any]:
    """Lower bounds on ε of the loads and of the network, `None` without a claim, and why there is none.

    A trained model is not audited here, and a system that cannot be made on so small a network neither.
    """
    found: dict[str, Any] = {"loads": None, "network": None, "words": ""}
    if row.extra is not None:
        return found | {"words": f"not audited here; {row.audited_by or 'its training takes too long'}"}
    assert row.make is not None
    try:
        made = row.make(small_bench(small_data()), 0)
        if not isinstance(made, Composition):
            return found | {"words": f"not audited here; {row.audited_by or 'not a voltage release'}"}
        cost = made.cost()
        if cost.loads is not None and math.isfinite(cost.loads.epsilon):
            found["loads"] = _audit_loads(row, cost.loads, releases)
        if cost.network is not None:
            found["network"] = _audit_network(row, made, cost.network, releases)
    except MissingExtraError:
        raise
    except DpPowerflowError as error:
        return found | {"words": f"not audited here: {error}"}
    return found


# ------------------------------------------------------------------------------------------- loads


def _audit_loads(row: Row, claim: Guarantee, releases: int) -> float:
    victim = _Victim.of(claim)
    worlds = [
        _World(row, small_bench(small_data(level, victim)), number) for number, level in enumerate(_MARGINS)
    ]
    first, second = (_each(partial(_load_scores, world, victim), releases) for world in worlds)
    return lower_bound(first, second, claim.delta)


def _load_scores(world: _World, victim: _Victim, number: int) -> list[float]:
    """What a release says of the victim's node, and of all nodes."""
    made = world.made(number)
    days = _DRAWN_DAYS if made.loads.unlimited else 1
    load = made.loads.draw(world.generator(number), days).real[:, : victim.steps]
    shares = world.bench.data.shares.toarray()[:, 0].real
    return [float((load @ shares).mean()), float(load.sum(axis=2).mean())]


# ----------------------------------------------------------------------------------------- network


def _audit_network(row: Row, made: Composition, claim: Guarantee, releases: int) -> float:
    data = small_data()
    pair = _pair(data, row, made, claim)
    worlds = [
        _World(row, small_bench(replace(data, feeder=feeder, network=Network(feeder))), number)
        for number, feeder in enumerate(pair)
    ]
    score = _network_score(worlds, made)
    first, second = (_each(partial(score, world), releases) for world in worlds)
    return lower_bound(first, second, claim.delta)


def _pair(data: Dataset, row: Row, made: Composition, claim: Guarantee) -> tuple[Feeder, Feeder]:
    """Two networks that differ on the first line, by what the claim is about."""
    bench = small_bench(data)
    if isinstance(made.network, Twin):
        source = Rebuilder(data.feeder, data.protected)
        levels = source.parameters().levels
        return source.build(levels), source.build(with_line(levels, bench.tested_line, 1.0 + LINE_CHANGE))
    line = next(line for line in data.feeder.lines if line.name == bench.tested_line)
    change = LINE_CHANGE
    radius = claim.metric if isinstance(claim.metric, float) else None if row.matched else data.radius
    if radius is not None:
        change = _WITHIN * radius / float(np.linalg.norm(line.primitive))
    return data.feeder, with_change(data.feeder, scaled(line, change))


def _network_score(worlds: Sequence[_World], made: Composition) -> Callable[[_World, int], list[float]]:
    """The test: on the network that was drawn, on noisy voltages, or on the loads that voltages imply."""
    here, there = worlds
    if not made.network.uses_true_network:
        apart = (there.bench.data.feeder.y - here.bench.data.feeder.y).tocoo()

        def of_network(world: _World, number: int) -> list[float]:
            drawn = world.made(number).network.draw(world.generator(number))
            at = np.asarray(drawn.y.tocsr()[apart.row, apart.col]).ravel()
            return [float(np.real(np.vdot(apart.data, at)))]

        return of_network
    if made.noise is not None:
        moved = (there.clean - here.clean)[:, 0]

        def of_voltages(world: _World, number: int) -> list[float]:
            released = release(world.made(number), world.generator(number), 1)
            return [float(np.real(np.vdot(moved, released.voltages[:, 0])))]

        return of_voltages

    def of_physics(world: _World, number: int) -> list[float]:
        step = release(world.made(number), world.generator(number), 1).voltages[:, :1]
        own, other = (w.bench.truth.residual(step) for w in (here, there))
        if own is None or other is None:
            return [0.0]
        return [math.log(max(other, _TINY)) - math.log(max(own, _TINY))]

    return of_physics


def _each(score: Callable[[int], list[float]], releases: int) -> Scores:
    return np.array([score(number) for number in range(releases)]).T
