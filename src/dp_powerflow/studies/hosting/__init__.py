"""Settings of a hosting-capacity study, which are the kind itself."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from dp_powerflow._threads import in_order
from dp_powerflow.errors import ConfigError, PowerFlowError
from dp_powerflow.grid.buses import bus_name
from dp_powerflow.studies.hosting.days import (
    Capacities,
    Question,
    ampacities_of,
    capacities,
    conductors_of,
    per_kw,
    prepared,
    turned,
)
from dp_powerflow.studies.hosting.tables import Hosted, findings_of
from dp_powerflow.studies.study import Findings, Progress, Study
from dp_powerflow.units import IntArray

_WHOLE = 1e-6
Ampere = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class HostingCapacity(BaseModel):
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

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

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
    def name(self) -> str:
        """As in `dp-powerflow derive NAME`."""
        return "hosting-capacity"

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
        public: dict[str, str] = {}
        if study.connections is not None:
            for node, bus in zip(study.released.tolist(), study.connections.bus_of.tolist(), strict=True):
                public[bus_name(study.feeder.nodes[node])] = study.connections.bus_ids[bus]
        return ampacities_of(
            study.feeder, self.ampacity_a, self.ampacities_a, public, file_names=study.file_names
        )


def _load_nodes(study: Study) -> IntArray:
    """Nodes with a load, neutrals left out."""
    loaded = np.unique(study.feeder.load_shares.indices).astype(np.int64)
    return np.setdiff1d(loaded, study.feeder.neutral)
