"""Releases on a twin: paid once for any number of them; solved as operated; scaled down by a public rule."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dp_powerflow as dpf
from dp_powerflow.cli.release import render_plan
from dp_powerflow.corpus.gridfm.tables import read_gridfm
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.corpus.tables import Connections, NodeTable
from dp_powerflow.errors import ConfigError, CorpusError, PowerFlowError, PrivacyError
from dp_powerflow.grid.feeder import BusGraph, Feeder
from dp_powerflow.grid.opendss.engine import DssOrigin, build_circuit
from dp_powerflow.grid.opendss.reader import read_dss
from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.manifest.verify import SEED, verify_release
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.sample import SCALING_DOWN, LoadBlock, LoadSource, solve_days
from dp_powerflow.pipeline import inputs as assembly
from dp_powerflow.pipeline import release as pipeline
from dp_powerflow.pipeline.audit import verify_private
from dp_powerflow.pipeline.inputs import read_inputs
from dp_powerflow.pipeline.modes.base import Scene, mode_of
from dp_powerflow.pipeline.modes.twin import TwinMode, public_places, released_connections
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.powerflow.operated import OperatedSolver
from dp_powerflow.privacy.ledger.accounts import AccountKind
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.twin.draw import Twin
from support.made import Released, operated_config, twin_config
from support.manifest_releases import said
from support.small import small_config, tree_hash
from support.small_circuits import script
from support.sunny import write_sunny
from support.tampering import failed, manifest_of, sealed, without_hashes


@pytest.fixture(scope="module")
def released(twin_release: Released) -> Path:
    return twin_release.folder


def charges(folder: Path) -> list[tuple[AccountKind, str]]:
    ledger = Ledger.inspect(folder / "state")
    return [(spend.kind, spend.release_id) for spend in ledger.spends()]


def longer_line(feeder: Feeder) -> Feeder:
    """The same feeder with line 632633 five per cent longer in its source."""
    origin = feeder.origin
    assert isinstance(origin, DssOrigin)
    engine = build_circuit(origin)
    engine.ActiveCircuit.Lines.Name = "632633"
    edit = f"Edit Line.632633 length={1.05 * engine.ActiveCircuit.Lines.Length!r}"
    return read_dss(DssOrigin((*origin.commands, edit), public=True), name=feeder.name, taps=feeder.taps)


@pytest.fixture
def corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of the true network is longer than it was."""
    original = assembly.feeder_of
    monkeypatch.setattr(assembly, "feeder_of", lambda config, *_: longer_line(original(config)))


# --- what is released -------------------------------------------------------------------------------------
def test_a_twin_release_verifies_but_for_its_seed(twin_release: Released) -> None:
    for private in (None, twin_release.state):
        report = dpf.verify(twin_release.path, private=private)
        assert {check.name for check in report.failures} == {SEED}
    corpus = open_corpus(twin_release.path)
    assert corpus.layout.nodes == len(open_feeder("ieee13").energised)  # all but the sources


@pytest.mark.slow
def test_an_auditor_draws_the_twin_again(twin_release: Released, tmp_path: Path) -> None:
    def audit(state: Path) -> dict[str, bool]:
        found = dpf.verify(twin_release.path, private=state, config=twin_release.config)
        return {check.name: check.ok for check in found.checks}

    found = audit(twin_release.state)
    assert [name for name, ok in found.items() if not ok] == [SEED]
    assert {"commitment", "ledger", "network evidence", "twin", "network privacy"} <= set(found)
    # A twin that the key does not give is found.
    state = Path(shutil.copytree(twin_release.state, tmp_path / "state"))
    kept = next(state.rglob("twin-*.json"))
    twin = json.loads(kept.read_text())
    twin["positions"][0][2] += 1
    content = (json.dumps(twin, indent=1, sort_keys=True) + "\n").encode()
    PrivateState.inspect(state).write_internal(kept.parent.name, kept.name, content)
    assert [name for name, ok in audit(state).items() if not ok] == [SEED, "twin"]
    # So is another internal report.
    PrivateState.inspect(state).write_internal("small", "report.json", b"{}")
    assert {name for name, ok in audit(state).items() if not ok} >= {"commitment", "network evidence"}


def test_the_plan_states_cost_and_prediction_from_public_figures(released: Path) -> None:
    def shown(**network: Any) -> str:
        return "\n".join(render_plan(plan(twin_config(released, network=network))).lines)

    published = shown()
    assert "ε = 1 of differential privacy (laplace noise)" in published
    assert "| 0.5 | 8.32 | 0.985 |" in published
    assert "| **laplace** | 1 | 8.31 | 0.39 / 0.98 |" in published
    assert "Floor on ieee123: no mechanism with ε = 1 for 5 %" in published
    flat = " ".join(published.split())
    assert "perturbed ones of this twin cost nothing" in flat
    assert "cost k times ε: with this one, two have ε = 2 and ten ε = 10." in flat
    assert "further twins" not in shown(publish="voltages", graph_days=None)


def test_no_line_of_the_true_network_is_in_the_published_one(released: Path, ieee13: Feeder) -> None:
    published = np.asarray(read_gridfm(released / "out" / "twin").admittance().toarray())
    magnitudes = np.abs(published[np.abs(published) > 0]) * (100.0 / ieee13.base_mva)
    for line in ieee13.lines:
        if not line.is_switch:
            true = abs(line.primitive[0, len(line.nodes) // 2])
            assert np.min(np.abs(magnitudes / true - 1.0)) > 1e-6


@pytest.mark.parametrize("publish", ["voltages", "network"])
def test_what_is_not_to_be_published_is_not(tmp_path: Path, publish: str) -> None:
    run_release(twin_config(tmp_path, network={"publish": publish, "released": "loaded"}), workers=1)
    tables = tmp_path / "out" / "twin"
    if publish == "voltages":
        assert not tables.exists()
    else:
        alone = read_gridfm(tables)
        assert np.abs(alone.phasor()).shape[0] == 1  # without loads one scenario
        assert np.abs(alone.column("bus", "Pd")).max() == 0.0
    assert failed(tmp_path / "out") == {SEED}


# --- what is paid -----------------------------------------------------------------------------------------
def test_the_same_twin_serves_every_release_for_one_charge(twin_release: Released, tmp_path: Path) -> None:
    shutil.copytree(twin_release.folder, tmp_path, dirs_exist_ok=True)
    internal = tmp_path / "state/internal/twin-t1"
    kept = tree_hash(internal)
    second = {"id": "later", "output": "two", "days": 30}
    run_release(twin_config(tmp_path, release=second, model={"reuse": "small"}), workers=1)
    assert charges(tmp_path) == [(AccountKind.LOADS, "small"), (AccountKind.NETWORK_TWIN, "t1")]
    assert tree_hash(internal) == kept
    manifests = [manifest_of(tmp_path / name) for name in ("out", "two")]
    for part in ("composition", "guarantee"):
        assert manifests[0][part]["network"] == manifests[1][part]["network"]
    assert len(manifests[0]["composition"]["network"]["spent"]["pure_epsilons"]) == 1
    for name in ("out", "two"):
        private = verify_private(tmp_path / name, tmp_path / "state")
        assert {check.name for check in private.failures} == {SEED}
    # Another design under the id of the twin is refused before anything is spent.
    other = {"id": "r4", "output": "out4", "network_epsilon_cap": 1.0}
    with pytest.raises(PrivacyError, match="twin 't1'"):
        run_release(twin_config(tmp_path, network={"epsilon": 0.5}, release=other), workers=1)
    assert len(charges(tmp_path)) == 2
    # The two corpora are of the same network: same admittances, in another secret order, in which merged
    # switches cancel to the last digits.
    one, two = (np.abs(read_gridfm(tmp_path / n / "twin").admittance().toarray()) for n in ("out", "two"))
    np.testing.assert_allclose(np.sort(one.ravel()), np.sort(two.ravel()), rtol=1e-10, atol=1e-10)
    # Tables of the one in the other are found.
    shutil.rmtree(tmp_path / "out" / "twin")
    shutil.copytree(tmp_path / "two" / "twin", tmp_path / "out" / "twin")
    assert "twin tables" in sealed(tmp_path / "out")


# --- what depends on the true network ---------------------------------------------------------------------
ORDERED = ("nodes.parquet", "buses.parquet", "connections.parquet")
"""Their rows are in the secret order, which is bound to the twin."""


@pytest.mark.usefixtures("corrected")
def test_changing_one_line_changes_only_data_and_the_tables_of_the_twin(
    released: Path, tmp_path: Path
) -> None:
    run_release(twin_config(tmp_path), workers=1)
    before, after = tree_hash(released / "out"), tree_hash(tmp_path / "out")
    assert before.keys() == after.keys()
    differing = {name for name in before if before[name] != after[name]}
    assert any(name.startswith("data/") for name in differing)
    assert any(name.startswith("twin/y_bus") for name in differing)
    for name in differing:
        if not name.startswith(("data/", "twin/", "loads/", "feeder/", "quality.html", *ORDERED)):
            old, new = (without_hashes(folder / "out", name) for folder in (released, tmp_path))
            assert old == new, name


@pytest.mark.usefixtures("corrected")
@pytest.mark.parametrize("kind", ["frozen", "operated"])
def test_another_true_network_with_the_same_twin_gives_the_same_bytes(
    twin_release: Released,
    operated_release: Released,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """Another line and account, the twin of the first network: no byte differs, not of the commitment."""
    first, config = {
        "frozen": (twin_release, twin_config(tmp_path)),
        "operated": (operated_release, operated_config(tmp_path)),
    }[kind]
    kept = next((first.state / "internal/twin-t1").glob("twin-*.json"))
    monkeypatch.setattr(TwinMode, "_draw", lambda *_: Twin.from_json(kept.read_text()))
    run_release(config, workers=1)
    assert tree_hash(first.path) == tree_hash(tmp_path / "out")
    assert {*ORDERED, "quality.html"} <= tree_hash(first.path).keys()


def test_draws_are_bound_to_the_twin(released: Path, tmp_path: Path) -> None:
    """Another twin of the same network meets other loads, in another order of the nodes."""
    run_release(twin_config(tmp_path, network={"id": "t2"}), workers=1)
    one, two = (read_gridfm(folder / "out" / "twin").column("bus", "Pd") for folder in (released, tmp_path))
    one, two = one[one > 0.0], two[two > 0.0]
    # All customers of a load at the lower bound, 0.01 of whole kilowatts: that may come twice.
    lowest = np.isclose(1e5 * one, np.round(1e5 * one), rtol=0.0, atol=1e-6)
    assert np.mean(lowest) < 0.01
    assert not np.isin(one[~lowest], two).any()


# --- as operated ------------------------------------------------------------------------------------------
def test_a_twin_is_solved_as_operated_by_default_and_says_so(operated_release: Released) -> None:
    manifest = manifest_of(operated_release.path)
    assert manifest["guarantee"]["network"]["controls"] == "day"
    assert said(manifest, "taps").startswith("as operated")
    assert failed(operated_release.path) == {SEED}


def test_regulators_hold_voltages_taps_move_and_powers_balance(operated_release: Released) -> None:
    corpus = open_corpus(operated_release.path)
    magnitude = np.abs(corpus.voltages())
    assert np.mean((magnitude >= 0.95) & (magnitude <= 1.05)) >= 0.99
    assert corpus.holds == ("voltages", "loads", "head", "taps", "locked", "scaled_down")
    taps = corpus.taps()
    assert taps.shape == (corpus.layout.days, corpus.layout.steps, 3)
    assert len(np.unique(taps)) > 1
    losses = (corpus.head().sum(axis=-1) - corpus.loads().sum(axis=-1)).real
    assert losses.min() > 0.0
    assert losses.max() < 0.1 * corpus.loads().sum(axis=-1).real.max()


def test_every_snapshot_for_itself_is_another_release(operated_release: Released, tmp_path: Path) -> None:
    run_release(operated_config(tmp_path, network={"controls": "snapshot"}), workers=1)
    mine, other = open_corpus(operated_release.path), open_corpus(tmp_path / "out")
    assert (mine.taps() != other.taps()).any()
    assert verify_release(tmp_path / "out").checks[0].ok


# --- a snapshot without solution is scaled down -----------------------------------------------------------
# Far more load than the lines bear: thousands of customers where there is room for hundreds.


def heavy(folder: Path, **network: Any) -> Any:
    (folder / "weak.dss").write_text(script("heavy"))
    return small_config(
        folder,
        feeder={"source": "weak.dss"},
        nodes={"kw_per_customer": 0.7},
        network={"mode": "twin-network", "id": "t1", "epsilon": 8.0, "released": "all"} | network,
        release={"days": 30},
    )


@pytest.fixture(scope="module")
def scaled_down(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scaled_down")
    run_release(heavy(folder), workers=1)
    return folder


def drawn_again(folder: Path) -> tuple[Scene, LoadSource]:
    """The twin and the loads of the release, from its key."""
    config = heavy(folder)
    state = PrivateState.open(config.release.state, insecure_seed=7)
    inputs, mode = read_inputs(config, state), mode_of(config)
    model = LoadModel.load(folder / "out" / "model.json")
    scene = mode.scene(inputs, mode.network_to_solve(inputs, mode.identity(inputs)), model)
    return scene, mode.source(scene, pipeline.draw_key(inputs, scene), config.release.days)


def test_snapshots_without_solution_are_released_marked_and_counted(scaled_down: Path) -> None:
    corpus = open_corpus(scaled_down / "out")
    count = int(np.count_nonzero(corpus.scaled_down()))
    assert 0 < count < corpus.scaled_down().size
    assert failed(scaled_down / "out") == {SEED}
    assert manifest_of(scaled_down / "out")["data"]["extras"]["scaled_down_snapshots"] == count
    assert np.isfinite(corpus.voltages()).all()


def test_a_scaled_down_snapshot_is_the_first_that_solves(scaled_down: Path) -> None:
    """The drawn load times 0.95^k; one multiplication less, and there is no solution."""
    scene, source = drawn_again(scaled_down)
    corpus = open_corpus(scaled_down / "out")
    drawn_kw, released_kw = source.block(0).load_kw.sum(axis=0), corpus.loads().real.sum(axis=2)
    assert released_kw == pytest.approx(drawn_kw * SCALING_DOWN ** corpus.scaled_down(), rel=1e-4)
    solver = OperatedSolver(scene.network.feeder, controls="snapshot", tolerance=1e-12)
    made = solve_days(solver, source, scale_down=True)
    touched = np.flatnonzero(made.scaled_down)
    assert made.solution.converged.all()
    assert touched.size
    assert not solver.solve(made.load[touched] / SCALING_DOWN).converged.any()


def test_scaling_down_gives_the_same_bytes_in_two_processes_and_works_in_the_frozen_frame(
    scaled_down: Path, tmp_path: Path
) -> None:
    run_release(heavy(tmp_path), workers=2)
    assert tree_hash(tmp_path / "out") == tree_hash(scaled_down / "out")
    frozen = tmp_path / "frozen"
    frozen.mkdir()
    run_release(heavy(frozen, controls="frozen"), workers=1)
    assert np.count_nonzero(open_corpus(frozen / "out").scaled_down())
    assert verify_release(frozen / "out").intact


def test_a_network_that_bears_nothing_at_all_ends_in_a_sentence(
    scaled_down: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor a ten-thousandth of these loads."""
    scene, source = drawn_again(scaled_down)
    endless = np.full_like(source.block(0).load_kw, 1e18)
    monkeypatch.setattr(type(source), "block", lambda *_: LoadBlock(0, endless, endless))
    solver = OperatedSolver(scene.network.feeder, controls="snapshot")
    with pytest.raises(PowerFlowError, match="next to no power"):
        solve_days(solver, source, scale_down=True)


# === what is published beside the voltages =================================================================
STEPS = 24
PLAIN: dict[str, Any] = {"mode": "twin-network", "epsilon": 8.0, "id": "t1", "change": 0.05}
FROZEN: dict[str, Any] = {
    **{**PLAIN, "released": "all", "controls": "frozen", "publish": "network and loads"},
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
    return small_config(folder, network=PLAIN | (network or {}), release={"days": 2}, **sections)


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
