"""Snapshots of a corpus as graphs of PyTorch Geometric. It needs torch_geometric: import it only then.

Both classes are datasets for `torch_geometric.loader.DataLoader`: one graph per step of the chosen days, day
by day. Their numbers are in memory as float32; a graph is made when it is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dp_powerflow.corpus.gridfm.reader import GridfmData, count_scenarios, read_gridfm
from dp_powerflow.corpus.gridfm.schema import COUNT_FILE
from dp_powerflow.errors import CorpusError, require
from dp_powerflow.grid.feeder import KINDS

if TYPE_CHECKING:
    from dp_powerflow.corpus.reader import Corpus, Days

torch: Any = require("torch", "pyg")
_data: Any = require("torch_geometric.data", "pyg")

TWIN_FOLDER = "twin"
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


class TwinGraphs(torch.utils.data.Dataset):  # type: ignore[misc]
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
        return _data.Data(
            x=torch.from_numpy(self._x[index].copy()),
            y=torch.from_numpy(self._y[index].copy()),
            edge_index=torch.from_numpy(ends),
            edge_attr=torch.from_numpy(np.concatenate([self._forth[own], self._back[own]])),
            scenario=int(self._scenario[index]),
        )


class ConnectionGraphs(torch.utils.data.Dataset):  # type: ignore[misc]
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
        graph = _data.HeteroData(day=int(self._days[position]), step=step)
        graph["node"].x = torch.from_numpy(self._x[index].copy())
        graph["node"].y = torch.from_numpy(self._y[index].copy())
        graph["node"].phase = self._phase
        graph["bus"].x = self._source
        for edge, ends in self._edges.items():
            graph[edge].edge_index = torch.from_numpy(ends)
        return graph


def graphs_of(corpus: Corpus, days: Days, hetero: bool | None) -> TwinGraphs | ConnectionGraphs:
    """Graphs of the chosen days; parameters as of `Corpus.to_pyg`."""
    published = _published_days(corpus)
    if hetero or (hetero is None and not published):
        return ConnectionGraphs(corpus, days)
    if not published:
        raise CorpusError(
            f"this release holds no tables of its network with loads ({TWIN_FOLDER}/); read its connections "
            "with hetero=True, or publish them with network.publish = 'network and loads'"
        )
    wanted = np.arange(published) if days is None else corpus.day_numbers(days)
    if wanted.size and wanted.max() >= published:
        raise CorpusError(
            f"the tables in {TWIN_FOLDER}/ hold days 0 to {published - 1} and another one was asked for; "
            "network.graph_days says how many are published"
        )
    corpus.files.check_folder(TWIN_FOLDER)
    steps = corpus.layout.steps
    chosen = (wanted[:, None] * steps + np.arange(steps)).ravel()
    return TwinGraphs(read_gridfm(Path(str(corpus.path)) / TWIN_FOLDER), chosen)


def _published_days(corpus: Corpus) -> int:
    """Days in the tables of a published twin; a network without its loads is one scenario and no day."""
    folder = Path(str(corpus.path)) / TWIN_FOLDER
    return count_scenarios(folder) // corpus.layout.steps if (folder / COUNT_FILE).exists() else 0


def _stacked(columns: list[Any]) -> Any:
    """Columns of any shape as one float32 array with the column last."""
    out = np.empty((*columns[0].shape, len(columns)), dtype=np.float32)
    for k, values in enumerate(columns):
        out[..., k] = values
    return out
