"""What must hold with a new PV system: voltages within limits, currents within declared ampacities.

A limit that is broken without any new PV is not a reason to host nothing. There the rule is: no worse than
without PV, by more than a public tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import scipy.sparse as sp

from dp_powerflow.errors import ConfigError
from dp_powerflow.grid.buses import bus_name
from dp_powerflow.grid.feeder import Feeder, Line
from dp_powerflow.units import KW_PER_MW, BoolArray, ComplexArray, FloatArray, IntArray


class Binds(IntEnum):
    """What is broken by the next step of the grid of capacities."""

    NOTHING = 0
    HIGH = 1
    LOW = 2
    CURRENT = 3
    UNSOLVED = 4


BINDS = {
    Binds.NOTHING: "most_kw",
    Binds.HIGH: "v_max",
    Binds.LOW: "v_min",
    Binds.CURRENT: "ampacity",
    Binds.UNSOLVED: "no_solution",
}
"""Names in the tables: cut at `most_kw`, voltage too high or too low, a current, no power flow solution."""


@dataclass(frozen=True, eq=False)
class Conductors:
    """Conductors of lines with an ampacity.

    Attributes
    ----------
    rows : sparse complex (conductor, energised node) current per voltage [A per p.u.].
    fixed : complex (conductor,) current that the sources drive [A].
    ampacity_a : (conductor,) largest current [A].
    """

    rows: sp.csr_array
    fixed: ComplexArray
    ampacity_a: FloatArray

    def shares(self, v: ComplexArray) -> FloatArray:
        """(snapshot, conductor) square of the current over the ampacity."""
        current = np.asarray((self.rows @ v.T).T) + self.fixed
        current /= self.ampacity_a
        return np.asarray(current.real * current.real + current.imag * current.imag)


def conductors_of(feeder: Feeder, of_line: Mapping[int, float]) -> Conductors | None:
    """Both ends of every conductor of the lines with an ampacity [A]; None without any."""
    blocks: list[sp.csr_array] = []
    ampacities: list[float] = []
    for k, ampacity in sorted(of_line.items()):
        line = feeder.lines[k]
        nodes = np.array(line.nodes, dtype=np.int64)
        amperes = feeder.base_mva * KW_PER_MW / feeder.base_kv[nodes] / _phases(feeder)
        entries = np.asarray(line.primitive) * amperes[:, None]
        across = np.repeat(nodes[None, :], len(nodes), axis=0).ravel()
        down = np.repeat(np.arange(len(nodes)), len(nodes))
        shape = (len(nodes), len(feeder.nodes))
        blocks.append(sp.csr_array((entries.ravel(), (down, across)), shape=shape))
        ampacities += [ampacity] * len(nodes)
    if not blocks:
        return None
    stacked = sp.csr_array(sp.vstack(blocks, format="csr"))
    fixed = np.asarray(stacked[:, feeder.slack] @ feeder.v_slack)
    return Conductors(sp.csr_array(stacked[:, feeder.energised]), fixed, np.array(ampacities))


def _phases(feeder: Feeder) -> int:
    """Phases that a node stands for: three in a balanced net of pandapower."""
    return 1 if getattr(feeder.origin, "by_phase", True) else 3


def ampacities_of(
    feeder: Feeder, default_a: float | None, own_a: Mapping[str, float], public_bus: Mapping[str, str]
) -> dict[int, float]:
    """Line → ampacity [A].

    Parameters
    ----------
    default_a : of every line without one of its own; None for no limit.
    own_a : by the name of a line, or its two buses, "a-b".
    public_bus : bus of the feeder → its public name, where there is one.

    Raises
    ------
    ConfigError
        If a key is no line of the network.
    """
    lines_of: dict[str, list[int]] = {}
    for k, line in enumerate(feeder.lines):
        for name in dict.fromkeys(_names(feeder, line, public_bus)):
            lines_of.setdefault(name, []).append(k)
    found = {} if default_a is None else dict.fromkeys(range(len(feeder.lines)), default_a)
    for key, ampacity in own_a.items():
        if key.lower() not in lines_of:
            raise ConfigError(
                f"ampacities_a names '{key}', which is no line of the network; use the name of a line, or of "
                "two buses that a line joins, as in 'b003-b017'"
            )
        found |= dict.fromkeys(lines_of[key.lower()], ampacity)
    return found


def _names(feeder: Feeder, line: Line, public_bus: Mapping[str, str]) -> Iterator[str]:
    yield line.name.lower()
    slack = set(feeder.slack.tolist())
    buses = list(dict.fromkeys(bus_name(feeder.nodes[k], is_source=k in slack) for k in line.nodes))
    if len(buses) == 2:
        for one, other in (buses, [public_bus.get(bus, bus) for bus in buses]):
            yield f"{one}-{other}".lower()
            yield f"{other}-{one}".lower()


@dataclass(frozen=True, eq=False)
class Bounds:
    """What every snapshot is held to, in squares.

    Attributes
    ----------
    checked : (energised,) whether the voltage of a node counts; that of a neutral does not.
    high, low : (snapshot, energised) largest and smallest |v|².
    current : (snapshot, conductor) largest share of the ampacity, squared; None without any.
    broken_high, broken_low, broken_current : where the limit is broken without new PV.
    conductors : whose currents are limited.
    """

    checked: BoolArray
    high: FloatArray
    low: FloatArray
    current: FloatArray | None
    broken_high: BoolArray
    broken_low: BoolArray
    broken_current: BoolArray | None
    conductors: Conductors | None

    @property
    def broken(self) -> BoolArray:
        """(snapshot,) whether any limit is broken without new PV."""
        found = self.broken_high.any(axis=1) | self.broken_low.any(axis=1)
        if self.broken_current is not None:
            found = found | self.broken_current.any(axis=1)
        return np.asarray(found)

    def margins(self, v: ComplexArray, rows: IntArray) -> tuple[FloatArray, IntArray]:
        """How far every solution is from breaking a limit, and which.

        Parameters
        ----------
        v : complex (solution, energised) [p.u.], NaN where there is none.
        rows : (solution,) snapshot whose bounds count.

        Returns
        -------
        (solution,) least margin, in squares, negative if a limit is broken; and 2 × `Binds` of the limit that
        it is of, plus 1 where that is broken without new PV.
        """
        size, each = _square(v), np.arange(len(rows))
        margin = np.full(len(rows), np.inf)
        code = np.zeros(len(rows), dtype=np.int64)
        sides = [
            (Binds.HIGH, self.high[rows] - size, self.broken_high),
            (Binds.LOW, size - self.low[rows], self.broken_low),
        ]
        if self.conductors is not None and self.current is not None and self.broken_current is not None:
            sides.append((Binds.CURRENT, self.current[rows] - self.conductors.shares(v), self.broken_current))
        for binds, room, broken in sides:
            worst = room.argmin(axis=1)
            least = room[each, worst]
            closer = least < margin
            margin[closer] = least[closer]
            code[closer] = 2 * binds + broken[rows, worst][closer]
        unsolved = np.isnan(size[:, 0]) if size.shape[1] else np.zeros(len(rows), dtype=np.bool_)
        margin[unsolved], code[unsolved] = -np.inf, 2 * Binds.UNSOLVED
        return margin, code


def bounds_of(
    feeder: Feeder, v: ComplexArray, limits: tuple[float, float, float], conductors: Conductors | None
) -> Bounds:
    """Bounds of snapshots, from their voltages without new PV.

    Parameters
    ----------
    v : complex (snapshot, energised) [p.u.].
    limits : smallest and largest voltage [p.u.], and by how much what is broken may get worse: of 1 p.u. of
        voltage, and of the ampacity.
    """
    v_min, v_max, worsening = limits
    checked = ~np.isin(feeder.energised, feeder.neutral)
    size = np.sqrt(_square(v))
    over, under = (size > v_max) & checked, (size < v_min) & checked
    high = np.where(over, size + worsening, v_max) ** 2
    low = np.where(under, np.maximum(size - worsening, 0.0), v_min) ** 2
    high[:, ~checked], low[:, ~checked] = np.inf, -np.inf
    current = too_much = None
    if conductors is not None:
        share = np.sqrt(conductors.shares(v))
        too_much = share > 1.0
        current = np.where(too_much, share + worsening, 1.0) ** 2
    return Bounds(checked, high, low, current, over, under, too_much, conductors)


def _square(v: ComplexArray) -> FloatArray:
    return np.asarray(v.real * v.real + v.imag * v.imag)
