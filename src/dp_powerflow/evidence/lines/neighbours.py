"""Neighbours of a network: the same network with one line changed.

A change is a matrix added to the line's primitive admittance, so its effect on the reduced network has the
rank of the line's conductors, whatever its size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.feeder import Feeder, Line
from dp_powerflow.grid.sources import islanded_nodes
from dp_powerflow.units import ComplexArray

_SERIES_TOLERANCE = 1e-6
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Neighbour:
    """One line, changed.

    Attributes
    ----------
    what : in words, such as "admittance × 1.01".
    change : complex (node of the line, node of the line) [p.u.], added to the line's primitive.
    size : x of a scaled line, None for other changes.
    """

    line: Line
    what: str
    change: ComplexArray
    size: float | None = None


def scaled(line: Line, x: float) -> Neighbour:
    """All of the line's admittance, shunts included, times (1 + x)."""
    if not (np.isfinite(x) and x > -1.0 and x != 0.0):
        raise PrivacyError("a line can be scaled by 1 + x with x above −1 and not 0")
    return Neighbour(line, f"admittance × {1.0 + x:g}", np.asarray(x * line.primitive), float(x))


def scaled_both_ways(lines: Iterable[Line], x: float) -> tuple[Neighbour, ...]:
    """Every line times (1 + x) and times (1 − x), line by line."""
    return tuple(scaled(line, sign * x) for line in lines for sign in (1.0, -1.0))


def turned(line: Line, x: float) -> Neighbour:
    """The line's series resistance times (1 + x), its reactance as it is: another R/X ratio."""
    if not (np.isfinite(x) and x > -1.0 and x != 0.0):
        raise PrivacyError("a line's R/X ratio can be changed by a factor 1 + x with x above −1 and not 0")
    series, _ = _series_and_shunt(line)
    impedance = np.linalg.inv(series)
    other = np.linalg.inv(impedance + x * impedance.real)
    return Neighbour(line, f"R/X × {1.0 + x:g}", _of_series(other - series))


def recoded(feeder: Feeder, line: Line, donor: Line) -> Neighbour:
    """The line with the conductors of another line (impedance per metre), at its own length."""
    if line.length_m is None or donor.length_m is None:
        raise PrivacyError("conductors can be swapped between lines of known length only")
    kilovolt = feeder.base_kv[[line.nodes[0], donor.nodes[0]]]
    if len(line.nodes) != len(donor.nodes) or not np.isclose(*kilovolt):
        raise PrivacyError("conductors can be swapped between lines of equal phases and base voltage only")
    series, shunt = _series_and_shunt(line)
    other, other_shunt = _series_and_shunt(donor)
    ratio = donor.length_m / line.length_m
    change = _of_series(ratio * other - series)
    m = len(series)
    change[:m, :m] += other_shunt / ratio - shunt
    change[m:, m:] += other_shunt / ratio - shunt
    return Neighbour(line, f"conductors of code {donor.code}", change)


def opened(feeder: Feeder, line: Line) -> Neighbour:
    """The line or switch opened; refused where that leaves a node without supply."""
    found = Neighbour(line, "opened", np.asarray(-line.primitive))
    if islanded_nodes(with_change(feeder, found)):
        raise PrivacyError(
            "opening this line leaves nodes without supply, so the neighbour is not a network that can be "
            "released; choose a line or switch in a loop"
        )
    return found


def closed(line: Line) -> Neighbour:
    """A switch that is open, and so not among the feeder's lines, closed."""
    return Neighbour(replace(line, primitive=np.zeros_like(line.primitive)), "closed", line.primitive.copy())


def with_change(feeder: Feeder, neighbour: Neighbour) -> Feeder:
    """The feeder of the neighbour."""
    nodes = np.asarray(neighbour.line.nodes)
    at = np.ix_(nodes, nodes)
    y = sp.lil_array(feeder.y)
    block = y[at].toarray() + neighbour.change
    # What an opened line leaves behind in its own entries is rounding, not an admittance.
    block[np.abs(block) <= _ROUNDING * np.abs(neighbour.change)] = 0.0
    y[at] = block
    y = sp.csc_array(y)
    y.eliminate_zeros()
    lines = tuple(
        replace(line, primitive=line.primitive + neighbour.change) if line is neighbour.line else line
        for line in feeder.lines
    )
    return replace(feeder, y=y, lines=lines, origin=None)


def _series_and_shunt(line: Line) -> tuple[ComplexArray, ComplexArray]:
    """Series admittance, and the shunt at each end: complex (conductor, conductor) [p.u.]."""
    m, odd = divmod(len(line.nodes), 2)
    whole = line.primitive
    size = float(np.abs(whole).max())
    if (
        odd
        or np.abs(whole[:m, m:] - whole[m:, :m]).max() > _SERIES_TOLERANCE * size
        or np.abs(whole[:m, :m] - whole[m:, m:]).max() > _SERIES_TOLERANCE * size
        or np.linalg.cond(whole[:m, m:]) > 1e12
    ):
        raise PrivacyError("this line is not a series impedance with equal shunts; it can only be scaled")
    series = np.asarray(-whole[:m, m:])
    return series, np.asarray(whole[:m, :m] - series)


def _of_series(series: ComplexArray) -> ComplexArray:
    """Primitive of a series admittance by itself."""
    return np.block([[series, -series], [-series, series]])
