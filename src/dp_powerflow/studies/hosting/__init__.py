"""Settings of a hosting-capacity study, which are the kind itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from dp_powerflow._threads import in_order
from dp_powerflow.corpus.tables import Connections
from dp_powerflow.errors import ConfigError, PowerFlowError
from dp_powerflow.page.charts import Axis, Band, Quantiles
from dp_powerflow.page.document import Figure
from dp_powerflow.studies.hosting.days import (
    BINDS,
    Binds,
    Capacities,
    Question,
    ampacities_of,
    capacities,
    conductors_of,
    per_kw,
    prepared,
    turned,
)
from dp_powerflow.studies.study import Findings, Kind, Progress, Study, network_map
from dp_powerflow.units import BoolArray, FloatArray, IntArray

_WHOLE = 1e-6
Ampere = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class HostingCapacity(Kind):
    """Per node and day, the largest PV system that keeps every voltage and declared current within limits.

    Attributes
    ----------
    nodes : released nodes with a load, or all released nodes.
    v_min_pu, v_max_pu : limits of every voltage of the feeder [p.u.].
    most_kw : where a capacity is cut [kW at peak irradiance].
    grid_kw : capacities are whole multiples of it [kW], rounded down.
    power_factor : of the new PV; the release's volt-var curve counts instead where it has one.
    reactive : whether PV with a power factor below 1 absorbs or injects reactive power.
    regulators : taps and capacitors held where they are on the drawn day, or acting.
    ampacity_a : largest current of every conductor of every line [A]; None for no limit.
    ampacities_a : of single lines, by their two public buses, "b003-b017" [A]; in experiments also by names
        of the feeder's file.
    worsening_pu : by how much anything may get worse at a step at which a limit is broken without new PV: of
        1 p.u. of voltage, and of the ampacity.
    per_day : whether the capacity of every day is published beside the quantiles.

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
    regulators: Literal["as-drawn", "acting"] = "as-drawn"
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
        """Refuse a study without sun, without a node to look at, or with an unknown line."""
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
                "no released node carries a load; set nodes = 'released' to look at all released nodes"
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
        feeder, places = study.feeder, self.places(study)
        candidates = study.released[places]
        solvers = prepared(study.make_solver(1), candidates, self.most_kw / self.power_factor)
        if self.regulators == "as-drawn":
            solvers = replace(solvers, acting=None)
        absorbs = self.reactive == "absorbed"
        question = Question(
            solvers,
            len(candidates),
            self.grid_kw * per_kw(feeder, self.power_factor, absorbs=absorbs),
            self.top,
            (self.v_min_pu, self.v_max_pu, self.worsening_pu),
            conductors_of(feeder, self._ampacities(study)),
        )
        found: list[Capacities] = []
        blocks = study.source.n_blocks
        for each in in_order(partial(capacities, study, question), range(blocks), workers):
            found.append(each)
            if progress is not None:
                progress(len(found), blocks)
        unreleased = np.setdiff1d(_load_nodes(study), study.released)
        return Hosted(self, study, places, found, acting=solvers.acting is not None, left_out=len(unreleased))

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


# --- what a hosting-capacity study publishes: tables, figures, sentences ---
_CAPACITY = Axis("hosting capacity", "kW", decimals=1)
_MOST_COUNT = 65_535


def map_of(connections: Connections, places: IntArray, median_kw: FloatArray) -> Figure:
    """The network, coloured by the median over days of the capacity of a node.

    Parameters
    ----------
    places : (candidate,) positions among the released nodes.
    median_kw : (candidate,) [kW].
    """
    most = max(round(float(median_kw.max()), 1), 1.0)
    least = round(float(median_kw.min()), 1)
    least = least if least < most else 0.0
    middle = round(float(np.median(median_kw)), 1)
    middle = middle if least < middle < most else (least + most) / 2.0
    per_kw = max(1, int(_MOST_COUNT // most))
    counts = np.clip(np.floor(median_kw * per_kw).astype(np.int64), 1, _MOST_COUNT)
    views = {}
    for phase in np.unique(connections.phase[places]).tolist():
        of = connections.phase[places] == phase
        view = np.zeros((1, connections.n_buses), dtype=np.int64)
        view[0, connections.bus_of[places[of]]] = counts[of]
        views[f"phase {phase}"] = view
    chart = network_map(connections, _CAPACITY, views, per_kw, (least, most), middle)
    laid = (
        "Buses stand at their released coordinates."
        if connections.coordinates is not None
        else "The layout is computed from the connections alone: lengths and directions mean nothing."
    )
    caption = (
        f"Median over days of the largest PV system at a node alone. {laid} Pale buses have no node with a "
        "capacity."
    )
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
    acting : whether controls acted.
    left_out : nodes with a load that are not released.
    """

    kind: HostingCapacity
    study: Study
    places: IntArray
    blocks: Sequence[Capacities]
    acting: bool
    left_out: int

    @cached_property
    def steps(self) -> IntArray:
        """(day, candidate) capacity, in steps of the grid."""
        return np.concatenate([block.steps for block in self.blocks])

    @cached_property
    def binds(self) -> IntArray:
        """(day, candidate) `Binds` of the limit that the next step of the grid breaks."""
        return np.concatenate([block.code for block in self.blocks]) // 2

    @cached_property
    def broken_before(self) -> BoolArray:
        """(day, candidate) whether some limit is broken without new PV at the step that binds."""
        return np.asarray(np.concatenate([block.code for block in self.blocks]) % 2 == 1)

    @cached_property
    def minute(self) -> IntArray:
        """(day, candidate) minutes after midnight at which the step that binds begins; −1 for none."""
        at = np.concatenate([block.at for block in self.blocks])
        return np.where(at < 0, -1, at * _MINUTES // self.study.steps)

    @cached_property
    def broken_days(self) -> int:
        """Days on which a limit is broken somewhere without new PV."""
        return int(sum(np.count_nonzero(block.broken) for block in self.blocks))

    @property
    def looks(self) -> int:
        """Snapshots that were solved with new PV."""
        return sum(block.looks for block in self.blocks)

    @property
    def node_ids(self) -> list[str]:
        """Of the candidates."""
        return [self.study.node_ids[k] for k in self.places.tolist()]

    @property
    def phases(self) -> IntArray | None:
        """Of the candidates, where they are public."""
        found = self.study.connections
        return None if found is None else found.phase[self.places]

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
    """All that is published."""
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
    if hosted.phases is not None:
        columns["phase"] = pa.array(hosted.phases, pa.int32())
    for level, values in zip(LEVELS, hosted.quantiles_kw, strict=True):
        columns[f"q{level:03d}_kw"] = pa.array(values, pa.float64())
    for binds, name in BINDS.items():
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
            "limit": pa.array([BINDS[Binds(k)] for k in found[:, 1].tolist()], pa.string()),
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
                    "limit": pa.array(
                        [BINDS[Binds(k)] for k in hosted.binds[some].ravel().tolist()], pa.string()
                    ),
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
        "regulators": "acting" if hosted.acting else "held",
        "limits": {"v_min_pu": kind.v_min_pu, "v_max_pu": kind.v_max_pu, "ampacities": limited},
        "quantiles_kw": {f"q{level:03d}": float(kw) for level, kw in zip(LEVELS, overall, strict=True)},
        "median_by_node_kw": {
            "least": float(median.min()),
            "middle": float(median[_middle(median)]),
            "most": float(median.max()),
        },
        "binds_percent": {
            name: float(_percent((hosted.binds == binds).ravel())) for binds, name in BINDS.items()
        },
        "days_broken_before": hosted.broken_days,
        "broken_before_percent": float(_percent(hosted.broken_before.ravel())),
        "mended_snapshots": sum(block.mended for block in hosted.blocks),
        "capacities_cut": int(np.count_nonzero(hosted.binds == Binds.NOTHING)),
        "capacities_unsolved": int(np.count_nonzero(hosted.binds == Binds.UNSOLVED)),
        "load_nodes_left_out": hosted.left_out,
    }


def _middle(values: FloatArray) -> int:
    """Place of the median, the lower of two."""
    return int(np.argsort(values, kind="stable")[(len(values) - 1) // 2])
