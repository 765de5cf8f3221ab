"""The dispatch in the layout of gridfm-datakit, OPF mode: units as generators with limits and costs.

The layout is that of its power-flow mode. What differs: `settings.mode` is `opf`; units are rows of
`gen_data` with costs and limits; `bus_data` has the voltage limits, and a bus with a unit is a PV bus. It
holds the whole network, so it is written on request only. Snapshots without a checked dispatch are no
scenario; `scenarios.parquet` says which snapshot a scenario is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dp_powerflow.corpus.gridfm.network import NodeFacts, PublishedNetwork, network_of
from dp_powerflow.corpus.gridfm.schema import (
    COUNT_FILE,
    SCENARIOS_PER_PARTITION,
    SETTINGS,
    SETTINGS_FILE,
    Column,
    ScenarioKeys,
    file_name,
    table_of,
)
from dp_powerflow.corpus.gridfm.writer import BusStates, scenario_tables
from dp_powerflow.errors import ConfigError
from dp_powerflow.powerflow.batch import BatchSolver, Solver
from dp_powerflow.studies.dispatch.days import DayResult, UnitFacts
from dp_powerflow.studies.dispatch.dispatcher import unit_shares, with_units
from dp_powerflow.studies.dispatch.program import INACCURATE, SOLVED
from dp_powerflow.studies.study import Study
from dp_powerflow.units import KW_PER_MW, ComplexArray, FloatArray, IntArray

if TYPE_CHECKING:
    from dp_powerflow.studies.dispatch import OptimalDispatch

FOLDER = "gridfm"


def refuse_gridfm(solver: Solver, *, optimised: bool) -> None:
    """The layout has one network for all scenarios, so taps must stay."""
    if not isinstance(solver, BatchSolver) or optimised:
        raise ConfigError(
            "tables of gridfm hold one network for all snapshots; leave out gridfm, or take a release of the "
            'fixed frame and taps "as operated"'
        )


def gridfm_tables(
    study: Study, limits: OptimalDispatch, facts: Sequence[UnitFacts], days: Sequence[DayResult]
) -> dict[str, pa.Table]:
    """Tables by file name, in partitions of 200 scenarios, and which snapshot a scenario is."""
    return _Writer(study, limits, facts).tables(days)


def gridfm_files(days: Sequence[DayResult]) -> dict[str, bytes]:
    """The two texts of the layout: number of scenarios, and mode."""
    count = sum(int(np.count_nonzero(_good(day))) for day in days)
    settings = SETTINGS.replace(b"mode: pf", b"mode: opf")
    return {f"{FOLDER}/{COUNT_FILE}": str(count).encode(), f"{FOLDER}/{SETTINGS_FILE}": settings}


class _Writer:
    def __init__(self, study: Study, limits: OptimalDispatch, facts: Sequence[UnitFacts]) -> None:
        self.limits, self.units = limits, [fact.unit for fact in facts]
        plain = study.feeder
        feeder = with_units(plain, self.units, as_loads=False)
        n = len(feeder.nodes)
        # Released tables merge switches: two released nodes may be one node of their network.
        own = np.array(list(dict.fromkeys(study.released.tolist())), dtype=np.int64)
        self.order = np.concatenate([own, np.setdiff1d(np.arange(n), own)])
        nodes = network_of(feeder, NodeFacts(order=self.order, released=len(own)))
        bus_of = nodes.groups()
        self.network: PublishedNetwork = nodes.merged(bus_of).turned()
        self.bus_of_node = np.empty(n, dtype=np.int64)
        self.bus_of_node[self.order] = bus_of
        self.bus_of_row: IntArray = self.bus_of_node[study.released]
        self.feeder, self.retained = feeder, plain.retained
        self.shares = unit_shares(plain, self.units)

    def tables(self, days: Sequence[DayResult]) -> dict[str, pa.Table]:
        found: dict[str, pa.Table] = {}
        parts = [self._scenarios(day) for day in days]
        chosen = [np.flatnonzero(_good(day)) for day in days]
        number = np.concatenate([np.full(len(at), day.day) for day, at in zip(days, chosen, strict=True)])
        price = np.concatenate([day.price[at] for day, at in zip(days, chosen, strict=True)])
        demand, power = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
        count = len(number)
        for first in range(0, count, SCENARIOS_PER_PARTITION):
            piece = range(first, min(first + SCENARIOS_PER_PARTITION, count))
            at = slice(piece.start, piece.stop)
            keys = ScenarioKeys(np.arange(piece.start, piece.stop), number[at].astype(np.int64))
            some = self._tables(keys, demand[at], power[at], price[at])
            for name, table in some.items():
                found[f"{FOLDER}/{file_name(name, piece)}"] = table
        step = np.concatenate([day.steps[at] for day, at in zip(days, chosen, strict=True)])
        found[f"{FOLDER}/scenarios.parquet"] = pa.table(
            {"scenario": np.arange(count), "day": number, "step": step}
        )
        found[f"{FOLDER}/rows.parquet"] = pa.table(
            {"row": np.arange(len(self.bus_of_row)), "bus": self.bus_of_row}
        )
        return found

    def _scenarios(self, day: DayResult) -> tuple[ComplexArray, ComplexArray]:
        """Net load of every bus without units [MW], and power of every unit [MW], of the good snapshots."""
        at = np.flatnonzero(_good(day))
        demand = np.zeros((len(at), self.network.n), dtype=np.complex128)
        net = day.column_load[at].copy()
        if day.column_generation is not None:
            net -= day.column_generation[at]
        np.add.at(demand.T, self.bus_of_node[self.retained], net.T * self.feeder.base_mva)
        return demand, day.found.power[at] / KW_PER_MW

    def _tables(
        self, keys: ScenarioKeys, demand: ComplexArray, power: ComplexArray, price: FloatArray
    ) -> dict[str, pa.Table]:
        network = self.network
        injected = np.zeros_like(demand)
        np.add.at(injected.T, self.bus_of_node, (power @ self.shares.T).T)
        v = network.solve((injected - demand)[:, network.loaded])
        tables = scenario_tables(network, keys, BusStates(demand - injected, np.zeros_like(demand), v))
        bus = tables["bus_data"]
        drawn, shape = bus.column("Pd").to_numpy(), demand.shape
        has_unit = np.isin(np.arange(network.n), self.bus_of_node[np.flatnonzero(self.shares.any(axis=1))])
        pv = (has_unit & ~np.isin(np.arange(network.n), network.reference)).astype(np.int8)
        given: dict[str, Column] = {
            "Pd": drawn.reshape(shape) + injected.real,
            "Qd": bus.column("Qd").to_numpy().reshape(shape) + injected.imag,
            "Pg": bus.column("Pg").to_numpy().reshape(shape) + injected.real,
            "Qg": bus.column("Qg").to_numpy().reshape(shape) + injected.imag,
            "min_vm_pu": self.limits.v_min_pu,
            "max_vm_pu": self.limits.v_max_pu,
            "PV": pv,
            "PQ": bus.column("PQ").to_numpy().reshape(shape) * (1 - pv),
        }
        tables["bus_data"] = _replaced(bus, given)
        tables["gen_data"] = self._generators(keys, tables["gen_data"], power, price)
        return tables

    def _generators(
        self, keys: ScenarioKeys, sources: pa.Table, power: ComplexArray, price: FloatArray
    ) -> pa.Table:
        """Sources at the price of import, then units: one row for every phase that a unit injects at."""
        count, slack = len(keys.scenario), len(self.network.reference)
        node, unit = (axis.astype(np.int64) for axis in np.nonzero(self.shares))
        order = np.lexsort((self.bus_of_node[node], unit))
        node, unit = node[order], unit[order]
        share = self.shares[node, unit]
        at = power[:, unit] * share
        part = np.abs(share)
        units = [self.units[k] for k in unit.tolist()]
        kva = np.array([each.kva for each in units]) * part / KW_PER_MW
        whole = np.ones((count, 1))

        def both(name: str, of_units: Column, of_sources: Column | None = None) -> Column:
            first = (
                sources.column(name).to_numpy().reshape(count, slack) if of_sources is None else of_sources
            )
            return np.concatenate([np.broadcast_to(first, (count, slack)), of_units * whole], axis=1)

        active = share.real
        # Between two phases the power of a node goes with q of the unit too: only the rating limits it.
        between = np.abs(share.imag) > 0.0
        least, most = (
            np.where(
                between, side * kva, np.array([getattr(each, name) for each in units]) * active / KW_PER_MW
            )
            for side, name in ((-1.0, "kw_min"), (1.0, "kw_max"))
        )
        cost = np.array([each.cost_per_kwh for each in units]) * KW_PER_MW
        # p of the unit is p of this row over its share; the quadratic cost is shared likewise.
        second = np.array([each.cost_per_kw2h for each in units]) * KW_PER_MW**2
        with np.errstate(divide="ignore", invalid="ignore"):
            second = np.where(active > 0.0, second / active, 0.0)
        columns: dict[str, Column] = {
            "idx": np.arange(slack + len(unit)),
            "bus": np.concatenate([self.network.reference, self.bus_of_node[node]]),
            "p_mw": both("p_mw", at.real),
            "q_mvar": both("q_mvar", at.imag),
            "min_p_mw": both("min_p_mw", least),
            "max_p_mw": both("max_p_mw", most),
            "min_q_mvar": both("min_q_mvar", -kva),
            "max_q_mvar": both("max_q_mvar", kva),
            "cp0_eur": 0.0,
            "cp1_eur_per_mw": both("cp1_eur_per_mw", cost, price[:, None] * KW_PER_MW),
            "cp2_eur_per_mw2": both("cp2_eur_per_mw2", second),
            "in_service": 1,
            "is_slack_gen": (np.arange(slack + len(unit)) < slack).astype(np.int8),
        }
        return table_of("gen_data", keys, slack + len(unit), columns)


def _good(day: DayResult) -> FloatArray:
    """(step,) whether a snapshot has a checked dispatch."""
    return np.array([status in (SOLVED, INACCURATE) for status in day.found.status], dtype=np.bool_)


def _replaced(table: pa.Table, columns: dict[str, Column]) -> pa.Table:
    """The table with some columns anew."""
    rows = table.num_rows
    for name, values in columns.items():
        k = table.schema.get_field_index(name)
        array = np.asarray(values)
        flat = array.ravel() if array.size == rows else np.resize(array, rows)
        table = table.set_column(k, table.schema.field(k), pa.array(flat, type=table.schema.field(k).type))
    return table
