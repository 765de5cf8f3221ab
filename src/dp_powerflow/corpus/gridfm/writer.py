"""Scenarios of a published twin in the gridfm-datakit layout, for graph models (`docs/reference/corpus.md`).

For twin mode only. The tables hold the whole network and, in float64 so that the published power balances,
the loads beside the voltages that they cause. On a published twin all of it is post-processing, low-order
bits included. On a true network it would be the secret itself: never use it there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dp_powerflow._bits.elementary import degrees, modulus, multiply, unit
from dp_powerflow.corpus.gridfm.network import (
    GridfmBranches,
    NodeFacts,
    PublishedNetwork,
    network_of,
    turned_back,
)
from dp_powerflow.corpus.gridfm.schema import (
    COUNT_FILE,
    ROWS_FILE,
    SETTINGS,
    SETTINGS_FILE,
    Column,
    GridfmStyle,
    ScenarioKeys,
    encode_rows,
    encode_table,
    file_name,
    pieces,
    table_of,
)
from dp_powerflow.corpus.storage import Location, location, put, storing
from dp_powerflow.errors import CorpusError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

MIN_VM_PU, MAX_VM_PU = 0.9, 1.1
"""Voltage limits written for every bus: constants, since a feeder states none."""
GENERATOR_LIMIT_MW = 1e4
"""Limit written for the sources, which have none."""
ANGLE_LIMIT_DEG = 360.0
"""Angle limit written for the branches: none."""


@dataclass(frozen=True, eq=False)
class BusStates:
    """Powers and voltages, all complex (scenario, bus).

    Attributes
    ----------
    demand : load less generation of inverters [MW + j·Mvar].
    static : that generation [MW + j·Mvar].
    v : voltages [p.u.], in the frame of the network.
    """

    demand: ComplexArray
    static: ComplexArray
    v: ComplexArray

    def __getitem__(self, part: slice) -> BusStates:
        return BusStates(self.demand[part], self.static[part], self.v[part])


def scenario_tables(
    network: PublishedNetwork,
    keys: ScenarioKeys,
    states: BusStates,
    opened: GridfmBranches | None = None,
) -> dict[str, pa.Table]:
    """The four tables of some scenarios on one network.

    Parameters
    ----------
    opened : branches that are out of service; they are listed with `br_status` 0 and no admittance.
    """
    vm, va = modulus(states.v), degrees(states.v)
    flows = _flows(network, states.demand, vm, va)
    generated = np.zeros_like(states.demand)
    generated[:, network.reference] = flows.source
    is_reference = np.zeros(network.n, dtype=np.int8)
    is_reference[network.reference] = 1
    bus: dict[str, Column] = {
        "bus": np.arange(network.n),
        **_parts("Pd", "Qd", states.demand),
        **_parts("Pg", "Qg", generated),
        "Vm": vm,
        "Va": va,
        "PQ": 1 - is_reference,
        "PV": 0,
        "REF": is_reference,
        "vn_kv": network.vn_kv,
        "min_vm_pu": MIN_VM_PU,
        "max_vm_pu": MAX_VM_PU,
        **_parts("GS", "BS", network.shunt),
        **_parts("Psgen", "Qsgen", states.static),
        "phase": network.phase,
        "row": network.row,
        "turn": network.turn_deg,
    }
    gen: dict[str, Column] = {
        "idx": np.arange(len(network.reference)),
        "bus": network.reference,
        **_parts("p_mw", "q_mvar", flows.source),
        **dict.fromkeys(("min_p_mw", "min_q_mvar"), -GENERATOR_LIMIT_MW),
        **dict.fromkeys(("max_p_mw", "max_q_mvar"), GENERATOR_LIMIT_MW),
        **dict.fromkeys(("cp0_eur", "cp1_eur_per_mw", "cp2_eur_per_mw2"), 0.0),
        **dict.fromkeys(("in_service", "is_slack_gen"), 1),
    }
    rows = np.repeat(np.arange(network.n), np.diff(network.y.indptr))
    y_bus: dict[str, Column] = {
        "index1": rows,
        "index2": network.y.indices,
        **_parts("G", "B", network.y.data),
    }
    branch, count = _branch_columns(network.branches, flows, opened)
    return {
        "bus_data": table_of("bus_data", keys, network.n, bus),
        "gen_data": table_of("gen_data", keys, len(network.reference), gen),
        "branch_data": table_of("branch_data", keys, count, branch),
        "y_bus_data": table_of("y_bus_data", keys, len(rows), y_bus),
    }


@dataclass(frozen=True, eq=False)
class _Flows:
    """Powers that follow from the voltages as written [MW + j·Mvar], complex (scenario, branch or source)."""

    at_from: ComplexArray
    at_to: ComplexArray
    source: ComplexArray


def _flows(network: PublishedNetwork, demand: ComplexArray, vm: FloatArray, va_deg: FloatArray) -> _Flows:
    # From magnitudes and angles, not from v: a consumer who computes them again gets the same.
    v = vm * unit(va_deg)
    branches = network.branches
    v_from, v_to = v[:, branches.from_bus], v[:, branches.to_bus]
    i_from = multiply(branches.yff, v_from) + multiply(branches.yft, v_to)
    i_to = multiply(branches.ytf, v_from) + multiply(branches.ytt, v_to)
    i_source = np.asarray((network.y[network.reference, :] @ v.T).T)
    pairs = ((v_from, i_from), (v_to, i_to), (v[:, network.reference], i_source))
    at_from, at_to, injected = (network.sn_mva * multiply(u, np.conj(i)) for u, i in pairs)
    return _Flows(at_from, at_to, injected + demand[:, network.reference])


def _branch_columns(
    branches: GridfmBranches, flows: _Flows, opened: GridfmBranches | None
) -> tuple[dict[str, Column], int]:
    """Columns of the branches, those out of service last, and how many there are."""
    out = 0 if opened is None else opened.count
    count = branches.count + out

    def also(name: str) -> Column:
        values = getattr(branches, name)
        return values if opened is None else np.concatenate([values, getattr(opened, name)])

    def none_through(values: ComplexArray) -> ComplexArray:
        return np.concatenate([values, np.zeros((*values.shape[:-1], out), values.dtype)], axis=-1)

    columns: dict[str, Column] = {
        "idx": np.arange(count),
        "from_bus": also("from_bus"),
        "to_bus": also("to_bus"),
        **_parts("pf", "qf", none_through(flows.at_from)),
        **_parts("pt", "qt", none_through(flows.at_to)),
        "r": also("r"),
        "x": also("x"),
        "b": 0.0,
        **_parts("Yff_r", "Yff_i", none_through(branches.yff)),
        **_parts("Yft_r", "Yft_i", none_through(branches.yft)),
        **_parts("Ytf_r", "Ytf_i", none_through(branches.ytf)),
        **_parts("Ytt_r", "Ytt_i", none_through(branches.ytt)),
        "tap": also("tap"),
        "shift": also("shift_deg"),
        "ang_min": -ANGLE_LIMIT_DEG,
        "ang_max": ANGLE_LIMIT_DEG,
        "rate_a": 0.0,
        "br_status": np.where(np.arange(count) < branches.count, 1, 0),
    }
    return columns, count


def _parts(real: str, imaginary: str, values: ComplexArray) -> dict[str, Column]:
    return {real: values.real, imaginary: values.imag}


class GridfmWriter:
    """Writes blocks of scenarios, one file per table, block and partition; for twin mode only.

    It holds no open file and can be sent to worker processes. Blocks may be written in any order by any
    process: the bytes of a file depend on the scenarios in it and on the network alone.

    Parameters
    ----------
    directory : where the tables go; made when needed.
    feeder : the published twin, never a true network.
    facts : order of the nodes and what else is said of them.
    style : the frame of the voltages, and whether switches are merged.
    """

    def __init__(
        self,
        directory: Location,
        feeder: Feeder,
        *,
        facts: NodeFacts | None = None,
        style: GridfmStyle | None = None,
    ) -> None:
        style = GridfmStyle() if style is None else style
        facts = NodeFacts() if facts is None else facts
        self.directory = location(directory)
        self._base_mva = float(feeder.base_mva)
        self._order = np.arange(len(feeder.nodes)) if facts.order is None else np.asarray(facts.order)
        nodes = network_of(feeder, facts)
        bus_of = nodes.groups() if style.merged else np.arange(nodes.n)
        self._solves = bool(bus_of.max() + 1 < nodes.n)
        network = nodes.merged(bus_of) if self._solves else nodes
        self.network: PublishedNetwork = network.turned() if style.turned else network
        self.bus_of_row: IntArray = bus_of[: facts.released]
        bus_of_node = np.empty(nodes.n, dtype=np.int64)
        bus_of_node[self._order] = bus_of
        self._retained = bus_of_node[feeder.retained]

    def write_block(
        self,
        first_scenario: int,
        load: ComplexArray,
        generation: ComplexArray | None,
        v: ComplexArray,
        steps: int = 1,
    ) -> dict[str, str]:
        """Write scenarios `first_scenario` and following; relative names of their files and their SHA-256.

        Where nodes are merged, the voltages are solved again on the network as it is written.

        Parameters
        ----------
        load : complex (scenario, retained) power drawn [p.u. of the feeder].
        generation : complex (scenario, retained) power injected by inverters [p.u.], after volt-var.
        v : complex (scenario, node) voltages of all nodes, slack included [p.u.], in the order of the feeder.
        steps : scenarios of a day.
        """
        states = self._states(first_scenario, load, generation, v)
        written = {}
        for piece in pieces(first_scenario, len(states.v)):
            numbers = np.arange(piece.start, piece.stop, dtype=np.int64)
            keys = ScenarioKeys(numbers, numbers // steps)
            part = states[piece.start - first_scenario : piece.stop - first_scenario]
            for table, content in scenario_tables(self.network, keys, part).items():
                name = file_name(table, piece)
                with storing(self.directory):
                    written[name] = put(self.directory / name, encode_table(content), make_folder=True)
        return written

    def write_index(self, n_scenarios: int) -> dict[str, str]:
        """Write what goes with all scenarios, once all blocks are there: their number, the mode, the rows."""
        return write_index(self.directory, n_scenarios, self.bus_of_row)

    def _states(
        self, first_scenario: int, load: ComplexArray, generation: ComplexArray | None, v: ComplexArray
    ) -> BusStates:
        """Powers and voltages of the buses."""
        retained = len(self._retained)
        if first_scenario < 0:
            raise CorpusError("scenarios of a gridfm directory are numbered from 0")
        given = {"load": (load, retained), "v": (v, len(self._order))}
        if generation is not None:
            given["generation"] = (generation, retained)
        for name, (array, width) in given.items():
            if array.shape != (len(load), width) or len(load) == 0:
                raise CorpusError(
                    f"{name} has shape {array.shape}; a block of scenarios needs "
                    f"({len(load) or 'at least 1'}, {width})"
                )
            if not np.isfinite(array).all():
                raise CorpusError(
                    f"{name} holds NaN or infinite values; a scenario without solution is no data"
                )
        static = np.zeros((len(load), self.network.n), dtype=np.complex128)
        if generation is not None:
            self._add(static, generation)
        demand = 0.0 - static  # not -static: there is one zero
        self._add(demand, load)
        if self._solves:
            return BusStates(demand, static, self.network.solve(-demand[:, self.network.loaded]))
        phasors = np.asarray(v, dtype=np.complex128)[:, self._order]
        return BusStates(demand, static, turned_back(phasors, self.network.turn_deg))

    def _add(self, at_buses: ComplexArray, power: ComplexArray) -> None:
        """Add powers of the retained nodes [p.u. of the feeder] to those of their buses [MW], one by one."""
        for column, bus in enumerate(self._retained):
            at_buses[:, bus] += power[:, column] * self._base_mva


def write_index(directory: Location, n_scenarios: int, bus_of_row: IntArray) -> dict[str, str]:
    """Write number of scenarios, mode (power flow) and buses of the rows; names and their SHA-256."""
    if n_scenarios < 1:
        raise CorpusError("a gridfm directory needs at least one scenario")
    contents = (
        (COUNT_FILE, str(n_scenarios).encode()),
        (ROWS_FILE, encode_rows(bus_of_row)),
        (SETTINGS_FILE, SETTINGS),
    )
    with storing(directory):
        return {name: put(directory / name, content, make_folder=True) for name, content in contents}
