"""The release as a whole: what it writes, what it never writes, and what happens when it is interrupted."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow._bits.elementary import multiply
from dp_powerflow._certify import certify_config
from dp_powerflow._files import only_process
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import ConfigError, DpPowerflowError, PowerFlowError, PrivacyError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.reduction import Network
from dp_powerflow.grid.sources import open_feeder, write_taps
from dp_powerflow.manifest.verify import verify_release
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline import inputs as assembly
from dp_powerflow.pipeline import release as pipeline
from dp_powerflow.pipeline.audit import verify_private
from dp_powerflow.pipeline.customers import NodePlan
from dp_powerflow.pipeline.inputs import read_inputs
from dp_powerflow.pipeline.modes.base import Scene, mode_of
from dp_powerflow.pipeline.parts import PartJob, head_power, with_slack
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.powerflow.operated import OperatedSolver
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import PrivateState
from support.made import Released, true_config
from support.small import CORNERS, small_config, tree_hash
from support.tampering import without_hashes


def unrelated(account: str) -> dict[str, object]:
    """That the data share nothing with those of an account, as a config says it."""
    return {"accounts": [account], "reason": "feeder of another substation"}


def changed_line(feeder: Feeder) -> Feeder:
    line = feeder.lines[0]
    y = feeder.y.tolil()
    for row, i in enumerate(line.nodes):
        for column, j in enumerate(line.nodes):
            y[i, j] += 0.02 * line.primitive[row, column]
    return replace(feeder, y=y.tocsc())


Read = Callable[[Callable[[Feeder], Feeder]], None]


@pytest.fixture
def read_as(monkeypatch: pytest.MonkeyPatch) -> Read:
    """From now on the feeder of a config is read with a change."""
    original = assembly.feeder_of

    def use(change: Callable[[Feeder], Feeder]) -> None:
        monkeypatch.setattr(assembly, "feeder_of", lambda config, *_: change(original(config)))

    return use


@pytest.fixture(scope="module")
def scene_of(true_release: Released) -> tuple[Scene, PartJob]:
    """The network and the draws of the release, again from its key."""
    config = true_release.config
    state = PrivateState.open(config.release.state, insecure_seed=7)
    inputs, mode = read_inputs(config, state), mode_of(config)
    model = LoadModel.load(true_release.path / "model.json")
    scene = mode.scene(inputs, mode.network_to_solve(inputs, mode.identity(inputs)), model)
    writer = CorpusWriter(true_release.path, open_corpus(true_release.path).layout, "small")
    key = pipeline.draw_key(inputs, scene)
    order = pipeline.released_order(state, "small", None, writer.layout.nodes)
    return scene, pipeline.part_job(mode, scene, key, writer, order)


# --- what it writes ---------------------------------------------------------------------------------------
def test_a_release_has_every_promised_file_and_nothing_beside_it(true_release: Released) -> None:
    names = set(tree_hash(true_release.path))
    assert {"manifest.json", "certificate.html", "nodes.parquet", "model.json", "croissant.json"} <= names
    assert "registry.yaml" in names
    assert any(name.startswith("data/part-") for name in names)
    assert not [path for path in true_release.folder.iterdir() if path.name not in ("out", "state")]
    written = {path.name for path in true_release.folder.rglob("*") if path.is_file()}
    assert not [name for name in written if "load" in name]  # loads behind the voltages are nowhere


def test_released_voltages_are_those_of_the_power_flow(
    true_release: Released, scene_of: tuple[Scene, PartJob]
) -> None:
    """Draw the loads again from the key, solve, round: the same numbers must be on disk."""
    scene, job = scene_of
    feeder, block, day, step = scene.network.feeder, job.source.block(0), 3, 7
    load = np.zeros((1, len(feeder.retained)), dtype=complex)
    assert isinstance(scene.nodes, NodePlan)
    load[0, scene.nodes.nodes] = (block.load_kw[:, day, step] + 1j * block.load_kvar[:, day, step]) / 1000.0
    positions = np.searchsorted(feeder.retained, job.released)
    v = BatchSolver(feeder, tolerance=1e-12).solve(load).v[0, positions]
    on_disk = open_corpus(true_release.path).voltages([day])[0, step]
    assert np.abs(on_disk - v).max() < 2e-6
    assert np.any(np.diff(job.released) < 0)


def test_two_workers_write_the_same_bytes_as_one(true_release: Released, tmp_path: Path) -> None:
    run_release(true_config(tmp_path), workers=2)
    assert tree_hash(tmp_path / "out") == tree_hash(true_release.path)


def test_running_a_finished_release_again_changes_and_costs_nothing(
    true_release: Released, tmp_path: Path
) -> None:
    shutil.copytree(true_release.folder, tmp_path, dirs_exist_ok=True)
    run_release(true_config(tmp_path), workers=1)
    assert tree_hash(tmp_path / "out") == tree_hash(true_release.path)
    assert len(Ledger.inspect(tmp_path / "state").spends()) == 2  # one for the loads, one for the network


def test_a_release_without_scale_verifies(tmp_path: Path) -> None:
    """The paper's bound: `test_plan`; load-point-days: `test_inputs`."""
    model = {"use_scale": False, "bounds": [0.01, 100.0]}
    run_release(small_config(tmp_path, model=model, release={"days": 12}), workers=1)
    assert verify_release(tmp_path / "out").verdict == "demonstration"


def test_private_classes_release_and_certify_with_the_same_nodes(tmp_path: Path) -> None:
    config = small_config(
        tmp_path,
        model={"private_classes": 2, "epsilon": 50.0},
        nodes={"load_class": None},
        release={"days": 3},
    )
    run_release(config, workers=1)
    assert verify_release(tmp_path / "out").verdict == "demonstration"
    stored = json.loads((tmp_path / "state" / "internal" / "small" / "report.json").read_text())
    certified = json.loads(certify_config(config, None).json_text)
    for ours, theirs in zip(stored["evidence"]["rows"], certified["rows"], strict=True):
        assert ours["day"]["epsilon"] == theirs["day"]["epsilon"]


# --- what it never writes ---------------------------------------------------------------------------------
def test_changing_a_line_changes_nothing_but_data_and_hashes(
    true_release: Released, tmp_path: Path, read_as: Read
) -> None:
    read_as(changed_line)
    run_release(true_config(tmp_path), workers=1)
    before, after = tree_hash(true_release.path), tree_hash(tmp_path / "out")
    assert before.keys() == after.keys()
    differing = {name for name in before if before[name] != after[name]}
    data = {name for name in before if name.startswith("data/")} | {"quality.html"}  # which shows data/
    assert data <= differing
    # What else differs holds hashes of data/, and a commitment that hides what it commits to.
    for name in differing - data:
        assert without_hashes(true_release.path, name) == without_hashes(tmp_path / "out", name), name


def test_nothing_private_is_in_any_released_byte(true_release: Released, tmp_path: Path) -> None:
    feeder = assembly.feeder_of(true_release.config)
    history = assembly.meters_of(true_release.config, feeder).history
    secret = PrivateState.inspect(true_release.state).stream_key().secret
    canaries = [
        *(f"{value:.6f}".encode() for value in history.load_kw[0, 0, :6]),
        *(repr(float(value)).encode() for value in history.load_kw[1, 2, :6]),
        *(np.float64(value).tobytes() for value in history.load_kw[2, 1, :6]),
        *(np.complex128(value).tobytes() for value in feeder.y.data[:20]),
        *(repr(complex(value)).encode() for value in feeder.y.data[:20]),
        *(point.encode() for point in history.load_points[:20]),
        *(line.name.encode() + b'"' for line in feeder.lines),
        *(node.encode() + b'"' for node in feeder.nodes),
        *(secret, secret.hex().encode()),
        *(str(true_release.folder).encode(), str(Path.home()).encode() + b"/"),
    ]

    def leaks(folder: Path) -> list[str]:
        contents = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return [name for name, content in contents.items() if any(canary in content for canary in canaries)]

    assert leaks(true_release.path) == []
    (tmp_path / "leak.bin").write_bytes(b"abc" + np.float64(history.load_kw[2, 1, 3]).tobytes())
    assert leaks(tmp_path) == ["leak.bin"]  # the search can fail


def test_private_files_are_for_their_owner_only(true_release: Released) -> None:
    for path in (true_release.state, *true_release.state.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path.name


def test_recovery_of_phi_fails_on_a_release_and_works_with_zero_injection_nodes(
    tmp_path: Path, ieee13: Feeder
) -> None:
    """Paper correction 12: least squares gives v_Z = Φ·v_R to rounding, were such nodes released."""
    config = small_config(tmp_path, nodes={"scale_factor": 0.2}, release={"days": 300})
    run_release(config, workers=1)
    v = open_corpus(tmp_path / "out").voltages(range(300))[:, 19]
    ones = np.ones((len(v), 1))

    def residual(inputs: np.ndarray, output: np.ndarray) -> float:
        design = np.hstack([inputs, ones])
        half = len(design) // 2
        weights = np.linalg.lstsq(design[:half], output[:half], rcond=None)[0]
        return float(np.abs(design[half:] @ weights - output[half:]).max())

    in_order = np.empty_like(v)
    inputs = read_inputs(config, PrivateState.inspect(tmp_path / "state"))
    in_order[:, pipeline.released_order(inputs.state, "small", None, v.shape[1])] = v
    eliminated = Network(ieee13).recover(in_order)
    # Single precision on the public grid leaves 1e-6; an unreleased node is determined to that.
    assert residual(in_order, eliminated[:, 5]) < 1e-5
    # Nodes with a load of their own are not, whichever the key puts first; the two ends of a closed switch
    # give each other away, and on this feeder they are four of nineteen.
    residuals = [residual(np.delete(v, k, axis=1), v[:, k]) for k in range(v.shape[1])]
    assert np.median(residuals) > 1e-4
    assert np.count_nonzero(np.array(residuals) < 2e-5) == 4


# --- what is refused, and what that costs -----------------------------------------------------------------
def test_a_snapshot_without_solution_aborts_and_a_later_release_reuses_the_model_for_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt leaves nothing and has paid for model and network; the next pays the network."""
    monkeypatch.setattr(CORNERS, lambda *_: None)
    cap = {"days": 5, "network_epsilon_cap": 2e6, "network_delta_cap": 0.9995}
    network, heavy = {"delta": 0.4}, {"load_class": "residential", "scale_factor": 60.0}
    with pytest.raises(PowerFlowError, match=r"no (power-flow )?solution"):
        run_release(small_config(tmp_path, nodes=heavy, network=network, release=cap), workers=1)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    again = small_config(tmp_path, network=network, model={"reuse": "small"}, release={**cap, "id": "second"})
    result = run_release(again, workers=1)
    charged = sorted(spend.account for spend in Ledger.inspect(tmp_path / "state").spends())
    assert charged == ["loads-1", *["network-instance-1"] * 2]  # the failed attempt stays charged
    assert verify_private(tmp_path / "out", tmp_path / "state").intact
    assert result.worst_mismatch is not None
    third = {**cap, "id": "third", "output": "o3"}
    with pytest.raises(PrivacyError):
        run_release(
            small_config(tmp_path, network=network, model={"reuse": "never"}, release=third), workers=1
        )


def test_a_policy_that_the_evidence_does_not_support_is_refused(tmp_path: Path) -> None:
    policy = {"require_evidence": True, "epsilon": 1e-6, "calibration_days": 100}
    with pytest.raises(PrivacyError, match="does not support the policy"):
        run_release(small_config(tmp_path, network=policy, release={"days": 2}), workers=1)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_the_budget_is_never_spent_twice_and_never_past_its_cap(
    true_release: Released, tmp_path: Path
) -> None:
    shutil.copytree(true_release.folder, tmp_path, dirs_exist_ok=True)
    with pytest.raises(PrivacyError, match="nothing was spent"):
        run_release(true_config(tmp_path, release={"id": "second", "output": "out2"}), workers=1)
    with pytest.raises(PrivacyError, match="already charged"):
        run_release(true_config(tmp_path, release={"output": "out3", "days": 5}), workers=1)
    assert not (tmp_path / "out2").exists()
    assert not (tmp_path / "out3").exists()


def heavier(feeder: Feeder) -> Feeder:
    """Another nominal load, same network and meters."""
    first = replace(feeder.loads[0], kw=feeder.loads[0].kw * 1.1)
    return replace(feeder, loads=(first, *feeder.loads[1:]))


@pytest.mark.parametrize("change", [heavier, changed_line])
def test_an_input_that_changes_under_the_same_id_is_refused(
    true_release: Released, tmp_path: Path, read_as: Read, change: Callable[[Feeder], Feeder]
) -> None:
    """The same draws must not be solved for it, even if it is declared unrelated."""
    shutil.copytree(true_release.folder, tmp_path, dirs_exist_ok=True)
    read_as(change)
    section = {"output": "other", "unrelated_network": unrelated("network-instance-1")}
    with pytest.raises(PrivacyError, match="already charged for another request or other data"):
        run_release(true_config(tmp_path, release=section), workers=1)
    assert not (tmp_path / "other").exists()


def test_a_reason_speaks_for_its_own_kind_and_for_the_accounts_it_names(
    tmp_path: Path, read_as: Read
) -> None:
    """Of a new network, not of other meter data; and not of the next correction of that network."""

    def release(name: str, *, seed: int = 0, **section: object) -> None:
        caps = {"epsilon_cap": 9.0, "days": 2}
        reuse = {"reuse": "first"} if seed == 0 and name != "first" else {}
        sections: dict[str, Any] = {"loads": {"seed": seed}, "model": reuse}
        config = small_config(tmp_path, release={"id": name, "output": name, **caps, **section}, **sections)
        run_release(config, workers=1)

    def charged() -> list[tuple[str, list[str]]]:
        accounts = Ledger.inspect(tmp_path / "state").summary().accounts
        return [(account.name, [spend.release_id for spend in account.spends]) for account in accounts]

    release("first")
    read_as(changed_line)
    other_feeder: dict[str, Any] = {"unrelated_network": unrelated("network-instance-1")}
    with pytest.raises(PrivacyError, match="has loads-1 of the same kind; set continues_loads"):
        release("second", seed=1, **other_feeder)
    assert charged() == [("loads-1", ["first"]), ("network-instance-1", ["first"])]
    release("second", seed=1, continues_loads="loads-1", **other_feeder)
    both = [("loads-1", ["first", "second"]), ("network-instance-1", ["first"])]
    assert charged() == [*both, ("network-instance-2", ["second"])]

    read_as(lambda feeder: changed_line(changed_line(feeder)))
    alike = r"has network-instance-2 of the same kind \(.*the same nodes and connections\); set continues_net"
    with pytest.raises(PrivacyError, match=alike):
        release("third", **other_feeder)
    with pytest.raises(PrivacyError, match="nothing was spent"):
        release("third", continues_network="network-instance-2")
    assert charged() == [*both, ("network-instance-2", ["second"])]


def test_the_reason_may_change_before_an_interrupted_release_is_resumed(
    true_release: Released, tmp_path: Path
) -> None:
    shutil.copytree(true_release.state, tmp_path / "state")
    run_release(true_config(tmp_path, release={"unrelated_loads": unrelated("loads-7")}), workers=1)
    assert tree_hash(tmp_path / "out") == tree_hash(true_release.path)


def test_a_target_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(DpPowerflowError, match="exists already"):
        run_release(small_config(tmp_path), workers=1)
    assert not PrivateState.inspect(tmp_path / "state").ledger_path.exists()


def test_two_processes_cannot_make_the_same_release_at_once(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    state = PrivateState.open(config.release.state, insecure_seed=7)
    with (
        only_process(state.internal_directory("small")),
        pytest.raises(ConfigError, match="another process is making this release"),
    ):
        run_release(config, workers=1)


def test_taps_solved_on_a_private_feeder_are_refused(tmp_path: Path, foreign_cases: Path) -> None:
    source = foreign_cases / "ieee13_dss" / "IEEE13Nodeckt.dss"
    write_taps(tmp_path / "solved.csv", open_feeder(source).taps)
    for taps in ({}, {"taps": "solved.csv"}):
        with pytest.raises(ConfigError, match=r"is not: set feeder\.taps"):
            run_release(small_config(tmp_path, feeder={"source": str(source)} | taps), workers=1)


# --- what a part publishes is what the plain formulas say -------------------------------------------------
def test_power_of_the_sources_has_the_bits_of_the_product_with_the_whole_matrix(ieee123: Feeder) -> None:
    rng = np.random.default_rng(1)
    shape = (7, len(ieee123.energised))
    v = 1.0 + 0.05 * rng.normal(size=shape) + 0.5j * rng.normal(size=shape)
    full = with_slack(ieee123, v)
    current = full @ ieee123.y[ieee123.slack].T
    expected = multiply(full[:, ieee123.slack], np.conj(current))
    assert head_power(ieee123, v).tobytes() == np.ascontiguousarray(expected).tobytes()


def test_powers_of_devices_are_at_the_nodes_that_have_any_and_of_each_snapshot_alone(ieee123: Feeder) -> None:
    solver = OperatedSolver(ieee123, controls="snapshot")
    scale = np.random.default_rng(3).uniform(0.3, 0.9, (70, len(ieee123.loads)))
    load = np.ascontiguousarray(scale * ieee123.nominal_load)
    solution = solver.solve(load, nodes="all")
    solution.raise_if_failed()
    (nodes, power), (sources, _) = solver.device_powers(load, None, solution)
    assert set(nodes) == {node for each in ieee123.loads for pair in each.branches for node in pair} - {-1}
    assert not len(sources)
    (_, alone), _ = solver.device_powers(load[65:66], None, solver.solve(load[65:66], nodes="all"))
    assert alone.tobytes() == power[65:66].tobytes()
    assert np.all(power.sum(axis=1).real > 0.5 * load.real.sum(axis=1))
