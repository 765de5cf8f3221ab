"""Parts of a corpus: voltages, and powers, taps and capacitor states beside them, as bytes and back.

Numbers are rounded to the public grid of `corpus/grid.py` when they are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dp_powerflow.corpus.grid import (
    Float32Array,
    NodeColumns,
    round_power,
    rounded_powers,
    rounded_voltages,
    turn_days,
)
from dp_powerflow.corpus.parquet import encode_groups, list_numbers, numbers
from dp_powerflow.corpus.schema import (
    BESIDE,
    DATA,
    FEEDER,
    LOADS,
    NOTHING,
    Column,
    CorpusLayout,
    ExtrasLayout,
    extras_in,
    feeder_columns,
    part_name,
    part_schema,
    power_columns,
)
from dp_powerflow.corpus.storage import Listed, Location, loading, open_parquet
from dp_powerflow.errors import CorpusError
from dp_powerflow.units import BoolArray, ComplexArray, IntArray

_INT16 = np.iinfo(np.int16)


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


# --- to bytes ---------------------------------------------------------------------------------------------
def encode_part(
    layout: CorpusLayout, release_id: str, part: int, voltages: ComplexArray | NodeColumns
) -> memoryview:
    """Bytes of a part of `data/` from complex voltages (day, step, node) [p.u.], rounded group by group."""
    shape = len(layout.days_of(part)), layout.steps, layout.nodes
    if voltages.shape != shape:
        raise CorpusError(
            f"part {part} needs voltages of shape (day, step, node) = {shape}, not {voltages.shape}"
        )
    given = NodeColumns.of(voltages)
    schema = part_schema(DATA, layout, NOTHING, release_id, part)
    return encode_groups(
        schema,
        ([*rows, *rounded_voltages(given, within)] for rows, within in _rows_of_nodes(layout, part)),
    )


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
        groups = _groups_of_loads if folder == LOADS else _groups_of_feeder
        schema = part_schema(folder, layout, extras, release_id, part)
        made[f"{folder}/{part_name(part)}"] = encode_groups(schema, groups(extras, layout, part, arrays))
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


def _rows_of_nodes(layout: CorpusLayout, part: int) -> Iterator[tuple[list[IntArray], range]]:
    """Row groups of a part: its columns day and node, and its days counted from the first of the part."""
    first, nodes = layout.days_of(part).start, np.arange(layout.nodes)
    for days in layout.groups_of(part):
        rows = [np.repeat(np.arange(days.start, days.stop), layout.nodes), np.tile(nodes, len(days))]
        yield rows, range(days.start - first, days.stop - first)


def _groups_of_loads(
    extras: ExtrasLayout, layout: CorpusLayout, part: int, arrays: dict[str, Any]
) -> Iterator[list[NDArray[Any]]]:
    given = [NodeColumns.of(arrays[name]) for name in ("loads", *("generation",) * extras.generation)]
    for rows, within in _rows_of_nodes(layout, part):
        yield [*rows, *(column for powers in given for column in rounded_powers(powers, within))]


def _groups_of_feeder(
    extras: ExtrasLayout, layout: CorpusLayout, part: int, arrays: dict[str, Any]
) -> Iterator[list[NDArray[Any]]]:
    """One row group: a part has few days, and a day few columns."""
    days = layout.days_of(part)
    columns = feeder_columns(extras, layout.steps)
    yield [np.arange(days.start, days.stop), *(_stored(column, arrays[column.of]) for column in columns)]


def _stored(column: Column, values: NDArray[Any]) -> NDArray[Any]:
    """Values (day, step) as the type of the column; refuses what it cannot hold."""
    own = values if column.index is None else values[..., column.index]
    if column.value == "float32":
        return round_power(getattr(own, column.part))
    if column.value == "int16":
        if not np.all((own >= _INT16.min) & (own <= _INT16.max)):
            raise CorpusError("a tap is not a whole number of steps away from neutral that a corpus can hold")
        return own.astype(np.int16)
    if not np.all((own == 0) | (own == 1)):
        raise CorpusError(f"the {column.of} of a corpus are 1 or 0")
    return own.astype(np.bool_)


# --- and back ---------------------------------------------------------------------------------------------
def row_groups(folder: str, layout: CorpusLayout, part: int) -> list[range]:
    """Days in each row group of a part; a part of `feeder/` is one."""
    return [layout.days_of(part)] if folder == FEEDER else layout.groups_of(part)


def rows_in_order(table: pa.Table, days: range, nodes: int) -> bool:
    """Whether the rows are every (day, node), or every day, exactly once, days first."""
    day, expected = numbers(table.column("day")), np.arange(days.start, days.stop)
    if "node" not in table.column_names:
        return np.array_equal(day, expected)
    node = numbers(table.column("node"))
    return np.array_equal(day, np.repeat(expected, nodes)) and np.array_equal(
        node, np.tile(np.arange(nodes), len(days))
    )


def find_extras(
    root: Location,
    layout: CorpusLayout,
    release_id: str,
    folders: Iterable[str] = BESIDE,
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
            if not schema.equals(part_schema(folder, layout, extras, release_id, 0), check_metadata=True):
                raise ValueError("not a part of this corpus")
    return extras


@dataclass(frozen=True)
class PartReader:
    """Reads the parts of a corpus.

    Attributes
    ----------
    root : directory or URL of the release.
    layout, release_id : of the corpus.
    extras : what there is beside the voltages.
    files : gives the files.
    """

    root: Location
    layout: CorpusLayout
    release_id: str
    extras: ExtrasLayout
    files: Listed

    def groups(
        self, folder: str, part: int, names: Iterable[str], chosen: Iterable[int] | None = None
    ) -> Iterator[tuple[range, list[NDArray[Any]]]]:
        """Row groups of a part, by default all: their days, and columns as they are stored.

        A column is (day, node, step), of `feeder/` (day, step).
        """
        layout, wanted, held = self.layout, [*names], row_groups(folder, self.layout, part)
        per_day, rows = ((), ("day",)) if folder == FEEDER else ((layout.nodes,), ("day", "node"))
        content = self.files.source(f"{folder}/{part_name(part)}")
        expected = part_schema(folder, layout, self.extras, self.release_id, part)
        with loading(self.root / folder / part_name(part)), open_parquet(content) as file:
            if not file.schema_arrow.equals(expected, check_metadata=True):
                raise ValueError("not a part of this corpus")
            for number in range(len(held)) if chosen is None else chosen:
                days = held[number]
                table = file.read_row_group(number, columns=[*rows, *wanted], use_threads=False)
                if not rows_in_order(table, days, layout.nodes):
                    raise ValueError("rows out of order")
                shape = (len(days), *per_day, layout.steps)
                yield days, [list_numbers(table.column(name)).reshape(shape) for name in wanted]

    def node_values(
        self, columns: Iterable[Column], days: IntArray, nodes: IntArray
    ) -> dict[str, Float32Array]:
        """Columns of one folder as they are stored: float32 (day, step, node) by name.

        Raises
        ------
        CorpusError : there is no memory for so many.
        """
        wanted = [*columns]
        folder, names = wanted[0].file.split("/")[0], [column.name for column in wanted]
        shape = (len(days), self.layout.steps, len(nodes))
        try:
            found = {name: np.empty(shape, dtype=np.float32) for name in names}
        except (MemoryError, ValueError):  # or no array is that large
            raise CorpusError(
                "the days asked for do not fit into memory; ask for fewer, or read them with batches()"
            ) from None
        for part, group, rows, offsets in self.layout.blocks(days):
            for _, stored in self.groups(folder, part, names, [group]):
                for values, block in zip(found.values(), stored, strict=True):
                    turn_days(block, offsets, nodes, values, rows)
        return found

    def node_power(self, name: str, days: IntArray, nodes: IntArray) -> dict[str, Float32Array]:
        """Active and reactive power of nodes as stored [kW], [kvar], as `node_values`."""
        self._require(name)
        columns = power_columns(self.extras, self.layout.steps)
        return self.node_values((column for column in columns if column.of == name), days, nodes)

    def complex_power(self, name: str, days: IntArray, nodes: IntArray) -> ComplexArray:
        """The same as one array: complex (day, step, node) [kW + j kvar]."""
        active, reactive = self.node_power(name, days, nodes).values()
        return np.asarray(active.astype(np.float64) + 1j * reactive.astype(np.float64))

    def day_values(self, name: str, days: IntArray) -> NDArray[Any]:
        """An array of `PartExtras` that is not per node: (day, step, …)."""
        self._require(name)
        columns = [c.name for c in feeder_columns(self.extras, self.layout.steps) if c.of == name]
        found = np.empty((len(columns), len(days), self.layout.steps), dtype=np.float64)
        parts = days // self.layout.days_per_part
        for part in np.unique(parts).tolist():
            rows = np.flatnonzero(parts == part)
            for held, stored in self.groups(FEEDER, part, columns):
                for values, block in zip(found, stored, strict=True):
                    values[rows] = block[days[rows] - held.start]
        if name == "head":
            return np.asarray(np.moveaxis(found[0::2] + 1j * found[1::2], 0, -1))
        if name in ("locked", "mended"):
            return np.asarray(found[0], dtype=np.bool_ if name == "locked" else np.int64)
        return np.asarray(np.moveaxis(found, 0, -1), dtype=np.int64)

    def _require(self, name: str) -> None:
        if name in self.extras.holds:
            return
        also = ", ".join(self.extras.holds)
        what = f"voltages and {also}" if also else "voltages only"
        raise CorpusError(
            f"this release publishes {what}; a release on a twin can also publish its loads, the power of "
            "its sources and the states of its controls (network.also_publish)"
        )
