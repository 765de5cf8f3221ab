"""`make demo`: a twin and the paper's release on public data, compared, with commands that work."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dp_powerflow.cli import app
from dp_powerflow.cli.demo import Demo
from dp_powerflow.config import TwinNetwork
from dp_powerflow.errors import ConfigError
from dp_powerflow.grid.sources import Rebuilder
from dp_powerflow.model.sample import SolvedDays, solve_days
from dp_powerflow.pipeline.inputs import declared_services, read_network
from dp_powerflow.pipeline.modes.base import Solvable, mode_of
from dp_powerflow.pipeline.plan import kept_model
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.twin.draw import draw_twin, parameters_of


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Folder and output of the command; the folder has a blank in its name."""
    folder = tmp_path_factory.mktemp("demo of mine") / "demo-output"
    result = run("demo", "--out", folder)
    assert result.exit_code == 0, result.output
    return folder, result


@pytest.mark.slow
def test_the_demo_ends_with_one_table_of_both_releases(shown: tuple[Path, Result]) -> None:
    folder, result = shown
    text = " ".join(result.stdout.split())
    assert "formula as printed, not a bound here" in text
    assert "NO MEANINGFUL PROTECTION" in text
    for words in ("any number", "8.32 for 50%", "0.394 for 5%", "W1 of voltage magnitudes"):
        assert words in text
    page = (folder / "index.html").read_text(encoding="utf-8")
    for name in ("release", "paper"):
        assert f'<a href="{name}/certificate.html">' in page
        assert (folder / name / "certificate.html").is_file()


@pytest.mark.slow
def test_the_docs_show_the_table_of_the_demo(shown: tuple[Path, Result]) -> None:
    begun = Demo(shown[0])
    rows = [line for line in begun.table(begun.compare()).lines if line.startswith("|")]
    page = Path(__file__).resolve().parents[2] / "docs" / "results" / "demo.md"
    assert "\n".join(rows) in page.read_text(encoding="utf-8")


@pytest.mark.campaign
def test_no_draw_of_the_papers_release_lacks_a_solution_under_a_thousand_seeds(
    shown: tuple[Path, Result],
) -> None:
    """Nothing mends a snapshot on the true network, so none may lack a solution after the customers paid."""
    config = Demo(shown[0]).paper
    state = PrivateState.open(config.release.state, insecure_seed=1)
    model, mode = kept_model(config, state), mode_of(config)
    assert model is not None
    inputs = read_network(config, state, model.n_steps)
    scene = mode.scene(inputs, Solvable(inputs.feeder, inputs.solar, ""), model)
    solver = mode.solver(model.n_steps)(inputs.feeder, inputs.solar, None)
    for seed in range(1000):
        source = mode.source(scene, StreamKey.from_insecure_seed(seed), config.release.days)
        for block in range(source.n_blocks):
            assert solve_days(solver, source, block).solution.n_failed == 0


def twins_of_seeds(folder: Path, seeds: range) -> Iterator[SolvedDays]:
    """The demo's days, twin and loads drawn anew for every seed, from the load model that was fitted once."""
    config = Demo(folder).twin
    state = PrivateState.open(config.release.state, insecure_seed=1)
    model, mode = kept_model(config, state), mode_of(config)
    assert model is not None
    assert isinstance(config.network, TwinNetwork)
    services, design = declared_services(config), config.network.design
    inputs = read_network(config, state, model.n_steps, services)
    source = Rebuilder(inputs.feeder, design.protected)
    for seed in seeds:
        key = StreamKey.from_insecure_seed(seed)
        feeder = draw_twin(parameters_of(source, design), design, key).feeder(source)
        scene = mode.scene(inputs, Solvable(feeder, inputs.solar_on(feeder), ""), model)
        loads = mode.source(scene, key, config.release.days)
        solver = mode.solver(model.n_steps)(feeder, scene.network.solar, None)
        for block in range(loads.n_blocks):
            yield solve_days(solver, loads, block, mend=mode.counts_customers)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [4, pytest.param(1000, marks=pytest.mark.campaign)])
def test_no_snapshot_of_the_demos_twin_is_left_without_solution(
    shown: tuple[Path, Result], seeds: int
) -> None:
    for days in twins_of_seeds(shown[0], range(seeds)):
        assert days.solution.converged.all()
        assert not days.mended.any()  # none lacks one even before the public rule


@pytest.mark.slow
def test_the_customers_pay_for_both_load_models(shown: tuple[Path, Result]) -> None:
    accounts = json.loads(run("ledger", shown[0] / "private-state", "--json").stdout)["accounts"]
    assert {account["name"]: len(account["spends"]) for account in accounts} == {
        "loads-1": 2,
        "network-twin-1": 1,
        "network-instance-1": 1,
    }
    history, days = (
        json.loads((shown[0] / name / "model.json").read_text())["queries"] for name in ("release", "paper")
    )
    assert history != days


@pytest.mark.slow
def test_every_command_that_the_demo_suggests_works_as_printed(shown: tuple[Path, Result]) -> None:
    lines = [line for line in shown[1].stdout.splitlines() if line.startswith("  dp-powerflow ")]
    assert len(lines) == 5
    said = {}
    for line in lines:
        command = shlex.split(line, comments=True)
        result = run(*command[1:])
        assert result.exit_code == 0, result.output
        said[" ".join(command[1:])] = result.stdout
    for name in ("release", "paper"):
        assert "verdict: demonstration: intact" in said[f"verify {shown[0] / name}"]


def test_a_folder_that_is_there_is_not_touched(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists already; name another folder with --out"):
        Demo.begin(tmp_path)
    assert list(tmp_path.iterdir()) == []
