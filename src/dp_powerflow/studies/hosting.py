"""A hosting-capacity study: its settings, what it publishes, and the search for capacities."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from pydantic import Field, model_validator

from dp_powerflow.corpus.tables import Connections
from dp_powerflow.errors import ConfigError, PowerFlowError
from dp_powerflow.grid.feeder import GROUND, Feeder, PVSystem
from dp_powerflow.model.sample import SolvedDays, solve_days
from dp_powerflow.page import Axis, Band, Figure, Quantiles
from dp_powerflow.powerflow.batch import BatchSolver, Solver
from dp_powerflow.powerflow.devices import VoltVar
from dp_powerflow.powerflow.operated import OperatedSolution, OperatedSolver
from dp_powerflow.studies.study import (
    Findings,
    Kind,
    Progress,
    Study,
    ampacities_of,
    each_in_order,
    network_map,
)
from dp_powerflow.units import KW_PER_MW, BoolArray, ComplexArray, FloatArray, IntArray

_WHOLE = 1e-6
Ampere = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class HostingCapacity(Kind):
    """Per node and day, the largest PV system that keeps every voltage and declared current within limits.

    Taps and capacitors stay where they are on the drawn day.

    Attributes
    ----------
    nodes : released nodes with a load, or all released nodes.
    v_min_pu, v_max_pu : limits of every voltage of the feeder [p.u.].
    most_kw : where a capacity is cut [kW at peak irradiance].
    grid_kw : capacities are whole multiples of it [kW], rounded down.
    power_factor : of the new PV; the release's volt-var curve counts instead where it has one.
    reactive : whether PV with a power factor below 1 absorbs or injects reactive power.
    ampacity_a : largest current of every conductor of every line [A]; None for no limit.
    ampacities_a : of single lines, by their two public buses, "b003-b017" [A]; in experiments also by names
        of the feeder's file.
    worsening_pu : by how much anything may get worse at a step at which a limit is broken without new PV: of
        1 p.u. of voltage, and of the ampacity.
    per_day : whether the capacity of every day is published along with the quantiles.

    Examples
    --------
    >>> HostingCapacity(v_max_pu=1.04).name
    'hosting-capacity'
    """

    name: ClassVar[str] = "hosting-capacity"
    template: ClassVar[str] = "hosting-capacity.txt"

    nodes: Literal["load", "released"] = "load"
    v_min_pu: float = Field(default=0.95, gt=0.0, lt=2.0)
    v_max_pu: float = Field(default=1.05, gt=0.0, lt=2.0)
    most_kw: float = Field(default=5000.0, gt=0.0, le=60000.0)
    grid_kw: float = Field(default=0.1, ge=0.01)
    power_factor: float = Field(default=1.0, gt=0.0, le=1.0)
    reactive: Literal["absorbed", "injected"] = "absorbed"
    ampacity_a: Ampere | None = None
    ampacities_a: dict[str, Ampere] = Field(default_factory=dict)
    worsening_pu: float = Field(default=0.001, ge=0.0, le=0.1)
    per_day: bool = False

    @model_validator(mode="after")
    def _makes_sense(self) -> HostingCapacity:
        if self.v_min_pu >= self.v_max_pu:
            raise ValueError("v_min_pu must be below v_max_pu")
        if self.grid_kw > self.most_kw:
            raise ValueError("grid_kw must not be larger than most_kw")
        if abs(self.most_kw / self.grid_kw - round(self.most_kw / self.grid_kw)) > _WHOLE:
            raise ValueError("most_kw must be a whole multiple of grid_kw")
        return self

    @property
    def top(self) -> int:
        """Largest capacity, in steps of the grid."""
        return round(self.most_kw / self.grid_kw)

    def check(self, study: Study) -> None:
        """Refuse a study without sun, without a node that may get PV, or with an unknown line."""
        sun = study.irradiance
        if sun is None:
            raise ConfigError(
                "hosting capacity needs the irradiance of new PV; declare it with solar.irradiance, or a "
                "latitude for days of clear sky"
            )
        if sun.ndim != 2 or sun.shape[1] != study.steps or not len(sun):
            raise ConfigError(f"the irradiance of new PV must be (day, step), with {study.steps} steps a day")
        if not np.all(np.isfinite(sun)) or np.any(sun < 0.0):
            raise PowerFlowError("irradiance must be finite and not negative; 0 at night, 1 at peak")
        if not len(self.places(study)):
            raise ConfigError(
                "no released node carries a load; set nodes = 'released' for all released nodes"
            )
        if self.power_factor < 1.0 and turned(study.make_solver(1)):
            raise ConfigError(
                "new PV follows the volt-var curve of the release; leave out power_factor, or derive from a "
                "release without solar.volt_var"
            )
        self._ampacities(study)

    def find(self, study: Study, *, workers: int | None = None, progress: Progress | None = None) -> Findings:
        """Capacities of all nodes and days, as tables, figures and page items."""
        self.check(study)
        return findings_of(self.capacities(study, workers=workers, progress=progress))

    def capacities(
        self, study: Study, *, workers: int | None = None, progress: Progress | None = None
    ) -> Hosted:
        """Capacity, binding limit and binding step of every node and day, as arrays."""
        places = self.places(study)
        base = study.make_solver(1)
        hosts = hosts_of(base, study.released[places], self.most_kw / self.power_factor)
        conductors = conductors_of(study.feeder, self._ampacities(study))

        def capacities_of(block: int) -> Capacities:
            return _Block(self, study, base, hosts, conductors, block).found()

        blocks = list(each_in_order(capacities_of, study.source.n_blocks, workers, progress))
        return Hosted(self, study, places, blocks)

    def per_step(self, feeder: Feeder) -> complex:
        """Complex power of one step of the grid at peak irradiance [p.u.]."""
        tangent = float(np.sqrt(1.0 - self.power_factor**2)) / self.power_factor
        per_kw = complex(1.0, -tangent if self.reactive == "absorbed" else tangent)
        return self.grid_kw * (per_kw / (feeder.base_mva * KW_PER_MW))

    def places(self, study: Study) -> IntArray:
        """Positions among the released nodes of those that get PV."""
        released = study.released
        fit = ~np.isin(released, study.feeder.neutral) & ~np.isin(released, study.feeder.slack)
        if self.nodes == "load":
            fit &= np.isin(released, _load_nodes(study))
        return np.flatnonzero(fit)

    def _ampacities(self, study: Study) -> dict[int, float]:
        return ampacities_of(study, self.ampacity_a, self.ampacities_a)


def _load_nodes(study: Study) -> IntArray:
    """Nodes with a load, neutrals left out."""
    loaded = np.unique(study.feeder.load_shares.indices).astype(np.int64)
    return np.setdiff1d(loaded, study.feeder.neutral)


# --- what is published ------------------------------------------------------------------------------------
_CAPACITY = Axis("hosting capacity", "kW", decimals=1)


def map_of(connections: Connections, places: IntArray, median_kw: FloatArray) -> Figure:
    """The network, coloured by the median over days of the capacity of a node.

    Parameters
    ----------
    places : (candidate,) positions among the released nodes.
    median_kw : (candidate,) [kW].
    """
    views = {}
    for phase in np.unique(connections.phase[places]).tolist():
        of = connections.phase[places] == phase
        views[f"phase {phase}"] = np.full(connections.n_buses, np.nan)
        views[f"phase {phase}"][connections.bus_of[places[of]]] = median_kw[of]
    laid = (
        "Buses stand at their released coordinates."
        if connections.coordinates is not None
        else "The layout is computed from the connections alone: lengths and directions mean nothing."
    )
    caption = (
        f"Median over days of the largest PV system at a node alone. {laid} Pale buses have no node with a "
        "capacity."
    )
    chart = network_map(connections, _CAPACITY, views)
    return Figure("hosting-map", "Hosting capacity over the network", caption, chart)


def band_of(quantiles_kw: FloatArray, levels: tuple[int, ...]) -> Figure:
    """Quantiles over days of every node, nodes in rising order of their median."""
    order = np.argsort(quantiles_kw[levels.index(50)], kind="stable")
    bands = Quantiles("capacity", tuple(float(level) for level in levels), quantiles_kw[:, order])
    at = np.arange(1, len(order) + 1)
    chart = Band(Axis("node, by rising median", decimals=0), _CAPACITY, at, (bands,))
    caption = (
        "Quantiles over days of the capacity of every node. The bands hold all days, the middle 90 % and the "
        "middle 50 %; the line is the median."
    )
    return Figure("hosting-nodes", "Hosting capacity by node", caption, chart)


LEVELS = (0, 5, 25, 50, 75, 95, 100)
"""Quantiles over days [%]."""
TABLE, BINDING, DAYS = "hosting.parquet", "binding.parquet", "days/part-{:05d}.parquet"
ROWS_PER_PART = 1 << 20
"""Rows of one part of the table of days, at most; a part holds whole days."""
_MINUTES = 24 * 60


@dataclass(frozen=True, eq=False)
class Hosted:
    """Capacities of all nodes and days.

    Attributes
    ----------
    places : (candidate,) positions among the released nodes.
    blocks : of days, in order.
    """

    kind: HostingCapacity
    study: Study
    places: IntArray
    blocks: Sequence[Capacities]

    def _all(self, name: str) -> Any:
        """A figure of all blocks, one after the other."""
        return np.concatenate([getattr(block, name) for block in self.blocks])

    @cached_property
    def steps(self) -> IntArray:
        """(day, candidate) capacity, in steps of the grid."""
        return np.asarray(self._all("steps"))

    @cached_property
    def binds(self) -> IntArray:
        """(day, candidate) `Binds` of the limit that the next step of the grid breaks."""
        return np.asarray(self._all("code") // 2)

    @cached_property
    def broken_before(self) -> BoolArray:
        """(day, candidate) whether some limit is broken without new PV at the step that binds."""
        return np.asarray(self._all("code") % 2 == 1)

    @cached_property
    def minute(self) -> IntArray:
        """(day, candidate) minutes after midnight at which the step that binds begins; −1 for none."""
        at = self._all("at")
        return np.where(at < 0, -1, at * _MINUTES // self.study.steps)

    @property
    def node_ids(self) -> list[str]:
        """Of the candidates."""
        return [self.study.node_ids[k] for k in self.places.tolist()]

    def kw(self, steps: IntArray) -> FloatArray:
        """Capacity in kW."""
        return np.round(steps * self.kind.grid_kw, 6)

    @cached_property
    def quantiles_kw(self) -> FloatArray:
        """(level, candidate) quantiles over days [kW]: of a day that was drawn, the lower of two."""
        return self.kw(_quantiles(self.steps))


def _quantiles(steps: IntArray) -> IntArray:
    """(level, …) along the first axis; nothing is interpolated."""
    return np.quantile(steps, np.array(LEVELS) / 100.0, axis=0, method="lower").astype(np.int64)


def findings_of(hosted: Hosted) -> Findings:
    """What is published."""
    tables = {TABLE: _nodes_table(hosted), BINDING: _binding_table(hosted)}
    if hosted.kind.per_day:
        tables |= dict(_day_tables(hosted))
    items = [band_of(hosted.quantiles_kw, LEVELS)]
    if hosted.study.connections is not None:
        items.insert(0, map_of(hosted.study.connections, hosted.places, _median(hosted)))
    return Findings(tables, _figures(hosted), tuple(items))


def _median(hosted: Hosted) -> FloatArray:
    return np.asarray(hosted.quantiles_kw[LEVELS.index(50)])


def _percent(part: FloatArray | IntArray | BoolArray) -> FloatArray:
    """Share of the days [%], one decimal."""
    return np.asarray(np.round(100.0 * part.mean(axis=0), 1))


def _nodes_table(hosted: Hosted) -> pa.Table:
    columns: dict[str, Any] = {"node_id": pa.array(hosted.node_ids, pa.string())}
    if (found := hosted.study.connections) is not None:
        columns["phase"] = pa.array(found.phase[hosted.places], pa.int32())
    for level, values in zip(LEVELS, hosted.quantiles_kw, strict=True):
        columns[f"q{level:03d}_kw"] = pa.array(values, pa.float64())
    for binds, name in enumerate(BINDS):
        columns[f"binds_{name}_percent"] = pa.array(_percent(hosted.binds == binds), pa.float64())
    columns["broken_before_percent"] = pa.array(_percent(hosted.broken_before), pa.float64())
    return pa.table(columns)


def _binding_table(hosted: Hosted) -> pa.Table:
    """How often each limit binds in which hour of the day, by node; what never happens has no row."""
    node = np.broadcast_to(np.arange(len(hosted.places)), hosted.binds.shape)
    there = hosted.binds != Binds.NOTHING
    keys = np.stack([node[there], hosted.binds[there], hosted.minute[there] // 60], axis=1)
    found, count = np.unique(keys.reshape(-1, 3), axis=0, return_counts=True)
    names = hosted.node_ids
    return pa.table(
        {
            "node_id": pa.array([names[k] for k in found[:, 0]], pa.string()),
            "limit": pa.array([BINDS[k] for k in found[:, 1].tolist()], pa.string()),
            "hour": pa.array(found[:, 2], pa.int32()),
            "days": pa.array(count, pa.int32()),
        }
    )


def _day_tables(hosted: Hosted) -> Iterator[tuple[str, pa.Table]]:
    """Capacity of every node and day, in parts of whole days."""
    nodes, days = len(hosted.places), len(hosted.steps)
    per_part = max(1, ROWS_PER_PART // nodes)
    for part, first in enumerate(range(0, days, per_part)):
        some = slice(first, min(first + per_part, days))
        shape = hosted.steps[some].shape
        minute = hosted.minute[some].ravel()
        yield (
            DAYS.format(part),
            pa.table(
                {
                    "day": pa.array(np.repeat(np.arange(some.start, some.stop), nodes), pa.int32()),
                    "node_id": pa.array(hosted.node_ids * shape[0], pa.string()),
                    "capacity_kw": pa.array(hosted.kw(hosted.steps[some]).ravel(), pa.float64()),
                    "limit": pa.array([BINDS[k] for k in hosted.binds[some].ravel().tolist()], pa.string()),
                    "minute": pa.array(minute, pa.int32(), mask=minute < 0),
                    "broken_before": pa.array(hosted.broken_before[some].ravel(), pa.bool_()),
                }
            ),
        )


def _figures(hosted: Hosted) -> Mapping[str, Any]:
    kind, median = hosted.kind, _median(hosted)
    limited = kind.ampacity_a is not None or bool(kind.ampacities_a)
    overall = hosted.kw(_quantiles(hosted.steps.ravel()))
    return {
        "nodes": len(hosted.places),
        "days": len(hosted.steps),
        "limits": {"v_min_pu": kind.v_min_pu, "v_max_pu": kind.v_max_pu, "ampacities": limited},
        "quantiles_kw": {f"q{level:03d}": float(kw) for level, kw in zip(LEVELS, overall, strict=True)},
        "median_by_node_kw": {
            "least": float(median.min()),
            "middle": float(median[_middle(median)]),
            "most": float(median.max()),
        },
        "binds_percent": {
            name: float(_percent((hosted.binds == binds).ravel())) for binds, name in enumerate(BINDS)
        },
        "days_broken_before": int(sum(np.count_nonzero(block.broken) for block in hosted.blocks)),
        "broken_before_percent": float(_percent(hosted.broken_before.ravel())),
        "scaled_down_snapshots": sum(block.scaled_down for block in hosted.blocks),
        "capacities_cut": int(np.count_nonzero(hosted.binds == Binds.NOTHING)),
        "capacities_unsolved": int(np.count_nonzero(hosted.binds == Binds.UNSOLVED)),
        "load_nodes_left_out": len(np.setdiff1d(_load_nodes(hosted.study), hosted.study.released)),
    }


def _middle(values: FloatArray) -> int:
    """Place of the median, the lower of two."""
    return int(np.argsort(values, kind="stable")[(len(values) - 1) // 2])


# --- the search on the days of one block ------------------------------------------------------------------
# Snapshot by snapshot (fixed frame, or taps as drawn) a search solves the few steps of a day that a linear
# forecast calls tightest. What it finds is then solved at every step with sun; a step that breaks a limit
# joins the search, which goes on below. So every capacity is feasible at every step by power flow, and the
# next one of the grid is infeasible at one of them.
class Binds(IntEnum):
    """What is broken by the next step of the grid of capacities."""

    NOTHING = 0
    HIGH = 1
    LOW = 2
    CURRENT = 3
    UNSOLVED = 4


BINDS = ("most_kw", "v_max", "v_min", "ampacity", "no_solution")
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


MOST_PHASORS = 1 << 21
"""Voltages, loads and injections that are held at once: 32 MiB each."""


@dataclass(frozen=True, eq=False)
class HeldSnapshots:
    """Snapshots without new PV, and what they are held to.

    Attributes
    ----------
    load : complex (snapshot, column) drawn [p.u.].
    generation : complex (snapshot, column) that is there already [p.u.]; None without any.
    sun : (snapshot,) share of peak irradiance.
    states : integer (snapshot, control) taps and capacitors; no column where nothing moves.
    bounds : of every snapshot.
    """

    load: ComplexArray
    generation: ComplexArray | None
    sun: FloatArray
    states: IntArray
    bounds: Bounds

    def __len__(self) -> int:
        return len(self.load)


@dataclass(frozen=True, eq=False)
class Hosts:
    """The network with a place for a PV system at every candidate.

    Attributes
    ----------
    load_at, columns : where the solver takes load and generation of the study: nodes of the fixed frame,
        or loads and PV systems of the feeder as operated.
    places : (candidate,) where it takes the power of new PV.
    """

    solver: BatchSolver | OperatedSolver
    load_at: IntArray
    columns: IntArray
    places: IntArray

    @property
    def _sizes(self) -> tuple[int, int]:
        """Columns of load and of injections."""
        feeder = self.solver.feeder
        if isinstance(self.solver, OperatedSolver):
            return len(feeder.loads), len(feeder.pv)
        return len(feeder.retained), len(feeder.retained)

    @property
    def width(self) -> int:
        """Voltages, loads and injections of one snapshot, for what is solved at once."""
        return len(self.solver.feeder.energised) + sum(self._sizes)

    def voltages(
        self, rows: HeldSnapshots, at: IntArray, candidate: IntArray, power: ComplexArray
    ) -> ComplexArray:
        """Complex (solution, energised) [p.u.] of snapshots `at` with power at a candidate; NaN if none."""
        load, injected = (np.zeros((len(at), size), dtype=np.complex128) for size in self._sizes)
        load[:, self.load_at] = rows.load[at]
        if rows.generation is not None:
            injected[:, self.columns] = rows.generation[at]
        injected[np.arange(len(at)), self.places[candidate]] += power
        if isinstance(self.solver, OperatedSolver):
            return self.solver.solve_from(rows.states[at], load, injected, nodes="all")
        return self.solver.solve(load, injected, nodes="all").v


def hosts_of(base: Solver, candidates: IntArray, most_kva: float) -> Hosts:
    """The solver with one more PV system at every candidate, and taps as drawn.

    Parameters
    ----------
    candidates : (candidate,) nodes of the feeder.
    most_kva : largest apparent power of a new system [kVA].
    """
    feeder = base.feeder
    wider = with_places(feeder, candidates, most_kva)
    if isinstance(base, OperatedSolver):
        existing = len(feeder.pv)
        columns = np.arange(len(feeder.loads)), np.arange(existing), existing + np.arange(len(candidates))
        return Hosts(base.on(wider, controls="frozen"), *columns)
    assert isinstance(base, BatchSolver)
    own = np.searchsorted(wider.retained, feeder.retained)
    places = np.searchsorted(wider.retained, candidates)
    curves = _curves(base.voltvar, own, places, len(wider.retained))
    return Hosts(base.on(wider, voltvar=curves), own, own, places)


def with_places(feeder: Feeder, candidates: IntArray, most_kva: float) -> Feeder:
    """The feeder with one more PV system, between node and ground, at every candidate."""
    new = [
        PVSystem(f"new at {feeder.nodes[k]}", ((int(k), GROUND),), most_kva, most_kva)
        for k in candidates.tolist()
    ]
    return replace(feeder, pv=(*feeder.pv, *new))


def _curves(known: VoltVar | None, columns: IntArray, places: IntArray, size: int) -> VoltVar | None:
    """The curves of a study: a new system follows the first where its node has none."""
    if known is None or not known.curves:
        return None
    curve_of = np.full(size, -1, dtype=np.int64)
    curve_of[columns] = known.curve_of
    new = places[curve_of[places] < 0]
    curve_of[new] = 0
    return VoltVar(known.curves, curve_of)


def turned(base: Solver) -> bool:
    """Whether PV systems of a study follow a volt-var curve, so that no power factor can be chosen."""
    curves = base.volt_var if isinstance(base, OperatedSolver) else getattr(base, "voltvar", None)
    return curves is not None


_HALVE_EVERY = 4
"""At every fourth look the interval is halved, whatever the secant says."""

Look = Callable[[IntArray, IntArray], tuple[FloatArray, IntArray, IntArray]]
"""Searches and an integer for each → margin (negative if infeasible), what is broken, and where."""


class Brackets:
    """Where the searches stand; at first nothing is known but that 0 is feasible.

    Parameters
    ----------
    margin : (search,) of 0.
    top : largest integer.

    Attributes
    ----------
    low, high : (search,) a feasible integer and an infeasible one above it; `top` + 1 where nothing
        infeasible is known.
    low_margin, high_margin : their margins; infinite where unknown.
    code, row : (search,) what is broken at `high`, and where.
    """

    def __init__(self, margin: FloatArray, top: int) -> None:
        n, self.top = len(margin), top
        self.low, self.high, self.code, self.row = (
            np.full(n, value, dtype=np.int64) for value in (0, top + 1, 0, -1)
        )
        self.low_margin, self.high_margin = margin.copy(), np.full(n, -np.inf)

    def run(self, chosen: IntArray, guess: IntArray, look: Look) -> None:
        """Narrow the chosen searches until `high` is `low` + 1.

        Every look moves `low` or `high` of every search, so it ends; an answer below `top` is an integer that
        was solved and found feasible, next to one that was found infeasible.

        Parameters
        ----------
        guess : (search chosen,) where to look first.
        look : computes margins.
        """
        at, looks = np.clip(guess, self.low[chosen] + 1, self.high[chosen] - 1), 0
        while True:
            open_ = self.high[chosen] - self.low[chosen] > 1
            chosen, at = chosen[open_], at[open_]
            if not len(chosen):
                return
            self._move(chosen, at, *look(chosen, at))
            looks += 1
            at = self._next(chosen, halve=looks % _HALVE_EVERY == 0)

    def _move(
        self, chosen: IntArray, at: IntArray, margin: FloatArray, code: IntArray, row: IntArray
    ) -> None:
        good: BoolArray = margin >= 0.0
        up, down = chosen[good], chosen[~good]
        self.low[up], self.low_margin[up] = at[good], margin[good]
        self.high[down], self.high_margin[down] = at[~good], margin[~good]
        self.code[down], self.row[down] = code[~good], row[~good]

    def _next(self, chosen: IntArray, *, halve: bool) -> IntArray:
        """By the secant where both margins are known, else twice as far or half way."""
        low, high = self.low[chosen], self.high[chosen]
        unknown = high > self.top
        middle = (low + high) // 2
        above, below = self.low_margin[chosen], self.high_margin[chosen]
        known = np.isfinite(below) & np.isfinite(above) & ~unknown
        share = np.where(known, above, 0.5) / np.where(known, above - below, 1.0)
        secant = (low + np.floor(share * (high - low))).astype(np.int64)
        at = np.where(known & (not halve), secant, middle)
        at = np.where(unknown, np.minimum(2 * low, self.top), at)
        return np.asarray(np.clip(at, low + 1, high - 1), dtype=np.int64)


_FIRST_STEPS = 3
"""Steps of a day that a search checks before the others."""
_PROBE = 32
"""The forecast is made with this part of the largest capacity."""
_MOST_FORECASTS = 1 << 22
_SMALL = 1e-30
_MOST_PAIRS = 1 << 14


@dataclass(frozen=True, eq=False)
class Capacities:
    """Capacities of some days.

    Attributes
    ----------
    steps : integer (day, candidate) capacity, in steps of the grid.
    code : integer (day, candidate) 2 × `Binds`, plus 1 where a limit is broken without new PV at that step.
    at : integer (day, candidate) step of the day that binds; −1 where nothing does.
    broken : (day,) whether a limit is broken without new PV at any step.
    scaled_down : snapshots whose powers were lowered, as in the release.
    """

    steps: IntArray
    code: IntArray
    at: IntArray
    broken: BoolArray
    scaled_down: int


class _Block:
    """One block of days; what it finds is a function of nothing else."""

    def __init__(
        self,
        kind: HostingCapacity,
        study: Study,
        base: Solver,
        hosts: Hosts,
        conductors: Conductors | None,
        block: int,
    ) -> None:
        solved = solve_days(
            base, study.source, block, generation=study.generation, nodes="all", scale_down=study.scales_down
        )
        solved.solution.raise_if_failed()
        assert study.irradiance is not None
        self._hosts, self._candidates, self._top = hosts, len(hosts.places), kind.top
        self._per_step = kind.per_step(study.feeder)
        self._steps, self._days = solved.steps, solved.days
        self._scaled_down = int(np.count_nonzero(solved.scaled_down))
        days = np.arange(solved.first_day, solved.first_day + solved.days)
        sun = study.irradiance[days % len(study.irradiance)].reshape(-1)
        limits = kind.v_min_pu, kind.v_max_pu, kind.worsening_pu
        bounds = bounds_of(study.feeder, solved.solution.v, limits, conductors)
        self._whole = HeldSnapshots(solved.load, solved.generation, sun, _states(solved), bounds)
        self._v = solved.solution.v

    def found(self) -> Capacities:
        """Search, then verify."""
        brackets = self._snapshots()
        shape = (self._days, self._candidates)
        return Capacities(
            steps=brackets.low.reshape(shape),
            code=brackets.code.reshape(shape),
            at=np.where(brackets.row < 0, -1, brackets.row % self._steps).reshape(shape),
            broken=np.asarray(self._whole.bounds.broken.reshape(self._days, -1).any(axis=1)),
            scaled_down=self._scaled_down,
        )

    def _snapshots(self) -> Brackets:
        """Every (day, candidate), with its own steps to look at."""
        sunny = _sorted_by_state(self._whole)
        rows = _chosen(self._whole, sunny)
        margin = rows.bounds.margins(self._v[sunny], np.arange(len(sunny)))[0]
        n = self._days * self._candidates
        brackets = Brackets(np.full(n, np.inf), self._top)
        if not len(sunny):
            brackets.low[:] = self._top
            return brackets
        active, guess = self._forecast(rows, sunny // self._steps)
        pairs = np.arange(n)
        while len(pairs):
            brackets.low_margin[pairs] = np.where(active[pairs] < 0, np.inf, margin[active[pairs]]).min(
                axis=1, initial=np.inf
            )
            self._narrow(rows, brackets, (pairs, guess), active)
            pairs, worst = self._refuted(rows, brackets, pairs, sunny // self._steps)
            active = np.concatenate([active, np.full((n, 1), -1)], axis=1)
            active[pairs, -1] = worst
            brackets.high[pairs], guess = brackets.low[pairs], brackets.low[pairs] - 1
            brackets.low[pairs] = 0
            brackets.row[pairs] = worst
        brackets.row = np.where(brackets.row < 0, -1, sunny[brackets.row])
        return brackets

    def _narrow(
        self, rows: HeldSnapshots, brackets: Brackets, begin: tuple[IntArray, IntArray], active: IntArray
    ) -> None:
        """Search on the active steps of every pair."""

        def look(pairs: IntArray, capacity: IntArray) -> tuple[FloatArray, IntArray, IntArray]:
            at = active[pairs]
            used = at >= 0
            of, column = np.nonzero(used)
            chosen = at[of, column]
            margin = np.full(at.shape, np.inf)
            code = np.zeros(at.shape, dtype=np.int64)
            margin[of, column], code[of, column] = self._margins(
                rows, chosen, pairs[of] % self._candidates, capacity[of]
            )
            worst = margin.argmin(axis=1)
            each = np.arange(len(pairs))
            return margin[each, worst], code[each, worst], at[each, worst]

        brackets.run(*begin, look)

    def _refuted(
        self, rows: HeldSnapshots, brackets: Brackets, pairs: IntArray, day_of: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Pairs whose capacity breaks a limit at some step with sun, and the worst step of each."""
        pairs = pairs[brackets.low[pairs] > 0]
        worst_margin = np.zeros(len(pairs))
        worst = np.full(len(pairs), -1, dtype=np.int64)
        of_day = [np.flatnonzero(day_of == day) for day in range(self._days)]
        for first in range(0, len(pairs), _MOST_PAIRS):
            some = pairs[first : first + _MOST_PAIRS]
            counts = np.array([len(of_day[pair // self._candidates]) for pair in some])
            at = np.concatenate([of_day[pair // self._candidates] for pair in some])
            of = np.repeat(np.arange(len(some)), counts)
            capacity, candidate = brackets.low[some][of], some[of] % self._candidates
            margin, code = self._margins(rows, at, candidate, capacity)
            bad = np.flatnonzero(margin < 0.0)
            for k in bad[np.lexsort((at[bad], -margin[bad]))].tolist():  # the worst of a pair comes last
                worst_margin[first + of[k]], worst[first + of[k]] = margin[k], at[k]
                brackets.code[some[of[k]]] = code[k]
        refuted = worst >= 0
        brackets.high_margin[pairs[refuted]] = worst_margin[refuted]
        return pairs[refuted], worst[refuted]

    def _margins(
        self, rows: HeldSnapshots, at: IntArray, candidate: IntArray, capacity: IntArray
    ) -> tuple[FloatArray, IntArray]:
        """Margin and code (`Bounds.margins`) of snapshots `at` with new PV, whatever their number."""
        power = np.asarray((capacity * rows.sun[at]) * self._per_step, dtype=np.complex128)
        order = np.argsort(at, kind="stable")
        margin, code = np.empty(len(at)), np.empty(len(at), dtype=np.int64)
        size = max(1, MOST_PHASORS // self._hosts.width)
        for first in range(0, len(at), size):
            some = order[first : first + size]
            v = self._hosts.voltages(rows, at[some], candidate[some], power[some])
            margin[some], code[some] = rows.bounds.margins(v, at[some])
        return margin, code

    def _forecast(self, rows: HeldSnapshots, day_of: IntArray) -> tuple[IntArray, IntArray]:
        """Tightest steps of every pair, and where to look first, by what a probe does to |v|² at peak sun."""
        probe = max(1, self._top // _PROBE)
        size = self._v.real**2 + self._v.imag**2
        active = np.full((self._days * self._candidates, _FIRST_STEPS), -1, dtype=np.int64)
        guess = np.ones(len(active), dtype=np.int64)
        sunny = _sorted_by_state(self._whole)
        together = max(1, MOST_PHASORS // self._hosts.width)
        for day in range(self._days):
            own = np.flatnonzero(day_of == day)
            for first in range(0, self._candidates if len(own) else 0, together):
                some = np.arange(first, min(first + together, self._candidates))
                peak = own[np.argmax(rows.sun[own])]
                amount = probe * float(rows.sun[peak])
                v = self._hosts.voltages(
                    rows, np.full(len(some), peak), some, np.full(len(some), amount * self._per_step)
                )
                slope = (v.real**2 + v.imag**2 - size[sunny[peak]]) / amount
                slope = np.where(np.isfinite(slope), slope, 0.0)
                reach = _reach(slope, rows, own, size[sunny[own]])
                order = np.argsort(reach, axis=1, kind="stable")[:, :_FIRST_STEPS]
                mine = day * self._candidates + some
                active[mine, : order.shape[1]] = own[order]
                least = np.minimum(reach.min(axis=1), self._top)
                guess[mine] = np.maximum(least, 1.0).astype(np.int64)
        return active, guess


def _states(solved: SolvedDays) -> IntArray:
    found = solved.solution
    if isinstance(found, OperatedSolution):
        return np.concatenate([found.taps, found.capacitors], axis=1)
    return np.zeros((len(solved.load), 0), dtype=np.int64)


def _sorted_by_state(rows: HeldSnapshots) -> IntArray:
    """Snapshots with sun; equal taps are next to each other."""
    sunny = np.flatnonzero(rows.sun > 0.0)
    keys = rows.states[sunny].T[::-1]
    return sunny[np.lexsort((sunny, *keys))] if len(keys) else sunny


def _chosen(rows: HeldSnapshots, some: IntArray) -> HeldSnapshots:
    generation = None if rows.generation is None else rows.generation[some]
    return HeldSnapshots(rows.load[some], generation, rows.sun[some], rows.states[some], rows.bounds.of(some))


def _reach(slope: FloatArray, rows: HeldSnapshots, own: IntArray, size: FloatArray) -> FloatArray:
    """(candidate, step) capacity at which a limit of voltage is met, were |v|² linear in it."""
    room_up, room_down = rows.bounds.high[own] - size, size - rows.bounds.low[own]
    reach = np.full((len(slope), len(own)), np.inf)
    some = max(1, _MOST_FORECASTS // max(room_up.size, 1))
    for first in range(0, len(slope), some):
        part = slope[first : first + some, None, :]
        pace = np.maximum(part / np.maximum(room_up, _SMALL), -part / np.maximum(room_down, _SMALL))
        fastest = pace.max(axis=2, initial=0.0) * rows.sun[own]
        reach[first : first + some] = 1.0 / np.maximum(fastest, _SMALL)
    return reach
