"""Releases in mode twin-network: one twin, paid once, for any number of releases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow.cli.release import render_plan
from dp_powerflow.corpus.gridfm.tables import read_gridfm
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.opendss.engine import DssOrigin, build_circuit
from dp_powerflow.grid.opendss.reader import read_dss
from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.manifest.verify import verify_release
from dp_powerflow.pipeline import inputs as assembly
from dp_powerflow.pipeline.audit import verify_private
from dp_powerflow.pipeline.modes.twin import TwinMode
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.ledger.accounts import AccountKind, PureCost, Scope
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.twin.design import twin_guarantee
from dp_powerflow.twin.draw import Twin
from support.made import Released, twin_config
from support.small import tree_hash


@pytest.fixture(scope="module")
def released(twin_release: Released) -> Path:
    return twin_release.folder


def charges(folder: Path) -> list[tuple[AccountKind, str]]:
    ledger = Ledger.inspect(folder / "state")
    return [(spend.kind, spend.release_id) for spend in ledger.spends()]


def test_a_twin_release_verifies_but_for_its_seed(released: Path) -> None:
    report = verify_release(released / "out")
    assert {check.name for check in report.checks if not check.ok} == {"random source"}
    private = verify_private(released / "out", released / "state")
    assert {check.name for check in private.checks if not check.ok} == {"random source"}


def test_all_nodes_but_the_sources_are_released(released: Path) -> None:
    feeder = open_feeder("ieee13")
    assert open_corpus(released / "out").layout.nodes == len(feeder.energised)


def test_the_stated_epsilon_is_that_of_the_noise(released: Path) -> None:
    stated = json.loads((released / "out" / "manifest.json").read_text())["guarantee"]["network"]
    design = TwinMode(twin_config(released)).section.design
    for row in stated["changes"]:
        promised = twin_guarantee(design, row["change"])
        assert (row["epsilon"], row["advantage"]) == (promised.epsilon, promised.advantage)
    assert [round(row["epsilon"], 1) for row in stated["changes"]] == [1.0, 8.3]
    assert [round(row["advantage"], 2) for row in stated["changes"]] == [0.39, 0.98]


def test_the_plan_says_what_further_networks_cost(released: Path) -> None:
    def shown(**network: Any) -> str:
        return " ".join(render_plan(plan(twin_config(released, network=network))).lines)

    published = shown()
    assert "perturbed ones of this twin cost nothing" in published
    assert "cost k times ε: with this one, two have ε = 2 and ten ε = 10." in published
    assert "further twins" not in shown(publish="voltages", graph_days=None)


def test_published_tables_hold_the_voltages_of_the_corpus_on_their_own_network(released: Path) -> None:
    tables = read_gridfm(released / "out" / "twin")
    assert np.max(tables.mismatch_mw()) < 1e-6
    assert tables.admittance_error() < 1e-6
    corpus = open_corpus(released / "out").voltages([0])[0]
    in_tables = tables.phasor()[: len(corpus), tables.bus_of_row]
    assert np.abs(in_tables - corpus).max() < 2e-6
    days = tables.column("bus", "load_scenario_idx")[:, 0]
    assert np.array_equal(days, np.arange(len(days)) // len(corpus))


def test_no_line_of_the_true_network_is_in_the_published_one(released: Path) -> None:
    feeder = open_feeder("ieee13")
    published = read_gridfm(released / "out" / "twin").admittance()
    published = np.asarray(published.toarray() if hasattr(published, "toarray") else published)
    published = published * (100.0 / feeder.base_mva)
    true = [abs(line.primitive[0, len(line.nodes) // 2]) for line in feeder.lines if not line.is_switch]
    magnitudes = np.abs(published[np.abs(published) > 0])
    for value in true:
        assert np.min(np.abs(magnitudes / value - 1.0)) > 1e-6


@pytest.mark.slow
def test_two_workers_write_the_same_bytes_as_one(released: Path, tmp_path: Path) -> None:
    sections = {"release": {"days": 700}, "network": {"graph_days": 2}}
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    run_release(twin_config(tmp_path / "one", **sections), workers=1)
    run_release(twin_config(tmp_path / "two", **sections), workers=2)
    assert tree_hash(tmp_path / "one" / "out") == tree_hash(tmp_path / "two" / "out")


def test_the_same_twin_serves_every_release_for_one_charge(tmp_path: Path) -> None:
    first = twin_config(tmp_path, release={"output": "one"})
    run_release(first, workers=1)
    kept = {path.name: path.read_bytes() for path in (tmp_path / "state/internal/twin-t1").iterdir()}
    second = twin_config(
        tmp_path, release={"id": "later", "output": "two", "days": 30}, model={"reuse": "small"}
    )
    run_release(second, workers=1)
    assert charges(tmp_path) == [(AccountKind.LOADS, "small"), (AccountKind.NETWORK_TWIN, "t1")]
    assert kept == {path.name: path.read_bytes() for path in (tmp_path / "state/internal/twin-t1").iterdir()}
    for name in ("one", "two"):
        problems = [
            check.name for check in verify_private(tmp_path / name, tmp_path / "state").checks if not check.ok
        ]
        assert problems == ["random source"]
    # The two corpora are of the same network: same admittances, in another secret order, in which merged
    # switches cancel to the last digits.
    one, two = (
        np.asarray(read_gridfm(tmp_path / name / "twin").admittance().toarray()) for name in ("one", "two")
    )
    np.testing.assert_allclose(
        np.sort(np.abs(one).ravel()), np.sort(np.abs(two).ravel()), rtol=1e-10, atol=1e-10
    )


def test_a_new_twin_is_charged_and_a_full_account_refuses_it(tmp_path: Path) -> None:
    cap = {"network_epsilon_cap": 2.5}
    run_release(twin_config(tmp_path, release={**cap, "output": "one"}), workers=1)
    reuse = {"reuse": "small"}
    second = twin_config(
        tmp_path, network={"id": "t2"}, release={**cap, "id": "r2", "output": "two"}, model=reuse
    )
    run_release(second, workers=1)
    assert [kind for kind, _ in charges(tmp_path)].count(AccountKind.NETWORK_TWIN) == 2
    stated = json.loads((tmp_path / "two" / "manifest.json").read_text())["composition"]["network"]
    assert stated["spent"] == {"pure_epsilons": pytest.approx([1.0, 1.0]), "mu_squared": 0.0}
    assert stated["promise"]["epsilon"] == pytest.approx(2.0)
    third = twin_config(
        tmp_path, network={"id": "t3"}, release={**cap, "id": "r3", "output": "three"}, model=reuse
    )
    before = charges(tmp_path)
    with pytest.raises(PrivacyError, match="left"):
        run_release(third, workers=1)
    assert charges(tmp_path) == before
    assert not (tmp_path / "three").exists()


def test_another_design_under_the_id_of_a_twin_are_refused_before_anything_is_spent(tmp_path: Path) -> None:
    run_release(twin_config(tmp_path, release={"output": "one"}), workers=1)
    before = charges(tmp_path)
    other = twin_config(
        tmp_path,
        network={"epsilon": 0.5},
        release={"id": "r2", "output": "two", "epsilon_cap": 4.0, "network_epsilon_cap": 1.0},
    )
    with pytest.raises(PrivacyError, match="twin 't1'"):
        run_release(other, workers=1)
    assert charges(tmp_path) == before


def test_a_new_version_of_the_network_is_charged_for_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replaced line gets fresh noise, charged to it alone; everything else of the twin stays."""
    cap = {"network_epsilon_cap": 2.0}
    run_release(twin_config(tmp_path, release={**cap, "output": "one"}), workers=1)
    original = assembly.feeder_of
    monkeypatch.setattr(assembly, "feeder_of", lambda config, *_: longer_line(original(config)))
    corrected = {**cap, "id": "r2", "output": "two", "continues_network": "network-twin-1"}
    second = twin_config(tmp_path, release=corrected, model={"reuse": "small"})
    run_release(second, workers=1)
    run_release(second, workers=1)  # again: nothing more
    spends = Ledger.inspect(tmp_path / "state").spends()
    paid = {s.release_id: s.cost.scope for s in spends if isinstance(s.cost, PureCost)}
    assert paid == {"t1": Scope(), "t1_version-2": Scope(replaced=("line 632633",))}
    kept = [Twin.from_json(p.read_text()) for p in (tmp_path / "state/internal/twin-t1").glob("twin-*.json")]
    moved = {key for key in kept[0].positions if kept[0].positions[key] != kept[1].positions[key]}
    assert {key.element for key in moved} == {"632633"}
    assert {c.name for c in verify_private(tmp_path / "two", tmp_path / "state").checks if not c.ok} == {
        "random source"
    }
    stated = json.loads((tmp_path / "two" / "manifest.json").read_text())["composition"]["network"]
    assert stated["promise"]["epsilon"] == pytest.approx(2.0)


def test_a_change_that_the_cap_does_not_allow_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_release(twin_config(tmp_path, release={"output": "one"}), workers=1)
    before = charges(tmp_path)
    original = assembly.feeder_of
    monkeypatch.setattr(assembly, "feeder_of", lambda config, *_: longer_line(original(config)))
    corrected = {"id": "r2", "output": "two", "continues_network": "network-twin-1"}
    with pytest.raises(PrivacyError, match="left"):
        run_release(twin_config(tmp_path, release=corrected, model={"reuse": "small"}), workers=1)
    assert charges(tmp_path) == before


def longer_line(feeder: Feeder) -> Feeder:
    """The same feeder with line 632633 five per cent longer in its source."""
    origin = feeder.origin
    assert isinstance(origin, DssOrigin)
    engine = build_circuit(origin)
    engine.ActiveCircuit.Lines.Name = "632633"
    edit = f"Edit Line.632633 length={1.05 * engine.ActiveCircuit.Lines.Length!r}"
    return read_dss(DssOrigin((*origin.commands, edit), public=True), name=feeder.name, taps=feeder.taps)


ORDERED = ("nodes.parquet", "buses.parquet", "connections.parquet")
"""Their rows are in the secret order, which is bound to the twin."""


def test_changing_one_line_changes_only_data_and_the_tables_of_the_twin(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = assembly.feeder_of
    monkeypatch.setattr(assembly, "feeder_of", lambda config, *_: longer_line(original(config)))
    run_release(twin_config(tmp_path), workers=1)
    before, after = tree_hash(released / "out"), tree_hash(tmp_path / "out")
    assert before.keys() == after.keys()
    differing = {name for name in before if before[name] != after[name]}
    assert any(name.startswith("data/") for name in differing)
    assert any(name.startswith("twin/y_bus") for name in differing)
    for name in differing:
        if not name.startswith(("data/", "twin/", "loads/", "feeder/", "quality.html", *ORDERED)):
            assert _blank(released / "out", name) == _blank(tmp_path / "out", name), name


def test_another_true_network_with_the_same_twin_gives_the_same_bytes(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another line and account, the twin of the first network: no byte differs, not of the commitment."""
    kept = next((released / "state/internal/twin-t1").glob("twin-*.json"))
    original = assembly.feeder_of
    monkeypatch.setattr(assembly, "feeder_of", lambda config, *_: longer_line(original(config)))
    monkeypatch.setattr(TwinMode, "_draw", lambda *_: Twin.from_json(kept.read_text()))
    run_release(twin_config(tmp_path), workers=1)
    assert tree_hash(released / "out") == tree_hash(tmp_path / "out")
    assert set(ORDERED) <= tree_hash(released / "out").keys()
    mine, other = (
        (folder / "state/internal/small/owner.json").read_text() for folder in (released, tmp_path)
    )
    assert mine != other  # the owner is told how far the twin is from his own network


def test_draws_are_bound_to_the_twin(released: Path, tmp_path: Path) -> None:
    """Another twin of the same network meets other loads, in another order of the nodes."""
    run_release(twin_config(tmp_path, network={"id": "t2"}), workers=1)
    one, two = (read_gridfm(folder / "out" / "twin").column("bus", "Pd") for folder in (released, tmp_path))
    one, two = one[one > 0.0], two[two > 0.0]
    # All customers of a load at the lower bound, 0.01 of whole kilowatts: that may come twice.
    lowest = np.isclose(1e5 * one, np.round(1e5 * one), rtol=0.0, atol=1e-6)
    assert np.mean(lowest) < 0.01
    assert not np.isin(one[~lowest], two).any()


def _blank(release: Path, name: str) -> str:
    text = (release / name).read_text()
    manifest = json.loads((release / "manifest.json").read_text())
    for digest in [
        *tree_hash(release).values(),
        manifest["manifest_sha256"],
        manifest["internal_report"]["sha256"],
    ]:
        text = text.replace(digest, "#")
    return text


@pytest.mark.parametrize("publish", ["voltages", "network"])
def test_what_is_not_to_be_published_is_not(tmp_path: Path, publish: str) -> None:
    run_release(twin_config(tmp_path, network={"publish": publish, "released": "loaded"}), workers=1)
    tables = tmp_path / "out" / "twin"
    if publish == "voltages":
        assert not tables.exists()
    else:
        alone = read_gridfm(tables)
        assert np.abs(alone.phasor()).shape[0] == 1
        assert np.abs(alone.column("bus", "Pd")).max() == 0.0
    assert {c.name for c in verify_release(tmp_path / "out").checks if not c.ok} == {"random source"}


def test_the_plan_of_a_twin_states_cost_and_prediction_from_public_figures(tmp_path: Path) -> None:
    shown = "\n".join(render_plan(plan(twin_config(tmp_path))).lines)
    assert "ε = 1 of differential privacy (laplace noise)" in shown
    assert "| 0.5 | 8.32 | 0.985 |" in shown
    assert "| **laplace** | 1 | 8.31 | 0.39 / 0.98 |" in shown
    assert "Floor on ieee123: no mechanism with ε = 1 for 5 %" in shown
