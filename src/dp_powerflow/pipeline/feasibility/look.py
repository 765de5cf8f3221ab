"""Power flow of public loads on some networks: what has a solution, and at which voltages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dp_powerflow._bits.elementary import modulus
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.pipeline.feasibility.loads import DAYS, PublicLoads
from dp_powerflow.powerflow.batch import Solver
from dp_powerflow.powerflow.sun import Generation
from dp_powerflow.units import ComplexArray, FloatArray

RANGE_A = (0.95, 1.05)
"""Service voltages of ANSI C84.1, range A [p.u.]."""
USUAL, ENDURED = (0.9, 1.1), (0.8, 1.2)
"""Voltages that a corpus is expected to have, and outside which no feeder is operated [p.u.]."""
NO_LOAD = "no load"
NOMINAL = "nominal load"
UPPER = "every customer at the upper bound"

Opened = Callable[[Feeder], tuple[Solver, Generation | None]]
"""What solves a network for days of the loads, and its generation on them."""


@dataclass(frozen=True)
class Corner:
    """One load level on every network.

    Attributes
    ----------
    solved : whether every network has a solution.
    lowest, highest : voltage of any node with a load [p.u.], None where nothing is solved.
    """

    solved: bool
    lowest: float | None
    highest: float | None


@dataclass(frozen=True)
class Look:
    """What public loads do on some networks.

    Attributes
    ----------
    networks, snapshots : how many were looked at, snapshots of all networks together.
    unsolved : snapshots without solution.
    unusual, strained : solved snapshots with a voltage outside `USUAL`, or `ENDURED`, somewhere.
    lowest, highest : voltage of any node with a load [p.u.], None where nothing is solved.
    within : share of voltages in ANSI range A, of the snapshots with a solution.
    corners : load level → what it does.
    """

    networks: int
    snapshots: int
    unsolved: int
    unusual: int
    strained: int
    lowest: float | None
    highest: float | None
    within: float | None
    corners: Mapping[str, Corner] = field(default_factory=dict)

    @property
    def unsolved_share(self) -> float:
        """Share of snapshots without solution."""
        return self.unsolved / max(self.snapshots, 1)

    @property
    def unusual_share(self) -> float:
        """Share of snapshots without solution, or with unusual voltages."""
        return (self.unsolved + self.unusual) / max(self.snapshots, 1)

    @property
    def bad_share(self) -> float:
        """Share of snapshots without solution, or with voltages that no feeder is operated at."""
        return (self.unsolved + self.strained) / max(self.snapshots, 1)


def look_at(networks: Iterable[Feeder], opened: Opened, loads: PublicLoads) -> Look:
    """Solve the days and the corners of public loads on every network.

    Parameters
    ----------
    loads : of the loads of every network, which have the same ones in the same order.
    """
    days: list[_Solved] = []
    corners: dict[str, list[_Solved]] = {NO_LOAD: [], NOMINAL: [], UPPER: []}
    levels = (np.zeros_like(loads.nominal), loads.nominal, loads.upper)
    for feeder in networks:
        solver, generation = opened(feeder)
        days.append(_solved(solver, generation, loads.drawn))
        for found, level in zip(corners.values(), levels, strict=True):
            # A whole day of it, as controls that remember want whole days; at night, without sun.
            found.append(_solved(solver, None, np.tile(level, (len(loads.drawn) // DAYS, 1))))
    low, high, inside = _range(days)
    return Look(
        networks=len(days),
        snapshots=sum(one.snapshots for one in days),
        unsolved=sum(one.unsolved for one in days),
        unusual=sum(one.outside(USUAL) for one in days),
        strained=sum(one.outside(ENDURED) for one in days),
        lowest=low,
        highest=high,
        within=inside,
        corners={name: _corner(found) for name, found in corners.items()},
    )


@dataclass(frozen=True, eq=False)
class _Solved:
    """Snapshots of one network.

    Attributes
    ----------
    snapshots, unsolved : how many, and how many of them without solution.
    v : (solved snapshot, node with load) magnitudes [p.u.].
    """

    snapshots: int
    unsolved: int
    v: FloatArray

    def outside(self, limits: tuple[float, float]) -> int:
        """Solved snapshots with a voltage outside these limits somewhere."""
        return int(np.sum((self.v < limits[0]).any(axis=1) | (self.v > limits[1]).any(axis=1)))


def _solved(solver: Solver, generation: Generation | None, load: ComplexArray) -> _Solved:
    feeder, by_element = solver.feeder, solver.columns == "elements"
    if not by_element:
        shares = feeder.load_shares.tocsr()[feeder.retained]
        load = np.asarray((shares @ load.T).T)
    injected = None
    if generation is not None:
        days = np.arange(DAYS)
        injected = generation.by_system(days) if by_element else generation.of(days)
    solution = solver.solve(np.ascontiguousarray(load), injected)
    solved = solution.converged
    return _Solved(len(solved), int(np.sum(~solved)), modulus(solution.v[solved]))


def _corner(found: Sequence[_Solved]) -> Corner:
    low, high, _ = _range(found)
    return Corner(not any(one.unsolved for one in found), low, high)


def _range(found: Sequence[_Solved]) -> tuple[float | None, float | None, float | None]:
    """Lowest and highest voltage, and the share in range A; None where nothing is solved."""
    v = np.concatenate([one.v.ravel() for one in found])
    if not v.size:
        return None, None, None
    inside = (v >= RANGE_A[0]) & (v <= RANGE_A[1])
    return float(v.min()), float(v.max()), float(inside.mean())
