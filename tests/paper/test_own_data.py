"""Experiments on the feeder and the meters of a config: INTERNAL where either is private."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from dp_powerflow import read_config
from dp_powerflow.cli import app
from dp_powerflow.errors import ConfigError, DpPowerflowError
from dp_powerflow.lowlevel import INTERNAL, PrivacyUnit, figure_bytes, new_figure
from dp_powerflow_paper import twin
from dp_powerflow_paper.datasets import Dataset, ExperimentOptions, is_public, open_dataset
from dp_powerflow_paper.run import LEAK, results_folder, run_experiment
from dp_powerflow_paper.wasserstein import experiment as wasserstein
from dp_powerflow_paper.wasserstein.lab import Scale
from support.own_config import DAYS, SCALE_KW, with_keys, write_own
from support.small import small_config, tree_hash, write_toml


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["experiment", *map(str, arguments)])


def opened(path: Path) -> Dataset:
    return open_dataset(ExperimentOptions(out=path.parent, config=read_config(path)))


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three load points at la, two at node b.1; lc has none."""
    return write_own(
        tmp_path_factory.mktemp("own"), nodes={0: "la", 1: "LA", 2: "la", 3: "b.1", 4: "B.1", 5: "elsewhere"}
    )


def check_internal(folder: Path, before: dict[str, str], output: str) -> None:
    """Everything that is new lies in the private state, is for the owner alone and is marked."""
    state = folder / "state"
    assert {path for path in tree_hash(folder) if not path.startswith("state/")} == set(before)
    assert {path: value for path, value in tree_hash(folder).items() if path in before} == before
    found = [path for path in (state / "experiments").rglob("*") if path.is_file()]
    assert len(found) >= 3
    for path in found:
        assert path.stat().st_mode & 0o077 == 0, path
        assert path.parent.stat().st_mode & 0o077 == 0, path
        assert INTERNAL.encode() in path.read_bytes(), path
        if path.suffix == ".md":
            assert LEAK in path.read_text()
    assert INTERNAL in output
    assert LEAK in output
    # An experiment charges nothing and publishes nothing.
    assert {path.name for path in state.iterdir()} == {"secret.key", "experiments"}


def test_theorem_on_private_data_stays_in_the_private_state(config: Path) -> None:
    before = {name: value for name, value in tree_hash(config.parent).items() if "state/" not in name}
    result = run("theorem", config, "--calibration-days", "20")
    assert result.exit_code == 0, result.output
    check_internal(config.parent, before, result.stdout)
    assert INTERNAL in result.stderr
    content = json.loads((config.parent / "state/experiments/own-1/theorem.json").read_text())
    assert content["marking"] == INTERNAL


def test_wasserstein_on_private_data_stays_there_too_and_resumes(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = Scale(1, 14, (50.0,), (10.0,), (1.5,), (), 20, (10.0,))
    monkeypatch.setattr(wasserstein, "scale_of", lambda options: tiny)
    monkeypatch.setattr(wasserstein, "cores", lambda: 1)
    for figure in ("draw_wasserstein", "draw_two_birds"):  # the real ones take half a minute
        monkeypatch.setattr(wasserstein, figure, lambda *given: figure_bytes(new_figure((2, 2)), given[-1]))
    before = {name: value for name, value in tree_hash(config.parent).items() if "state/" not in name}
    result = run("wasserstein", config)
    assert result.exit_code == 0, result.output
    check_internal(config.parent, before, result.stdout)
    assert f"1 runs of {DAYS} days" in result.stdout  # the history has no more
    assert "1 PV system under volt-var control" in result.stdout
    folder = config.parent / "state/experiments/own-1/wasserstein-own-1"
    made = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert run("wasserstein", config).stdout == result.stdout
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == made


def test_twins_of_a_private_feeder_have_a_row_for_the_config_and_are_drawn_again_for_another(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {kind: (1.0,) for kind in twin.KINDS if kind.words == "Laplace on lengths"}
    monkeypatch.setattr(twin, "KINDS", kinds)
    monkeypatch.setattr(twin, "_QUICK", twin._Size(2, 0, 2))
    monkeypatch.setattr(twin, "cores", lambda: 1)
    monkeypatch.setattr(twin, "draw_figure", lambda *given: figure_bytes(new_figure((2, 2)), given[-1]))
    before = {name: value for name, value in tree_hash(config.parent).items() if "state/" not in name}
    found = []
    for epsilon in (1.0, 2.0):
        network = {"mode": "twin-network", "id": "t1", "epsilon": epsilon}
        path = write_toml(config.parent / "twin.toml", {**with_keys(), "network": network})
        result = run("twin", path, "--quick")
        path.unlink()
        assert result.exit_code == 0, result.output
        assert "as in the config" in result.stdout
        found.append(result.stdout)
    assert found[0] != found[1]
    check_internal(config.parent, before, found[1])


def test_results_on_private_data_go_nowhere_else(config: Path, tmp_path: Path) -> None:
    options = ExperimentOptions(out=tmp_path, config=read_config(config))
    assert options.is_private
    with pytest.raises(ConfigError, match="remove --out"):
        results_folder(options, tmp_path)
    with pytest.raises(ConfigError, match="private state directory only"):
        run_experiment("theorem", options)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="on public data only"):
        run_experiment("lines", options)
    with pytest.raises(ConfigError, match="brings its own data"):
        replace(options, data="simulated")


def test_a_config_of_public_figures_alone_goes_where_it_is_asked_for(tmp_path: Path) -> None:
    public = small_config(tmp_path, loads={"load_points": 30, "step_minutes": 240})
    assert is_public(public)
    asked = ExperimentOptions(out=tmp_path / "results", config=public, calibration_days=20)
    assert results_folder(asked, tmp_path / "results") == tmp_path / "results"
    written = run_experiment("theorem", asked)
    assert INTERNAL not in written.text
    assert {path.parent for path in written.files} == {tmp_path / "results"}
    assert not (tmp_path / "state").exists()
    taps, loads = {"taps": "taps.csv"}, {"loads": "loads.csv"}
    assert not is_public(small_config(tmp_path, feeder=taps))
    assert not is_public(small_config(tmp_path, feeder=loads))
    assert not is_public(small_config(tmp_path, feeder={"source": "net.dss"}))
    shapes = {"kind": "opendss-shapes", "path": "shapes"}
    assert not is_public(small_config(tmp_path, loads=shapes))


def test_load_points_feed_what_they_name_and_the_rest_in_turn(config: Path) -> None:
    data = opened(config)
    assert data.words.endswith("2 of 3 loads have meters of their own, the others load points in turn")
    load = data.true_load(np.arange(DAYS))
    nodes = [data.feeder.nodes[k] for k in data.feeder.retained[data.loaded]]
    assert sorted(nodes) == ["a.1", "a.2", "a.3", "b.1", "b.2"]
    at = {node: load[:, :, k] for k, node in enumerate(nodes)}
    read = data.history.load_kw * SCALE_KW / 1e3  # of every load point [p.u.]
    tangent = np.sqrt(1 - 0.9**2) / 0.9
    assert at["a.2"] == pytest.approx(read[:3].sum(axis=0) / 3 * (1 + 1j * tangent))
    assert at["b.1"] == pytest.approx(read[3:5].sum(axis=0) * (1 + 1j * tangent))
    # lc has none: the first load point that feeds nothing, at its own 60 kW.
    assert at["b.2"] == pytest.approx(data.history.load_kw[5] * 0.06 * (1 + 1j * tangent))
    assert data.unit is PrivacyUnit.LOAD_POINT
    assert (data.margins, data.radius) == ((0.01, 3.0), 1e-6)
    assert data.nominal.real.sum() == pytest.approx(0.44)
    assert data.generation is not None
    assert data.generation.n_days == DAYS
    assert data.history.load_kw.min() > 0.0


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"pv": {"irradiance": "nowhere.txt"}}, "does not exist"),
        ({"loads": {"last_day": "2024-03-09"}}, "."),
        ({"feeder": {"source": "nowhere.dss"}}, "."),
        ({"model": {"bounds": [3.0, 0.01]}}, "p_min"),
    ],
)
def test_wrong_input_is_one_sentence(
    tmp_path: Path, sections: dict[str, dict[str, object]], sentence: str
) -> None:
    path = write_toml(write_own(tmp_path), with_keys(**sections))
    with pytest.raises(DpPowerflowError, match=sentence):
        opened(path)
