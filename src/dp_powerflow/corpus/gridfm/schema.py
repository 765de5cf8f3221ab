"""Columns, types and file names of the gridfm-datakit layout (version 1.1), and the bytes of its tables.

A feeder as buses and two-port branches, the only network the gridfm-datakit layout knows.

Every node becomes a bus and every pair of coupled nodes a branch, mutual couplings of phases included. The
layout derives a branch from r, x, b, tap and shift,

    y_s = 1/(r + jx),  t = tap·e^(j·shift),
    Yff = (y_s + jb/2)/|t|²,  Yft = −y_s/conj(t),  Ytf = −y_s/t,  Ytt = y_s + jb/2,

so Yft = Y_ij and Ytf = Y_ji fix y_s and shift up to tap; whatever the diagonal of Y then lacks is the shunt
GS + j·BS of the bus. Nothing but Y, the slack, the retained nodes and the power base of the feeder is read:
of a twin whose `Feeder.lines` still were those of the true network, nothing of them would reach the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp
from numpy.typing import NDArray

from dp_powerflow._bits.elementary import degrees, divide, joined, modulus, multiply, unit
from dp_powerflow.errors import CorpusError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

SCENARIOS_PER_PARTITION = 200
"""Scenarios per directory `scenario_partition=k`; the tools of gridfm-datakit count on it."""
COUNT_FILE = "n_scenarios.txt"
SETTINGS_FILE = "args.log"
SETTINGS = b"\ndp-powerflow\nsettings:\n  mode: pf\n"
"""The first two lines are skipped by gridfm-datakit, which puts a time there; the rest is YAML."""

Column = NDArray[Any] | float
"""(scenario, row), (row,) or one number for all rows."""

_PREFIX = "scenario_partition="
_KEY = {"scenario": "int64", "load_scenario_idx": "int64"}


def _floats(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "double")


TABLES: Mapping[str, Mapping[str, str]] = {
    "bus_data": {
        **_KEY,
        "bus": "int64",
        **_floats("Pd", "Qd", "Pg", "Qg", "Vm", "Va"),
        **dict.fromkeys(("PQ", "PV", "REF"), "int8"),
        **_floats("vn_kv", "min_vm_pu", "max_vm_pu", "GS", "BS"),
        **_floats("Psgen", "Qsgen"),  # ours, not of the layout
    },
    "gen_data": {
        **_KEY,
        "idx": "int64",
        "bus": "int64",
        **_floats("p_mw", "q_mvar", "min_p_mw", "max_p_mw", "min_q_mvar", "max_q_mvar"),
        **_floats("cp0_eur", "cp1_eur_per_mw", "cp2_eur_per_mw2"),
        "in_service": "int8",
        "is_slack_gen": "int8",
    },
    "branch_data": {
        **_KEY,
        **dict.fromkeys(("idx", "from_bus", "to_bus"), "int64"),
        **_floats("pf", "qf", "pt", "qt", "r", "x", "b"),
        **_floats("Yff_r", "Yff_i", "Yft_r", "Yft_i", "Ytf_r", "Ytf_i", "Ytt_r", "Ytt_i"),
        **_floats("tap", "shift", "ang_min", "ang_max", "rate_a"),
        "br_status": "int8",
    },
    "y_bus_data": {**_KEY, "index1": "int64", "index2": "int64", **_floats("G", "B")},
}
"""Table → column → type, in the order in which they are written."""

CHANGING = frozenset(
    {"Pd", "Qd", "Pg", "Qg", "Vm", "Va", "Psgen", "Qsgen", "p_mw", "q_mvar", "pf", "qf", "pt", "qt"}
)
"""Columns that differ from scenario to scenario. The others repeat, which zstd finds by itself."""

_ROWS_PER_GROUP = 1 << 20
"""More than any partition of a feeder has, so a file is one row group unless the network is huge."""


def table_directory(table: str) -> str:
    """Directory of a table."""
    return f"{table}.parquet"


def partition_name(partition: int) -> str:
    """Directory of a partition inside the directory of a table."""
    return f"{_PREFIX}{partition}"


def pieces(first_scenario: int, count: int) -> list[range]:
    """Scenarios of a block, cut where partitions end."""
    stop, cut = first_scenario + count, []
    while first_scenario < stop:
        end = min(stop, (first_scenario // SCENARIOS_PER_PARTITION + 1) * SCENARIOS_PER_PARTITION)
        cut.append(range(first_scenario, end))
        first_scenario = end
    return cut


def file_name(table: str, piece: range) -> str:
    """Path of the file that holds these scenarios of a table, relative, with forward slashes."""
    partition = partition_name(piece.start // SCENARIOS_PER_PARTITION)
    return f"{table_directory(table)}/{partition}/from-{piece.start:09d}.parquet"


def schema_of(table: str) -> pa.Schema:
    """Arrow schema of a table; no metadata, so that nothing but the columns is in a file."""
    return pa.schema(
        [pa.field(name, pa.type_for_alias(kind), nullable=False) for name, kind in TABLES[table].items()]
    )


def encode_table(table: str, scenarios: range, rows: int, columns: Mapping[str, Column]) -> bytes:
    """Parquet bytes of some scenarios of a table: equal input, equal bytes.

    Parameters
    ----------
    rows : rows of one scenario.
    columns : every column but the first two.
    """
    schema = schema_of(table)
    shape = (len(scenarios), rows)
    scenario = np.arange(scenarios.start, scenarios.stop, dtype=np.int64)[:, None]
    full = {**dict.fromkeys(_KEY, scenario), **columns}
    arrays = [
        pa.array(np.broadcast_to(np.asarray(full[field.name]), shape).ravel(), type=field.type)
        for field in schema
    ]
    changing = [name for name in schema.names if name in CHANGING]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=schema),
        sink,
        row_group_size=_ROWS_PER_GROUP,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=3,
        use_dictionary=False,
        column_encoding=dict.fromkeys(changing, "BYTE_STREAM_SPLIT") or None,
        write_page_checksum=True,
        store_schema=False,
    )
    return bytes(sink.getvalue())


SN_MVA = 100.0
"""Power base [MVA] that the tools of gridfm-datakit assume unless told otherwise."""

_SAME = 1e-12
"""Relative difference up to which two admittances are the same but for rounding."""
_TAP_DEVIATES = 1e-3
"""A ratio nearer to one than this is no tap."""
_TAP_AGREES = 0.1
"""How far the two ends of a branch may disagree on its tap, as a share of the tap's deviation from one."""


@dataclass(frozen=True, eq=False)
class GridfmBranches:
    """Branches, sorted by (from_bus, to_bus); all arrays (branch,), admittances [p.u. of sn_mva].

    Attributes
    ----------
    r, x : series impedance [p.u.]; negative for most couplings of two phases, which are no lines.
    tap : ratio, from side.
    shift_deg : phase shift, from side [degrees].
    yff, yft, ytf, ytt : complex two-port admittances; b is zero, charging is in the shunts of the buses.
    """

    from_bus: IntArray
    to_bus: IntArray
    r: FloatArray
    x: FloatArray
    tap: FloatArray
    shift_deg: FloatArray
    yff: ComplexArray
    yft: ComplexArray
    ytf: ComplexArray
    ytt: ComplexArray


@dataclass(frozen=True, eq=False)
class GridfmTables:
    """What the tables of every scenario have in common.

    Attributes
    ----------
    sn_mva : power base of all admittances [MVA].
    base_mva : power base of the feeder, of the powers passed to the writer [MVA].
    order : (bus,) node of the feeder that each bus is.
    retained : (retained,) bus of each retained node.
    reference : (slack,) buses of the slack nodes, sorted.
    shunt : complex (bus,) GS + j·BS [p.u.].
    vn_kv : (bus,) base voltages [kV], ones where not published.
    y : sparse complex (bus, bus) [p.u.], rows sorted.
    """

    sn_mva: float
    base_mva: float
    order: IntArray
    retained: IntArray
    reference: IntArray
    shunt: ComplexArray
    vn_kv: FloatArray
    branches: GridfmBranches
    y: sp.csr_array

    @property
    def n_bus(self) -> int:
        return len(self.order)


def tables_of(
    feeder: Feeder, *, order: IntArray | None = None, sn_mva: float = SN_MVA, vn_kv: FloatArray | None = None
) -> GridfmTables:
    """The network of a feeder in the layout of gridfm-datakit.

    It is the whole network. Publish it of a twin only, never of a true network.

    Parameters
    ----------
    order : (node,) bus k is node order[k] of the feeder; None keeps the order of the feeder.
    sn_mva : power base of the tables [MVA].
    vn_kv : (node,) base voltages to publish [kV], in the order of the feeder; None writes ones.
    """
    n = len(feeder.nodes)
    order = np.arange(n) if order is None else np.asarray(order, dtype=np.int64)
    if not np.array_equal(np.sort(order), np.arange(n)):
        raise CorpusError(f"the order of the buses must be a permutation of the {n} nodes of the feeder")
    if not 0.0 < sn_mva < np.inf:
        raise CorpusError("the power base sn_mva of the gridfm tables must be a positive number of MVA")
    kv = np.ones(n) if vn_kv is None else np.asarray(vn_kv, dtype=np.float64)
    if kv.shape != (n,) or not np.all((kv > 0.0) & np.isfinite(kv)):
        raise CorpusError(f"vn_kv needs a positive base voltage for each of the {n} nodes of the feeder")
    bus_of_node = np.empty(n, dtype=np.int64)
    bus_of_node[order] = np.arange(n)
    y = sp.csr_array(sp.csr_array(feeder.y)[order, :][:, order] * (feeder.base_mva / sn_mva))
    y.sum_duplicates()
    y.eliminate_zeros()
    branches = _branches(y)
    return GridfmTables(
        sn_mva=float(sn_mva),
        base_mva=float(feeder.base_mva),
        order=order,
        retained=bus_of_node[feeder.retained],
        reference=np.sort(bus_of_node[feeder.slack]),
        shunt=_shunts(y, branches),
        vn_kv=kv[order],
        branches=branches,
        y=y,
    )


def _branches(y: sp.csr_array) -> GridfmBranches:
    i, j, forward, backward = _pairs(y)
    there_and_back = modulus(forward), modulus(backward)
    larger = np.maximum(*there_and_back)
    one = np.abs(there_and_back[0] - there_and_back[1]) <= _SAME * larger
    # Two-ports with |Yft| ≠ |Ytf| have no r, x, tap and shift. Such a pair is written as two parallel
    # branches: the mean of both directions (no shift), and half their difference, whose sign the direction
    # turns (a shift of 90°).
    two = ~one
    mean, half = 0.5 * (forward[two] + backward[two]), 0.5 * (forward[two] - backward[two])
    from_bus, to_bus = np.concatenate([i[one], i[two], i[two]]), np.concatenate([j[one], j[two], j[two]])
    yft = np.concatenate([forward[one], mean, half])
    ytf = np.concatenate([backward[one], mean, -half])
    there = modulus(yft) > _SAME * np.concatenate([larger[one], larger[two], larger[two]])
    sequence = np.lexsort((to_bus, from_bus))
    sequence = sequence[there[sequence]]
    from_bus, to_bus, yft, ytf = from_bus[sequence], to_bus[sequence], yft[sequence], ytf[sequence]
    shift = _shift_deg(yft, ytf)
    series = multiply(-yft, unit(-shift))
    tap = _taps(y, from_bus, to_bus, series)
    impedance = divide(np.ones_like(series), tap * series)
    return GridfmBranches(
        from_bus=from_bus,
        to_bus=to_bus,
        r=impedance.real.copy(),
        x=impedance.imag.copy(),
        tap=tap,
        shift_deg=shift,
        yff=joined(series.real / tap, series.imag / tap),
        yft=yft,
        ytf=ytf,
        ytt=np.asarray(series * tap, dtype=np.complex128),
    )


def _pairs(y: sp.csr_array) -> tuple[IntArray, IntArray, ComplexArray, ComplexArray]:
    """Every coupled pair i < j with Y_ij and Y_ji."""
    entries = sp.coo_array(y)
    upper = sp.csr_array(sp.triu(entries, 1))
    lower = sp.csr_array(sp.tril(entries, -1).T)
    pattern = sp.coo_array(abs(upper) + abs(lower))
    sequence = np.lexsort((pattern.col, pattern.row))
    i, j = pattern.row[sequence].astype(np.int64), pattern.col[sequence].astype(np.int64)
    if len(i) == 0:
        raise CorpusError("the feeder has no two nodes that are coupled, so there is no branch to write")
    return i, j, np.asarray(upper[i, j]), np.asarray(lower[i, j])


def _shift_deg(yft: ComplexArray, ytf: ComplexArray) -> FloatArray:
    """Phase shift of branches with |Yft| = |Ytf|; half a turn more makes x positive, as in a transformer."""
    half = 0.5 * degrees(divide(yft, ytf))
    symmetric = modulus(yft - ytf) <= _SAME * modulus(yft)
    reactance_is_positive = multiply(-yft, unit(-half)).imag < 0.0
    turned = np.where(reactance_is_positive, half, half - np.copysign(180.0, half))
    return np.asarray(np.where(symmetric, 0.0, turned))


def _taps(y: sp.csr_array, from_bus: IntArray, to_bus: IntArray, series: ComplexArray) -> FloatArray:
    """Ratios that explain shunts of opposite sign at the two ends of a branch.

    With ratio one everywhere, a transformer of ratio t leaves the shunts y/t − y at its from side and
    y·t − y at its to side: the two ends agree on t. Any ratio gives the same Y, since shunts make up for it;
    the right one spares the buses at a regulator shunts thousands of times their lines.
    """
    ones = np.ones(len(series))
    shunt = y.diagonal() - _at_buses(y.shape[0], from_bus, to_bus, series, series)
    at_from, at_to = (1.0 + divide(shunt[bus], series) for bus in (from_bus, to_bus))
    positive = (at_from.real > 0.0) & (at_to.real > 0.0)
    ratio = np.sqrt(np.where(positive, at_to.real, 1.0) / np.where(positive, at_from.real, 1.0))
    deviation = np.abs(ratio - 1.0)
    agree = modulus(multiply(at_from, at_to) - 1.0) <= _TAP_AGREES * deviation
    return np.asarray(np.where(positive & agree & (deviation > _TAP_DEVIATES), ratio, ones))


def _shunts(y: sp.csr_array, branches: GridfmBranches) -> ComplexArray:
    through = _at_buses(y.shape[0], branches.from_bus, branches.to_bus, branches.yff, branches.ytt)
    return np.asarray(y.diagonal() - through)


def _at_buses(
    n: int, from_bus: IntArray, to_bus: IntArray, at_from: ComplexArray, at_to: ComplexArray
) -> ComplexArray:
    """Complex (bus,) sums over the branch ends at each bus."""
    sums = np.zeros(n, dtype=np.complex128)
    np.add.at(sums, from_bus, at_from)
    np.add.at(sums, to_bus, at_to)
    return sums
