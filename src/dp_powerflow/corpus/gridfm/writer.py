"""Scenarios of a published twin in the gridfm-datakit layout, for graph models (`docs/reference/gridfm.md`).

For twin mode only. The tables hold the whole network and, in float64 so that the published power balances,
the loads beside the voltages that they cause. On a published twin all of it is post-processing, low-order
bits included. On a true network it would be the secret itself: never use it there.
"""

from __future__ import annotations

import numpy as np

from dp_powerflow.corpus.gridfm.network import (
    GridfmStyle,
    NodeFacts,
    PublishedNetwork,
    network_of,
    turned_back,
)
from dp_powerflow.corpus.gridfm.scenarios import BusStates, scenario_tables
from dp_powerflow.corpus.gridfm.schema import (
    COUNT_FILE,
    ROWS_FILE,
    SETTINGS,
    SETTINGS_FILE,
    TABLES,
    ScenarioKeys,
    encode_rows,
    encode_table,
    file_name,
    pieces,
)
from dp_powerflow.corpus.storage import Location, location, put, storing
from dp_powerflow.errors import CorpusError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.units import ComplexArray, IntArray


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

    @staticmethod
    def block_names(first_scenario: int, count: int) -> tuple[str, ...]:
        """Relative names of the files of a block."""
        return tuple(file_name(table, piece) for piece in pieces(first_scenario, count) for table in TABLES)

    @staticmethod
    def names(n_scenarios: int, block: int) -> tuple[str, ...]:
        """Relative names, sorted, of all files of `n_scenarios` written in blocks of `block` scenarios."""
        if n_scenarios < 1 or block < 1:
            raise CorpusError(
                "the numbers of scenarios of a gridfm directory and of a block must be positive"
            )
        blocks = [(first, min(block, n_scenarios - first)) for first in range(0, n_scenarios, block)]
        files = [name for first, count in blocks for name in GridfmWriter.block_names(first, count)]
        return tuple(sorted([*files, COUNT_FILE, ROWS_FILE, SETTINGS_FILE]))

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
