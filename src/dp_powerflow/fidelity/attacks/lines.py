"""An attack on the record of a twin: were the figures of a line 1 + x times as large?

The attacker sees the noisy figures of the line and takes the likelihood ratio of the two networks. All that a
release shows of the line follows from these figures, so nothing else tells more. The noise does not depend on
the figures it is added to: lines of any length will do, and no private line is used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow.fidelity.attacks.membership import Guesses, least_epsilon
from dp_powerflow.grid.feeder import NetworkParameters, ParameterKey, Quantity
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.twin.design import TwinDesign, twin_guarantee
from dp_powerflow.twin.draw import draw_twin, elements_of
from dp_powerflow.units import FloatArray, IntArray

LINES = 500
"""Lines of each of the two networks; every one is a guess."""
SURE = 0.9999
"""Confidence of an alarm: the attack reaches what is allowed, and 95 % would alarm once in twenty."""
_LEVEL = 0.7


@dataclass(frozen=True)
class LineAttack:
    """What an attacker gets of one changed line.

    Attributes
    ----------
    guesses : one for every line.
    change : x, by which its figures change.
    epsilon, delta, advantage : that the release states for it.
    """

    guesses: Guesses
    change: float
    epsilon: float
    delta: float
    advantage: float

    @property
    def allowed(self) -> float:
        """The highest rate of right guesses that the statement allows."""
        return (1 + self.advantage) / 2

    @property
    def exceeded(self) -> bool:
        """Whether more is certain than the statement allows."""
        return self.guesses.lower(SURE) > self.allowed

    @property
    def found_epsilon(self) -> float:
        """Lower bound on ε, with the confidence of an alarm."""
        return least_epsilon(self.guesses.lower(SURE), self.delta)


def attack_line(design: TwinDesign, key: StreamKey) -> LineAttack:
    """Draw the records of many lines of two networks, and guess of each which network it is of.

    Parameters
    ----------
    design : public constants of the twin.
    key : secret of the noise; no twin of a release has it.
    """
    quantities: tuple[Quantity, ...] = (Quantity.RESISTANCE, Quantity.REACTANCE)
    if design.protected.lines == "length":
        quantities = (Quantity.LENGTH,)
    keys = [[ParameterKey(quantity, f"l{k}") for quantity in quantities] for k in range(LINES)]
    worlds = [
        NetworkParameters({one: _LEVEL * factor for line in keys for one in line})
        for factor in (1.0, 1.0 + design.change)
    ]
    exact = [_positions(elements_of(world, design)[0].positions, keys[0]) for world in worlds]
    scale, right = design.parts[design.part_of(quantities[0])].scale, 0
    for index, world in enumerate(worlds):
        drawn = draw_twin(world, design, key.bind("line attack", str(index))).positions
        noisy = np.array([_positions(drawn, line) for line in keys])
        far = [_minus_log(noisy - own, scale, design.noise) for own in exact]
        tied = np.arange(LINES) % 2 == 0  # a record that says nothing is guessed
        guess = np.where(far[0] == far[1], tied, far[1] < far[0])
        right += int(np.sum(guess == bool(index)))
    promised = twin_guarantee(design)
    return LineAttack(
        Guesses(right, 2 * LINES), design.change, promised.epsilon, promised.delta, promised.advantage
    )


def _positions(record: object, keys: list[ParameterKey]) -> IntArray:
    assert isinstance(record, dict)
    return np.array([record[key] for key in keys], dtype=np.int64)


def _minus_log(noise: IntArray, scale: int, kind: str) -> FloatArray:
    """(line,) minus the log probability of noise (line, figure), but for a constant."""
    size = noise.astype(np.float64) / scale
    if kind == "gaussian":
        return np.asarray(np.sum(size**2, axis=1) / 2)
    return np.asarray(np.max(np.abs(size), axis=1))
