"""Reads and checks what a corpus holds beside its voltages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dp_powerflow._threads import in_order
from dp_powerflow.corpus.arrow import numbers
from dp_powerflow.corpus.extras import (
    DRAWN,
    FEEDER,
    FOLDERS,
    INJECTED,
    LOADS,
    MENDED,
    NOTHING,
    ExtrasLayout,
    day_columns,
    extras_in,
    file_schema,
    power_on_grid,
)
from dp_powerflow.corpus.grid import turn_days
from dp_powerflow.corpus.listed import Listed
from dp_powerflow.corpus.schema import CorpusLayout, Float32Array, list_values, part_name, rows_in_order
from dp_powerflow.corpus.storage import Location, loading, open_parquet
from dp_powerflow.errors import CorpusError
from dp_powerflow.units import ComplexArray, IntArray

PAIRS = {"loads": DRAWN, "generation": INJECTED}
"""Columns of `loads/` with the active and the reactive power."""


def room_for(shape: tuple[int, ...]) -> Float32Array:
    """Memory for values of a corpus; CorpusError where there is none, or where no array is that large."""
    try:
        return np.empty(shape, dtype=np.float32)
    except (MemoryError, ValueError):
        raise CorpusError(
            "the days asked for do not fit into memory; ask for fewer, or read them with batches()"
        ) from None


def find_extras(
    root: Location,
    layout: CorpusLayout,
    release_id: str,
    folders: Iterable[str] = FOLDERS,
    files: Listed | None = None,
) -> ExtrasLayout:
    """What a corpus holds beside its voltages, from its first part.

    Parameters
    ----------
    folders : where to look.
    files : gives the files; None for those that are there, unchecked.

    Raises
    ------
    CorpusError : a file cannot be read, or is of another corpus.
    """
    schemas, files = {}, Listed(root) if files is None else files
    for folder in folders:
        name = f"{folder}/{part_name(0)}"
        with loading(root / name):
            if files.has(name):
                with open_parquet(files.source(name)) as file:
                    schemas[folder] = file.schema_arrow
    extras = extras_in({folder: schema.names for folder, schema in schemas.items()})
    for folder, schema in schemas.items():
        with loading(root / folder / part_name(0)):
            if not schema.equals(file_schema(folder, extras, layout, release_id, 0), check_metadata=True):
                raise ValueError("not a part of this corpus")
    return extras


@dataclass(frozen=True)
class ExtrasReader:
    """Reads what a corpus holds beside its voltages.

    Attributes
    ----------
    root : directory or URL of the release.
    layout, release_id : of the corpus.
    extras : what there is.
    files : gives the files.
    """

    root: Location
    layout: CorpusLayout
    release_id: str
    extras: ExtrasLayout
    files: Listed

    def node_power(self, name: str, days: IntArray, nodes: IntArray) -> tuple[Float32Array, Float32Array]:
        """Active and reactive power of nodes as stored: float32 (day, step, node) [kW], [kvar]."""
        self._require(name)
        shape = (len(days), self.layout.steps, len(nodes))
        found = room_for(shape), room_for(shape)
        for part, group, rows, offsets in self.layout.blocks(days):
            held = self.layout.groups_of(part)[group]
            table = self._table(LOADS, part, group)
            with loading(self.root / LOADS / part_name(part)):
                if not rows_in_order(table, held, self.layout.nodes):
                    raise ValueError("rows out of order")
            for values, column in zip(found, PAIRS[name], strict=True):
                block = list_values(table, column).reshape(len(held), self.layout.nodes, self.layout.steps)
                turn_days(block, offsets, nodes, values, rows)
        return found

    def complex_power(self, name: str, days: IntArray, nodes: IntArray) -> ComplexArray:
        """The same as one array: complex (day, step, node) [kW + j kvar]."""
        active, reactive = self.node_power(name, days, nodes)
        return np.asarray(active.astype(np.float64) + 1j * reactive.astype(np.float64))

    def day_values(self, name: str, days: IntArray) -> NDArray[Any]:
        """An array of `PartExtras` that is not per node: (day, step, …)."""
        self._require(name)
        columns = [column for column in day_columns(self.extras) if column.of == name]
        found = np.empty((len(columns), len(days), self.layout.steps), dtype=np.float64)
        parts = days // self.layout.days_per_part
        for part in np.unique(parts).tolist():
            held, rows = self.layout.days_of(part), np.flatnonzero(parts == part)
            table = self._table(FEEDER, part, 0)
            with loading(self.root / FEEDER / part_name(part)):
                if not _days_in_order(table, held):
                    raise ValueError("rows out of order")
            for k, column in enumerate(columns):
                block = list_values(table, column.name).reshape(len(held), self.layout.steps)
                found[k][rows] = block[days[rows] - held.start]
        return _joined(name, found)

    def _require(self, name: str) -> None:
        if name in self.extras.holds:
            return
        also = ", ".join(self.extras.holds)
        what = f"voltages and {also}" if also else "voltages only"
        raise CorpusError(
            f"this release publishes {what}; a release on a twin can also publish its loads, the power of "
            "its sources and the states of its controls (network.also_publish)"
        )

    def _table(self, folder: str, part: int, group: int) -> pa.Table:
        path = self.root / folder / part_name(part)
        schema = file_schema(folder, self.extras, self.layout, self.release_id, part)
        content = self.files.source(f"{folder}/{part_name(part)}")
        with loading(path), open_parquet(content) as file:
            if not file.schema_arrow.equals(schema, check_metadata=True):
                raise ValueError("not a part of this corpus")
            return file.read_row_group(group, use_threads=False)


def _joined(name: str, columns: NDArray[Any]) -> NDArray[Any]:
    """Columns (column, day, step) as the array that was written."""
    if name == "head":
        return np.asarray(np.moveaxis(columns[0::2] + 1j * columns[1::2], 0, -1))
    if name == "locked":
        return np.asarray(columns[0], dtype=np.bool_)
    if name == MENDED:
        return np.asarray(columns[0], dtype=np.int64)
    return np.asarray(np.moveaxis(columns, 0, -1), dtype=np.int64)


def _days_in_order(table: pa.Table, days: range) -> bool:
    return np.array_equal(numbers(table.column("day")), np.arange(days.start, days.stop))


@dataclass(frozen=True)
class ExtrasReport:
    """What `check_extras` found.

    Attributes
    ----------
    layout : what there is beside the voltages.
    problems : one sentence each.
    n_powers : pairs of active and reactive power that were read and checked.
    n_mended : snapshots whose powers were lowered until there was a solution.
    """

    layout: ExtrasLayout = NOTHING
    problems: tuple[str, ...] = ()
    n_powers: int = 0
    n_mended: int = 0


Open = Callable[[str], Location | pa.BufferReader]
"""Gives the file of a relative name."""


@dataclass(frozen=True)
class ExtrasChecker:
    """Checks every row and value of the files beside the voltages.

    Attributes
    ----------
    root, layout, release_id : of the corpus.
    source : gives what a file is parsed from.
    """

    root: Location
    layout: CorpusLayout
    release_id: str
    source: Open

    def check(self, parts: Mapping[str, list[int]], workers: int | None = 1) -> ExtrasReport:
        """Look at the parts that are there, by folder, on so many threads; somebody may have changed any."""
        try:
            begun = [folder for folder in FOLDERS if 0 in parts[folder]]
            extras = find_extras(self.root, self.layout, self.release_id, begun)
        except CorpusError as error:
            return ExtrasReport(problems=(str(error),))
        problems, count = [], _Counts()
        for folder in FOLDERS:
            missing = self.layout.n_parts - len(parts[folder])
            if folder in extras.folders and missing:
                problems.append(f"{missing} of {self.layout.n_parts} parts are missing in {folder}/.")
            if parts[folder] and folder not in extras.folders:
                problems.append(f"{folder}/ does not hold its first part.")
                continue
            for found in in_order(partial(self._attempt, folder, extras), parts[folder], workers):
                if isinstance(found, str):
                    problems.append(found)
                else:
                    count += found
        return ExtrasReport(extras, tuple(problems), count.powers // 2, count.mended)

    def _attempt(self, folder: str, extras: ExtrasLayout, part: int) -> _Counts | str:
        """What is in a part, or what is wrong with it."""
        name = f"{folder}/{part_name(part)}"
        try:
            return self._check_part(folder, part, extras)
        except CorpusError as error:
            return f"{name}: {error}"
        except (OSError, pa.ArrowException, ValueError):
            return f"{name} is damaged or not a Parquet file."

    def _check_part(self, folder: str, part: int, extras: ExtrasLayout) -> _Counts:
        """What is in a part; CorpusError with what is wrong in it."""
        layout = self.layout
        groups = layout.groups_of(part) if folder == LOADS else [layout.days_of(part)]
        per_day = layout.nodes if folder == LOADS else 1
        expected = file_schema(folder, extras, layout, self.release_id, part)
        with open_parquet(
            self.source(f"{folder}/{part_name(part)}"), page_checksum_verification=True
        ) as file:
            if not file.schema_arrow.equals(expected, check_metadata=True):
                raise CorpusError("columns, types or metadata are not those of this part of this corpus.")
            rows = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
            if rows != [len(days) * per_day for days in groups]:
                raise CorpusError("rows or row groups are missing or too many.")
            tables = (file.read_row_group(number, use_threads=False) for number in range(len(groups)))
            counts = (_check_rows(table, days, layout) for table, days in zip(tables, groups, strict=True))
            return sum(counts, _Counts())


@dataclass(frozen=True)
class _Counts:
    """Active and reactive powers that were read, and snapshots that were mended."""

    powers: int = 0
    mended: int = 0

    def __add__(self, other: _Counts) -> _Counts:
        return _Counts(self.powers + other.powers, self.mended + other.mended)


def _check_rows(table: pa.Table, days: range, layout: CorpusLayout) -> _Counts:
    """What is in a row group; CorpusError with what is wrong in it."""
    where = f"days {days.start} to {days.stop - 1}"
    if "node" in table.column_names and not rows_in_order(table, days, layout.nodes):
        raise CorpusError(f"{where} do not hold every node exactly once, in order.")
    if "node" not in table.column_names and not _days_in_order(table, days):
        raise CorpusError(f"{where} are not there exactly once, in order.")
    powers, off, mended = 0, 0, 0
    for field in table.schema:
        if pa.types.is_fixed_size_list(field.type):
            values = list_values(table, field.name)
            if len(values) != len(table) * layout.steps or table.column(field.name).null_count:
                raise CorpusError(f"{where} lack values.")
            if field.type.value_type == pa.float32():
                powers += values.size
                off += int(np.count_nonzero(~power_on_grid(values)))
            if field.name == MENDED:
                mended += int(np.count_nonzero(values))
                if np.any(values < 0):
                    raise CorpusError(f"{where} hold snapshots that were mended less than 0 times.")
    if off:
        raise CorpusError(f"{off} values of {where} are not on the public grid.")
    return _Counts(powers, mended)
