"""Experiments on the feeder and the meters of a config: INTERNAL where either is private."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

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


def kept_internal(name: str, config: Path, *arguments: str) -> str:
    """What an experiment prints; all that is new is in the private state, for the owner alone and marked."""
    folder, state = config.parent, config.parent / "state"
    before = {path: value for path, value in tree_hash(folder).items() if "state/" not in path}
    result = run(name, config, *arguments)
    assert result.exit_code == 0, result.output
    assert {path: value for path, value in tree_hash(folder).items() if "state/" not in path} == before
    found = [path for path in (state / "experiments").rglob("*") if path.is_file()]
    assert len(found) >= 3
    for path in found:
        assert path.stat().st_mode & 0o077 == 0, path
        assert path.parent.stat().st_mode & 0o077 == 0, path
        assert INTERNAL.encode() in path.read_bytes(), path
        assert path.suffix != ".md" or LEAK in path.read_text()
    assert INTERNAL in result.stderr
    assert INTERNAL in result.stdout
    assert LEAK in result.stdout
    # An experiment charges nothing and publishes nothing.
    assert {path.name for path in state.iterdir()} == {"secret.key", "experiments"}
    return result.stdout


def test_theorem_and_wasserstein_on_private_data_stay_in_the_private_state_and_resume(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = config.parent / "state/experiments/own-1"
    kept_internal("theorem", config, "--calibration-days", "20")
    assert json.loads((own / "theorem.json").read_text())["marking"] == INTERNAL

    tiny = Scale(1, 14, (50.0,), (10.0,), (1.5,), (), 20, (10.0,))
    monkeypatch.setattr(wasserstein, "scale_of", lambda options: tiny)
    monkeypatch.setattr(wasserstein, "cores", lambda: 1)
    for figure in ("draw_wasserstein", "draw_two_birds"):  # the real ones take half a minute
        monkeypatch.setattr(wasserstein, figure, empty_figure)
    printed = kept_internal("wasserstein", config)
    assert f"1 runs of {DAYS} days" in printed  # the history has no more
    assert "1 PV system under volt-var control" in printed
    made = {path: path.stat().st_mtime_ns for path in (own / "wasserstein-own-1").iterdir()}
    assert kept_internal("wasserstein", config) == printed
    assert {path: path.stat().st_mtime_ns for path in made} == made


def empty_figure(*given: Any) -> bytes:
    return figure_bytes(new_figure((2, 2)), given[-1])


def test_twins_of_a_private_feeder_have_a_row_for_the_config_and_are_drawn_again_for_another(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {kind: (1.0,) for kind in twin.KINDS if kind.words == "Laplace on lengths"}
    given = {"KINDS": kinds, "_QUICK": twin._Size(2, 0, 2), "cores": lambda: 1, "draw_figure": empty_figure}
    for name, value in given.items():
        monkeypatch.setattr(twin, name, value)
    found = set()
    for epsilon in (1.0, 2.0):
        network = {"mode": "twin-network", "id": "t1", "epsilon": epsilon}
        path = write_toml(config.parent / "twin.toml", {**with_keys(), "network": network})
        found.add(kept_internal("twin", path, "--quick"))
        path.unlink()
    assert all("as in the config" in printed for printed in found)
    assert len(found) == 2


def test_results_on_private_data_go_nowhere_else(config: Path, tmp_path: Path) -> None:
    options = ExperimentOptions(out=tmp_path, config=read_config(config))
    assert options.is_private
    for sentence, refused in (
        ("remove --out", lambda: results_folder(options, tmp_path)),
        ("private state directory only", lambda: run_experiment("theorem", options)),
        ("on public data only", lambda: run_experiment("lines", options)),
        ("brings its own data", lambda: replace(options, data="simulated")),
    ):
        with pytest.raises(ConfigError, match=sentence):
            refused()
    assert not list(tmp_path.iterdir())


def test_a_config_of_public_figures_alone_goes_where_it_is_asked_for(tmp_path: Path) -> None:
    public = small_config(tmp_path, loads={"load_points": 30, "step_minutes": 240})
    assert is_public(public)
    asked = ExperimentOptions(out=tmp_path / "results", config=public, calibration_days=20)
    assert results_folder(asked, tmp_path / "results") == tmp_path / "results"
    written = run_experiment("theorem", asked)
    assert INTERNAL not in written.text
    assert {path.parent for path in written.files} == {tmp_path / "results"}
    assert not (tmp_path / "state").exists()
    for private in ({"taps": "taps.csv"}, {"loads": "loads.csv"}, {"source": "net.dss"}):
        assert not is_public(small_config(tmp_path, feeder=private))
    assert not is_public(small_config(tmp_path, loads={"kind": "opendss-shapes", "path": "shapes"}))


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


def test_wrong_input_is_one_sentence(tmp_path: Path) -> None:
    path = write_own(tmp_path)
    for section, wrong, sentence in (
        ("pv", {"irradiance": "nowhere.txt"}, "does not exist"),
        ("loads", {"last_day": "2024-03-09"}, "."),
        ("feeder", {"source": "nowhere.dss"}, "."),
        ("model", {"bounds": [3.0, 0.01]}, "p_min"),
    ):
        with pytest.raises(DpPowerflowError, match=sentence):
            opened(write_toml(path, with_keys(**{section: wrong})))
