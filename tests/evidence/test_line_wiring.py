"""Losses per line where users meet them: `certify`, and the internal report of a release."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dp_powerflow import Config
from dp_powerflow._certify import certify_config
from dp_powerflow.pipeline.inputs import read_network
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.modes.true import TrueMode
from dp_powerflow.pipeline.release import run_release
from support.small import small_config, tree_hash


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A released corpus on IEEE 13 whose config asks for a few draws."""
    folder = tmp_path_factory.mktemp("lines")
    made = small_config(folder, network={"line_draws": 20}, release={"days": 10})
    run_release(made, workers=1)
    return made


def test_release_keeps_the_lines_in_its_internal_report_only(config: Config) -> None:
    internal = config.release.state / "internal" / config.release.id / "report.json"
    lines = json.loads(internal.read_text())["lines"]
    assert lines["evidence"]["draws"] == 20
    assert lines["evidence"]["delta"] >= lines["evidence"]["supported"] > 0.1
    names = {row["line"] for row in lines["evidence"]["rows"]}
    assert "650632" in names
    assert isinstance(config.release.output, Path)
    for path in config.release.output.rglob("*"):
        if path.is_file() and path.suffix in {".json", ".html"}:
            assert "650632" not in path.read_text()


@pytest.mark.slow
def test_certify_says_more(config: Config) -> None:
    shown = certify_config(config, None, line_draws=30)
    text = "\n".join(shown.lines)
    assert "## Line by line" in text
    assert "Audit" in text
    assert json.loads(shown.json_text)["line_evidence"]["evidence"]["draws"] == 30
    assert "INTERNAL" in (shown.directory / "network-evidence.md").read_text()


def test_nothing_of_the_release_depends_on_whether_lines_were_asked_for(
    config: Config, tmp_path: Path
) -> None:
    """The draws of the evidence come from streams of their own."""
    plain = small_config(tmp_path, release={"days": 10})
    run_release(plain, workers=1)
    with_lines, without = (
        {
            name: digest
            for name, digest in tree_hash(Path(each.release.output)).items()
            if name.startswith("data")
        }
        for each in (config, plain)
    )
    assert with_lines == without
    assert with_lines
    report = (plain.release.state / "internal" / plain.release.id / "report.json").read_text()
    assert "lines" not in json.loads(report)


def test_a_fixed_power_factor_is_answered_in_words(config: Config, tmp_path: Path) -> None:
    from dp_powerflow import LoadModel, PrivateState

    paper = small_config(tmp_path, network={"bound": "paper", "line_draws": 20})
    model = LoadModel.load(Path(config.release.output) / "model.json")
    state = PrivateState.open(paper.release.state, insecure_seed=7)
    mode, inputs = mode_of(paper), read_network(paper, state, model.n_steps)
    assert isinstance(mode, TrueMode)
    scene = mode.scene(inputs, mode.network_to_solve(inputs, mode.identity(inputs)), model)
    found = mode.lines(inputs, scene)
    assert isinstance(found, str)
    assert "fixed power factors" in found
    asked = TrueMode(config).line_request(300, whole=True)
    assert asked.delta == pytest.approx(config.network.delta / config.release.days)
    assert asked.audit_days == 100
