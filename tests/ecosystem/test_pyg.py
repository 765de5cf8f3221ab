"""Graphs of PyTorch Geometric from a real release, with the real package."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dp_powerflow as dpf
from dp_powerflow.corpus.gridfm.tables import read_gridfm
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.errors import CorpusError
from support.corpora import write_corpus

torch: Any = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def pyg() -> Any:
    pytest.importorskip("torch_geometric.loader", reason="torch_geometric is not installed")
    return importlib.import_module("torch_geometric")


def test_the_published_twin_gives_one_graph_per_snapshot(pyg: Any, release: Path) -> None:
    graphs, tables = open_corpus(release).to_pyg(), read_gridfm(release / "twin")
    assert len(graphs) == 48
    graph = graphs[30]
    graph.validate(raise_on_error=True)
    assert graph.scenario == 30
    assert graph.x.shape == (tables.column("bus", "bus").shape[1], 8)
    assert graph.edge_attr.shape == (2 * tables.column("branch", "r").shape[1], 4)
    np.testing.assert_array_equal(graph.x[:, 0].numpy(), tables.column("bus", "Pd")[30].astype(np.float32))
    np.testing.assert_array_equal(graph.y[:, 1].numpy(), tables.column("bus", "Va")[30].astype(np.float32))
    assert graph.x[:, 7].sum() == 3  # phases of the source
    np.testing.assert_allclose(
        graph.y[graphs.bus_of_node, 0].numpy(), open_corpus(release).phasors([1]).vm_pu[0, 6], atol=1e-6
    )


def test_edges_carry_the_admittances_of_their_first_end(pyg: Any, release: Path) -> None:
    """Currents along the edges and through the shunts are those of the admittance matrix."""
    graph, tables = open_corpus(release).to_pyg(days=[1])[5], read_gridfm(release / "twin")
    voltage = tables.voltage()[29]
    first, second = graph.edge_index.numpy()
    own, other = (
        graph.edge_attr.numpy()[:, k] + 1j * graph.edge_attr.numpy()[:, k + 1].astype(np.float64)
        for k in (0, 2)
    )
    current = (graph.x[:, 4].numpy() + 1j * graph.x[:, 5].numpy().astype(np.float64)) * voltage
    np.add.at(current, first, own * voltage[first] + other * voltage[second])
    admittance = tables.admittance(29)
    error = np.abs(current - admittance @ voltage).max()
    assert graph.scenario == 29
    assert error < 1e-6 * np.abs(admittance).max()


@pytest.mark.parametrize("hetero", [False, True])
def test_the_loader_of_the_package_makes_batches(pyg: Any, release: Path, hetero: bool) -> None:
    graphs = open_corpus(release).to_pyg(days=[0], hetero=hetero)
    batches = list(pyg.loader.DataLoader(graphs, batch_size=10, shuffle=True))
    seen = torch.cat([batch.step if hetero else batch.scenario for batch in batches])
    assert sorted(seen.tolist()) == list(range(24))


def test_connections_give_nodes_on_their_buses(pyg: Any, release: Path) -> None:
    corpus = open_corpus(release)
    connections = corpus.connections
    assert connections is not None
    graphs = corpus.to_pyg(days=[4, 2], hetero=True)
    assert len(graphs) == 48
    graph = graphs[24 + 7]
    graph.validate(raise_on_error=True)
    assert (graph.day, graph.step) == (2, 7)
    loads, voltages = corpus.loads([2])[0, 7], corpus.phasors([2]).vm_pu[0, 7]
    assert graphs.features[:2] == ("p_kw", "q_kvar")
    np.testing.assert_array_equal(graph["node"].x[:, 0].numpy(), loads.real.astype(np.float32))
    np.testing.assert_array_equal(graph["node"].y[:, 0].numpy(), voltages)
    np.testing.assert_array_equal(graph["node", "at", "bus"].edge_index[1].numpy(), connections.bus_of)
    joined = sum(graph["bus", kind, "bus"].num_edges for kind in ("line", "switch", "transformer"))
    assert joined == 2 * connections.n_pairs
    assert graph["bus"].x.sum() == connections.source.sum()


def test_perturbed_networks_are_graphs_of_their_own_branches(pyg: Any, release: Path, tmp_path: Path) -> None:
    twin_graphs: Any = importlib.import_module("dp_powerflow.corpus.learning").TwinGraphs
    dpf.export_gridfm(release, tmp_path / "graphs", variety=dpf.GridfmVariety(scenarios=8, seed=1))
    (raw,) = (tmp_path / "graphs").rglob("raw")
    tables = dpf.read_gridfm(raw)
    graphs = twin_graphs(tables)
    branches = np.bincount(tables.branch["scenario"].to_numpy())
    assert [graph.num_edges for graph in graphs] == (2 * branches).tolist()
    last = graphs[len(graphs) - 1]
    own = tables.branch.slice(len(tables.branch) - int(branches[-1]))
    np.testing.assert_array_equal(last.edge_index[0, : branches[-1]].numpy(), own["from_bus"].to_numpy())
    np.testing.assert_array_equal(
        last.edge_attr[branches[-1] :, 0].numpy(), own["Ytt_r"].to_numpy().astype(np.float32)
    )


def test_what_is_not_published_is_named(pyg: Any, release: Path, tmp_path: Path) -> None:
    bare = open_corpus(write_corpus(tmp_path / "bare"))
    with pytest.raises(CorpusError, match="publishes no connections"):
        bare.to_pyg()
    with pytest.raises(CorpusError, match="holds no tables of its network"):
        bare.to_pyg(hetero=False)
    with pytest.raises(CorpusError, match="hold days 0 to 1"):
        open_corpus(release).to_pyg(days=[2])
