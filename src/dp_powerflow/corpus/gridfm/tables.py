"""Scenarios of a published twin in the gridfm-datakit layout, written and read (`docs/reference/corpus.md`).

For twin mode only. The tables hold the whole network and, in float64 so that the published power balances,
the loads besides the voltages that they cause. On a published twin all of it is post-processing, low-order
bits included. On a true network it would be the secret itself: never use it there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from dp_powerflow._bits.elementary import degrees, modulus, multiply, unit
from dp_powerflow.corpus.grid import phasor
from dp_powerflow.corpus.gridfm import schema
from dp_powerflow.corpus.gridfm.network import (
    SN_MVA,
    GridfmBranches,
    PublishedLine,
    PublishedNetwork,
    first_rows,
    lines_of,
    network_of,
    turned_back,
)
from dp_powerflow.corpus.gridfm.schema import Column
from dp_powerflow.corpus.reader import Corpus, open_corpus
from dp_powerflow.corpus.storage import Location, children, loading, location, open_parquet, put, storing
from dp_powerflow.errors import CorpusError, DpPowerflowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.units import ComplexArray, FloatArray, IntArray


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
    keys: tuple[IntArray, IntArray],
    states: BusStates,
    opened: GridfmBranches | None = None,
) -> dict[str, pa.Table]:
    """The four tables of some scenarios on one network.

    Parameters
    ----------
    keys : (scenario,) numbers of the scenarios, and the days that their loads are of.
    opened : branches that are out of service; they are listed with `br_status` 0 and no admittance.
    """
    vm, va = modulus(states.v), degrees(states.v)
    at_from, at_to, source = _flows(network, states.demand, vm, va)
    generated = np.zeros_like(states.demand)
    generated[:, network.reference] = source
    is_reference = np.zeros(network.n, dtype=np.int8)
    is_reference[network.reference] = 1
    bus: dict[str, Column] = {
        "bus": np.arange(network.n),
        **_parts("Pd", "Qd", states.demand),
        **_parts("Pg", "Qg", generated),
        "Vm": vm,
        "Va": va,
        "PQ": 1 - is_reference,
        "REF": is_reference,
        **_parts("GS", "BS", network.shunt),
        **_parts("Psgen", "Qsgen", states.static),
        "phase": network.phase,
        "row": network.row,
        "turn": network.turn_deg,
    }
    gen: dict[str, Column] = {"idx": np.arange(len(network.reference)), "bus": network.reference}
    gen |= _parts("p_mw", "q_mvar", source)
    rows = np.repeat(np.arange(network.n), np.diff(network.y.indptr))
    y_bus: dict[str, Column] = {"index1": rows, "index2": network.y.indices}
    y_bus |= _parts("G", "B", network.y.data)
    branches = network.branches if opened is None else network.branches.with_open(opened)
    there, out = network.branches.count, branches.count - network.branches.count
    branch: dict[str, Column] = {
        "idx": np.arange(branches.count),
        **{name: getattr(branches, name) for name in ("from_bus", "to_bus", "r", "x", "tap")},
        **_parts("pf", "qf", np.pad(at_from, ((0, 0), (0, out)))),
        **_parts("pt", "qt", np.pad(at_to, ((0, 0), (0, out)))),
        "shift": branches.shift_deg,
        "br_status": np.where(np.arange(branches.count) < there, 1, 0),
    }
    for name in _TWO_PORT:
        branch |= _parts(f"{name}_r", f"{name}_i", getattr(branches, name.lower()))
    tables = zip(schema.TABLES, (bus, gen, branch, y_bus), strict=True)
    return {name: schema.table_of(name, keys, columns) for name, columns in tables}


def _flows(
    network: PublishedNetwork, demand: ComplexArray, vm: FloatArray, va_deg: FloatArray
) -> tuple[ComplexArray, ComplexArray, ComplexArray]:
    """Powers into both ends of the branches, and of the sources: complex (scenario, …) [MW + j·Mvar]."""
    # From magnitudes and angles, not from v: a consumer who computes them again gets the same.
    v = vm * unit(va_deg)
    branches = network.branches
    v_from, v_to = v[:, branches.from_bus], v[:, branches.to_bus]
    i_from = multiply(branches.yff, v_from) + multiply(branches.yft, v_to)
    i_to = multiply(branches.ytf, v_from) + multiply(branches.ytt, v_to)
    i_source = np.asarray((network.y[network.reference, :] @ v.T).T)
    pairs = ((v_from, i_from), (v_to, i_to), (v[:, network.reference], i_source))
    at_from, at_to, injected = (SN_MVA * multiply(u, np.conj(i)) for u, i in pairs)
    return at_from, at_to, injected + demand[:, network.reference]


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
    order, released, phase : of the nodes, as of `network_of`.
    """

    def __init__(
        self,
        directory: Location,
        feeder: Feeder,
        order: IntArray | None = None,
        *,
        released: int = 0,
        phase: IntArray | None = None,
    ) -> None:
        self.directory = location(directory)
        self._base_mva = float(feeder.base_mva)
        self._order = np.arange(len(feeder.nodes)) if order is None else np.asarray(order)
        nodes = network_of(feeder, order, released=released, phase=phase)
        bus_of = nodes.groups()
        self._solves = bool(bus_of.max() + 1 < nodes.n)
        self.network: PublishedNetwork = nodes.merged(bus_of).turned()
        self.bus_of_row: IntArray = bus_of[:released]
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

        Where nodes are merged, the voltages are solved again on the written network.

        Parameters
        ----------
        load : complex (scenario, retained) power drawn [p.u. of the feeder].
        generation : complex (scenario, retained) power injected by inverters [p.u.], after volt-var.
        v : complex (scenario, node) voltages of all nodes, slack included [p.u.], in the order of the feeder.
        steps : scenarios of a day.
        """
        states = self._states(load, generation, v)
        written = {}
        for piece in schema.pieces(first_scenario, len(states.v)):
            numbers = np.arange(piece.start, piece.stop, dtype=np.int64)
            part = states[piece.start - first_scenario : piece.stop - first_scenario]
            for table, content in scenario_tables(self.network, (numbers, numbers // steps), part).items():
                name = schema.file_name(table, piece)
                with storing(self.directory):
                    written[name] = put(self.directory / name, schema.encode_table(content), make_folder=True)
        return written

    def write_index(self, n_scenarios: int) -> dict[str, str]:
        """Write what goes with all scenarios, once all blocks are there: their number, the mode, the rows."""
        return write_index(self.directory, n_scenarios, self.bus_of_row)

    def _states(self, load: ComplexArray, generation: ComplexArray | None, v: ComplexArray) -> BusStates:
        """Powers and voltages of the buses."""
        given = (load, v) if generation is None else (load, generation, v)
        if not all(np.isfinite(array).all() for array in given):
            raise CorpusError("a power or voltage is NaN or infinite; a scenario without solution is no data")
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
        """Add powers of the retained nodes [p.u. of the feeder] to their buses [MW], one by one."""
        for column, bus in enumerate(self._retained):
            at_buses[:, bus] += power[:, column] * self._base_mva


def write_index(directory: Location, n_scenarios: int, bus_of_row: IntArray) -> dict[str, str]:
    """Write number of scenarios, mode (power flow) and buses of the rows; names and their SHA-256."""
    if n_scenarios < 1:
        raise CorpusError("a gridfm directory needs at least one scenario")
    contents = (
        (schema.COUNT_FILE, str(n_scenarios).encode()),
        (schema.ROWS_FILE, schema.encode_rows(bus_of_row)),
        (schema.SETTINGS_FILE, schema.SETTINGS),
    )
    with storing(directory):
        return {name: put(directory / name, content, make_folder=True) for name, content in contents}


# --- and back ---------------------------------------------------------------------------------------------
_TWO_PORT = ("Yff", "Yft", "Ytf", "Ytt")
_NUMBERED = {"gen_data": "idx", "branch_data": "idx"}
_BUS_IDS = {"gen": ("bus",), "branch": ("from_bus", "to_bus"), "y_bus": ("index1", "index2")}


@dataclass(frozen=True, eq=False)
class GridfmData:
    """The four tables, rows sorted by scenario; columns as in `gridfm.schema.TABLES`.

    Attributes
    ----------
    scenarios : scenarios in the tables.
    bus_of_row : (row,) bus of every row of `data/`.
    """

    scenarios: range
    bus: pa.Table
    gen: pa.Table
    branch: pa.Table
    y_bus: pa.Table
    bus_of_row: IntArray = field(repr=False)

    @property
    def n_buses(self) -> int:
        """Buses of every scenario."""
        return int(self.bus.num_rows // len(self.scenarios))

    def column(self, table: str, name: str) -> FloatArray:
        """A column of `bus`, `gen`, `branch` or `y_bus` as an array (scenario, row)."""
        values, count = self._flat(table, name), self._counts(table)
        if not (count == count[0]).all():
            raise CorpusError(
                f"the networks of these scenarios have different numbers of rows in {table}; read the column "
                f"with .{table}['{name}'] and tell the scenarios apart by 'scenario'"
            )
        return np.asarray(values.reshape(len(self.scenarios), -1))

    def voltage(self) -> ComplexArray:
        """Complex (scenario, bus) Vm and Va as they are written, turned back or not [p.u.]."""
        return phasor(self.column("bus", "Vm"), self.column("bus", "Va"))

    def powers(self) -> tuple[ComplexArray, ComplexArray]:
        """Complex (scenario, bus) net demand, and generation of inverters [MW + j·Mvar]."""
        found = [self.column("bus", name) for name in ("Pd", "Qd", "Psgen", "Qsgen")]
        return found[0] + 1j * found[1], found[2] + 1j * found[3]

    def turn_deg(self) -> FloatArray:
        """(scenario, bus) angle that a voltage is turned back by [degrees]; 0 in tables of phasors."""
        return self.column("bus", "turn")

    def phasor(self) -> ComplexArray:
        """Complex (scenario, bus) voltage phasors [p.u.], whatever frame the tables are in."""
        turn, v = self.turn_deg(), self.voltage()
        return np.asarray(np.where(turn == 0.0, v, phasor(v, turn)))

    def admittance(self, scenario: int = 0) -> sp.csr_array:
        """Complex (bus, bus) [p.u. of sn_mva] of y_bus_data, in the frame of the tables.

        `scenario` counts from the first read.
        """
        part = self._flat("y_bus", "scenario") == self.scenarios[scenario]
        rows, columns = (self._flat("y_bus", name)[part].astype(np.int64) for name in ("index1", "index2"))
        shape = (self.n_buses, self.n_buses)
        return sp.csr_array((self._complex("y_bus", "G", "B")[part], (rows, columns)), shape=shape)

    def admittance_error(self) -> float:
        """Largest |Y of y_bus_data − Y of branches and shunts| over all scenarios [p.u. of sn_mva]."""
        size = self.bus.num_rows
        i, j = (self._buses("branch", name) for name in ("from_bus", "to_bus"))
        every = np.arange(size)
        rows, columns = np.concatenate([i, i, j, j, every]), np.concatenate([i, j, i, j, every])
        values = np.concatenate([*self._two_ports(), self._complex("bus", "GS", "BS")])
        described = sp.csr_array((values, (rows, columns)), shape=(size, size))
        ends = tuple(self._buses("y_bus", name) for name in ("index1", "index2"))
        listed = sp.csr_array((self._complex("y_bus", "G", "B"), ends), shape=(size, size))
        return float(np.max(np.abs((described - listed).data), initial=0.0))  # keeps a NaN

    def mismatch_mw(self) -> FloatArray:
        """(scenario, bus) |injected − shunt − flows into the branches| [MVA], everything as written.

        Flows are computed again from the voltages and two-port admittances and the stored ones are
        checked on the way: the larger of both differences is returned.
        """
        v = self.voltage().ravel()
        injected = self._complex("bus", "Pg", "Qg") - self._complex("bus", "Pd", "Qd")
        balance = injected - np.abs(v) ** 2 * np.conj(self._complex("bus", "GS", "BS")) * SN_MVA
        i, j = (self._buses("branch", name) for name in ("from_bus", "to_bus"))
        yff, yft, ytf, ytt = self._two_ports()
        at_from = v[i] * np.conj(yff * v[i] + yft * v[j]) * SN_MVA
        at_to = v[j] * np.conj(ytf * v[i] + ytt * v[j]) * SN_MVA
        wrong = np.zeros(len(v))
        for ends, flow, stored in (
            (i, at_from, self._complex("branch", "pf", "qf")),
            (j, at_to, self._complex("branch", "pt", "qt")),
        ):
            np.subtract.at(balance, ends, flow)
            np.maximum.at(wrong, ends, np.abs(flow - stored))
        return np.asarray(np.maximum(np.abs(balance), wrong).reshape(len(self.scenarios), -1))

    def _counts(self, table: str) -> IntArray:
        """(scenario,) rows of each scenario."""
        numbers = getattr(self, table)["scenario"].to_numpy() - self.scenarios.start
        return np.bincount(numbers, minlength=len(self.scenarios)).astype(np.int64)

    def _buses(self, table: str, name: str) -> IntArray:
        """A column of buses, as rows of the buses of all scenarios."""
        first = np.repeat(np.arange(len(self.scenarios)), self._counts(table)) * self.n_buses
        return np.asarray(first + self._flat(table, name).astype(np.int64))

    def _flat(self, table: str, name: str) -> FloatArray:
        return np.asarray(getattr(self, table)[name].to_numpy())

    def _two_ports(self) -> tuple[ComplexArray, ...]:
        return tuple(self._complex("branch", f"{name}_r", f"{name}_i") for name in _TWO_PORT)

    def _complex(self, table: str, real: str, imaginary: str) -> ComplexArray:
        return np.asarray(self._flat(table, real) + 1j * self._flat(table, imaginary))


def count_scenarios(directory: Location | str) -> int:
    """Number of scenarios that a gridfm-datakit directory says it has."""
    path = location(directory) / schema.COUNT_FILE
    with loading(path):
        return int(path.read_bytes())


def read_gridfm(directory: Location | str, partition: int | None = None) -> GridfmData:
    """Read the tables of a published twin, or of one that was exported, and check that they are complete.

    Parameters
    ----------
    directory : str or path
        The folder `twin` of a release.
    partition : int, optional
        One partition of its scenarios; by default all.

    Returns
    -------
    GridfmData
        Buses, branches, generators and admittances of every scenario.

    Raises
    ------
    CorpusError
        A file cannot be read, has other columns, scenarios are missing or there twice, or buses are not
        numbered from 0.

    Examples
    --------
    >>> import dp_powerflow as dpf
    >>> bool(dpf.read_gridfm("tables/twin").mismatch_mw().max() < 1e-6)
    True
    """
    total = count_scenarios(directory)
    n_partitions = -(-total // schema.SCENARIOS_PER_PARTITION)
    place = location(directory)
    with loading(place):
        there = len(children(place / schema.table_directory(next(iter(schema.TABLES)))))
    if not 0 < n_partitions <= there:
        raise CorpusError(
            f"{directory} does not hold the scenarios that {schema.COUNT_FILE} counts; write it again"
        )
    partitions, scenarios = range(n_partitions), range(total)
    if partition is not None:
        if partition not in partitions:
            raise CorpusError(f"{directory} has partitions 0 to {n_partitions - 1}, there is no {partition}")
        first = partition * schema.SCENARIOS_PER_PARTITION
        partitions = range(partition, partition + 1)
        scenarios = scenarios[first : first + schema.SCENARIOS_PER_PARTITION]
    bus, gen, branch, y_bus = (_read_table(place, name, partitions, scenarios) for name in schema.TABLES)
    data = GridfmData(scenarios, bus, gen, branch, y_bus, _bus_of_row(place))
    _check_buses(data, place)
    return data


def _check_buses(data: GridfmData, directory: Location) -> None:
    buses, n = data.bus["bus"].to_numpy(), data.n_buses
    ids = [getattr(data, table)[name].to_numpy() for table, names in _BUS_IDS.items() for name in names]
    in_range = all(((values >= 0) & (values < n)).all() for values in (*ids, data.bus_of_row))
    if not in_range or not np.array_equal(buses, np.tile(np.arange(n), len(data.scenarios))):
        raise CorpusError(
            f"the buses of every scenario in {directory} must be numbered from 0 in the order of their rows, "
            "and the other tables name no other bus; write its blocks again"
        )


def _bus_of_row(directory: Location) -> IntArray:
    path = directory / schema.ROWS_FILE
    with loading(path), open_parquet(path) as file:
        rows = file.read(columns=["row", "bus"])
    if not np.array_equal(rows["row"].to_numpy(), np.arange(rows.num_rows)):
        raise CorpusError(f"{path} does not list the rows of data/ in their order; write it again")
    return np.asarray(rows["bus"].to_numpy())


def _read_table(directory: Location, table: str, partitions: range, scenarios: range) -> pa.Table:
    tables: list[pa.Table] = []
    for partition in partitions:
        path = directory / schema.table_directory(table) / schema.partition_name(partition)
        with loading(path):
            names = sorted(name for name in children(path) if name.endswith(".parquet"))
            tables += [_read_file(path / name, table) for name in names]
    whole = pa.concat_tables(tables) if tables else schema.schema_of(table).empty_table()
    found = whole["scenario"].to_numpy()
    inside = bool(((found >= scenarios.start) & (found < scenarios.stop)).all())
    count = np.bincount(found - scenarios.start if inside else [], minlength=len(scenarios)).astype(np.int64)
    complete = inside and bool(count.all()) and bool((np.diff(found) >= 0).all())
    if complete and table in _NUMBERED:
        # Entries of a scenario are numbered from 0; a scenario that is there twice begins again.
        start = np.repeat(np.cumsum(count) - count, count)
        complete = np.array_equal(whole[_NUMBERED[table]].to_numpy(), np.arange(len(found)) - start)
    if not complete:
        raise CorpusError(
            f"{directory / schema.table_directory(table)} does not hold the scenarios {scenarios.start} to "
            f"{scenarios.stop - 1} once each, its rows numbered from 0; write its blocks again"
        )
    return whole


def _read_file(place: Location, table: str) -> pa.Table:
    with open_parquet(place) as file:
        wanted = schema.schema_of(table)
        return file.read(columns=wanted.names).cast(wanted)


TWIN = "twin"


@dataclass(frozen=True, eq=False)
class ReleasedTables:
    """The published twin of a release.

    Attributes
    ----------
    corpus : the release.
    directory : its tables.
    """

    corpus: Corpus
    directory: Path

    @classmethod
    def of(cls, release: Path) -> ReleasedTables:
        """The tables of a release; refused where it has none."""
        corpus = open_corpus(release)
        if not (release / TWIN).is_dir():
            raise CorpusError(
                f"{release} holds no tables of its network; they are released on a twin with "
                'network.publish = "network and loads" and network.controls = "frozen"'
            )
        corpus.files.check_folder(TWIN)
        return cls(corpus, release / TWIN)

    @property
    def bus_of_row(self) -> IntArray:
        """(row,) bus of every row of `data/`."""
        return self._first.bus_of_row

    @cached_property
    def powers(self) -> tuple[ComplexArray, ComplexArray]:
        """Complex (scenario, bus) net demand, and generation of inverters [MW + j·Mvar]."""
        partitions = -(-count_scenarios(self.directory) // schema.SCENARIOS_PER_PARTITION)
        parts = [read_gridfm(self.directory, k).powers() for k in range(partitions)]
        demand, static = (np.concatenate(part) for part in zip(*parts, strict=True))
        return demand, static

    @cached_property
    def loaded_powers(self) -> ComplexArray:
        """Complex (2, scenario, loaded) the same of the nodes that may draw or inject power."""
        return np.stack(self.powers)[:, :, self.network.loaded]

    @cached_property
    def usual_mw(self) -> FloatArray:
        """(loaded,) mean active load [MW], not negative."""
        return np.asarray(np.maximum(self.loaded_powers.sum(axis=0).real.mean(axis=0), 0.0))

    @cached_property
    def lines(self) -> tuple[PublishedLine, ...]:
        """The lines of the network."""
        return lines_of(self.network)

    @cached_property
    def network(self) -> PublishedNetwork:
        """The network, in the frame of the tables."""
        data = self._first
        turn, v = data.turn_deg()[0], data.voltage()[0]
        rows = data.bus_of_row
        reference = np.flatnonzero(data.column("bus", "REF")[0])
        used = np.any([(power != 0).any(axis=0) for power in self.powers], axis=0)
        y = data.admittance()
        y.sum_duplicates()
        return PublishedNetwork(
            y=y,
            reference=reference,
            v_reference=v[reference],
            loaded=np.setdiff1d(np.flatnonzero(used), reference),
            angle_deg=turn,
            phase=data.column("bus", "phase")[0],
            row=first_rows(np.arange(len(rows)), rows, data.n_buses),
            turn_deg=turn,
        )

    @cached_property
    def _first(self) -> GridfmData:
        return read_gridfm(self.directory, 0)


BALANCE_MW = 1e-5
"""Largest power that may be missing at a bus of the tables: far above rounding (1e-8), below any load."""
ADMITTANCE_SHARE = 1e-9
"""Largest difference between y_bus_data and the branches, as a share of the largest entry."""
FARTHEST_DEG = 90.0
"""Largest angle of a voltage that is turned back by its nominal angle; another phase is 120 away."""


def check_tables(corpus: Location, folder: str, scenarios: int, *, close_pu: float | None) -> list[str]:
    """What is wrong with the tables in a folder of a corpus, one sentence each; never raises.

    Parameters
    ----------
    scenarios : how many there should be.
    close_pu : how near their voltages are to the corpus [p.u.], scenario day·steps + step; None if
        they have nothing to do with them.
    """
    try:
        beside = None if close_pu is None else (open_corpus(corpus), close_pu)
        return list(_problems(corpus / folder, scenarios, beside))
    except (DpPowerflowError, OSError, LookupError, TypeError, ValueError, ArithmeticError):
        return [f"The tables in {folder}/ are missing, damaged or not complete."]


def _problems(tables: Location, scenarios: int, beside: tuple[Corpus, float] | None) -> Iterator[str]:
    folder = tables.name
    if count_scenarios(tables) != scenarios:
        yield f"The tables in {folder}/ hold another number of scenarios than the manifest says."
        return
    for partition in range(-(-scenarios // schema.SCENARIOS_PER_PARTITION)):
        data = read_gridfm(tables, partition)
        where = f"scenarios {data.scenarios.start} to {data.scenarios.stop - 1} of {folder}/"
        # The negated form also catches what is not a number.
        if not data.mismatch_mw().max() <= BALANCE_MW:
            yield f"The powers of {where} do not balance."
        largest = abs(data.admittance()).max()
        if not data.admittance_error() <= ADMITTANCE_SHARE * largest:
            yield f"Branches and admittances of {where} are of two networks."
        if not np.abs(data.column("bus", "Va")).max() < FARTHEST_DEG:
            yield f"The voltages of {where} are not turned back as the manifest says."
        if beside is not None and not _voltage_difference(data, beside[0]) <= beside[1]:
            yield f"The voltages of {where} are not those of the corpus."


def _voltage_difference(data: GridfmData, corpus: Corpus) -> float:
    """Largest difference [p.u.] between tables and corpus."""
    steps = corpus.layout.steps
    first, last = data.scenarios.start // steps, (data.scenarios.stop - 1) // steps
    released = corpus.voltages(np.arange(first, last + 1)).reshape(-1, corpus.layout.nodes)
    offset = data.scenarios.start - first * steps
    stated = data.phasor()[:, data.bus_of_row[: corpus.layout.nodes]]
    return float(np.max(np.abs(stated - released[offset : offset + len(data.scenarios)])))
