"""Columns, types and file names of the gridfm-datakit layout (version 1.1), and the bytes of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dp_powerflow.corpus.tables import PARQUET
from dp_powerflow.units import IntArray

SCENARIOS_PER_PARTITION = 200
"""Scenarios per directory `scenario_partition=k`; the tools of gridfm-datakit count on it."""
COUNT_FILE = "n_scenarios.txt"
ROWS_FILE = "rows.parquet"
"""Ours: the bus of every row of `data/`; two rows have one bus where a switch between them is merged."""
SETTINGS_FILE = "args.log"
SETTINGS = b"\ndp-powerflow\nsettings:\n  mode: pf\n"
"""The first two lines are skipped by gridfm-datakit, which puts a time there; the rest is YAML."""

Column = NDArray[Any] | float
"""(scenario, row), (row,) or one number for all rows."""

CLOSE_PU = 1e-4
"""How far tables and corpus may differ: the tables are not rounded, and switches are merged in them, across
which the corpus has a drop of up to 1e-6 p.u. per MVA."""

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
        **_floats("Psgen", "Qsgen"),  # from here on ours, not of the layout
        **dict.fromkeys(("phase", "row"), "int64"),
        "turn": "double",
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

GENERATOR_LIMIT_MW = 1e4
"""Limit written for the sources, which have none."""
CONSTANT: Mapping[str, Mapping[str, float]] = {
    "bus_data": {"PV": 0, "vn_kv": 1.0, "min_vm_pu": 0.9, "max_vm_pu": 1.1},
    "gen_data": {
        **dict.fromkeys(("min_p_mw", "min_q_mvar"), -GENERATOR_LIMIT_MW),
        **dict.fromkeys(("max_p_mw", "max_q_mvar"), GENERATOR_LIMIT_MW),
        **dict.fromkeys(("cp0_eur", "cp1_eur_per_mw", "cp2_eur_per_mw2"), 0.0),
        **dict.fromkeys(("in_service", "is_slack_gen"), 1),
    },
    "branch_data": {"b": 0.0, "ang_min": -360.0, "ang_max": 360.0, "rate_a": 0.0},
}
"""Table → column → its value in every row, where the layout asks for what a feeder does not have."""

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
    stop = first_scenario + count
    ends = range(first_scenario - first_scenario % SCENARIOS_PER_PARTITION, stop, SCENARIOS_PER_PARTITION)
    cuts = [first_scenario, *ends[1:], stop]
    return [range(start, end) for start, end in pairwise(cuts) if start < end]


def file_name(table: str, piece: range) -> str:
    """Path of the file that holds these scenarios of a table, relative, with forward slashes."""
    partition = partition_name(piece.start // SCENARIOS_PER_PARTITION)
    return f"{table_directory(table)}/{partition}/from-{piece.start:09d}.parquet"


def schema_of(table: str) -> pa.Schema:
    """Arrow schema of a table; no metadata, so that nothing but the columns is in a file."""
    return pa.schema(
        [pa.field(name, pa.type_for_alias(kind), nullable=False) for name, kind in TABLES[table].items()]
    )


def table_of(table: str, keys: tuple[IntArray, IntArray], columns: Mapping[str, Column]) -> pa.Table:
    """Some scenarios of a table.

    Parameters
    ----------
    keys : (scenario,) numbers of the scenarios, and the days that their loads are of: a split by day keeps
        the steps of a day together.
    columns : every column but the first two and the constant ones; first one that is of any scenario.
    """
    schema = schema_of(table)
    scenario, day = keys
    shape = (len(scenario), np.size(next(iter(columns.values()))))
    full: dict[str, Column] = {
        "scenario": scenario[:, None],
        "load_scenario_idx": day[:, None],
        **CONSTANT.get(table, {}),
        **columns,
    }
    arrays = [
        pa.array(np.broadcast_to(np.asarray(full[field.name]), shape).ravel(), type=field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def encode_rows(bus_of_row: IntArray) -> bytes:
    """Parquet bytes of `ROWS_FILE`."""
    columns = {"row": np.arange(len(bus_of_row)), "bus": bus_of_row}
    schema = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in columns])
    return encode_table(pa.table(columns, schema=schema))


def encode_table(table: pa.Table) -> bytes:
    """Parquet bytes of a table: equal input, equal bytes."""
    changing = [name for name in table.schema.names if name in CHANGING]
    sink = pa.BufferOutputStream()
    encoding = dict.fromkeys(changing, "BYTE_STREAM_SPLIT") or None
    own = {"row_group_size": _ROWS_PER_GROUP, "store_schema": False, "column_encoding": encoding}
    pq.write_table(table, sink, **{**PARQUET, **own})
    return bytes(sink.getvalue())
