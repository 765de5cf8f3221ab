"""What a corpus may hold beside its voltages: powers, taps and capacitor states of the network solved.

**Files.** `loads/part-*.parquet` has the rows of `data/`: one per (day, node). `feeder/part-*.parquet` has
one row per day. Both are split into parts as `data/` is. Regulators and capacitors are called by their
position. Powers are on the grid of `corpus/grid.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dp_powerflow._threads import in_order
from dp_powerflow.corpus.grid import POWER_MAX_KW as POWER_MAX_KW
from dp_powerflow.corpus.grid import POWER_PER_KW as POWER_PER_KW
from dp_powerflow.corpus.grid import NodeColumns, Pages, fill_powers, turn_days
from dp_powerflow.corpus.grid import power_on_grid as power_on_grid
from dp_powerflow.corpus.grid import round_power as round_power
from dp_powerflow.corpus.listed import Listed
from dp_powerflow.corpus.parquet import encode_series, numbers
from dp_powerflow.corpus.schema import (
    NODES_FILE,
    PARQUET,
    CorpusLayout,
    Float32Array,
    list_values,
    part_metadata,
    part_name,
    rows_in_order,
)
from dp_powerflow.corpus.storage import Location, loading, open_parquet
from dp_powerflow.errors import CorpusError
from dp_powerflow.units import BoolArray, ComplexArray, IntArray

LOADS = "loads"
FEEDER = "feeder"
FOLDERS = (LOADS, FEEDER)
MENDED = "mended"

POWER_GRID = "multiples of 2^-10 kW or kvar; from 16,384 on those that a float32 holds"
DRAWN, INJECTED = ("p_kw", "q_kvar"), ("g_kw", "g_kvar")
"""Columns of `loads/`: active and reactive power."""

_MOST = 10_000
_INT16 = np.iinfo(np.int16)
_SPLIT, _PACKED = "BYTE_STREAM_SPLIT", "DELTA_BINARY_PACKED"


@dataclass(frozen=True)
class ExtrasLayout:
    """What a corpus holds beside its voltages; by default nothing.

    Attributes
    ----------
    loads : whether the power drawn at every released node is there.
    generation : whether the power injected at every released node is; only with `loads`.
    sources : phases of the sources whose power into the feeder is there, 0 for none.
    regulators, capacitors : how many of them have their states there. With any of them `locked` is there too.
    mended : whether it is there how often loads and PV of a snapshot were lowered until it had a solution.
    """

    loads: bool = False
    generation: bool = False
    sources: int = 0
    regulators: int = 0
    capacitors: int = 0
    mended: bool = False

    def __post_init__(self) -> None:
        if not all(0 <= count <= _MOST for count in (self.sources, self.regulators, self.capacitors)):
            raise CorpusError(f"a corpus describes at most {_MOST} sources, regulators or capacitors")
        if self.generation and not self.loads:
            raise CorpusError("a corpus with the generation of its nodes has their loads too")

    @property
    def states(self) -> bool:
        """Whether there are taps or states of capacitors."""
        return self.regulators + self.capacitors > 0

    @property
    def holds(self) -> tuple[str, ...]:
        """Names of what is there, as the fields of `PartExtras`."""
        there = {
            "loads": self.loads,
            "generation": self.generation,
            "head": self.sources > 0,
            "taps": self.regulators > 0,
            "capacitors": self.capacitors > 0,
            "locked": self.states,
            "mended": self.mended,
        }
        return tuple(name for name, is_there in there.items() if is_there)

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders of the files that are there, beside `data`."""
        return (LOADS,) * self.loads + (FEEDER,) * (self.sources > 0 or self.states or self.mended)

    def shape_of(self, name: str, days: int, layout: CorpusLayout) -> tuple[int, ...]:
        """Shape of an array of `PartExtras` for so many days."""
        last = {
            "loads": (layout.nodes,),
            "generation": (layout.nodes,),
            "head": (self.sources,),
            "taps": (self.regulators,),
            "capacitors": (self.capacitors,),
            "locked": (),
            "mended": (),
        }
        return (days, layout.steps, *last[name])


NOTHING = ExtrasLayout()
"""Of a corpus with voltages only."""


@dataclass(frozen=True, eq=False)
class PartExtras:
    """What is published of the days of one part beside their voltages; None where it is not published.

    Attributes
    ----------
    loads : complex (day, step, node) power drawn by the loads at every released node [kW + j kvar].
    generation : complex (day, step, node) power injected by PV and generators [kW + j kvar].
    head : complex (day, step, source phase) power that the sources feed into the feeder [kW + j kvar].
    taps : integer (day, step, regulator) tap steps away from neutral.
    capacitors : integer (day, step, capacitor), 1 closed, 0 open.
    locked : boolean (day, step) whether a control was locked because it hunted.
    mended : integer (day, step) how often loads and PV were lowered until there was a solution; mostly 0.
    """

    loads: ComplexArray | NodeColumns | None = None
    generation: ComplexArray | NodeColumns | None = None
    head: ComplexArray | None = None
    taps: IntArray | None = None
    capacitors: IntArray | None = None
    locked: BoolArray | None = None
    mended: IntArray | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The arrays that are there, by name."""
        return {name: values for name, values in vars(self).items() if values is not None}


# --- columns ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class DayColumn:
    """A column of `feeder/`: one list of T values per day.

    Attributes
    ----------
    of, index, part : array of `PartExtras`, index on its last axis (None if it has none), and of a complex
        one the real or imaginary part.
    unit, means : for its description.
    """

    name: str
    of: str
    index: int | None
    type: pa.DataType
    means: str
    unit: str | None = None
    part: str = ""


def day_columns(extras: ExtrasLayout) -> Iterator[DayColumn]:
    """Columns of `feeder/` after `day`."""
    for k, name in enumerate(_names("s", extras.sources)):
        fed = f"that source phase {k} feeds into the feeder"
        yield DayColumn(f"{name}_p_kw", "head", k, pa.float32(), f"active power {fed}", "kW", "real")
        yield DayColumn(f"{name}_q_kvar", "head", k, pa.float32(), f"reactive power {fed}", "kvar", "imag")
    for k, name in enumerate(_names("r", extras.regulators)):
        yield DayColumn(f"{name}_tap", "taps", k, pa.int16(), f"tap of regulator {k}, 0 is neutral")
    for k, name in enumerate(_names("c", extras.capacitors)):
        yield DayColumn(f"{name}_closed", "capacitors", k, pa.bool_(), f"whether capacitor {k} is closed")
    if extras.states:
        yield DayColumn(
            "locked", "locked", None, pa.bool_(), "whether a control was locked because it hunted"
        )
    if extras.mended:
        means = "how often all loads and PV were multiplied by 0.95, for lack of a power-flow solution"
        yield DayColumn(MENDED, MENDED, None, pa.int16(), means)


def _names(letter: str, count: int) -> list[str]:
    width = len(str(count - 1))
    return [f"{letter}{k:0{width}d}" for k in range(count)]


def file_schema(
    folder: str, extras: ExtrasLayout, layout: CorpusLayout, release_id: str, part: int
) -> pa.Schema:
    """Schema of a part in a folder of `extras.folders`."""
    fields = [pa.field("day", pa.int32(), nullable=False)]
    if folder == LOADS:
        fields.append(pa.field("node", pa.int32(), nullable=False, metadata={"is": f"row of {NODES_FILE}"}))
        names = DRAWN + INJECTED * extras.generation
        fields += [_field(name, pa.float32(), layout, name.partition("_")[2]) for name in names]
    else:
        fields += [_field(column.name, column.type, layout, column.unit) for column in day_columns(extras)]
    return pa.schema(fields, metadata=part_metadata(layout, release_id, part))


def _field(name: str, kind: pa.DataType, layout: CorpusLayout, unit: str | None) -> pa.Field:
    series = pa.list_(pa.field("element", kind, nullable=False), layout.steps)
    return pa.field(name, series, nullable=False, metadata=unit and {"unit": unit, "grid": POWER_GRID})


def extras_in(columns: Mapping[str, list[str]]) -> ExtrasLayout:
    """What there is, from the names of the columns of the files that are there, by folder."""
    of_nodes, of_days = columns.get(LOADS, []), columns.get(FEEDER, [])

    def count(ending: str) -> int:
        return sum(name.endswith(ending) for name in of_days)

    return ExtrasLayout(
        loads=LOADS in columns,
        generation=INJECTED[0] in of_nodes,
        sources=count("_p_kw"),
        regulators=count("_tap"),
        capacitors=count("_closed"),
        mended=MENDED in of_days,
    )


# --- bytes ------------------------------------------------------------------------------------------------
def encode_extras(
    extras: ExtrasLayout, layout: CorpusLayout, release_id: str, part: int, given: PartExtras | None
) -> dict[str, memoryview]:
    """Relative names and bytes of the files of a part beside `data/`, rounded to the public grid.

    Raises
    ------
    CorpusError : something is missing that the corpus holds, or there that it does not hold, or of another
        shape.
    """
    arrays = _checked(extras, layout, part, given or PartExtras())
    made = {}
    for folder in extras.folders:
        schema = file_schema(folder, extras, layout, release_id, part)
        encode = _encode_loads if folder == LOADS else _encode_feeder
        made[f"{folder}/{part_name(part)}"] = encode(schema, extras, layout, part, arrays)
    return made


def _checked(extras: ExtrasLayout, layout: CorpusLayout, part: int, given: PartExtras) -> dict[str, Any]:
    arrays = given.given
    if arrays.keys() != set(extras.holds):
        wanted, got = (", ".join(names) or "nothing" for names in (extras.holds, arrays))
        raise CorpusError(f"beside its voltages part {part} needs {wanted}, and got {got}")
    for name, values in arrays.items():
        shape = extras.shape_of(name, len(layout.days_of(part)), layout)
        if values.shape != shape:
            raise CorpusError(f"part {part} needs {name} of shape {shape}, not {values.shape}")
    return arrays


def _encode_loads(
    schema: pa.Schema,
    extras: ExtrasLayout,
    layout: CorpusLayout,
    part: int,
    arrays: Mapping[str, Any],
) -> memoryview:
    days = layout.days_of(part)
    given = [NodeColumns.of(arrays[name]) for name in ("loads", *("generation",) * extras.generation)]

    def fill(group: range, pages: list[Pages]) -> None:
        within = range(group.start - days.start, group.stop - days.start)
        for powers, pair in zip(given, pages, strict=True):
            fill_powers(powers, within, pair)

    return encode_series(schema, layout.nodes, layout.groups_of(part), fill)


def _encode_feeder(
    schema: pa.Schema,
    extras: ExtrasLayout,
    layout: CorpusLayout,
    part: int,
    arrays: Mapping[str, Any],
) -> memoryview:
    """One row group: a part has few days, and a day few columns."""
    days = layout.days_of(part)
    columns = [pa.array(np.arange(days.start, days.stop, dtype=np.int32))]
    for column in day_columns(extras):
        values = arrays[column.of] if column.index is None else arrays[column.of][..., column.index]
        flat = pa.array(_stored(column, values).ravel(), column.type)
        columns.append(pa.FixedSizeListArray.from_arrays(flat, type=schema.field(column.name).type))
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, **_options(schema)) as writer:
        writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=len(days))
    return memoryview(sink.getvalue()).cast("B")


def _stored(column: DayColumn, values: NDArray[Any]) -> NDArray[Any]:
    """Values as the type of the column; refuses what it cannot hold."""
    if column.of == "head":
        return round_power(getattr(values, column.part))
    if column.of in ("taps", MENDED):
        if not np.all((values >= _INT16.min) & (values <= _INT16.max)):
            raise CorpusError("a tap is not a whole number of steps away from neutral that a corpus can hold")
        return values.astype(np.int16)
    if not np.all((values == 0) | (values == 1)):
        raise CorpusError(f"the {column.of} of a corpus are 1 or 0")
    return values.astype(np.bool_)


def _options(schema: pa.Schema) -> dict[str, Any]:
    """How the columns are encoded: floats split into bytes, day and node packed, the rest as it is."""
    encoding = {name: _PACKED for name in ("day", "node") if name in schema.names}
    for field in schema:
        if pa.types.is_fixed_size_list(field.type) and field.type.value_type == pa.float32():
            encoding[f"{field.name}.list.element"] = _SPLIT
    numbers = [name for name in ("day", "node") if name in schema.names]
    return {**PARQUET, "column_encoding": encoding, "write_statistics": numbers}


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
