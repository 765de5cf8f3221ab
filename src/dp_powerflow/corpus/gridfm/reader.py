"""Reads a gridfm-datakit directory back and recomputes its power balance from the tables alone.

`check_tables` checks them against that power flow and against the corpus beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp

from dp_powerflow.corpus.gridfm.schema import (
    COUNT_FILE,
    SCENARIOS_PER_PARTITION,
    SN_MVA,
    TABLES,
    partition_name,
    schema_of,
    table_directory,
)
from dp_powerflow.corpus.reader import Corpus, open_corpus
from dp_powerflow.corpus.storage import loading
from dp_powerflow.errors import CorpusError, DpPowerflowError
from dp_powerflow.units import ComplexArray, FloatArray

BALANCE_MW = 1e-5
"""Largest power that may be missing at a bus of the tables: far above rounding (1e-8), below any load."""
ADMITTANCE_SHARE = 1e-9
"""Largest difference between y_bus_data and the branches, as a share of the largest entry."""
CLOSE_PU = 1e-6
"""The tables are not rounded, the corpus is: half a step of its grid in magnitude and in angle stay below."""

_Y_BUS = ("index1", "index2", "G", "B")
_BUS_IDS = {"gen": ("bus",), "branch": ("from_bus", "to_bus"), "y_bus": ("index1", "index2")}


@dataclass(frozen=True, eq=False)
class GridfmData:
    """The four tables, rows sorted by scenario; columns as in `gridfm.schema.TABLES`.

    Attributes
    ----------
    scenarios : scenarios in the tables.
    """

    scenarios: range
    bus: pa.Table
    gen: pa.Table
    branch: pa.Table
    y_bus: pa.Table

    def column(self, table: str, name: str) -> FloatArray:
        """A column of `bus`, `gen`, `branch` or `y_bus` as an array (scenario, row)."""
        values = getattr(self, table)[name].to_numpy()
        return np.asarray(values.reshape(len(self.scenarios), -1))

    def phasor(self) -> ComplexArray:
        """Complex (scenario, bus) voltages [p.u.]."""
        return np.asarray(self.column("bus", "Vm") * np.exp(1j * np.deg2rad(self.column("bus", "Va"))))

    def admittance(self, scenario: int = 0) -> sp.csr_array:
        """Complex (bus, bus) [p.u. of sn_mva] from y_bus_data; `scenario` counts from the first read."""
        n = self.column("bus", "bus").shape[1]
        rows, columns, g, b = (self.column("y_bus", name)[scenario] for name in _Y_BUS)
        return sp.csr_array((g + 1j * b, (rows.astype(np.int64), columns.astype(np.int64))), shape=(n, n))

    def admittance_error(self) -> float:
        """Largest |Y of y_bus_data − Y of branches and shunts| over all scenarios [p.u. of sn_mva]."""
        shunt = self._complex("bus", "GS", "BS")
        buses = np.arange(shunt.shape[1])
        i, j = (self.column("branch", name).astype(np.int64) for name in ("from_bus", "to_bus"))
        yff, yft, ytf, ytt = self._two_ports()
        described = (i, j, yff, yft, ytf, ytt, shunt, *(self.column("y_bus", name) for name in _Y_BUS))
        unlike_first = np.zeros(len(self.scenarios), dtype=np.bool_)
        for values in described:
            unlike_first |= (values != values[0]).any(axis=1)
        worst = 0.0
        for k in (0, *np.flatnonzero(unlike_first)):  # as a rule all scenarios have the same network
            rows = np.concatenate([i[k], i[k], j[k], j[k], buses])
            columns = np.concatenate([i[k], j[k], i[k], j[k], buses])
            values = np.concatenate([yff[k], yft[k], ytf[k], ytt[k], shunt[k]])
            summed = sp.csr_array((values, (rows, columns)), shape=(len(buses), len(buses)))
            worst = np.maximum(worst, abs(summed - self.admittance(k)).max())  # keeps a NaN, unlike max()
        return float(worst)

    def mismatch_mw(self, sn_mva: float = SN_MVA) -> FloatArray:
        """(scenario, bus) |injected − shunt − flows into the branches| [MVA], everything as written.

        Flows are computed again from the voltages and two-port admittances and the stored ones are
        checked on the way: the larger of both differences is returned.
        """
        v = self.phasor()
        shunt = self._complex("bus", "GS", "BS")
        injected = self._complex("bus", "Pg", "Qg") - self._complex("bus", "Pd", "Qd")
        balance = injected - np.abs(v) ** 2 * np.conj(shunt) * sn_mva
        i, j = (self.column("branch", name).astype(np.int64) for name in ("from_bus", "to_bus"))
        yff, yft, ytf, ytt = self._two_ports()
        v_from, v_to = np.take_along_axis(v, i, 1), np.take_along_axis(v, j, 1)
        at_from = v_from * np.conj(yff * v_from + yft * v_to) * sn_mva
        at_to = v_to * np.conj(ytf * v_from + ytt * v_to) * sn_mva
        scenario = np.broadcast_to(np.arange(len(v))[:, None], i.shape)
        wrong = np.zeros(v.shape)
        for ends, flow, stored in (
            (i, at_from, self._complex("branch", "pf", "qf")),
            (j, at_to, self._complex("branch", "pt", "qt")),
        ):
            np.subtract.at(balance, (scenario, ends), flow)
            np.maximum.at(wrong, (scenario, ends), np.abs(flow - stored))
        return np.asarray(np.maximum(np.abs(balance), wrong))

    def _two_ports(self) -> tuple[ComplexArray, ...]:
        names = ("Yff", "Yft", "Ytf", "Ytt")
        return tuple(self._complex("branch", f"{name}_r", f"{name}_i") for name in names)

    def _complex(self, table: str, real: str, imaginary: str) -> ComplexArray:
        return np.asarray(self.column(table, real) + 1j * self.column(table, imaginary))


def count_scenarios(directory: Path | str) -> int:
    """Number of scenarios that a gridfm-datakit directory says it has."""
    path = Path(directory) / COUNT_FILE
    with loading(path):
        return int(path.read_text())


def read_gridfm(directory: Path | str, partition: int | None = None) -> GridfmData:
    """Read the tables of a published twin, or any gridfm-datakit directory, and check that they are complete.

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
    n_partitions = -(-total // SCENARIOS_PER_PARTITION)
    if partition is None:
        partitions, scenarios = range(n_partitions), range(total)
    else:
        if not 0 <= partition < n_partitions:
            raise CorpusError(f"{directory} has partitions 0 to {n_partitions - 1}, there is no {partition}")
        first = partition * SCENARIOS_PER_PARTITION
        partitions = range(partition, partition + 1)
        scenarios = range(first, min(first + SCENARIOS_PER_PARTITION, total))
    bus, gen, branch, y_bus = (_read_table(Path(directory), name, partitions, scenarios) for name in TABLES)
    data = GridfmData(scenarios, bus, gen, branch, y_bus)
    _check_buses(data, Path(directory))
    return data


def _check_buses(data: GridfmData, directory: Path) -> None:
    buses = data.column("bus", "bus")
    n = buses.shape[1]
    ids = [data.column(table, name) for table, names in _BUS_IDS.items() for name in names]
    in_range = all(((values >= 0) & (values < n)).all() for values in ids)
    if not in_range or not np.array_equal(buses, np.broadcast_to(np.arange(n), buses.shape)):
        raise CorpusError(
            f"the buses of every scenario in {directory} must be numbered from 0 in the order of their rows, "
            "and the other tables name no other bus; write its blocks again"
        )


def _read_table(directory: Path, table: str, partitions: range, scenarios: range) -> pa.Table:
    schema = schema_of(table)
    tables: list[pa.Table] = []
    for partition in partitions:
        path = directory / table_directory(table) / partition_name(partition)
        with loading(path):
            files = sorted(path.glob("*.parquet"))
            tables += [pq.ParquetFile(file).read(columns=schema.names).cast(schema) for file in files]
    whole = pa.concat_tables(tables) if tables else schema.empty_table()
    found = whole["scenario"].to_numpy()
    rows = len(found) // len(scenarios)
    if rows == 0 or not np.array_equal(found, np.repeat(np.arange(scenarios.start, scenarios.stop), rows)):
        raise CorpusError(
            f"{directory / table_directory(table)} does not hold the scenarios {scenarios.start} to "
            f"{scenarios.stop - 1} once each, with equally many rows; write its blocks again"
        )
    return whole


def check_tables(corpus: Path, folder: str, scenarios: int, *, same_voltages: bool) -> list[str]:
    """What is wrong with the tables in a folder of a corpus, one sentence each; never raises.

    Parameters
    ----------
    scenarios : how many there should be.
    same_voltages : whether bus k is node k and scenario day·steps + step that of the corpus.
    """
    try:
        return list(_problems(corpus, folder, scenarios, same_voltages))
    except (DpPowerflowError, OSError, LookupError, TypeError, ValueError, ArithmeticError):
        return [f"The tables in {folder}/ are missing, damaged or not complete."]


def _problems(corpus: Path, folder: str, scenarios: int, same_voltages: bool) -> Iterator[str]:
    if count_scenarios(corpus / folder) != scenarios:
        yield f"The tables in {folder}/ hold another number of scenarios than the manifest says."
        return
    voltages = open_corpus(corpus) if same_voltages else None
    for partition in range(-(-scenarios // SCENARIOS_PER_PARTITION)):
        data = read_gridfm(corpus / folder, partition)
        where = f"scenarios {data.scenarios.start} to {data.scenarios.stop - 1} of {folder}/"
        # The negated form also catches what is not a number.
        if not data.mismatch_mw().max() <= BALANCE_MW:
            yield f"The powers of {where} do not balance."
        largest = abs(data.admittance()).max()
        if not data.admittance_error() <= ADMITTANCE_SHARE * largest:
            yield f"Branches and admittances of {where} are of two networks."
        if voltages is not None and not _voltage_difference(data, voltages) <= CLOSE_PU:
            yield f"The voltages of {where} are not those of the corpus."


def _voltage_difference(data: GridfmData, corpus: Corpus) -> float:
    """Largest difference [p.u.] between tables and corpus."""
    steps = corpus.layout.steps
    first, last = data.scenarios.start // steps, (data.scenarios.stop - 1) // steps
    released = corpus.voltages(np.arange(first, last + 1)).reshape(-1, corpus.layout.nodes)
    offset = data.scenarios.start - first * steps
    stated = data.phasor()[:, : corpus.layout.nodes]
    return float(np.max(np.abs(stated - released[offset : offset + len(data.scenarios)])))
