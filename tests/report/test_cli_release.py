"""The commands of a release as a user types them, on a small feeder; and the demonstration."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dp_powerflow.cli import app
from dp_powerflow.cli.demo import Demo, render_sides
from support.small import RAW, write_toml


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished small release of 30 days, made by the command."""
    path = tmp_path_factory.mktemp("cli")
    raw = {**RAW, "release": {**RAW["release"], "days": 30}}
    write_toml(path / "release.toml", raw)
    result = run("release", path / "release.toml")
    assert result.exit_code == 0, result.output
    assert "released:" in result.stderr
    # What the plan warns of is said again when the release is made.
    assert (
        "warning: NO MEANINGFUL PROTECTION OF THE NETWORK: epsilon* = 1000000 is above 10." in result.stderr
    )
    return path


def test_plan_lists_every_query_and_says_that_the_release_is_paid(folder: Path) -> None:
    shown = json.loads(run("plan", folder / "release.toml", "--json").stdout)
    manifest = json.loads((folder / "out" / "manifest.json").read_text())
    asked = {(query["query"], query["cohort"]) for query in manifest["load_queries"]}
    assert {(query["query"], query["cohort"]) for query in shown["queries"]} == asked
    assert shown["epsilon"] == pytest.approx(4.0, rel=1e-3)
    text = " ".join(run("plan", folder / "release.toml").stdout.split())
    assert "was charged already" in text
    assert text.startswith(
        "READY: release small costs the customers nothing more and the network nothing more"
    )
    assert "NO MEANINGFUL PROTECTION OF THE NETWORK: epsilon* = 1000000 is above 10." in text


def test_release_says_that_a_budget_is_too_small_to_be_useful(folder: Path, tmp_path: Path) -> None:
    """It was said by the plan alone, and silenced when the release was made."""
    raw = {**RAW, "model": {**RAW["model"], "epsilon": 0.05}, "release": {**RAW["release"], "days": 1}}
    raw["nodes"] = {**RAW["nodes"], "scale_factor": 0.01}  # loads that nobody knows are huge
    write_toml(tmp_path / "weak.toml", raw)
    planned = json.loads(run("plan", tmp_path / "weak.toml", "--json").stdout)
    assert planned["notes"]
    made = run("release", tmp_path / "weak.toml", "--json")
    assert all(f"warning: {note}" in made.stderr for note in planned["notes"])
    assert set(planned["notes"]) < set(json.loads(made.stdout)["warnings"])


def test_verify_calls_an_intact_seeded_release_a_demonstration(folder: Path, tmp_path: Path) -> None:
    result = run("verify", folder / "out")
    assert result.exit_code == 0
    assert "verdict: demonstration: intact; NO MEANINGFUL PROTECTION" in result.stdout
    assert "demo  random source: The noise came from an insecure seed" in result.stdout
    assert "FAIL" not in result.stdout
    shown = json.loads(run("verify", folder / "out", "--json").stdout)
    assert (shown["verdict"], shown["intact"]) == ("demonstration", True)
    shutil.copytree(folder / "out", tmp_path / "out")
    (tmp_path / "out" / "certificate.html").write_text("All is well.")
    damaged = run("verify", tmp_path / "out")
    assert damaged.exit_code == 1
    assert "verdict: not intact" in damaged.stdout
    assert "FAIL  files" in damaged.stdout
    assert json.loads(run("verify", tmp_path / "out", "--json").stdout)["intact"] is False


def test_quality_says_where_the_page_is_and_makes_it_again(folder: Path, tmp_path: Path) -> None:
    told = run("quality", folder / "out")
    assert told.exit_code == 0
    assert str(folder / "out" / "quality.html") in told.stderr.replace("\n", "")
    run("quality", folder / "out", "--out", tmp_path / "again.html")
    with pytest.raises(IsADirectoryError):  # one sentence, as of every file that cannot be written
        run("quality", folder / "out", "--out", "")
    assert (tmp_path / "again.html").read_bytes() == (folder / "out" / "quality.html").read_bytes()
    figures = json.loads(run("quality", folder / "out", "--json").stdout)
    assert figures["days"] == 30
    assert figures["promise"]["loads"]["figure"].startswith("ε ≤ ")


def test_verify_with_the_private_state_opens_and_recomputes_the_evidence(folder: Path) -> None:
    config = folder / "release.toml"
    shown = json.loads(
        run("verify", folder / "out", "--private", folder / "state", "--config", config, "--json").stdout
    )
    checks = {check["name"]: check["ok"] for check in shown["checks"]}
    assert checks["commitment"]
    assert checks["ledger"]
    assert checks["network evidence"]
    assert shown["verdict"] == "demonstration"


@pytest.mark.slow
def test_certify_writes_internal_files_and_says_what_is_covered(folder: Path) -> None:
    result = run("certify", folder / "release.toml")
    assert result.exit_code == 0
    assert "INTERNAL" in result.stderr
    text = " ".join(result.stdout.split())
    assert "no change of a line's length, impedance or state" in text
    assert "not differential privacy" in text
    directory = folder / "state" / "internal" / "small"
    for name in ("network-evidence.json", "network-evidence.md"):
        content = (directory / name).read_bytes()
        assert b"INTERNAL" in content
    stored = json.loads((directory / "network-evidence.json").read_text())
    assert {row["mode"] for row in stored["rows"]} == {"paper", "corrected", "full-support"}
    formula = stored["printed_formula"]
    assert formula["label"] == "formula as printed, not a bound here"
    samples = [formula[name]["formula"] for name in ("least", "median", "most", "day")]
    assert 0.0 < samples[0] <= samples[1] <= samples[2] < samples[3]
    assert "formula as printed" in text
    assert all(row["step"] is None for row in stored["rows"][:2])


def test_ledger_shows_both_accounts_and_changes_a_cap_with_a_reason(folder: Path) -> None:
    shown = json.loads(run("ledger", folder / "state", "--json").stdout)
    assert {account["name"] for account in shown["accounts"]} == {"loads-1", "network-instance-1"}
    asked = ("--account", "loads-1", "--epsilon", "9", "--reason", "board, 3 May", "--json")
    changed = run("ledger", folder / "state", *asked)
    cap = next(a for a in json.loads(changed.stdout)["accounts"] if a["name"] == "loads-1")["cap"]
    assert cap["epsilon"] == 9.0


# --- the demonstration: a twin and the paper's release, compared, with commands that work ------------------
@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Folder and output of the command; the folder has a blank in its name."""
    folder = tmp_path_factory.mktemp("demo of mine") / "demo-output"
    result = run("demo", "--out", folder)
    assert result.exit_code == 0, result.output
    return folder, result


@pytest.mark.slow
def test_the_docs_show_the_table_of_the_demo(shown: tuple[Path, Result]) -> None:
    begun = Demo(shown[0])
    rows = [line for line in render_sides(begun.compare()).lines if line.startswith("|")]
    assert any("formula as printed, not a bound here" in row for row in rows)
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
