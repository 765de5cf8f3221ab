"""A corpus for PyTorch: windows of days, and snapshots as graphs. It needs torch: import it only then.

**Days in memory.** Every process keeps the row groups that it used last as float32, within a budget of bytes.

**Graphs** are of PyTorch Geometric. Both of their classes are datasets for its `DataLoader`: one graph per
step of the chosen days, day by day. Their numbers are in memory as float32; a graph is made when it is asked
for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dp_powerflow.corpus.grid import Float32Array, turn_days
from dp_powerflow.corpus.gridfm.schema import COUNT_FILE
from dp_powerflow.corpus.gridfm.tables import TWIN, GridfmData, count_scenarios, read_gridfm
from dp_powerflow.errors import CorpusError, require
from dp_powerflow.grid.quantities import KINDS

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

    Days are decoded when they are asked for and kept as float32, up to `cache_mb` megabytes in every process.
    If the chosen days and nodes fit, any order is as fast as any other. If they do not fit, `sampler`
    shuffles so that every row group is still decoded once in a pass.
    """

    def __init__(
        self, corpus: Corpus, length: int, stride: int, *, days: Days, nodes: Nodes, cache_mb: float
    ) -> None:
        steps = corpus.layout.steps
        if not 1 <= length <= steps:
            raise CorpusError(f"a window lies within one day and has 1 to {steps} steps, not {length}")
        if stride < 1:
            raise CorpusError("the stride of windows is at least one step")
        self._corpus, self._nodes = corpus, corpus.node_numbers(nodes)
        self._length, self._stride = length, stride
        self._days = corpus.day_numbers(days)
        self._per_day = (steps - length) // stride + 1
        each, slots = np.unique(self._days, return_inverse=True)
        self._blocks = [*corpus.layout.blocks(each)]
        places = np.empty((len(each), 2), dtype=np.int64)
        for number, block in enumerate(self._blocks):
            places[block.rows, 0], places[block.rows, 1] = number, np.arange(len(block.rows))
        self._places = places[slots]
        most = max((len(block.rows) for block in self._blocks), default=1)
        self._fitting = max(1, int(cache_mb * 1e6 // (8 * most * steps * max(1, len(self._nodes)))))

    def __len__(self) -> int:
        return len(self._days) * self._per_day

    def __getitem__(self, index: int) -> Window:
        window: Window = self.__getitems__([index])[0]
        return window

    def __getitems__(self, indices: Sequence[int]) -> list[Window]:
        """Several windows; a row group is read once, in any order of windows."""
        wanted = np.asarray(indices, dtype=np.int64)
        wanted = np.where(wanted < 0, wanted + len(self), wanted)
        if np.any((wanted < 0) | (wanted >= len(self))):
            raise IndexError("window index out of range")
        positions, numbers = np.divmod(wanted, self._per_day)
        places, starts = self._places[positions], numbers * self._stride
        values = np.empty((len(wanted), 2, self._length, len(self._nodes)), dtype=np.float32)
        for k in np.argsort(places[:, 0], kind="stable").tolist():
            (block, day), start = places[k].tolist(), starts[k]
            values[k] = self._decoded(block)[day, :, start : start + self._length]
        pairs = torch.from_numpy(values).unbind()
        facts = zip(pairs, self._days[positions].tolist(), starts.tolist(), strict=True)
        return [Window(pair[0], pair[1], day, start) for pair, day, start in facts]

    def sampler(
        self, *, workers: int = 0, batch_size: int | None = None, generator: Any = None
    ) -> BlockShuffle:
        """A random order for `DataLoader(windows, sampler=...)` that suits the cache.

        Row groups are dealt at random into blocks that the cache holds, and the windows of a block are
        shuffled; with a cache that holds all days this is a plain shuffle. Every worker of the loader gets
        batches from its own row groups.

        Parameters
        ----------
        workers, batch_size : of the loader; the second is needed with two workers or more.
        generator : `torch.Generator`; by default torch's own. Every pass draws a new order from it.

        Raises
        ------
        CorpusError : there are several workers, and no size of their batches.
        """
        if workers > 1 and batch_size is None:
            raise CorpusError("a sampler for several workers needs the batch_size of their loader too")
        dealt = max(1, workers), batch_size or 1
        return BlockShuffle(self._places[:, 0], self._per_day, self._fitting, dealt, generator)

    @cached_property
    def _decoded(self) -> Callable[[int], Float32Array]:
        """Chosen days of a row group; those used last are kept, at least one."""
        return lru_cache(self._fitting)(self._decode)

    def _decode(self, number: int) -> Float32Array:
        """Magnitudes [p.u.] and angles [degrees] of the chosen days of a row group, (day, 2, step, node)."""
        block, steps = self._blocks[number], self._corpus.layout.steps
        stored = self._corpus.read_group(block.part, block.group)
        made = np.empty((len(block.rows), 2, steps, len(self._nodes)), dtype=np.float32)
        for k, values in enumerate((stored.vm_pu, stored.va_deg)):
            turn_days(values, block.offsets, self._nodes, made[:, k])
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_decoded"}


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
    return TwinGraphs(read_gridfm(folder), (wanted[:, None] * steps + np.arange(steps)).ravel())


def _stacked(columns: list[Any]) -> Any:
    """Columns of any shape as one float32 array with the column last."""
    out = np.empty((*columns[0].shape, len(columns)), dtype=np.float32)
    for k, values in enumerate(columns):
        out[..., k] = values
    return out
