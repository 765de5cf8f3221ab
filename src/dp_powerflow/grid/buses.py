"""Buses of a feeder: which nodes form one, and which buses an element joins. PRIVATE, as the feeder is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from typing import cast

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from dp_powerflow.errors import FeederError, printable
from dp_powerflow.grid.feeder import GROUND, Feeder, Load, PVSystem
from dp_powerflow.grid.operation import without_nodes
from dp_powerflow.grid.quantities import LINE, SWITCH, TRANSFORMER
from dp_powerflow.units import BoolArray, IntArray


@dataclass(frozen=True, eq=False)
class BusGraph:
    """The buses of a feeder and what joins them.

    Attributes
    ----------
    names : of the buses, in the order of their first nodes.
    bus_of : integer (node,) bus of every node of the feeder; a source belongs to the bus that it feeds.
    phase : integer (node,) number of its conductor, as the feeder names it; 1 for a balanced node.
    kind_of : pair of buses, the smaller number first → what joins them: a line, else a switch, else a
        transformer.
    source : boolean (bus,) whether it has a source.
    """

    names: tuple[str, ...]
    bus_of: IntArray
    phase: IntArray
    kind_of: dict[tuple[int, int], str]
    source: BoolArray

    @classmethod
    def of(cls, feeder: Feeder) -> BusGraph:
        """The buses of a feeder, from the names of its nodes, the pattern of `y` and its lines."""
        slack = set(feeder.slack.tolist())
        named = [bus_name(node, is_source=k in slack) for k, node in enumerate(feeder.nodes)]
        names = tuple(dict.fromkeys(named))
        number = {name: k for k, name in enumerate(names)}
        bus_of = np.array([number[name] for name in named], dtype=np.int64)
        source = np.zeros(len(names), dtype=np.bool_)
        source[bus_of[feeder.slack]] = True
        phase = np.array([int(node.rsplit(".", 1)[1]) for node in feeder.nodes], dtype=np.int64)
        return cls(names, bus_of, phase, _kinds(feeder, bus_of), source)


def bus_name(node: str, *, is_source: bool = False) -> str:
    """Name of the bus of a node, "bus.phase" or, of a source, "emf(bus).phase"."""
    name = node.rsplit(".", 1)[0]
    return name.removeprefix("emf(").removesuffix(")") if is_source else name


def _kinds(feeder: Feeder, bus_of: IntArray) -> dict[tuple[int, int], str]:
    """Every pair of buses between which `y` has an entry, and what joins it."""
    by_kind: dict[str, set[tuple[int, int]]] = {LINE: set(), SWITCH: set()}
    for line in feeder.lines:
        ends = sorted({int(bus_of[node]) for node in line.nodes})
        by_kind[SWITCH if line.is_switch else LINE].update(combinations(ends, 2))
    pattern = sp.coo_array(feeder.y)
    entries = pattern.data != 0
    rows, columns = (bus_of[axis[entries]] for axis in pattern.coords)
    coupled = np.unique(np.stack([rows, columns], axis=1)[rows != columns], axis=0)
    pairs = sorted({(min(pair), max(pair)) for pair in coupled.tolist()})
    return {
        pair: next((kind for kind, joined in by_kind.items() if pair in joined), TRANSFORMER)
        for pair in pairs
    }


def islanded_nodes(feeder: Feeder) -> list[str]:
    """Names of the nodes that no chain of admittances connects to a slack node."""
    pattern = sp.csr_array(feeder.y != 0)
    _, component = connected_components(pattern, directed=False)
    fed = np.isin(component, component[feeder.slack])
    return [feeder.nodes[k] for k in np.flatnonzero(~fed)]


def without_islands(feeder: Feeder) -> Feeder:
    """The feeder without its islanded nodes and everything connected to them, stated in its notes."""
    dead = set(islanded_nodes(feeder))
    if not dead:
        return feeder
    kept = np.array([k for k, name in enumerate(feeder.nodes) if name not in dead])
    moved = {int(old): new for new, old in enumerate(kept)} | {GROUND: GROUND}

    def fed(element: Load | PVSystem) -> bool:
        return all(node in moved for branch in element.branches for node in branch)

    def shifted(element: Load | PVSystem) -> tuple[tuple[int, int], ...]:
        return tuple((moved[i], moved[j]) for i, j in element.branches)

    loads = tuple(replace(load, branches=shifted(load)) for load in feeder.loads if fed(load))
    pv = tuple(replace(system, branches=shifted(system)) for system in feeder.pv if fed(system))
    lines = tuple(
        replace(line, nodes=tuple(moved[k] for k in line.nodes))
        for line in feeder.lines
        if all(k in moved for k in line.nodes)
    )
    note = (
        f"{len(dead)} islanded nodes are left out, with {len(feeder.loads) - len(loads)} loads, "
        f"{len(feeder.pv) - len(pv)} PV systems and {len(feeder.lines) - len(lines)} lines on them"
    )
    return replace(
        feeder,
        nodes=tuple(feeder.nodes[k] for k in kept),
        base_kv=feeder.base_kv[kept],
        y=feeder.y[kept, :][:, kept],
        slack=np.array([moved[int(k)] for k in feeder.slack]),
        nominal_angle_deg=feeder.nominal_angle_deg[kept],
        neutral=np.array([moved[int(k)] for k in feeder.neutral if int(k) in moved], dtype=np.int64),
        loads=loads,
        pv=pv,
        lines=lines,
        notes=(*feeder.notes, note),
        operation=feeder.operation and without_nodes(feeder.operation, kept.tolist()),
    )


_SHOWN = 3
_NAMES_SHOWN = 3


class SeveralReasonsError(FeederError):
    """A feeder that cannot be used for several reasons; the sentence has the first few, and their number."""

    code = "feeder-several"

    def __init__(self, errors: tuple[FeederError, ...]) -> None:
        super().__init__(errors)
        self._errors = errors

    @property
    def each(self) -> tuple[FeederError, ...]:
        """One error for every reason."""
        return self._errors

    @property
    def reasons(self) -> tuple[str, ...]:
        """All reasons, each a sentence that says what to do."""
        return tuple(map(str, self._errors))

    @property
    def fix(self) -> None:
        """None: every reason has its own."""

    def __str__(self) -> str:
        rest = len(self.reasons) - _SHOWN
        more = f"; and {rest} more, which 'dp-powerflow inspect FEEDER' lists" if rest > 0 else ""
        return printable(_numbered(self.reasons[:_SHOWN], len(self.reasons)) + more)


def _numbered(reasons: Sequence[str], count: int) -> str:
    if count == 1:
        return reasons[0]
    shown = "; ".join(f"({k}) {reason}" for k, reason in enumerate(reasons, start=1))
    return f"the feeder cannot be used for {count} reasons: {shown}"


def in_full(reasons: Sequence[str]) -> FeederError:
    """One error that lists all the reasons."""
    return FeederError(_numbered(reasons, len(reasons)), code=SeveralReasonsError.code)


def reasons_of(error: FeederError) -> tuple[str, ...]:
    """The reasons of an error, one by one."""
    return tuple(map(str, error.each))


class Problems:
    """Errors while they are collected; none is kept twice."""

    def __init__(self, errors: Iterable[FeederError] = ()) -> None:
        self._found: dict[str, FeederError] = {}
        self.add(*errors)

    @property
    def found(self) -> tuple[str, ...]:
        """Reasons in the order in which they came."""
        return tuple(self._found)

    @property
    def errors(self) -> tuple[FeederError, ...]:
        """The same as errors, one for every reason."""
        return tuple(self._found.values())

    def add(self, *errors: FeederError) -> None:
        for error in errors:
            for reason in error.each:
                self._found.setdefault(str(reason), cast(FeederError, reason))

    @contextmanager
    def gather(self) -> Iterator[None]:
        """Keep what a block is refused for, and go on after it."""
        try:
            yield
        except FeederError as error:
            self.add(error)

    def refuse(self) -> None:
        """Raise what was found, if anything was."""
        if len(self._found) == 1:
            raise next(iter(self._found.values()))
        if self._found:
            raise SeveralReasonsError(self.errors)


def some_of(names: Sequence[str]) -> str:
    """The first few of several names, as they stand in a sentence."""
    return ", ".join(f"'{name}'" for name in names[:_NAMES_SHOWN]) + ", …" * (len(names) > _NAMES_SHOWN)
