"""Whether a feeder that is rebuilt from its levels is the feeder itself, and moves with them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import Feeder, Levels, Line, Protected, Quantity
from dp_powerflow.units import ComplexArray

_COARSE, _FLOOR = 0.08, 1e-6
_TWO_ENDS = 2
_UNMOVED = (
    "keeps its figures when its length, R and X are replaced; make it a switch, or give it R and X that "
    "count beside its charging"
)


Rebuilt = tuple[Feeder, Feeder, Feeder]
"""A feeder, the same rebuilt at its own levels, and at larger ones."""


def lines_rebuilt_wrongly(feeders: Rebuilt, protected: Protected) -> Iterator[FeederError]:
    """Every reason why the lines of a feeder are not what its levels make of them."""
    true, same, other = feeders
    if same.nodes != true.nodes or other.nodes != true.nodes:
        yield FeederError(
            "the feeder cannot be rebuilt from its figures, as it has other nodes then; simplify the names "
            "and figures of its file"
        )
        return
    wrong: dict[str, list[str]] = {}
    for line, again, stretched in zip(true.lines, same.lines, other.lines, strict=True):
        if line.is_switch or len(line.nodes) < _TWO_ENDS:
            continue
        if not _close(line.primitive, again.primitive):
            wrong.setdefault(f"cannot be rebuilt from {_what_to_do(line, protected)}", []).append(line.name)
        elif _close(again.primitive, stretched.primitive):
            wrong.setdefault(_UNMOVED, []).append(line.name)
    for words, names in wrong.items():
        more = f", as {len(names) - 1} more lines," if len(names) > 1 else ""
        yield FeederError(f"line '{names[0]}'{more} {words}")


def others_rebuilt_wrongly(feeders: Rebuilt, levels: Levels) -> Iterator[FeederError]:
    """Every reason why all else is not."""
    if any(each.nodes != feeders[0].nodes for each in feeders):
        return
    rest, again_rest, stretched_rest = (_without_lines(each) for each in feeders)
    if not _close(rest, again_rest):
        yield FeederError(
            "a transformer, capacitor or shunt of the feeder cannot be rebuilt from its figures, as a "
            "capacitor given by cuf or cmatrix; give it by kvar"
        )
    shunts = {key for key in levels if key.quantity in (Quantity.TRANSFORMER, Quantity.CAPACITOR)}
    if shunts and abs(again_rest - stretched_rest).max() == 0.0:
        yield FeederError(
            "transformers and capacitors keep their figures when these are replaced; leave out "
            "network.transformers and network.capacitors"
        )


def _what_to_do(line: Line, protected: Protected) -> str:
    if protected.charging:
        return "its length, R, X and charging; state it by these alone"
    if line.code is not None and protected.lines == "length":
        return "its length and its code; give it the figures of its code"
    return (
        "its length, R and X, as its charging is far from network.c_nf_per_km; set network.charging_epsilon, "
        "such as 0.5, for charging with a level of its own"
    )


def _without_lines(feeder: Feeder) -> sp.csc_array:
    """What of Y is not of lines: transformers, capacitors, sources."""
    rows = [np.repeat(line.nodes, len(line.nodes)) for line in feeder.lines]
    columns = [np.tile(line.nodes, len(line.nodes)) for line in feeder.lines]
    values = [line.primitive.ravel() for line in feeder.lines]
    if not values:
        return feeder.y
    places = (np.concatenate(rows).astype(np.int64), np.concatenate(columns).astype(np.int64))
    lines = sp.coo_array((np.concatenate(values), places), shape=feeder.y.shape)
    return sp.csc_array(feeder.y - lines.tocsc())


def _close(one: ComplexArray | sp.csc_array, other: ComplexArray | sp.csc_array) -> bool:
    """Whether admittances agree to the coarseness of shapes, each beside those of its row and column."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        largest = np.abs(one).max(axis=1)
        scales = np.sqrt(np.outer(largest, largest))
        return bool(np.all(np.abs(one - other) <= _COARSE * scales + _FLOOR))
    first, second = sp.csr_array(one), sp.csr_array(other)
    difference = abs(first - second).tocoo()
    size = np.asarray(abs(first).max(axis=1).todense()).ravel()
    scale = np.sqrt(size[difference.row] * size[difference.col])
    return bool(np.all(difference.data <= _COARSE * scale + _FLOOR))
