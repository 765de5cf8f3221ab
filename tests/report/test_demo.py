"""`make demo`: a twin and the paper's release on public data, compared, with commands that work."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dp_powerflow.cli import app
from dp_powerflow.cli.demo import Demo
from dp_powerflow.errors import ConfigError


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


@pytest.mark.slow
def test_the_customers_pay_for_both_load_models_and_every_draw_has_a_solution(
    shown: tuple[Path, Result],
) -> None:
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
    extras = json.loads((shown[0] / "release" / "manifest.json").read_text())["data"]["extras"]
    assert extras["scaled_down_snapshots"] == 0


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
