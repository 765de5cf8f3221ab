"""INTERNAL. Planted implausible customers, as arXiv 2407.11785 proposes to test synthetic data.

One customer is replaced by one that no household resembles. The design of the release is fitted many times,
with the real customer and with the planted one, each time with fresh noise. The attacker knows both, all
other customers and the code. It sees every published integer and takes the likelihood ratio of the two: no
test of the integers, and none of anything that follows from them, such as the model and draws from it, is
better. So what it finds is what there is to find, up to chance.

Sensitivities do not depend on the number of customers, days or steps. A fit is attacked with few customers of
one class on few days in steps of an hour, so that there is time for many fits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dp_powerflow.fidelity.attacks.chances import Guesses
from dp_powerflow.fidelity.attacks.design import Design
from dp_powerflow.fidelity.effort import Effort
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.derive import derive
from dp_powerflow.model.fit import MeterSource, history_facts
from dp_powerflow.privacy.budget import PrivacyUnit, QueryCost
from dp_powerflow.privacy.queries import Blocks, Query, QuerySession, Session, exact_sum
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import FloatArray, IntArray

Plant = Callable[[tuple[int, int], tuple[float, float]], FloatArray]
"""(days, steps), bounds [kW] → loads (day, step) [kW]."""


def constant(shape: tuple[int, int], bounds: tuple[float, float]) -> FloatArray:
    """Always at the highest load that the model knows."""
    return np.full(shape, bounds[1])


def nocturnal(shape: tuple[int, int], bounds: tuple[float, float]) -> FloatArray:
    """At the highest load until noon and at the lowest after it."""
    days, steps = shape
    return np.tile(np.where(np.arange(steps) < steps // 2, bounds[1], bounds[0]), (days, 1))


def alternating(shape: tuple[int, int], bounds: tuple[float, float]) -> FloatArray:
    """From the lowest load to the highest and back, step by step."""
    days, steps = shape
    return np.where(np.arange(days * steps) % 2, bounds[1], bounds[0]).reshape(days, steps)


KINDS: dict[str, Plant] = {
    "constant at the highest load": constant,
    "highest until noon, lowest after": nocturnal,
    "highest and lowest in turns": alternating,
}


@dataclass(frozen=True)
class PlantedAttack:
    """INTERNAL. What the attacker got out of fits with and without planted customers.

    Attributes
    ----------
    guesses : kind of planted customer → guesses, one for each fit.
    partly : whether only the first of the queries could be attacked, since classes are private.
    """

    guesses: dict[str, Guesses]
    partly: bool

    @property
    def together(self) -> Guesses:
        """All kinds as one game."""
        return sum(self.guesses.values(), Guesses(0, 0))


def attack_planted(
    design: Design,
    effort: Effort,
    key: StreamKey,
    on_fit: Callable[[int, int], None] = lambda done, total: None,
) -> PlantedAttack:
    """INTERNAL. Fit with and without every kind of planted customer, and guess.

    Parameters
    ----------
    design : of the release, with few customers.
    key : secret of the noise; every fit has streams of its own.
    """
    found, done, partly = {}, 0, False
    for kind, plant in KINDS.items():
        right, meters = 0, _both(design, plant)
        for index in range(effort.fits_per_kind):
            trial = _attempt(design, meters, index % 2, key.bind("planted", kind).bind("fit", str(index)))
            right += trial.guess == trial.world
            partly = partly or trial.partly
            done += 1
            on_fit(done, len(KINDS) * effort.fits_per_kind)
        found[kind] = Guesses(right, effort.fits_per_kind)
    return PlantedAttack(found, partly)


@dataclass
class _Trial:
    """One fit: which customer was in it, and what the integers say of it."""

    world: int
    log_ratio: float = 0.0
    partly: bool = False

    @property
    def guess(self) -> int:
        """1 for the planted customer."""
        return int(self.log_ratio > 0)


class _NoMoreError(Exception):
    """The queries that follow cannot be attacked."""


class _TriedSession(QuerySession):
    """Answers for one of two neighbours, and adds up the log likelihood ratio of the planted one.

    The last customer of the records is the planted one, the one before it the real one.
    """

    def __init__(self, key: StreamKey, unit: PrivacyUnit, cohort: str | None, rho: float, of: _Tried) -> None:
        super().__init__(key, unit, cohort, rho)
        self._of = of

    def _answer(self, query: Query, cost: QueryCost, blocks: Blocks) -> IntArray:
        if len(blocks) != 1:
            raise _NoMoreError  # which block a customer is in is private
        rows = np.concatenate(list(blocks[0]))
        each = len(rows) // self._of.history.n_load_points
        others, real, planted = rows[: -2 * each], rows[-2 * each : -each], rows[-each:]
        worlds = [np.concatenate([others, own]) for own in (real, planted)]
        trial = self._of.trial
        answer = super()._answer(query, cost, [[worlds[trial.world]]])
        away = [((answer[0] - exact_sum([rows], query)) / cost.sigma).astype(np.float64) for rows in worlds]
        trial.log_ratio += float(np.sum(away[0] ** 2) - np.sum(away[1] ** 2)) / 2
        return answer


@dataclass(frozen=True, eq=False, repr=False)
class _Tried(MeterSource):
    """PRIVATE. Meters of two neighbours."""

    trial: _Trial

    def session(self, stage: tuple[str, str], cohort: str | None, rho: float) -> Session:
        return _TriedSession(self.key.bind(*stage), self.unit, cohort, rho, self)


def _both(design: Design, plant: Plant) -> LoadHistory:
    """The customers of the design with the planted one after the last; it stands in for that one."""
    history = design.history
    last = history.load_kw[-1:]
    bounds = design.bounds_kw(history.n_load_points - 1)
    planted = np.array(last) if design.budget.unit is PrivacyUnit.LOAD_POINT_DAY else np.empty_like(last)
    days = 1 if design.budget.unit is PrivacyUnit.LOAD_POINT_DAY else history.n_days
    planted[0, :days] = plant((days, history.n_steps), bounds)

    kvar, scale = history.load_kvar, history.scale_kw
    return replace(
        history,
        load_kw=np.concatenate([history.load_kw, planted]),
        load_kvar=None if kvar is None else np.concatenate([kvar, kvar[-1:]]),
        load_points=(*history.load_points, "planted"),
        node_of=(*history.node_of, history.node_of[-1]),
        class_label=(*history.class_label, history.class_label[-1]),
        scale_kw=None if scale is None else np.concatenate([scale, scale[-1:]]),
    )


def _attempt(design: Design, meters: LoadHistory, world: int, key: StreamKey) -> _Trial:
    """One fit of one of the two."""
    trial, options, unit = _Trial(world), design.options, design.budget.unit
    facts = replace(
        history_facts(meters, options, unit),
        load_points_of_class=tuple(
            (name, count - 1) for name, count in history_facts(meters, options, unit).load_points_of_class
        ),
    )
    try:
        derive(_Tried(facts, meters, options, unit, key, trial), options, design.budget)
    except _NoMoreError:
        trial.partly = True
    return trial
