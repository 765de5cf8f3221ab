"""What must hold with a new PV system: voltages within limits, currents within declared ampacities.

A step at which some limit is broken without any new PV is no reason to host nothing. There nothing may get
worse than it is without PV by more than a public tolerance; what is within its limit has at least that room.
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
    feeder: Feeder,
    default_a: float | None,
    own_a: Mapping[str, float],
    public_bus: Mapping[str, str],
    *,
    file_names: bool = True,
) -> dict[int, float]:
    """Line → ampacity [A].

    Parameters
    ----------
    default_a : of every line without one of its own; None for no limit.
    own_a : by the name of a line, or its two buses, "a-b".
    public_bus : bus of the feeder → its public name, where there is one.
    file_names : whether names of the feeder's file are understood beside public ones.

    Raises
    ------
    ConfigError
        If a key is no line of the network.
    """
    lines_of: dict[str, list[int]] = {}
    for k, line in enumerate(feeder.lines):
        for name in dict.fromkeys(_names(feeder, line, public_bus, file_names=file_names)):
            lines_of.setdefault(name, []).append(k)
    found = {} if default_a is None else dict.fromkeys(range(len(feeder.lines)), default_a)
    for key, ampacity in own_a.items():
        if key.lower() not in lines_of:
            raise ConfigError(
                f"ampacities_a names '{key}', which is no line of the network; name two buses of "
                "buses.parquet that a line joins, as in 'b003-b017'"
            )
        found |= dict.fromkeys(lines_of[key.lower()], ampacity)
    return found


def _names(feeder: Feeder, line: Line, public_bus: Mapping[str, str], *, file_names: bool) -> Iterator[str]:
    if file_names:
        yield line.name.lower()
    slack = set(feeder.slack.tolist())
    buses = list(dict.fromkeys(bus_name(feeder.nodes[k], is_source=k in slack) for k in line.nodes))
    if len(buses) == 2:
        known = [public_bus.get(bus, bus) for bus in buses if file_names or bus in public_bus]
        for one, other in ([buses] if file_names else []) + ([known] if len(known) == 2 else []):
            yield f"{one}-{other}".lower()
            yield f"{other}-{one}".lower()


@dataclass(frozen=True, eq=False)
class Bounds:
    """What every snapshot is held to, in squares.

    Attributes
    ----------
    high, low : (snapshot, energised) largest and smallest |v|².
    current : (snapshot, conductor) largest share of the ampacity, squared; None without any.
    broken : (snapshot,) whether any limit is broken without new PV.
    conductors : whose currents are limited.
    """

    high: FloatArray
    low: FloatArray
    current: FloatArray | None
    broken: BoolArray
    conductors: Conductors | None

    def of(self, some: IntArray) -> Bounds:
        """Of some snapshots."""
        current = None if self.current is None else self.current[some]
        return Bounds(self.high[some], self.low[some], current, self.broken[some], self.conductors)

    def margins(self, v: ComplexArray, rows: IntArray) -> tuple[FloatArray, IntArray]:
        """How far every solution is from breaking a limit, and which.

        Parameters
        ----------
        v : complex (solution, energised) [p.u.], NaN where there is none.
        rows : (solution,) snapshot whose bounds count.

        Returns
        -------
        (solution,) least margin, in squares, negative if a limit is broken; and 2 × `Binds` of the limit that
        it is of, plus 1 where a limit of the snapshot is broken without new PV.
        """
        size = _square(v)
        margin = np.full(len(rows), np.inf)
        code = np.zeros(len(rows), dtype=np.int64)
        sides = [(Binds.HIGH, self.high[rows] - size), (Binds.LOW, size - self.low[rows])]
        if self.conductors is not None and self.current is not None:
            sides.append((Binds.CURRENT, self.current[rows] - self.conductors.shares(v)))
        for binds, room in sides:
            least = room.min(axis=1)
            closer = least < margin
            margin[closer], code[closer] = least[closer], 2 * binds
        unsolved = np.isnan(size).any(axis=1)
        margin[unsolved], code[unsolved] = -np.inf, 2 * Binds.UNSOLVED
        return margin, code + self.broken[rows]


def bounds_of(
    feeder: Feeder, v: ComplexArray, limits: tuple[float, float, float], conductors: Conductors | None
) -> Bounds:
    """Bounds of snapshots, from their voltages without new PV.

    Parameters
    ----------
    v : complex (snapshot, energised) [p.u.].
    limits : smallest and largest voltage [p.u.], and by how much anything may get worse where a limit is
        broken: of 1 p.u. of voltage, and of the ampacity.
    """
    v_min, v_max, worsening = limits
    neutral = np.isin(feeder.energised, feeder.neutral)
    size = np.sqrt(_square(v))
    broken = ((size > v_max) | (size < v_min))[:, ~neutral].any(axis=1)
    share = None if conductors is None else np.sqrt(conductors.shares(v))
    if share is not None:
        broken = broken | (share > 1.0).any(axis=1)
    room = np.where(broken, worsening, -np.inf)[:, None]
    high = np.maximum(v_max, size + room) ** 2
    low = np.maximum(np.minimum(v_min, size - room), 0.0) ** 2
    high[:, neutral], low[:, neutral] = np.inf, -np.inf
    current = None if share is None else np.maximum(1.0, share + room) ** 2
    return Bounds(high, low, current, np.asarray(broken), conductors)


def _square(v: ComplexArray) -> FloatArray:
    return np.asarray(v.real * v.real + v.imag * v.imag)
