"""What a twin publishes beside the voltages: powers, states, connections, coordinates; from a config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow.cli.release import render_plan
from dp_powerflow.corpus.gridfm.tables import read_gridfm
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.corpus.tables import Connections, NodeTable, encode_connections
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import ConfigError, CorpusError
from dp_powerflow.grid.feeder import BusGraph, Feeder
from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.manifest.verify import SEED
from dp_powerflow.pipeline.modes.twin import public_places, released_connections
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.random import StreamKey
from support.small import small_config, tree_hash
from support.sunny import write_sunny
from support.tampering import failed

STEPS = 24
TWIN: dict[str, Any] = {"mode": "twin-network", "epsilon": 8.0, "id": "t1", "change": 0.05}
FROZEN: dict[str, Any] = {
    **{**TWIN, "released": "all", "controls": "frozen", "publish": "network and loads"},
    "also_publish": ["head", "loads"],
}


def sunny(folder: Path, **network: Any) -> Any:
    """A feeder with PV under volt-var control."""
    return small_config(
        folder,
        feeder={"source": "c.dss"},
        pv={"irradiance": "sun.csv", "volt_var": "category B"},
        network=FROZEN | network,
        release={"days": 3},
    )


def release_of(folder: Path, network: dict[str, Any] | None = None, **sections: Any) -> Any:
    return small_config(folder, network=TWIN | (network or {}), release={"days": 2}, **sections)


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("solved")
    write_sunny(folder)
    run_release(sunny(folder), workers=1)
    return folder


# --- powers -----------------------------------------------------------------------------------------------
def test_the_released_powers_are_those_of_the_published_twin(solved: Path) -> None:
    assert failed(solved / "out") == {SEED}
    corpus, tables = open_corpus(solved / "out"), read_gridfm(solved / "out" / "twin")
    assert corpus.holds == ("voltages", "loads", "generation", "head", "scaled_down")
    nodes = corpus.layout.nodes

    def of_tables(name: str) -> np.ndarray:
        """In kW or kvar: the tables hold injections, generation beside the slack as negative load."""
        balance = tables.column("bus", f"{name}g") - tables.column("bus", f"{name}d")
        return np.asarray(1000.0 * balance).reshape(3, STEPS, -1)

    injected = of_tables("P") + 1j * of_tables("Q")
    two_roundings = 2e-3
    assert np.abs(corpus.generation() - corpus.loads() - injected[..., :nodes]).max() < two_roundings
    assert np.abs(corpus.generation()).max() > 100.0
    assert np.abs(corpus.head() - injected[..., nodes:]).max() < two_roundings
    losses = (corpus.head().sum(-1) - corpus.loads().sum(-1) + corpus.generation().sum(-1)).real
    assert losses.min() > -two_roundings
    assert losses.max() > 0.1


def test_the_voltages_do_not_depend_on_what_is_beside_them(solved: Path, tmp_path: Path) -> None:
    write_sunny(tmp_path)
    run_release(sunny(tmp_path, also_publish=[]), workers=1)
    both = tree_hash(tmp_path / "out"), tree_hash(solved / "out")
    data = [{name: digest for name, digest in found.items() if name.startswith("data/")} for found in both]
    assert data[0] == data[1]
    assert not (tmp_path / "out" / "loads").exists()
    assert not {"buses.parquet", "connections.parquet"} & both[0].keys()
    corpus = open_corpus(tmp_path / "out")
    assert corpus.connections is None
    assert corpus.nodes == NodeTable.opaque(corpus.layout.nodes)
    assert failed(tmp_path / "out") == {SEED}


def beside_the_voltages(patch: pytest.MonkeyPatch) -> None:
    """A run dies after the loads of a part."""
    write = CorpusWriter.write_files

    def killed(writer: Any, files: dict[str, memoryview]) -> dict[str, str]:
        *beside, voltages = files
        assert beside
        assert voltages.startswith("data/")
        write(writer, {name: files[name] for name in beside})
        raise KeyboardInterrupt

    patch.setattr(CorpusWriter, "write_files", killed)


def among_the_tables(patch: pytest.MonkeyPatch) -> None:
    """A run dies in the middle of the table of buses."""

    def killed(writer: CorpusWriter, found: Any) -> dict[str, str]:
        content = encode_connections(writer.layout, writer.release_id, found)["buses.parquet"]
        (writer.partial / "buses.parquet").write_bytes(content[: len(content) // 2])
        raise KeyboardInterrupt

    patch.setattr(CorpusWriter, "write_connections", killed)


@pytest.mark.parametrize("dies", [beside_the_voltages, among_the_tables])
def test_a_run_that_died_ends_in_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: Any
) -> None:
    also = {"also_publish": ["head", "loads", "connections"]}
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        write_sunny(tmp_path / name)
    run_release(sunny(tmp_path / "whole", **also), workers=1)
    dies(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run_release(sunny(tmp_path / "killed", **also), workers=1)
    monkeypatch.undo()
    run_release(sunny(tmp_path / "killed", **also), workers=1)
    assert tree_hash(tmp_path / "killed/out") == tree_hash(tmp_path / "whole/out")


def test_a_fixed_frame_has_no_states(tmp_path: Path) -> None:
    asked = small_config(tmp_path, network=FROZEN | {"also_publish": ["states"]}, release={"days": 2})
    run_release(asked, workers=1)
    assert open_corpus(tmp_path / "out").holds == ("voltages", "scaled_down")


# --- connections ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("released", ["loaded", "all"])
def test_the_published_connections_are_those_of_the_feeder(
    tmp_path: Path, ieee13: Feeder, released: str
) -> None:
    """Coordinates tell which bus is which, and so that pairs, kinds, phases and the source are right."""
    asked = release_of(tmp_path, {"released": released, "coordinates": "public"})
    assert "COORDINATES ARE PUBLISHED" in str(render_plan(plan(asked)))
    warnings = run_release(asked, workers=1).warnings
    assert any(words.startswith("COORDINATES ARE PUBLISHED") for words in warnings)
    assert failed(tmp_path / "out") == {SEED}
    corpus = open_corpus(tmp_path / "out")
    found, graph = corpus.connections, BusGraph.of(ieee13)
    assert found is not None
    assert found.coordinates is not None
    name_at = {place: name for name, place in ieee13.coordinates.items()}
    names = [name_at[x, y] for x, y in found.coordinates.tolist()]
    assert sorted(names) == sorted(graph.names)
    pairs = {
        frozenset((names[one], names[other])): kind
        for (one, other), kind in zip(found.pairs, found.kinds, strict=True)
    }
    assert pairs == {
        frozenset((graph.names[one], graph.names[other])): kind
        for (one, other), kind in graph.kind_of.items()
    }
    assert [names[bus] for bus in np.flatnonzero(found.source)] == ["sourcebus"]
    nodes = {f"{names[bus]}.{phase}" for bus, phase in zip(found.bus_of, found.phase, strict=True)}
    assert len(nodes) == corpus.layout.nodes
    expected = ieee13.energised if released == "all" else ieee13.retained
    assert nodes <= {ieee13.nodes[k] for k in expected}
    # A node stands where its angles say: the phases follow one another by a third of a turn.
    angle = np.angle(corpus.voltages([0])[0, 0])
    for bus in np.unique(found.bus_of):
        of = {int(found.phase[k]): angle[k] for k in np.flatnonzero(found.bus_of == bus)}
        if {1, 2} <= of.keys():
            assert abs(np.angle(np.exp(1j * (of[1] - of[2] - 2.0 * np.pi / 3.0)))) < 0.2


@pytest.mark.slow
def test_a_balanced_pandapower_net_has_connections_and_places_too(tmp_path: Path) -> None:
    """The bus of the source is an ideal EMF itself: no node of it is released."""
    pytest.importorskip("simbench")
    network = {"released": "all", "coordinates": "public"}
    source = {"source": "simbench:1-LV-rural1--0-sw"}
    run_release(release_of(tmp_path, network, feeder=source), workers=1)
    assert failed(tmp_path / "out") == {SEED}
    corpus = open_corpus(tmp_path / "out")
    found = corpus.connections
    assert found is not None
    assert (found.n_buses, found.n_pairs, corpus.layout.nodes) == (15, 14, 14)
    assert set(found.phase.tolist()) == {1}
    assert np.flatnonzero(found.source).tolist() == [14]
    assert found.coordinates is not None
    assert len(np.unique(found.coordinates, axis=0)) > 10


LINES = (
    "New Line.one bus1=s bus2=a length=0.5 units=km",
    "New Line.two bus1=a bus2=b length=0.5 units=km",
    "New Line.three bus1=a bus2=c length=0.5 units=km",
)


def written(folder: Path, lines: tuple[str, ...]) -> Feeder:
    loads = "New Load.l1 bus1=b.1 phases=1 kv=2.4 kW=10\nNew Load.l2 bus1=c.2 phases=1 kv=2.4 kW=10\n"
    end = "Set VoltageBases=[4.16]\nCalcVoltageBases\n"
    circuit = "Clear\nNew Circuit.c basekv=4.16 bus1=s\n" + "\n".join(lines)
    (folder / "c.dss").write_text(f"{circuit}\n{loads}{end}")
    return open_feeder(str(folder / "c.dss"))


def test_the_numbers_of_buses_do_not_tell_the_order_of_the_file(tmp_path: Path) -> None:
    key = StreamKey.from_insecure_seed(5)
    order = ["c.1", "b.2", "a.3", "s.1", "c.2", "b.1", "a.1", "s.3"]
    numbered = []
    for lines in (LINES, LINES[::-1]):
        feeder = written(tmp_path, lines)
        released = np.array([feeder.node_index[name] for name in order])
        numbered.append((feeder.nodes, released_connections(feeder, released, key)))
    (nodes, mine), (others, same) = numbered
    assert nodes != others
    np.testing.assert_array_equal(mine.bus_of, [0, 1, 2, 3, 0, 1, 2, 3])
    np.testing.assert_array_equal(mine.pairs, [[0, 2], [1, 2], [2, 3]])
    for name in ("bus_of", "phase", "pairs", "source"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(same, name))


# --- refusals ---------------------------------------------------------------------------------------------


def test_a_feeder_without_coordinates_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    written(tmp_path, LINES)
    asked = release_of(tmp_path, {"coordinates": "public"}, feeder={"source": "c.dss"})
    for attempt in (lambda: plan(asked), lambda: run_release(asked, workers=1)):
        with pytest.raises(ConfigError, match="no coordinates for 4 of its 4 buses; add them, or set"):
            attempt()
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "state").glob("**/*ledger*"))


def test_places_that_are_no_numbers_are_none(ieee13: Feeder) -> None:
    some = ieee13.coordinates | {"671": (np.nan, 0.0)}
    with pytest.raises(ConfigError, match="no coordinates for 1 of its 16 buses"):
        public_places(ieee13, some)
    as_source = {
        f"emf({name})" if name == "sourcebus" else name: at for name, at in ieee13.coordinates.items()
    }
    assert public_places(ieee13, as_source) == ieee13.coordinates


def test_a_structure_that_could_not_be_published_is_refused_before_the_spend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def contradict(*_: object) -> Connections:
        raise CorpusError("these are no connections of a network: a bus is not connected to a source")

    monkeypatch.setattr("dp_powerflow.pipeline.modes.twin.released_connections", contradict)
    with pytest.raises(ConfigError, match='leave "connections" out'):
        run_release(release_of(tmp_path), workers=1)
    assert not list(tmp_path.rglob("paid-*.json"))
