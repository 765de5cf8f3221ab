"""Reactive load of histories: a power factor per customer, and a process of its own.

q = p·tan θ_i + c·p̄·ξ_i, θ_i persistent, ξ_i a process on the ladder. Angles and process are declared public
or fitted; fitted, a customer's own angle is taken out before its process is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import numpy as np

from dp_powerflow._bits.elementary import exp, exp1, log, tan, tan1
from dp_powerflow.model.estimators import Contribution, Records, ask_averages
from dp_powerflow.model.history import plan
from dp_powerflow.model.history.estimate import mean_of
from dp_powerflow.model.history.law import HistoryLaw, HistoryReactive
from dp_powerflow.model.history.one_pass import Ladder, energies
from dp_powerflow.model.options import (
    MAX_ANGLE,
    FittedReactive,
    HistoryFacts,
    PublicSpread,
    ReactiveChoice,
    angle_contribution,
)
from dp_powerflow.privacy.queries import Query, Region, Session
from dp_powerflow.units import FloatArray

MOST_ANGLE_SPREAD = 0.5  # rad
_SHARES = {"angle": 0.25, "spread": 0.15, "size": 0.2, "energies": 0.4}


class Cell(Protocol):
    """Classes that are fitted together; see `derive`."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def pairs(self) -> list[Records]: ...

    @property
    def bounds(self) -> tuple[float, float]: ...

    @property
    def session(self) -> Session: ...


def reactive_of(
    cell: Cell, laws: Sequence[HistoryLaw], choice: ReactiveChoice, facts: HistoryFacts, rho: float
) -> list[HistoryReactive]:
    """The reactive load of every class; spends ρ where it is fitted."""
    references = [mean_of(law.corrected) for law in laws]
    if isinstance(choice, FittedReactive):
        return _fitted(cell, laws, references, rho)
    if not isinstance(choice, PublicSpread):
        return [HistoryReactive(choice.tan_theta(name)) for name in cell.names]
    ladder = laws[0].ladder
    lag = np.arange(facts.n_days * facts.n_steps + 1) * facts.step_minutes
    covariance = (1 - choice.white) * exp(-lag / choice.correlation_minutes)
    covariance[0] += choice.white
    amplitudes = ladder.amplitudes(ladder.energies_of(covariance, facts.n_days), facts.n_days)
    return [
        HistoryReactive(choice.power_factor.tan_theta(name), 0.0, choice.spread, reference, amplitudes)
        for name, reference in zip(cell.names, references, strict=True)
    ]


def _fitted(
    cell: Cell, laws: Sequence[HistoryLaw], references: Sequence[float], rho: float
) -> list[HistoryReactive]:
    n_steps, ladder, count = laws[0].n_steps, laws[0].ladder, len(laws)
    bound = cell.bounds[1]

    def ask(
        name: str, size: int, radius: float, region: Region, share: str, of: list[Contribution]
    ) -> list[FloatArray]:
        query = Query(
            name, size, radius, region, rho * _SHARES[share], "rad" if share in ("angle", "spread") else "1"
        )
        return ask_averages(cell.session, query, cell.pairs, of)[0]

    own = angle_contribution(n_steps, bound)
    angles = [
        float(np.clip(value[0], -MAX_ANGLE, MAX_ANGLE))
        for value in ask("power-factor angle", 1, MAX_ANGLE, Region.BALL, "angle", [own] * count)
    ]
    most = MOST_ANGLE_SPREAD * MOST_ANGLE_SPREAD
    squares = ask(
        "spread of angles", 1, most, Region.ORTHANT, "spread",
        [partial(_square_away, own=own, centre=angle, most=most) for angle in angles],
    )  # fmt: skip
    sizes = ask(
        "size of the reactive process", 1, plan.RADIUS_REACTIVE, Region.BALL, "size",
        [partial(_log_size, own=own, bound=bound)] * count,
    )  # fmt: skip
    found = ask(
        "energies of the reactive process", len(ladder.spacings), plan.RADIUS_ENERGIES, Region.ORTHANT,
        "energies", [partial(_energies, own=own, bound=bound, ladder=ladder)] * count,
    )  # fmt: skip
    result = []
    for index, law in enumerate(laws):
        tangent = tan1(angles[index])
        slope = 1 + tangent * tangent
        spread = slope * float(np.sqrt(np.clip(squares[index][0], 0.0, most)))
        size = exp1(
            float(np.clip(sizes[index][0], -plan.RADIUS_REACTIVE, plan.RADIUS_REACTIVE))
            + plan.CENTRE_REACTIVE
        )
        positive = np.maximum(found[index], 0.0)
        positive = positive / max(float(positive.sum()), 1e-12)
        amplitudes = ladder.amplitudes(positive, law.n_days)
        result.append(HistoryReactive(tangent, spread, size, references[index], amplitudes))
    return result


def _split(pair: FloatArray, bound: float) -> tuple[FloatArray, FloatArray]:
    n_steps = pair.shape[2] // 2
    clipped = np.clip(pair, -bound, bound)
    return clipped[..., :n_steps], clipped[..., n_steps:]


def _square_away(pair: FloatArray, own: Contribution, centre: float, most: float) -> FloatArray:
    """Squared distance of a customer's angle from that of its class."""
    away = own(pair) - centre
    return np.minimum(away * away, most)


def _process(pair: FloatArray, own: Contribution, bound: float) -> FloatArray:
    """(customer, day, step) reactive load beside its own power factor, over its mean load."""
    active, reactive = _split(pair, bound)
    level = np.maximum(active.mean(axis=(1, 2)), 1e-9)
    rest = reactive - tan(own(pair))[:, :, None] * active
    rest = rest - rest.mean(axis=1, keepdims=True)
    result: FloatArray = rest / level[:, None, None]
    return result


def _log_size(pair: FloatArray, own: Contribution, bound: float) -> FloatArray:
    """Log of the root mean square of the process, around a public centre."""
    process = _process(pair, own, bound)
    flat = process.reshape(len(process), -1)
    square = np.sum(flat * flat, axis=1) / max(flat.shape[1], 1)
    return (log(np.maximum(square, 1e-12)) / 2 - plan.CENTRE_REACTIVE)[:, None]


def _energies(pair: FloatArray, own: Contribution, bound: float, ladder: Ladder) -> FloatArray:
    """Energies of the process, which add up to one."""
    found = energies(_process(pair, own, bound), ladder)
    result: FloatArray = found / np.maximum(found.sum(axis=1, keepdims=True), 1e-12)
    return result
