"""The release as a whole: what it writes, what it never writes, and what happens when it is interrupted."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow._certify import certify_config
from dp_powerflow._files import only_process
from dp_powerflow.config import Config
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.corpus.storage import file_hash
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
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import PrivateState
from support.small import CORNERS, small_config, tree_hash


def unrelated(account: str) -> dict[str, object]:
    """That the data share nothing with those of an account, as a config says it."""
    return {"accounts": [account], "reason": "feeder of another substation"}


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    run_release(small_config(folder), workers=1)
    return folder


def test_a_release_has_every_promised_file(released: Path) -> None:
    names = set(tree_hash(released / "out"))
    assert {"manifest.json", "certificate.html", "nodes.parquet", "model.json", "croissant.json"} <= names
    assert "registry.yaml" in names
    assert any(name.startswith("data/part-") for name in names)
    assert not [path for path in released.iterdir() if path.name not in ("out", "state")]


def test_released_voltages_are_those_of_the_power_flow(released: Path) -> None:
    """Draw the loads again from the key, solve, round: the same numbers must be on disk."""
    config = small_config(released)
    state = PrivateState.open(config.release.state, insecure_seed=7)
    inputs, mode = read_inputs(config, state), mode_of(config)
    feeder = inputs.feeder
    model = LoadModel.from_json((released / "out" / "model.json").read_text())
    scene = mode.scene(inputs, mode.network_to_solve(inputs, mode.identity(inputs)), model)
    layout = open_corpus(released / "out").layout
    writer = CorpusWriter(released / "out", layout, "small")
    job = pipeline.part_job(mode, scene, pipeline.draw_key(inputs, scene), writer)
    block = job.source.block(0)
    day, step = 3, 7
    load = np.zeros((1, len(feeder.retained)), dtype=complex)
    assert isinstance(scene.nodes, NodePlan)
    load[0, scene.nodes.nodes] = (block.load_kw[:, day, step] + 1j * block.load_kvar[:, day, step]) / 1000.0
    positions = np.searchsorted(feeder.retained, job.released)
    v = BatchSolver(feeder, tolerance=1e-12).solve(load).v[0, positions]
    on_disk = open_corpus(released / "out").voltages([day])[0, step]
    assert np.abs(on_disk - v).max() < 2e-6
    assert np.any(np.diff(job.released) < 0)


def test_two_workers_write_the_same_bytes_as_one(released: Path, tmp_path: Path) -> None:
    run_release(small_config(tmp_path), workers=2)
    assert tree_hash(tmp_path / "out") == tree_hash(released / "out")


def test_running_a_finished_release_again_changes_and_costs_nothing(released: Path) -> None:
    before = tree_hash(released / "out")
    run_release(small_config(released), workers=1)
    assert tree_hash(released / "out") == before
    state = PrivateState.inspect(released / "state")
    assert len(Ledger.open(state, create=False).spends()) == 2  # one for the loads, one for the network


@pytest.mark.slow
def test_a_file_is_hashed_when_it_is_written_and_read_only_if_an_earlier_run_wrote_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(place: Path) -> str:
        read.append(place.name)
        return file_hash(place)

    monkeypatch.setattr("dp_powerflow.corpus.storage.file_hash", counted)
    config = small_config(tmp_path, release={"days": 400})
    stages: list[Path] = []
    prepare = CorpusWriter.prepare

    def prepared(writer: CorpusWriter) -> None:
        stages.append(writer.partial)
        prepare(writer)

    monkeypatch.setattr(CorpusWriter, "prepare", prepared)
    run_release(config, workers=1)
    assert read == []
    before = tree_hash(tmp_path / "out")
    parts = sorted((tmp_path / "out" / "data").iterdir())
    assert len(parts) > 2
    (tmp_path / "out").rename(stages[0])
    (stages[0] / "data" / parts[0].name).unlink()
    run_release(config, workers=1)
    assert sorted(read) == [part.name for part in parts[1:]]
    assert tree_hash(tmp_path / "out") == before


def changed_line(feeder: Feeder) -> Feeder:
    line = feeder.lines[0]
    y = feeder.y.tolil()
    for row, i in enumerate(line.nodes):
        for column, j in enumerate(line.nodes):
            y[i, j] += 0.02 * line.primitive[row, column]
    return replace(feeder, y=y.tocsc())


def test_changing_a_line_changes_nothing_but_data_and_hashes(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = assembly.feeder_of
    monkeypatch.setattr(assembly, "feeder_of", lambda config, *_: changed_line(original(config)))
    run_release(small_config(tmp_path), workers=1)
    before, after = tree_hash(released / "out"), tree_hash(tmp_path / "out")
    assert before.keys() == after.keys()
    differing = {name for name in before if before[name] != after[name]}
    data = {name for name in before if name.startswith("data/")} | {"quality.html"}  # which shows data/
    assert data <= differing
    # What else differs holds hashes of data/, and a commitment that hides what it commits to.
    for name in differing - data:
        old = without_hashes((released / "out" / name).read_text(), released / "out")
        new = without_hashes((tmp_path / "out" / name).read_text(), tmp_path / "out")
        assert old == new, name


def without_hashes(text: str, release: Path) -> str:
    """A released text with the hashes of files, the manifest's own hash and the commitment blanked."""
    manifest = json.loads((release / "manifest.json").read_text())
    known = [*tree_hash(release).values(), manifest["manifest_sha256"], manifest["internal_report"]["sha256"]]
    for digest in known:
        text = text.replace(digest, "#")
    return text


def test_nothing_private_is_in_any_released_byte(released: Path) -> None:
    config = small_config(released)
    feeder = assembly.feeder_of(config)
    history = assembly.history_of(config, feeder)
    secret = PrivateState.inspect(released / "state").stream_key().secret
    canaries = [
        *(f"{value:.6f}".encode() for value in history.load_kw[0, 0, :6]),
        *(repr(float(value)).encode() for value in history.load_kw[1, 2, :6]),
        *(np.float64(value).tobytes() for value in history.load_kw[2, 1, :6]),
        *(np.complex128(value).tobytes() for value in feeder.y.data[:20]),
        *(repr(complex(value)).encode() for value in feeder.y.data[:20]),
        *(point.encode() for point in history.load_points[:20]),
        *(line.name.encode() + b'"' for line in feeder.lines),
        *(node.encode() + b'"' for node in feeder.nodes),
        secret,
        secret.hex().encode(),
        str(released).encode(),
        str(Path.home()).encode() + b"/",
    ]
    for path in (released / "out").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            for canary in canaries:
                assert canary not in content, f"{path.name} holds a canary"


def test_canaries_are_found_where_they_are_planted(tmp_path: Path) -> None:
    """The search above can fail: a planted reading is seen."""
    file = tmp_path / "leak.bin"
    file.write_bytes(b"abc" + np.float64(1.2345).tobytes())
    assert np.float64(1.2345).tobytes() in file.read_bytes()


def test_private_files_are_for_their_owner_only(released: Path) -> None:
    for path in (released / "state", *(released / "state").rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path.name


def test_loads_behind_the_voltages_are_nowhere_on_disk(released: Path) -> None:
    written = {path.name for path in released.rglob("*") if path.is_file()}
    assert not [name for name in written if "load" in name]


def test_recovery_of_phi_fails_on_a_release_and_works_with_zero_injection_nodes(
    released: Path, ieee13: Feeder
) -> None:
    """Paper correction 12: least squares gives v_Z = Φ·v_R to rounding, were such nodes released."""
    v = open_corpus(released / "out").voltages(range(300))[:, 19]
    ones = np.ones((len(v), 1))

    def residual(inputs: np.ndarray, output: np.ndarray) -> float:
        design = np.hstack([inputs, ones])
        half = len(design) // 2
        weights = np.linalg.lstsq(design[:half], output[:half], rcond=None)[0]
        return float(np.abs(design[half:] @ weights - output[half:]).max())

    network = Network(ieee13)
    in_order = np.empty_like(v)
    config = small_config(released)
    inputs, mode = read_inputs(config, PrivateState.inspect(released / "state")), mode_of(config)
    model = LoadModel.from_json((released / "out" / "model.json").read_text())
    scene = mode.scene(inputs, mode.network_to_solve(inputs, mode.identity(inputs)), model)
    bound = pipeline.draw_key(inputs, scene)
    in_order[:, pipeline.secret_order(bound, v.shape[1])] = v
    eliminated = network.recover(in_order)
    # Single precision on the public grid leaves 1e-6; an unreleased node is determined to that.
    assert residual(in_order, eliminated[:, 5]) < 1e-5
    # Nodes with a load of their own are not, whichever the key puts first; the two ends of a closed switch
    # give each other away, and on this feeder they are four of nineteen.
    residuals = [residual(np.delete(v, k, axis=1), v[:, k]) for k in range(v.shape[1])]
    assert np.median(residuals) > 1e-4
    assert np.count_nonzero(np.array(residuals) < 2e-5) == 4


def test_a_snapshot_without_solution_aborts_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CORNERS, lambda *_: None)
    config = small_config(tmp_path, nodes={"load_class": "residential", "scale_factor": 60.0})
    with pytest.raises(PowerFlowError, match=r"no (power-flow )?solution"):
        run_release(config, workers=1)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_policy_that_the_evidence_does_not_support_is_refused(tmp_path: Path) -> None:
    policy = {"require_evidence": True, "epsilon": 1e-6, "calibration_days": 100}
    config = small_config(tmp_path, network=policy, release={"days": 2})
    with pytest.raises(PrivacyError, match="does not support the policy"):
        run_release(config, workers=1)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_the_budget_is_never_spent_twice_and_never_past_its_cap(released: Path, tmp_path: Path) -> None:
    run_release(small_config(tmp_path), workers=1)
    again = small_config(tmp_path, release={"id": "second", "output": "out2"})
    with pytest.raises(PrivacyError, match="nothing was spent"):
        run_release(again, workers=1)
    same_id = small_config(tmp_path, release={"output": "out3", "days": 5})
    with pytest.raises(PrivacyError, match="already charged"):
        run_release(same_id, workers=1)
    assert not (tmp_path / "out2").exists()
    assert not (tmp_path / "out3").exists()


def test_an_input_that_changes_under_the_same_id_is_refused(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another nominal load, same network and meters: the same draws must not be solved for it."""
    run_release(small_config(tmp_path, release={"days": 5}), workers=1)
    original = assembly.feeder_of

    def heavier(config: Config, *_: object) -> Feeder:
        feeder = original(config)
        first = replace(feeder.loads[0], kw=feeder.loads[0].kw * 1.1)
        return replace(feeder, loads=(first, *feeder.loads[1:]))

    monkeypatch.setattr(assembly, "feeder_of", heavier)
    with pytest.raises(PrivacyError, match="already charged for another request or other data"):
        run_release(small_config(tmp_path, release={"days": 5, "output": "other"}), workers=1)
    assert not (tmp_path / "other").exists()


def test_another_network_under_the_same_id_is_refused_even_if_declared_unrelated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_release(small_config(tmp_path, release={"days": 5}), workers=1)
    section = {"days": 5, "unrelated_network": unrelated("network-instance-1")}
    original = assembly.feeder_of
    monkeypatch.setattr(assembly, "feeder_of", lambda config, *_: changed_line(original(config)))
    with pytest.raises(PrivacyError, match="already charged for another request or other data"):
        run_release(small_config(tmp_path, release={**section, "output": "other"}), workers=1)


def test_a_reason_speaks_for_its_own_kind_and_for_the_accounts_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a new network, not of other meter data; and not of the next correction of that network."""

    def release(name: str, *, seed: int = 0, **section: object) -> None:
        caps = {"epsilon_cap": 9.0, "days": 2}
        reuse = {"reuse": "first"} if seed == 0 and name != "first" else {}
        sections: dict[str, Any] = {"loads": {"seed": seed}, "model": reuse}
        config = small_config(tmp_path, release={"id": name, "output": name, **caps, **section}, **sections)
        run_release(config, workers=1)

    def charged() -> list[tuple[str, list[str]]]:
        ledger = Ledger.inspect(tmp_path / "state")
        accounts = ledger.summary().accounts
        return [(account.name, [spend.release_id for spend in account.spends]) for account in accounts]

    release("first")
    original = assembly.feeder_of
    monkeypatch.setattr(assembly, "feeder_of", lambda config, *_: changed_line(original(config)))
    other_feeder: dict[str, Any] = {"unrelated_network": unrelated("network-instance-1")}
    with pytest.raises(PrivacyError, match="has loads-1 of the same kind; set continues_loads"):
        release("second", seed=1, **other_feeder)
    assert charged() == [("loads-1", ["first"]), ("network-instance-1", ["first"])]
    release("second", seed=1, continues_loads="loads-1", **other_feeder)
    both = [("loads-1", ["first", "second"]), ("network-instance-1", ["first"])]
    assert charged() == [*both, ("network-instance-2", ["second"])]

    monkeypatch.setattr(
        assembly, "feeder_of", lambda config, *_: changed_line(changed_line(original(config)))
    )
    alike = r"has network-instance-2 of the same kind \(.*the same nodes and connections\); set continues_net"
    with pytest.raises(PrivacyError, match=alike):
        release("third", **other_feeder)
    with pytest.raises(PrivacyError, match="nothing was spent"):
        release("third", continues_network="network-instance-2")
    assert charged() == [*both, ("network-instance-2", ["second"])]


def test_the_reason_may_change_before_an_interrupted_release_is_resumed(tmp_path: Path) -> None:
    config = small_config(tmp_path, release={"days": 2})
    run_release(config, workers=1)
    (tmp_path / "out").rename(tmp_path / "before")
    later = {"days": 2, "unrelated_loads": unrelated("loads-7")}
    run_release(small_config(tmp_path, release=later), workers=1)
    assert tree_hash(tmp_path / "out") == tree_hash(tmp_path / "before")


def test_a_later_release_can_reuse_the_model_for_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt without a power-flow solution has paid for model and network; the next pays the network."""
    monkeypatch.setattr(CORNERS, lambda *_: None)
    cap = {"days": 5, "network_epsilon_cap": 2e6, "network_delta_cap": 0.9995}
    network = {"delta": 0.4}
    heavy = {"load_class": "residential", "scale_factor": 60.0}
    with pytest.raises(PowerFlowError):
        run_release(small_config(tmp_path, nodes=heavy, network=network, release=cap), workers=1)
    again = small_config(tmp_path, network=network, model={"reuse": "small"}, release={**cap, "id": "second"})
    result = run_release(again, workers=1)
    spends = Ledger.inspect(tmp_path / "state").spends()
    charged = sorted(spend.account for spend in spends)
    assert charged == [
        "loads-1",
        "network-instance-1",
        "network-instance-1",
    ]  # the failed attempt stays charged
    assert verify_private(tmp_path / "out", tmp_path / "state").intact
    assert result.worst_mismatch is not None
    unknown = small_config(
        tmp_path, network=network, model={"reuse": "never"}, release={**cap, "id": "third", "output": "o3"}
    )
    with pytest.raises(PrivacyError):
        run_release(unknown, workers=1)


def test_a_target_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(DpPowerflowError, match="exists already"):
        run_release(small_config(tmp_path), workers=1)
    state = PrivateState.inspect(tmp_path / "state")
    assert not state.ledger_path.exists()


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


def test_private_classes_release_and_certify_with_the_same_nodes(tmp_path: Path) -> None:
    config = small_config(
        tmp_path,
        model={"private_classes": 2, "epsilon": 50.0},
        nodes={"load_class": None},
        release={"days": 3},
    )
    run_release(config, workers=1)
    stored = json.loads((tmp_path / "state" / "internal" / "small" / "report.json").read_text())
    certified = json.loads(certify_config(config, None).json_text)
    for ours, theirs in zip(stored["evidence"]["rows"], certified["rows"], strict=True):
        assert ours["day"]["epsilon"] == theirs["day"]["epsilon"]


@pytest.mark.parametrize(
    "sections",
    [
        {"network": {"bound": "paper"}},
        {"model": {"unit": "load-point-day"}},
        {"model": {"private_classes": 2, "epsilon": 50.0}, "nodes": {"load_class": None}},
        {"model": {"use_scale": False, "bounds": [0.01, 100.0]}},
    ],
    ids=["fixed power factor", "load-point-day", "private classes", "without scale"],
)
def test_every_kind_of_release_verifies(tmp_path: Path, sections: dict[str, dict[str, object]]) -> None:
    run_release(small_config(tmp_path, **sections, release={"days": 12}), workers=1)
    report = verify_release(tmp_path / "out")
    assert report.intact
    assert report.verdict == "demonstration"
