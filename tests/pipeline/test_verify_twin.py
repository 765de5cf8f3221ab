"""verify of a release on a twin: the network's ε is recomputed, and the twin's tables are looked at."""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dp_powerflow as dpf
from dp_powerflow.config import Config
from dp_powerflow.corpus.gridfm.schema import COUNT_FILE
from dp_powerflow.manifest.model import REQUIRED
from dp_powerflow.manifest.twin import TwinPolicy
from dp_powerflow.manifest.verify import SEED, verify_release
from dp_powerflow.pipeline.audit import verify_private
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.state import PrivateState
from support.manifest_releases import TWIN, Made, build_manifest, load_model, make_release, twin_config
from support.small import small_config
from support.tampering import failed, leaves, manifest_of, rewrite, sealed, with_leaf

BRANCHES = "twin/branch_data.parquet/scenario_partition=0"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_release(tmp_path_factory.mktemp("made"), twin_config(), load_model(), earlier=1)


@pytest.fixture
def copied(made: Made, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.path, tmp_path / "copy"))


def sentence_of(path: Path, name: str) -> str:
    return next(check.sentence for check in verify_release(path).checks if check.name == name)


def test_the_epsilon_of_the_network_is_recomputed_and_not_attested(made: Made) -> None:
    report = verify_release(made.path)
    assert report.verdict == "release"
    sentence = sentence_of(made.path, "network privacy")
    assert "epsilon at most 4 at delta 0" in sentence
    assert "changed by 5 %: epsilon at most 4, advantage of the best test at most 0.865" in sentence
    assert "changed by 50 %: epsilon at most 33.3, advantage of the best test at most 1" in sentence
    assert "Not protected: which elements there are" in sentence
    assert "recomputed, not attested" in report.attested[0]
    assert "not differential privacy" not in " ".join(report.attested)


FIGURES = [
    ("epsilon",),
    ("epsilon_by_element", "line"),
    ("advantage",),
    ("change",),
    ("scales", "impedance"),
    ("epsilon_granted",),
    ("changes", 1, "epsilon"),
    ("changes", 0, "advantage"),
    ("groups", 0, "epsilon"),
    ("groups", 1, "advantage"),
]


@pytest.mark.parametrize("path", FIGURES, ids=[str(path[-1]) for path in FIGURES])
def test_a_figure_that_does_not_follow_from_the_noise_is_found(copied: Path, path: tuple[Any, ...]) -> None:
    rewrite(copied, with_leaf(manifest_of(copied), ("guarantee", "network", *path)), sealed=True)
    assert "network privacy" in failed(copied)


def test_more_noise_than_was_paid_for_is_found_by_the_pages(copied: Path, made: Made) -> None:
    """All of the guarantee made to fit more noise; pages and charge of the ledger stay what they were."""
    louder = TwinPolicy.of(twin_config(network={"epsilon": 0.5 * TWIN["epsilon"]}))
    manifest = manifest_of(copied)
    manifest["guarantee"]["network"] = louder.model_dump()
    rewrite(copied, manifest, sealed=True)
    found = failed(copied)
    assert "network privacy" not in found
    assert "pages" in found


@pytest.mark.parametrize("value", [None, 0, -1, 0.0, -1.0, 1e308, 10**400, "x", [], {}, True])
def test_values_of_any_kind_in_any_entry_raise_nothing(copied: Path, value: Any) -> None:
    manifest = manifest_of(copied)
    for path in [p for p in leaves(manifest) if p[:2] in KINDS][::2]:
        changed = copy.deepcopy(manifest)
        holder: Any = changed
        for key in path[:-1]:
            holder = holder[key]
        if type(holder[path[-1]]) is type(value) and holder[path[-1]] == value:
            continue
        holder[path[-1]] = value
        rewrite(copied, changed, sealed=True)
        assert verify_release(copied).verdict == "not intact", path


KINDS = {("guarantee", "network"), ("composition", "network"), ("data", "network_tables")}


def test_a_mode_that_is_exchanged_is_found(copied: Path) -> None:
    manifest = manifest_of(copied)
    for mode in ("true-network", "other", None):
        manifest["guarantee"]["network"]["mode"] = mode
        rewrite(copied, manifest, sealed=True)
        assert verify_release(copied).verdict == "not intact"


def test_tables_that_nobody_declared_are_found(copied: Path) -> None:
    (copied / BRANCHES).mkdir(parents=True)
    content = b"the network"
    (copied / BRANCHES / "from-000000000.parquet").write_bytes(content)
    manifest = manifest_of(copied)
    manifest["files"][f"{BRANCHES}/from-000000000.parquet"] = hashlib.sha256(content).hexdigest()
    rewrite(copied, manifest, sealed=True)
    assert "twin tables" in failed(copied)


# ------------------------------------------------------------------------------- real releases on a twin


def graph_config(folder: Path, release_id: str = "small", publish: str = "network and loads") -> Config:
    return small_config(
        folder,
        network=TWIN
        | {"epsilon": 8.0, "released": "all", "publish": publish, "graph_days": 10, "controls": "frozen"},
        release={"id": release_id, "days": 12, "output": release_id, "epsilon_cap": 9.0},
    )


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two releases on one twin, loads and network published."""
    folder = tmp_path_factory.mktemp("solved")
    run_release(graph_config(folder), workers=1)
    run_release(graph_config(folder, "second"), workers=1)
    return folder


@pytest.fixture
def graph(solved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(solved / "small", tmp_path / "graph"))


def test_a_published_twin_is_checked_against_power_flow_and_corpus(graph: Path) -> None:
    assert failed(graph) == {SEED}
    assert "240 scenarios" in sentence_of(graph, "twin tables")
    assert "with the voltages of the corpus" in sentence_of(graph, "twin tables")
    assert sealed(graph) - {SEED} == set()


def test_a_changed_byte_of_the_tables_is_found(graph: Path) -> None:
    for file in sorted((graph / "twin").rglob("*.*")):
        if file.is_file():
            original = file.read_bytes()
            file.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
            assert "files" in failed(graph), file
            file.write_bytes(original)


def without_a_table(graph: Path) -> None:
    shutil.rmtree(graph / "twin" / "y_bus_data.parquet")


def without_tables(graph: Path) -> None:
    shutil.rmtree(graph / "twin")


def fewer_scenarios(graph: Path) -> None:
    (graph / "twin" / COUNT_FILE).write_text("100")


def not_a_number(graph: Path) -> None:
    (graph / "twin" / COUNT_FILE).write_text("many")


def scaled_column(table: str, column: str) -> Callable[[Path], None]:
    def change(graph: Path) -> None:
        file = next((graph / "twin" / f"{table}.parquet" / "scenario_partition=0").iterdir())
        content = pq.ParquetFile(file).read()
        values = pa.array(content[column].to_numpy() * 1.001)
        pq.write_table(content.set_column(content.schema.get_field_index(column), column, values), file)

    return change


@pytest.mark.parametrize(
    "change",
    [
        without_a_table,
        without_tables,
        fewer_scenarios,
        not_a_number,
        scaled_column("bus_data", "Pd"),
        scaled_column("branch_data", "Yff_i"),
        scaled_column("y_bus_data", "G"),
        scaled_column("bus_data", "Vm"),
    ],
)
def test_tables_that_do_not_hold_together_are_found(graph: Path, change: Callable[[Path], None]) -> None:
    change(graph)
    assert "twin tables" in sealed(graph)


def test_tables_of_another_release_on_the_same_twin_are_found(graph: Path, solved: Path) -> None:
    shutil.rmtree(graph / "twin")
    shutil.copytree(solved / "second" / "twin", graph / "twin")
    assert "twin tables" in sealed(graph)
    assert "are not those of the corpus" in sentence_of(graph, "twin tables")


def test_two_releases_on_one_twin_are_one_charge_to_the_network(solved: Path) -> None:
    first, second = (manifest_of(solved / name) for name in ("small", "second"))
    assert first["composition"]["network"] == second["composition"]["network"]
    assert len(first["composition"]["network"]["spent"]["pure_epsilons"]) == 1
    assert first["guarantee"]["network"] == second["guarantee"]["network"]
    for name in ("small", "second"):
        report = verify_private(solved / name, solved / "state")
        assert {check.name for check in report.failures} == {SEED}


def test_a_network_without_loads_is_one_scenario(tmp_path: Path) -> None:
    run_release(graph_config(tmp_path, publish="network"), workers=1)
    assert failed(tmp_path / "small") == {SEED}
    assert "1 scenario of" in sentence_of(tmp_path / "small", "twin tables")


def audit(solved: Path, folder: Path, state: Path) -> dict[str, bool]:
    """verify --private --config, as the command line calls it."""
    config = folder / "release.toml"
    config.write_text(TOML.format(folder=solved))
    found = dpf.verify(solved / "small", private=state, config=dpf.read_config(config)).to_json()
    return {check["name"]: check["ok"] for check in found["checks"]}


TOML = """
feeder = {{ source = "ieee13" }}
loads = {{ kind = "simulated", load_points = 400, days = 6, step_minutes = 60 }}
model = {{ epsilon = 4.0, bounds = [0.01, 2.0], variance_floor = 0.01 }}
nodes = {{ load_class = "residential", kw_per_customer = 10.0 }}
[network]
mode = "twin-network"
epsilon = 8.0
released = "all"
id = "tw-1"
transformers = true
capacitors = true
controls = "frozen"
publish = "network and loads"
graph_days = 10
[release]
id = "small"
days = 12
output = "{folder}/small"
state = "{folder}/state"
insecure_seed = 7
"""


@pytest.mark.slow
def test_an_auditor_draws_the_twin_again(solved: Path, tmp_path: Path) -> None:
    found = audit(solved, tmp_path, solved / "state")
    assert found.pop(SEED) is False
    assert all(found.values())
    assert {"commitment", "ledger", "network evidence", "twin", "network privacy"} <= set(found)


def test_a_twin_that_the_key_does_not_give_is_found(solved: Path, tmp_path: Path) -> None:
    state = Path(shutil.copytree(solved / "state", tmp_path / "state"))
    kept = next(state.rglob("twin-*.json"))
    twin = json.loads(kept.read_text())
    twin["positions"][0][2] += 1
    directory = kept.parent.name
    PrivateState.inspect(state).write_internal(
        directory, kept.name, (json.dumps(twin, indent=1, sort_keys=True) + "\n").encode()
    )
    found = audit(solved, tmp_path, state)
    assert [name for name, ok in found.items() if not ok] == [SEED, "twin"]


def test_a_twin_that_the_ledger_does_not_know_is_found(made: Made, tmp_path: Path) -> None:
    other = make_release(tmp_path, twin_config(network={"id": "tw-2"}), load_model(), earlier=1)
    report = verify_private(other.path, made.state)
    assert "ledger" in {check.name for check in report.failures}
    assert verify_private(other.path, other.state).ok
    manifest = build_manifest(made.inputs, dict.fromkeys(REQUIRED, "0" * 64))
    assert np.isclose(manifest["composition"]["network"]["promise"]["epsilon"], 8.0, atol=1e-3)
