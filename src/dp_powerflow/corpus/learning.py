"""A corpus for PyTorch: windows of days, and snapshots as graphs. It needs torch: import it only then.

**Days in memory.** Decoded days are kept as float32 within a budget of bytes. If the days asked for fit, each
is decoded once and kept: in memory that forked processes share and, on Linux, spawned ones too. If they do
not fit, every process keeps the row groups that it used last.

**Graphs** are of PyTorch Geometric. Both of their classes are datasets for its `DataLoader`: one graph per
step of the chosen days, day by day. Their numbers are in memory as float32; a graph is made when it is asked
for.
"""

from __future__ import annotations

import itertools
import mmap
import os
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dp_powerflow.corpus.grid import Float32Array, turn_days
from dp_powerflow.corpus.gridfm.schema import COUNT_FILE
from dp_powerflow.corpus.gridfm.tables import TWIN, GridfmData, count_scenarios, read_gridfm
from dp_powerflow.errors import CorpusError, require
from dp_powerflow.grid.quantities import KINDS
from dp_powerflow.units import IntArray

if TYPE_CHECKING:
    from dp_powerflow.corpus.reader import Corpus, Days, Nodes

torch: Any = require("torch", "ml")
_data: Any = require("torch.utils.data", "ml")


# --- windows ----------------------------------------------------------------------------------------------
class Window(NamedTuple):
    """Consecutive steps of one day.

    Attributes
    ----------
    vm_pu, va_deg : float32 tensors (step, node).
    day : day of the corpus.
    start : first step of the window in its day.
    """

    vm_pu: Any
    va_deg: Any
    day: int
    start: int


class TorchWindows(_data.Dataset):  # type: ignore[misc]
    """`torch.utils.data.Dataset` whose items are a `Window` of float32 tensors (step, node).

    A `DataLoader` collates them to tensors (window, step, node) and integer tensors of days and first steps;
    it takes whole batches at once. Windows of one day follow each other.

    Days are decoded when they are asked for and kept as float32, up to `cache_mb` megabytes for all workers
    of a loader together. If the chosen days and nodes fit, any order is as fast as any other. If they do not
    fit, `sampler` shuffles so that every row group is still decoded once in a pass.
    """

    def __init__(
        self, corpus: Corpus, length: int, stride: int, *, days: Days, nodes: Nodes, cache_mb: float
    ) -> None:
        steps = corpus.layout.steps
        if not 1 <= length <= steps:
            raise CorpusError(f"a window lies within one day and has 1 to {steps} steps, not {length}")
        if stride < 1:
            raise CorpusError("the stride of windows is at least one step")
        self._length = length
        self._stride = stride
        self._days = corpus.day_numbers(days)
        self._per_day = (steps - length) // stride + 1
        self._budget = cache_mb * 1e6
        each, self._slots = np.unique(self._days, return_inverse=True)
        self._decoder = Decoder(corpus, each, None if nodes is None else corpus.node_numbers(nodes))
        fits = len(each) * self._decoder.day_bytes <= self._budget
        self._decoded = KeptDays(self._decoder) if fits else RecentGroups(self._decoder, self._budget)
        self._in_worker = False

    def __len__(self) -> int:
        return len(self._days) * self._per_day

    def __getitem__(self, index: int) -> Window:
        window: Window = self.__getitems__([index])[0]
        return window

    def __getitems__(self, indices: Sequence[int]) -> list[Window]:
        """Several windows; those of one row group are read together, whatever their order."""
        wanted = np.asarray(indices, dtype=np.int64)
        wanted = np.where(wanted < 0, wanted + len(self), wanted)
        if np.any((wanted < 0) | (wanted >= len(self))):
            raise IndexError("window index out of range")
        self._notice_worker()
        positions, numbers = np.divmod(wanted, self._per_day)
        slots, starts = self._slots[positions], numbers * self._stride
        values = np.empty((len(wanted), 2, self._length, self._decoder.shape[2]), dtype=np.float32)
        for k in np.argsort(slots, kind="stable").tolist():
            start = starts[k]
            values[k] = self._decoded.day(int(slots[k]))[:, start : start + self._length]
        pairs = torch.from_numpy(values).unbind()
        facts = zip(pairs, self._days[positions].tolist(), starts.tolist(), strict=True)
        return [Window(pair[0], pair[1], day, start) for pair, day, start in facts]

    def sampler(
        self, *, workers: int = 0, batch_size: int | None = None, generator: Any = None
    ) -> BlockShuffle:
        """A random order for `DataLoader(windows, sampler=...)` that suits the cache.

        Row groups are dealt at random into blocks that the cache holds, and the windows of a block are
        shuffled; with a cache that holds all days this is a plain shuffle. Every worker of the loader gets
        batches from row groups of its own.

        Parameters
        ----------
        workers, batch_size : of the loader; the second is needed with two workers or more.
        generator : `torch.Generator`; by default torch's own. Every pass draws a new order from it.

        Raises
        ------
        CorpusError : there are several workers, and no size of their batches.
        """
        if not isinstance(self._decoded, RecentGroups):
            whole = np.zeros(len(self._days), dtype=np.int64)
            return BlockShuffle(whole, self._per_day, 1, (1, 1), generator)
        if workers > 1 and batch_size is None:
            raise CorpusError("a sampler for several workers needs the batch_size of their loader too")
        streams = max(1, workers)
        fitting = max(1, int(self._budget / streams // self._decoder.group_bytes))
        groups = self._decoder.group_of[self._slots]
        return BlockShuffle(groups, self._per_day, fitting, (streams, batch_size or 1), generator)

    def _notice_worker(self) -> None:
        """In a worker of a loader, keep no more than its share of a cache that workers do not share."""
        if self._in_worker:
            return
        info = _data.get_worker_info()
        if info is not None:
            self._in_worker = True
            if isinstance(self._decoded, RecentGroups):
                self._decoded.shared_by(info.num_workers)


class BlockShuffle(_data.Sampler):  # type: ignore[misc]
    """Random order of windows, some row groups at a time; `TorchWindows.sampler` makes it.

    Parameters
    ----------
    group_of : (day,) row group of every day.
    per_day : windows of a day.
    groups_per_block : row groups whose windows are shuffled together.
    dealt : streams of row groups, one per worker, and the windows of a batch; batches come from the streams
        in turn, as a loader deals them to its workers.
    generator : of torch.
    """

    def __init__(
        self, group_of: Any, per_day: int, groups_per_block: int, dealt: tuple[int, int], generator: Any
    ) -> None:
        self._days = [np.flatnonzero(group_of == group) for group in np.unique(group_of)]
        self._per_day = per_day
        self._groups_per_block = groups_per_block
        self._streams, self._batch = dealt
        self._generator = generator

    def __len__(self) -> int:
        return sum(map(len, self._days)) * self._per_day

    def __iter__(self) -> Iterator[int]:
        order = self._permutation(len(self._days)).tolist()
        streams = [self._shuffled(order[k :: self._streams]) for k in range(self._streams)]
        rest: list[int] = []
        while streams:
            # A stream that ends is followed by the others; what fills no batch comes last.
            for stream in tuple(streams):
                batch = list(itertools.islice(stream, self._batch))
                if len(batch) == self._batch:
                    yield from batch
                else:
                    rest += batch
                    streams.remove(stream)
        yield from rest

    def _shuffled(self, groups: list[int]) -> Iterator[int]:
        """Windows of row groups, block by block."""
        for first in range(0, len(groups), self._groups_per_block):
            days = np.concatenate([self._days[k] for k in groups[first : first + self._groups_per_block]])
            windows = (days[:, None] * self._per_day + np.arange(self._per_day)).ravel()
            yield from windows[self._permutation(len(windows))].tolist()

    def _permutation(self, n: int) -> Any:
        return torch.randperm(n, generator=self._generator).numpy()


# --- days in memory ---------------------------------------------------------------------------------------
_TOKEN_BYTES = 16


@dataclass(frozen=True, eq=False)
class Decoder:
    """Decodes row groups of a corpus.

    Attributes
    ----------
    corpus : what is read.
    days : (slot,) days, each once, ascending.
    nodes : positions of the nodes that are kept; None for all.
    """

    corpus: Corpus
    days: IntArray
    nodes: IntArray | None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of a day: (2, step, node)."""
        layout = self.corpus.layout
        return 2, layout.steps, layout.nodes if self.nodes is None else len(self.nodes)

    @property
    def day_bytes(self) -> int:
        """Of a decoded day."""
        return 4 * int(np.prod(self.shape))

    @cached_property
    def group_of(self) -> IntArray:
        """(slot,) number of the row group that holds a day, over all parts."""
        layout = self.corpus.layout
        per_part = -(-layout.days_per_part // layout.days_per_group)
        part, offset = np.divmod(self.days, layout.days_per_part)
        return np.asarray(part * per_part + offset // layout.days_per_group)

    @property
    def group_bytes(self) -> int:
        """Of the decoded days of the fullest row group."""
        return self.day_bytes * int(np.unique(self.group_of, return_counts=True)[1].max(initial=1))

    def slots_with(self, slot: int) -> range:
        """The days that lie in the same row group as this one."""
        first, stop = np.searchsorted(self.group_of, self.group_of[slot] + np.arange(2))
        return range(int(first), int(stop))

    def decode(self, slots: range, out: Float32Array) -> None:
        """Write days of one row group to an array (day, 2, step, node)."""
        layout, days = self.corpus.layout, self.days[slots.start : slots.stop]
        part, group = layout.locate(int(days[0]))
        block = self.corpus.read_group(part, group)
        rows = days - layout.groups_of(part)[group].start
        nodes = np.arange(layout.nodes) if self.nodes is None else self.nodes
        for k, values in enumerate((block.vm_pu, block.va_deg)):
            turn_days(values, rows, nodes, out[:, k])


class RecentGroups:
    """The row groups used last, up to a budget of bytes and at least one; each process has its own.

    A day is (2, step, node): magnitude [p.u.] and angle [degrees], to be copied, not changed.
    """

    def __init__(self, decoder: Decoder, budget: float) -> None:
        self._decoder = decoder
        self._budget = budget
        self._groups: OrderedDict[int, Float32Array] = OrderedDict()

    def day(self, slot: int) -> Float32Array:
        slots = self._decoder.slots_with(slot)
        found = self._groups.get(slots.start)
        if found is None:
            found = np.empty((len(slots), *self._decoder.shape), dtype=np.float32)
            self._make_room(found.nbytes)
            self._decoder.decode(slots, found)
            self._groups[slots.start] = found
        else:
            self._groups.move_to_end(slots.start)
        return np.asarray(found[slot - slots.start])

    def shared_by(self, processes: int) -> None:
        """Keep no more than the share of one of so many processes."""
        self._budget /= processes
        self._make_room(0)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_groups": OrderedDict()}

    def _make_room(self, wanted: int) -> None:
        held = sum(group.nbytes for group in self._groups.values())
        while self._groups and held + wanted > self._budget:
            held -= self._groups.popitem(last=False)[1].nbytes


class KeptDays:
    """All days, each as in `RecentGroups` and decoded by the process that asks for it first.

    A day that two processes decode at the same moment is written twice, with the same bytes; it is marked as
    there once it is complete. Nothing is ever replaced, so no lock is needed.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._memory = _Shared(len(decoder.days) * (decoder.day_bytes + 1))
        self._see()

    def day(self, slot: int) -> Float32Array:
        if not self._there[slot]:
            slots = self._decoder.slots_with(slot)
            self._decoder.decode(slots, self._days[slots.start : slots.stop])
            self._there[slots.start : slots.stop] = 1
        return np.asarray(self._days[slot])

    def __getstate__(self) -> dict[str, Any]:
        return {"_decoder": self._decoder, "_memory": self._memory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._see()

    def _see(self) -> None:
        n = len(self._decoder.days)
        stop = n * self._decoder.day_bytes
        self._days = self._memory.values[:stop].view(np.float32).reshape(n, *self._decoder.shape)
        self._there = self._memory.values[stop : stop + n]


class _Shared:
    """Zeros in memory that this process shares with those it starts.

    A forked process has it. A spawned one opens it through the file descriptor of its parent, where the
    system has such files, and makes sure by a random token that it is the same memory; else it has memory of
    its own. Pages take space when something is written to them.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._token = uuid.uuid4().bytes
        self._file = -1
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("dp-powerflow")
            weakref.finalize(self, os.close, self._file)
            os.ftruncate(self._file, size + _TOKEN_BYTES)
        self._map = mmap.mmap(self._file, size + _TOKEN_BYTES)
        self._map[size:] = self._token

    @property
    def values(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return np.frombuffer(self._map, dtype=np.uint8, count=self._size)

    def __getstate__(self) -> tuple[int, bytes, str]:
        return self._size, self._token, f"/proc/{os.getpid()}/fd/{self._file}"

    def __setstate__(self, state: tuple[int, bytes, str]) -> None:
        size, token, path = state
        try:
            file = os.open(path, os.O_RDWR)
            opened = mmap.mmap(file, size + _TOKEN_BYTES)
        except (OSError, ValueError):
            self.__init__(size)  # type: ignore[misc]
            return
        if opened[size:] != token:
            os.close(file)
            self.__init__(size)  # type: ignore[misc]
            return
        self._size, self._token, self._file, self._map = size, token, file, opened
        weakref.finalize(self, os.close, file)


# --- graphs -----------------------------------------------------------------------------------------------
BUS_FEATURES = ("Pd", "Qd", "Psgen", "Qsgen", "GS", "BS", "vn_kv", "REF")
"""Columns of `x` of a bus: powers drawn and generated [MW, MVAr], shunt [p.u.], base [kV], source or not."""
BUS_TARGETS = ("Vm", "Va")
"""Columns of `y` of a bus: magnitude [p.u.] and angle [degrees]."""
EDGE_FEATURES = ("Y_own_r", "Y_own_i", "Y_other_r", "Y_other_i")
"""Columns of `edge_attr`: the current into a branch at its first end is Y_own·V_first + Y_other·V_second."""
_FORTH, _BACK = (
    tuple(f"{name}_{part}" for name in names for part in "ri") for names in (("Yff", "Yft"), ("Ytt", "Ytf"))
)
_BRANCH = ("from_bus", "to_bus", *_FORTH, *_BACK)
NODE_TARGETS = ("vm_pu", "va_deg")
"""Columns of `y` of a released node: magnitude [p.u.] and angle [degrees]."""


class TwinGraphs(_data.Dataset):  # type: ignore[misc]
    """Snapshots of a published twin as `torch_geometric.data.Data`.

    A graph has `x` (bus, 8) of `BUS_FEATURES`, `y` (bus, 2) of `BUS_TARGETS`, `edge_index` (2, edge) with
    every branch in both directions, `edge_attr` (edge, 4) of `EDGE_FEATURES`, and `scenario`, the number of
    the snapshot in the tables. Numbers are float32, voltages and admittances in the frame of the tables.
    Networks may differ from snapshot to snapshot.

    Parameters
    ----------
    tables : tables in the gridfm-datakit layout.
    chosen : (graph,) positions of scenarios in the tables; None for all.

    Attributes
    ----------
    bus_of_node : int64 tensor (node,), bus of every node of `data/`; None in tables that do not say it.
    """

    def __init__(self, tables: GridfmData, chosen: Any = None) -> None:
        every = np.asarray(tables.scenarios)
        self._rows = np.arange(len(every)) if chosen is None else np.asarray(chosen, dtype=np.int64)
        self._scenario = every[self._rows]
        rows = tables.bus_of_row
        self.bus_of_node = None if rows is None else torch.from_numpy(np.array(rows, dtype=np.int64))
        self._x = _stacked([tables.column("bus", name)[self._rows] for name in BUS_FEATURES])
        self._y = _stacked([tables.column("bus", name)[self._rows] for name in BUS_TARGETS])
        # Branches of one scenario after the other: other networks may have fewer.
        self._bounds = np.searchsorted(tables.branch["scenario"].to_numpy(), [*every, every[-1] + 1])
        branch = {name: tables.branch[name].to_numpy() for name in _BRANCH}
        self._ends = np.stack([branch["from_bus"], branch["to_bus"]]).astype(np.int64)
        self._forth, self._back = (_stacked([branch[name] for name in names]) for names in (_FORTH, _BACK))

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> Any:
        row = self._rows[index]
        own = slice(*self._bounds[row : row + 2])
        ends = np.hstack([self._ends[:, own], self._ends[::-1, own]])
        return require("torch_geometric.data", "pyg").Data(
            x=torch.from_numpy(self._x[index].copy()),
            y=torch.from_numpy(self._y[index].copy()),
            edge_index=torch.from_numpy(ends),
            edge_attr=torch.from_numpy(np.concatenate([self._forth[own], self._back[own]])),
            scenario=int(self._scenario[index]),
        )


class ConnectionGraphs(_data.Dataset):  # type: ignore[misc]
    """Snapshots of a corpus with published connections as `torch_geometric.data.HeteroData`.

    `node` has `x` (node, feature): the columns of `features`, powers that the corpus publishes [kW, kvar];
    `y` (node, 2) of `NODE_TARGETS`; `phase` (node,). `bus` has `x` (bus, 1): 1 where the feeder is fed. Edges
    are (node, at, bus) and back (bus, has, node), and (bus, line | switch | transformer, bus) in both
    directions. `day` and `step` say which snapshot it is.

    Parameters
    ----------
    corpus : with connections.
    days : day numbers, None for all.
    """

    def __init__(self, corpus: Corpus, days: Days = None) -> None:
        connections = corpus.connections
        if connections is None:
            raise CorpusError(
                "this release publishes no connections, so its nodes form no graph; a release on a twin "
                "publishes them with 'connections' in network.also_publish"
            )
        series = corpus.node_series(days, with_loads=corpus.extras.loads)
        self.features = tuple(name for name in series if name not in NODE_TARGETS)
        self._days, self._steps = corpus.day_numbers(days), corpus.layout.steps
        nodes = corpus.layout.nodes
        drawn = [series[name].reshape(-1, nodes) for name in self.features]
        self._x = _stacked(drawn) if drawn else np.empty((len(self), nodes, 0), dtype=np.float32)
        self._y = _stacked([series[name].reshape(-1, nodes) for name in NODE_TARGETS])
        self._phase = torch.from_numpy(connections.phase.astype(np.int64))
        self._source = torch.from_numpy(connections.source.astype(np.float32)[:, None])
        at = np.stack([np.arange(nodes), connections.bus_of]).astype(np.int64)
        self._edges = {("node", "at", "bus"): at, ("bus", "has", "node"): at[::-1].copy()}
        kinds = np.array(connections.kinds)
        for kind in KINDS:
            pairs = connections.pairs[kinds == kind].T.astype(np.int64)
            self._edges["bus", kind, "bus"] = np.hstack([pairs, pairs[::-1]])

    def __len__(self) -> int:
        return len(self._days) * self._steps

    def __getitem__(self, index: int) -> Any:
        position, step = divmod(range(len(self))[index], self._steps)
        graph = require("torch_geometric.data", "pyg").HeteroData(day=int(self._days[position]), step=step)
        graph["node"].x = torch.from_numpy(self._x[index].copy())
        graph["node"].y = torch.from_numpy(self._y[index].copy())
        graph["node"].phase = self._phase
        graph["bus"].x = self._source
        for edge, ends in self._edges.items():
            graph[edge].edge_index = torch.from_numpy(ends)
        return graph


def graphs_of(corpus: Corpus, days: Days, hetero: bool | None) -> TwinGraphs | ConnectionGraphs:
    """Graphs of the chosen days; parameters as of `Corpus.to_pyg`."""
    folder, steps = Path(str(corpus.path)) / TWIN, corpus.layout.steps
    # A network without its loads is one scenario and no day.
    published = count_scenarios(folder) // steps if (folder / COUNT_FILE).exists() else 0
    if hetero or (hetero is None and not published):
        return ConnectionGraphs(corpus, days)
    if not published:
        raise CorpusError(
            f"this release holds no tables of its network with loads ({TWIN}/); read its connections "
            "with hetero=True, or publish them with network.publish = 'network and loads'"
        )
    wanted = np.arange(published) if days is None else corpus.day_numbers(days)
    if wanted.size and wanted.max() >= published:
        raise CorpusError(
            f"the tables in {TWIN}/ hold days 0 to {published - 1} and another one was asked for; "
            "network.graph_days says how many are published"
        )
    corpus.files.check_folder(TWIN)
    chosen = (wanted[:, None] * steps + np.arange(steps)).ravel()
    return TwinGraphs(read_gridfm(folder), chosen)


def _stacked(columns: list[Any]) -> Any:
    """Columns of any shape as one float32 array with the column last."""
    out = np.empty((*columns[0].shape, len(columns)), dtype=np.float32)
    for k, values in enumerate(columns):
        out[..., k] = values
    return out
