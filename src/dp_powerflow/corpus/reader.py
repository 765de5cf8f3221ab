"""Reads a corpus: as a pyarrow dataset, as arrays, as data frames, or in windows for training.

Packages of other containers (pandas, polars, xarray, Zarr, torch) are imported when they are asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dp_powerflow.almanac.calendar import Calendar, DateArray
from dp_powerflow.almanac.weather import MEANS, UNITS, Weather
from dp_powerflow.corpus import schema, storage, tables
from dp_powerflow.corpus.grid import Float32Array, Phasors, turn_days
from dp_powerflow.corpus.schema import Column, CorpusLayout, ExtrasLayout
from dp_powerflow.corpus.storage import Listed, Location, RemotePath
from dp_powerflow.corpus.tables import Connections, DayTable, NodeTable
from dp_powerflow.errors import CorpusError, require
from dp_powerflow.units import BoolArray, ComplexArray, IntArray

if TYPE_CHECKING:
    import pyarrow.dataset as ds

    from dp_powerflow.corpus.learning import ConnectionGraphs, TorchWindows, TwinGraphs

MINUTES_PER_DAY = 1440

Days = Sequence[int] | IntArray | BoolArray | None
"""Day numbers, or a mask: true or false of every day; None for all."""
Nodes = Sequence[int | str] | IntArray | BoolArray | None
"""Positions or ids of nodes, or a mask: true or false of every node; None for all."""


@dataclass(frozen=True)
class Batch:
    """Some consecutive days of a corpus.

    Attributes
    ----------
    days : which days.
    phasors : arrays (day, step, node).
    """

    days: range
    phasors: Phasors


@dataclass(frozen=True)
class Corpus:
    """A corpus on disk; `open_corpus` makes it.

    Attributes
    ----------
    path : directory or URL of the release.
    layout : number of days, steps and nodes, and the split into files.
    nodes : ids of the nodes and what was declared public of them.
    release_id : name of the release.
    listed : SHA-256 of its files, which are compared when they are first read; None checks nothing.
    known : what there is besides the voltages; None finds it in the first part.
    """

    path: Location
    layout: CorpusLayout
    nodes: NodeTable
    release_id: str
    listed: Listed | None = field(default=None, compare=False, repr=False)
    known: ExtrasLayout | None = field(default=None, compare=False, repr=False)

    def dataset(self) -> ds.Dataset:
        """The rows as they are stored: day, node, and lists vm_pu and va_deg of T values.

        pyarrow reads the files later, so all of them are compared with the manifest now.
        """
        import pyarrow.dataset as ds  # brings pandas, where that is installed

        self.files.check(f"{schema.DATA}/{schema.part_name(part)}" for part in range(self.layout.n_parts))
        paths = [self.path / schema.DATA / schema.part_name(part) for part in range(self.layout.n_parts)]
        with storage.loading(self.path / schema.DATA):
            if isinstance(self.path, RemotePath):
                names = [path.store()[1] for path in paths if isinstance(path, RemotePath)]
                return ds.dataset(names, format="parquet", filesystem=self.path.store()[0])
            return ds.dataset([str(path) for path in paths], format="parquet")

    def phasors(self, days: Days = None, nodes: Nodes = None) -> Phasors:
        """Magnitudes [p.u.] and angles [degrees], float32 (day, step, node), in the order asked for."""
        columns, wanted = schema.voltage_columns(self.layout.steps), self.day_numbers(days)
        return Phasors(**self._node_values(columns, wanted, self.node_numbers(nodes)))

    def voltages(self, days: Days = None, nodes: Nodes = None) -> ComplexArray:
        """Complex voltages [p.u.], array (day, step, node)."""
        return self.phasors(days, nodes).complex()

    @cached_property
    def extras(self) -> ExtrasLayout:
        """What there is besides the voltages, and how many regulators, capacitors and phases of sources."""
        if self.known is not None:
            return self.known
        return tables.find_extras(self.path, self.layout, self.release_id, files=self.files)

    @property
    def holds(self) -> tuple[str, ...]:
        """Names of the arrays that can be read, such as ``("voltages", "loads", "head")``."""
        return ("voltages", *self.extras.holds)

    def array(self, name: str, days: Days = None, nodes: Nodes = None) -> NDArray[Any]:
        """An array of `holds` besides the voltages, (day, step, …); `nodes` are of an array per node.

        Raises
        ------
        CorpusError : the release does not hold it.
        """
        self._refuse_absent(name)
        wanted, columns = self.day_numbers(days), [*self.extras.columns(self.layout.steps, of=name)]
        if columns[0].file == schema.parts_of(schema.LOADS):
            stored = self._node_values(columns, wanted, self.node_numbers(nodes)).values()
            found = np.stack([values.astype(np.float64) for values in stored], axis=-1)
        else:
            found = np.empty((len(wanted), self.layout.steps, len(columns)), dtype=np.float64)
            parts = wanted // self.layout.days_per_part
            for part in np.unique(parts).tolist():
                rows = np.flatnonzero(parts == part)
                for held, blocks in self.groups(schema.FEEDER, part, [column.name for column in columns]):
                    found[rows] = np.stack([block[wanted[rows] - held.start] for block in blocks], axis=-1)
        if columns[0].part:
            found = found[..., 0::2] + 1j * found[..., 1::2]
        elif columns[0].value != "float32":
            plain = columns[0].value == "bool" and columns[0].index is None
            found = found.astype(np.bool_ if plain else np.int64)
        return found[..., 0] if columns[0].index is None else found

    def loads(self, days: Days = None, nodes: Nodes = None) -> ComplexArray:
        """Power drawn by the loads, generation apart: complex (day, step, node) [kW + j kvar].

        Raises
        ------
        CorpusError : the release does not hold it (`holds`).
        """
        return self.array("loads", days, nodes)

    def generation(self, days: Days = None, nodes: Nodes = None) -> ComplexArray:
        """Power injected by PV and generators: complex (day, step, node) [kW + j kvar]; raises as `loads`."""
        return self.array("generation", days, nodes)

    def head(self, days: Days = None) -> ComplexArray:
        """Power that the sources feed in: complex (day, step, phase) [kW + j kvar]; raises as `loads`."""
        return self.array("head", days)

    def taps(self, days: Days = None) -> IntArray:
        """Tap steps away from neutral: integer (day, step, regulator); raises as `loads`."""
        return self.array("taps", days)

    def capacitors(self, days: Days = None) -> IntArray:
        """1 for a capacitor that is closed, 0 open: integer (day, step, capacitor); raises as `loads`."""
        return self.array("capacitors", days)

    def locked(self, days: Days = None) -> BoolArray:
        """Whether a control was locked because it hunted: boolean (day, step); raises as `loads`."""
        return self.array("locked", days)

    def scaled_down(self, days: Days = None) -> IntArray:
        """How often loads and PV of a snapshot were multiplied by 0.95, for lack of a power-flow solution.

        Integer (day, step); 0 for a snapshot as it was drawn. Raises as `loads`.
        """
        return self.array("scaled_down", days)

    @cached_property
    def connections(self) -> Connections | None:
        """Which nodes form a bus, their phases, and which buses are joined; None if that is not published."""
        buses, pairs = self._sources(*schema.CONNECTION_FILES)
        return tables.read_connections(self.path, self.layout, self.release_id, buses, pairs, self.nodes)

    @cached_property
    def _days(self) -> DayTable | None:
        (days,) = self._sources(schema.DAYS_FILE)
        return tables.read_days(self.path, self.layout, self.release_id, days)

    def _sources(self, *names: str) -> list[Any]:
        """What tables are read from; None for one that is not published."""
        with storage.loading(self.path):
            return [self.files.source(name) if self.files.has(name) else None for name in names]

    @property
    def calendar(self) -> Calendar | None:
        """The days with their dates and holidays; None if they have no dates, as on the true network."""
        return None if self._days is None else self._days.calendar

    @property
    def dates(self) -> DateArray | None:
        """`datetime64[D]` (day,): local dates, one after the other; None if the days have none."""
        return None if self.calendar is None else self.calendar.dates

    @property
    def weather(self) -> Weather | None:
        """Public weather of the days; None if the release was made without."""
        return None if self._days is None else self._days.weather

    def times(self, days: Days = None) -> DateArray | None:
        """`datetime64[m]` (day, step): local time at which a step begins; None if the days have no dates.

        A day has the same steps whatever the clock does: no hour is skipped or doubled.
        """
        if self.dates is None:
            return None
        start = self.dates[self.day_numbers(days)].astype("datetime64[m]")
        steps = np.arange(self.layout.steps) * (MINUTES_PER_DAY // self.layout.steps)
        return np.asarray(start[:, None] + steps.astype("timedelta64[m]"))

    def batches(self, days_per_batch: int | None = None, nodes: Nodes = None) -> Iterator[Batch]:
        """All days in order, some at a time; memory does not depend on the number of days."""
        width = self.layout.days_per_group if days_per_batch is None else days_per_batch
        if width < 1:
            raise CorpusError("a batch needs at least one day")
        all_days = range(self.layout.days)
        for first in all_days[::width]:
            days = all_days[first : first + width]
            yield Batch(days, self.phasors(days, nodes))

    def to_pandas(self, days: Days = None, nodes: Nodes = None, *, with_loads: bool = False) -> Any:
        """`pandas.DataFrame` with one row per (day, node, step); needs the extra `pandas`.

        Where the days have dates, the column `time` is the local time at which a step begins.

        Parameters
        ----------
        with_loads : also columns p_kw and q_kvar of the loads, and g_kw and g_kvar where there is generation.
        """
        return require("pandas", "pandas").DataFrame(self._columns(days, nodes, with_loads))

    def to_polars(self, days: Days = None, nodes: Nodes = None, *, with_loads: bool = False) -> Any:
        """`polars.DataFrame` as `to_pandas`; needs the extra `polars`."""
        return require("polars", "polars").DataFrame(self._columns(days, nodes, with_loads))

    def to_xarray(self, days: Days = None, nodes: Nodes = None, *, with_loads: bool = False) -> Any:
        """`xarray.Dataset` of the columns of `to_pandas` over (day, step, node); needs the extra `xarray`.

        With the loads it has all else that is published besides the voltages. Days have their dates, days off
        and weather, where there are any.
        """
        if with_loads:
            self._refuse_absent("loads")
        return dataset_of(self, *self._each_once(days, nodes), self.extras if with_loads else schema.NOTHING)

    def to_zarr(self, directory: str | os.PathLike[str]) -> Path:
        """Write all of `to_xarray` to a new Zarr store, whole or not at all; needs the extra `xarray`.

        `xarray.open_zarr(directory)` opens it. The corpus is in memory once.
        """
        require("zarr", "xarray")
        found = dataset_of(self, self.day_numbers(None), self.node_numbers(None), self.extras)
        with storage.whole_folder(Path(directory)) as folder:
            # No fill value: xarray would take a zero for a hole.
            filled = {name: {"_FillValue": None} for name in found.variables}
            found.to_zarr(folder, mode="w", zarr_format=2, consolidated=True, encoding=filled)
        return Path(directory)

    def windows(
        self,
        length: int,
        stride: int = 1,
        *,
        days: Days = None,
        nodes: Nodes = None,
        cache_mb: float = 1024.0,
    ) -> TorchWindows:
        """`torch.utils.data.Dataset` of windows of `length` steps, `stride` apart; needs the extra `ml`.

        A window lies within one day. At most `cache_mb` megabytes of decoded days are kept in memory, by
        every worker of a loader for itself; the default holds a decade of 350 nodes at quarter-hours. For
        more, see `TorchWindows.sampler`.
        """
        require("torch", "ml")
        from dp_powerflow.corpus.learning import TorchWindows

        return TorchWindows(self, length, stride, days=days, nodes=nodes, cache_mb=cache_mb)

    def to_pyg(self, days: Days = None, *, hetero: bool | None = None) -> TwinGraphs | ConnectionGraphs:
        """Dataset of `torch_geometric` graphs, one per step of the chosen days; needs the extra `pyg`.

        Parameters
        ----------
        days : day numbers; None for all.
        hetero : False for the published twin (`TwinGraphs`: buses, branches with their admittances), True for
            released nodes on the buses of the published connections (`ConnectionGraphs`). By default the
            twin, where its tables are published.

        Raises
        ------
        CorpusError : the release publishes neither, or not these days.
        """
        require("torch_geometric", "pyg")
        from dp_powerflow.corpus.learning import graphs_of

        return graphs_of(self, days, hetero)

    def hashes(self) -> dict[str, str]:
        """SHA-256 of every file of the release, by relative path."""
        with storage.loading(self.path):
            return storage.file_hashes(self.path)

    @property
    def files(self) -> Listed:
        """Gives files of the release, each compared with the manifest when it is first read."""
        return Listed(self.path) if self.listed is None else self.listed

    def read_group(self, part: int, group: int) -> Phasors:
        """One stored row group: arrays (day, node, step)."""
        names = [column.name for column in schema.voltage_columns(self.layout.steps)]
        ((_, (vm, va)),) = self.groups(schema.DATA, part, names, [group])
        return Phasors(vm, va)

    def groups(
        self, folder: str, part: int, names: Iterable[str], chosen: Iterable[int] | None = None
    ) -> Iterator[tuple[range, list[NDArray[Any]]]]:
        """Row groups of a part, by default all: their days, and columns as they are stored.

        A column is (day, node, step), of `feeder/` (day, step).
        """
        layout, wanted, held = self.layout, [*names], tables.row_groups(folder, self.layout, part)
        per_day, rows = ((), ("day",)) if folder == schema.FEEDER else ((layout.nodes,), ("day", "node"))
        place = self.path / folder / schema.part_name(part)
        content = self.files.source(f"{folder}/{place.name}")
        # Voltages are read whatever else there is.
        extras = schema.NOTHING if folder == schema.DATA else self.extras
        expected = schema.part_schema(folder, layout, extras, self.release_id, part)
        with storage.loading(place), storage.open_parquet(content) as file:
            if not file.schema_arrow.equals(expected, check_metadata=True):
                raise ValueError("not a part of this corpus")
            for number in range(len(held)) if chosen is None else chosen:
                days = held[number]
                found = file.read_row_group(number, columns=[*rows, *wanted], use_threads=False)
                if not tables.rows_in_order(found, days, layout.nodes):
                    raise ValueError("rows out of order")
                shape = (len(days), *per_day, layout.steps)
                yield days, [tables.list_numbers(found.column(name)).reshape(shape) for name in wanted]

    def _node_values(
        self, columns: Iterable[Column], days: IntArray, nodes: IntArray
    ) -> dict[str, Float32Array]:
        """Columns of one folder as they are stored: float32 (day, step, node) by name.

        Raises
        ------
        CorpusError : they do not fit into memory.
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

    def _refuse_absent(self, name: str) -> None:
        """Refuse an array that the corpus does not hold."""
        if name in self.extras.holds:
            return
        also = ", ".join(self.extras.holds)
        what = f"voltages and {also}" if also else "voltages only"
        raise CorpusError(
            f"this release publishes {what}; a release on a twin can also publish its loads, the power of "
            "its sources and the states of its controls (network.also_publish)"
        )

    def node_series(
        self, days: Days = None, nodes: Nodes = None, *, with_loads: bool = False
    ) -> dict[str, Float32Array]:
        """Stored values by column, float32 (day, step, node); columns as in `to_pandas`."""
        phasors, wanted = self.phasors(days, nodes), (self.day_numbers(days), self.node_numbers(nodes))
        series = {"vm_pu": phasors.vm_pu, "va_deg": phasors.va_deg}
        if with_loads:
            self._refuse_absent("loads")
            columns = self.extras.columns(self.layout.steps, folder=schema.LOADS)
            series |= self._node_values(columns, *wanted)
        return series

    def _columns(self, days: Days, nodes: Nodes, with_loads: bool) -> dict[str, Any]:
        """Columns of a table with one row per (day, node, step)."""
        days, nodes = self._each_once(days, nodes)
        series, times = self.node_series(days, nodes, with_loads=with_loads), self.times(days)
        steps = self.layout.steps
        stamps = {} if times is None else {"time": np.repeat(times, len(nodes), axis=0).ravel()}
        return {
            "day": np.repeat(days.astype(np.int32), len(nodes) * steps),
            "node": np.tile(np.repeat(nodes.astype(np.int32), steps), len(days)),
            "step": np.tile(np.arange(steps, dtype=np.int32), len(days) * len(nodes)),
            **{name: values.astype("datetime64[s]") for name, values in stamps.items()},
            **{name: values.transpose(0, 2, 1).ravel() for name, values in series.items()},
        }

    def day_numbers(self, days: Days) -> IntArray:
        """Day numbers as an array, or an error for a day that is not there."""
        return _positions(days, self.layout.days, "day")

    def node_numbers(self, nodes: Nodes) -> IntArray:
        """Positions of nodes given by position, id or mask, or an error for a node that is not there."""
        return _positions(nodes, self.layout.nodes, "node", self.nodes.ids)

    def _each_once(self, days: Days, nodes: Nodes) -> tuple[IntArray, IntArray]:
        """Days and nodes that name the rows of a table, or an error where one is asked for twice."""
        wanted = self.day_numbers(days), self.node_numbers(nodes)
        if any(len(np.unique(numbers)) < len(numbers) for numbers in wanted):
            raise CorpusError("a table has each day and node once; ask for none twice, or use voltages")
        return wanted


def _positions(asked: Days | Nodes, count: int, what: str, ids: tuple[str, ...] = ()) -> IntArray:
    """Positions of what is asked for: all (None), a mask, positions or ids; anything else is refused."""
    if asked is None:
        return np.arange(count)
    either = "positions or ids" if ids else "whole numbers"
    unclear = CorpusError(f"{what}s are a sequence of {either}, or a mask of {count} times true or false")
    if isinstance(asked, str | bytes | set | frozenset):  # of a set nobody knows the order
        raise unclear
    try:
        given = list(np.asarray(asked) if hasattr(asked, "__array__") else asked)
    except (TypeError, ValueError):
        raise unclear from None
    masks = sum(isinstance(item, bool | np.bool_) for item in given)
    if masks and masks == len(given) == count:
        return np.flatnonzero(np.array(given, dtype=np.bool_))
    if masks:
        raise CorpusError(
            f"the corpus has {count} {what}s, and a mask says true or false of each; correct it"
        )
    place = {name: k for k, name in enumerate(ids)}
    numbers = [place.get(item, -1) if ids and isinstance(item, str) else item for item in given]
    if not all(isinstance(k, int | np.integer) for k in numbers):
        raise unclear
    wrong = [item for item, k in zip(given, numbers, strict=True) if not 0 <= k < count]
    if wrong and ids:
        raise CorpusError(f"the corpus has no node {wrong[0]!r}; its nodes are in {schema.NODES_FILE}")
    if wrong:
        raise CorpusError(f"the corpus has {what}s 0 to {count - 1} and another one was asked for")
    return np.array(numbers, dtype=np.int64)


def open_corpus(
    path: str | os.PathLike[str] | RemotePath, *, check: bool = True, manifest_sha256: str | None = None
) -> Corpus:
    """Open the release in a directory, or at a URL such as 's3://bucket/release'.

    Parameters
    ----------
    check : compare every file with the SHA-256 that the manifest lists, when it is first read.
    manifest_sha256 : of `manifest.json`, where a fleet states it.

    Raises
    ------
    CorpusError : there is no release, an unfinished one, one of another version of the format, or a damaged
        one.
    """
    directory = storage.location(path)
    if isinstance(directory, RemotePath):
        refuse_unfinished(directory)
    elif not directory.is_dir():
        raise CorpusError(
            f"{directory} is not a directory; give the directory of a release", code="release-not-found"
        )
    listed = storage.read_listed(directory, sha256=manifest_sha256) if check else Listed(directory)
    layout, release_id, nodes = tables.read_nodes(directory, listed.source(schema.NODES_FILE))
    last = f"{schema.DATA}/{schema.part_name(layout.n_parts - 1)}"
    if not listed.has(last):
        raise CorpusError(
            f"{directory / last} is missing; is this the place of a finished release?",
            code="release-not-found",
        )
    return Corpus(directory, layout, nodes, release_id, listed)


def refuse_unfinished(place: RemotePath) -> None:
    """A store has no renaming, so that parts of a release are there before the whole is: see the manifest."""
    with storage.loading(place):
        finished = (place / schema.MANIFEST_FILE).exists()
    if not finished:
        raise CorpusError(
            f"{place} has no {schema.MANIFEST_FILE}; give the URL of a finished release",
            code="release-not-found",
        )


# --- xarray -----------------------------------------------------------------------------------------------
def dataset_of(corpus: Corpus, days: IntArray, nodes: IntArray, extras: ExtrasLayout) -> Any:
    """`xarray.Dataset` of voltages, and of what else these extras hold, over (day, step, node)."""
    along = "day", "step", "node"
    known = (*schema.voltage_columns(1), *extras.columns(1, folder=schema.LOADS))
    columns = {column.name: column for column in known}
    arrays: dict[str, Any] = {}
    for name, values in corpus.node_series(days, nodes, with_loads=extras.loads).items():
        own = columns[name]
        arrays[name] = along, values, {"long_name": own.means, "units": own.unit, "grid": own.grid}
    for array in extras.arrays:
        if array.axis == "node":
            continue
        values, last = corpus.array(array.name, days), () if array.axis is None else (array.axis,)
        for column in array.columns:
            name = column.name.rpartition("{}_")[2]
            said = {"long_name": column.means.replace(" {}", "")}
            if column.part:
                name, said["units"] = f"{array.name}_{name}", column.unit or ""
            own_values = getattr(values, column.part) if column.part else values
            arrays[name] = ("day", "step", *last), own_values.astype(column.dtype), said
    coordinates: dict[str, Any] = {
        "day": days,
        "step": np.arange(corpus.layout.steps),
        "node": nodes,
        "node_id": ("node", [corpus.nodes.ids[k] for k in nodes]),
    }
    if corpus.calendar is not None:
        coordinates["date"] = "day", corpus.calendar.dates[days].astype("datetime64[s]")
        coordinates["off"] = "day", np.asarray(corpus.calendar.off)[days]
    if corpus.weather is not None:
        for name, values in zip(corpus.weather.names, corpus.weather.values.T, strict=True):
            coordinates[name] = "day", values[days], {"long_name": MEANS[name], "units": UNITS[name]}
    release = {"release_id": corpus.release_id}
    return require("xarray", "xarray").Dataset(arrays, coords=coordinates, attrs=release)
