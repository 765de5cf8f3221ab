"""Releases with the connections of their twin: what they say, and what `verify` finds of a change."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dp_powerflow.cli.release import render_plan
from dp_powerflow.config import parse_config
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.corpus.tables import Connections, NodeTable, encode_buses, encode_connections
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import ConfigError, CorpusError
from dp_powerflow.grid.buses import BusGraph
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.manifest.build import make_statement
from dp_powerflow.manifest.model import NO_PROTECTION, ReleaseError
from dp_powerflow.manifest.verify import SEED, verify_release
from dp_powerflow.pipeline.modes.base import promise_warnings
from dp_powerflow.pipeline.modes.twin import public_places, released_connections
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.random import StreamKey
from support.corpora import EXTRAS, ring
from support.manifest_releases import Made, config, load_model, make_inputs, make_release, said, twin_config
from support.small import RAW, small_config, tree_hash
from support.tampering import failed, manifest_of, sealed

CHECK = "voltages"
FOUND = {"voltages", "statement"}
NODES = 4
TABLES = ("nodes.parquet", "buses.parquet", "connections.parquet")


def made_with(root: Path, *, coordinates: bool = False, **release: Any) -> Made:
    chosen = twin_config(
        network={"coordinates": "public" if coordinates else "private"},
        **({"release": release} if release else {}),
    )
    found = ring(NODES, coordinates=coordinates)
    return make_release(root, chosen, load_model(), connections=found, extras=EXTRAS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return made_with(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return made_with(tmp_path_factory.mktemp("placed"), coordinates=True)


@pytest.fixture
def copied(made: Made, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.path, tmp_path / "copy"))


@pytest.fixture
def copied_with_places(placed: Made, tmp_path: Path) -> Path:
    return Path(shutil.copytree(placed.path, tmp_path / "copy"))


# ------------------------------------------------------------------------------------- what a release says
def test_a_release_with_connections_verifies_and_says_what_they_are(made: Made) -> None:
    report = verify_release(made.path)
    assert report.verdict == "release", report.failures
    sentence = next(check.sentence for check in report.checks if check.name == CHECK)
    assert "All 3 buses are connected to a source by 3 joined pairs, without coordinates" in sentence
    manifest = manifest_of(made.path)
    stated = manifest["data"]["connections"]
    assert (stated["buses"], stated["pairs"], stated["sources"], stated["coordinates"]) == (3, 3, 1, False)
    assert "How the network is connected: its 3 buses" in said(manifest, "unprotected")
    assert "Of the twin itself only its connections are released." in said(manifest, "after_noise")
    page = (made.path / "certificate.html").read_text()
    assert "<dt>Connections</dt>" in page
    assert "COORDINATES" not in page


def test_published_coordinates_are_said_loudly_wherever_a_reader_looks(placed: Made) -> None:
    report = verify_release(placed.path)
    assert report.verdict == "release", report.failures
    loud = "COORDINATES ARE PUBLISHED, SO LENGTHS OF LINES ARE NOT PROTECTED"
    manifest = manifest_of(placed.path)
    assert manifest["release"]["warnings"] == ["coordinates"]
    assert said(manifest, "warnings").startswith(loud)
    assert loud in said(manifest, "unprotected")
    assert any(words.startswith(loud) for words in report.warnings)
    assert "then gives its resistance and reactance" in said(manifest, "warnings")
    assert "Coordinates are not published" not in said(manifest, "not_claimed")
    page = (placed.path / "certificate.html").read_text()
    assert loud in page
    assert "the LENGTH OF A LINE, which follows from the published coordinates" in page
    assert "against a reader who has its coordinates" not in page
    network = next(check.sentence for check in report.checks if check.name == "network privacy")
    assert "the LENGTH OF A LINE" in network


@pytest.mark.parametrize(
    ("network", "weak"),
    [
        ({"lines": "length"}, True),
        ({"lines": "length", "code_epsilon": 0.5}, False),
        ({"lines": "impedance"}, False),
    ],
)
def test_nothing_of_a_line_is_left_where_its_length_and_code_are_public(
    network: dict[str, Any], weak: bool
) -> None:
    warnings = promise_warnings(twin_config(network={**network, "coordinates": "public"}))
    loud = [words for words in warnings if words.startswith(NO_PROTECTION)]
    assert bool(loud) == weak
    assert all("nothing of a line with a code is left protected" in words for words in loud)
    assert not promise_warnings(twin_config(network=network))
    assert warnings[-1].startswith("COORDINATES ARE PUBLISHED")
    assert ("conductor code" in warnings[-1]) == ("code_epsilon" not in network)


def test_the_croissant_describes_every_column_and_links_resolve(placed: Made) -> None:
    dataset = json.loads((placed.path / "croissant.json").read_text())
    files = {item["@id"]: item for item in dataset["distribution"]}
    records = {item["@id"]: item["field"] for item in dataset["recordSet"]}
    for name in ("buses", "connections"):
        path = placed.path / f"{name}.parquet"
        assert [field["name"] for field in records[name]] == pq.read_schema(path).names
        assert {field["source"]["fileObject"]["@id"] for field in records[name]} == {f"{name}-file"}
        assert files[f"{name}-file"]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    kinds = {field["name"]: field["dataType"] for field in records["buses"]}
    assert kinds == {"bus": "sc:Text", "source": "sc:Boolean", "x": "sc:Float", "y": "sc:Float"}


def test_the_true_network_publishes_no_connections(tmp_path: Path) -> None:
    inputs, _ = make_inputs(tmp_path, config(), load_model())
    with pytest.raises(ReleaseError, match="connections of its network, which its mode does not publish"):
        make_statement(replace(inputs, connections=ring(NODES)))


def test_coordinates_that_nobody_declared_public_are_not_stated(made: Made, placed: Made) -> None:
    for inputs, found in ((made.inputs, ring(NODES, coordinates=True)), (placed.inputs, ring(NODES))):
        with pytest.raises(ReleaseError, match="Coordinates of the buses are released though"):
            make_statement(replace(inputs, connections=found))


def test_coordinates_put_into_a_release_that_keeps_them_private_are_found(copied: Path) -> None:
    corpus = open_corpus(copied)
    content = encode_buses(corpus.layout, corpus.release_id, ring(NODES, coordinates=True))
    (copied / "buses.parquet").write_bytes(content)
    assert "statement" in sealed(copied)
    manifest = manifest_of(copied)
    manifest["data"]["connections"]["coordinates"] = True
    assert "statement" in sealed(copied, manifest)


def test_a_release_that_hides_its_coordinates_in_words_is_found(copied_with_places: Path) -> None:
    manifest = manifest_of(copied_with_places)
    manifest["guarantee"]["network"]["coordinates"] = "private"
    assert "statement" in sealed(copied_with_places, manifest)


def test_another_network_under_the_same_nodes_is_found(copied: Path) -> None:
    """A network with a pair less, sound in itself: the manifest states another number."""
    corpus = open_corpus(copied)
    found = ring(NODES)
    fewer = replace(found, pairs=found.pairs[1:], kinds=found.kinds[1:])
    content = encode_connections(corpus.layout, corpus.release_id, fewer)
    (copied / "connections.parquet").write_bytes(content)
    assert "statement" in sealed(copied)


# --------------------------------------------------------------------------------- a release, from a config
TWIN: dict[str, Any] = {"mode": "twin-network", "epsilon": 4.0, "id": "t1", "change": 0.05}


def release_of(folder: Path, network: dict[str, Any] | None = None, **sections: Any) -> Any:
    return small_config(folder, network=TWIN | (network or {}), release={"days": 2}, **sections)


@pytest.fixture(scope="module", params=["loaded", "all"])
def solved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    run_release(release_of(folder, {"released": request.param, "coordinates": "public"}), workers=1)
    return folder


def test_the_published_connections_are_those_of_the_feeder(solved: Path, ieee13: Feeder) -> None:
    """Coordinates tell which bus is which, and so that pairs, kinds, phases and the source are right."""
    assert failed(solved / "out") == {SEED}
    corpus = open_corpus(solved / "out")
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
    expected = ieee13.energised if solved.name.startswith("all") else ieee13.retained
    assert nodes <= {ieee13.nodes[k] for k in expected}
    # A node stands where its angles say: the phases follow one another by a third of a turn.
    angle = np.angle(corpus.voltages([0])[0, 0])
    for bus in np.unique(found.bus_of):
        of = {int(found.phase[k]): angle[k] for k in np.flatnonzero(found.bus_of == bus)}
        if {1, 2} <= of.keys():
            assert abs(np.angle(np.exp(1j * (of[1] - of[2] - 2.0 * np.pi / 3.0)))) < 0.2


def test_a_run_that_died_among_the_tables_ends_in_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    run_release(release_of(tmp_path / "whole"), workers=1)

    def killed(writer: CorpusWriter, found: Any) -> dict[str, str]:
        content = encode_buses(writer.layout, writer.release_id, found)
        (writer.partial / "buses.parquet").write_bytes(content[: len(content) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(CorpusWriter, "write_connections", killed)
    with pytest.raises(KeyboardInterrupt):
        run_release(release_of(tmp_path / "killed"), workers=1)
    monkeypatch.undo()
    run_release(release_of(tmp_path / "killed"), workers=1)
    assert tree_hash(tmp_path / "killed/out") == tree_hash(tmp_path / "whole/out")


def test_what_is_not_asked_for_is_not_published(tmp_path: Path) -> None:
    run_release(release_of(tmp_path, {"also_publish": ["loads"]}), workers=1)
    corpus = open_corpus(tmp_path / "out")
    assert corpus.connections is None
    assert corpus.nodes == NodeTable.opaque(corpus.layout.nodes)
    assert not {"buses.parquet", "connections.parquet"} & tree_hash(tmp_path / "out").keys()
    assert failed(tmp_path / "out") == {SEED}


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


# ----------------------------------------------------------------------------------- what the order tells
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


def test_buses_without_a_released_node_come_in_a_random_order(ieee13: Feeder) -> None:
    """Over 200 keys the source stands at each of the last places; with one node all others are shuffled."""
    released = ieee13.retained[:1]
    places = [
        int(np.flatnonzero(released_connections(ieee13, released, key).source)[0])
        for key in map(StreamKey.from_insecure_seed, range(200))
    ]
    assert set(places) == set(range(1, len(ieee13.coordinates)))


# --------------------------------------------------------------------------------------------- refusals
def test_coordinates_need_published_buses(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'add "connections" to network\.also_publish'):
        release_of(tmp_path, {"coordinates": "public", "also_publish": ["loads"]})
    with pytest.raises(ConfigError, match="coordinates"):
        parse_config({**RAW, "network": {**RAW["network"], "coordinates": "public"}}, base=tmp_path)
    with pytest.raises(ConfigError, match="also_publish"):
        release_of(tmp_path, {"also_publish": ["connection"]})


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


def test_plan_and_release_warn_of_coordinates(tmp_path: Path) -> None:
    asked = release_of(tmp_path, {"coordinates": "public"})
    assert "COORDINATES ARE PUBLISHED" in str(render_plan(plan(asked)))
    assert any(
        words.startswith("COORDINATES ARE PUBLISHED") for words in run_release(asked, workers=1).warnings
    )


def test_a_structure_that_could_not_be_published_is_refused_before_the_spend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def contradict(*_: object) -> Connections:
        raise CorpusError("these are no connections of a network: a bus is not connected to a source")

    monkeypatch.setattr("dp_powerflow.pipeline.modes.twin.released_connections", contradict)
    with pytest.raises(ConfigError, match='leave "connections" out'):
        run_release(release_of(tmp_path), workers=1)
    assert not list(tmp_path.rglob("paid-*.json"))
