"""README and the home page tell the truth: commands exist, links lead somewhere, code runs, figures hold."""

from __future__ import annotations

import math
import re
import runpy
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dp_powerflow import TwinDesign
from dp_powerflow.cli import app
from dp_powerflow.manifest.model import at_most
from dp_powerflow.privacy.budget import epsilon_to_rho
from dp_powerflow.twin.design import twin_guarantee

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
HOME = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
MOST_LINES = 100
"""Three screens."""


def test_the_readme_is_three_screens_and_both_make_commands_exist() -> None:
    assert len(README.splitlines()) <= MOST_LINES
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert f"make {target}" in README
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_every_command_in_the_readme_exists_and_has_help_with_an_example() -> None:
    commands = set(re.findall(r"^\s+dp-powerflow (\w+)", README, re.MULTILINE))
    assert {"init", "plan", "release", "verify", "quality", "ledger"} <= commands
    for command in commands | {"demo", "experiment", "inspect", "certify", "fidelity", "fleet"}:
        result = CliRunner().invoke(app, [command, "--help"])
        assert result.exit_code == 0
        assert "Example" in result.output


def test_every_relative_link_leads_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            path = page.parent / target
            assert path.exists() or path.with_suffix(".ipynb").exists(), f"{page.name}: {target}"


@pytest.mark.slow
def test_the_python_of_readme_and_home_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert f"```python\n{code}```" in HOME
    monkeypatch.chdir(tmp_path)
    config = runpy.run_path(str(ROOT / "examples" / "release.py"))["CONFIG"]
    Path("release.toml").write_text(config, encoding="utf-8")
    names: dict[str, object] = {}
    exec(code, names)
    corpus, frame = names["corpus"], names["frame"]
    assert len(frame) == corpus.layout.steps * corpus.layout.nodes  # type: ignore[arg-type, attr-defined]
    figure = tmp_path / "day.png"
    monkeypatch.setattr("sys.argv", ["released_day.py", str(tmp_path / "release"), str(figure)])
    monkeypatch.setenv("MPLBACKEND", "agg")
    runpy.run_path(str(ROOT / "examples" / "released_day.py"), run_name="__main__")
    assert figure.stat().st_size > 10_000


def test_the_promise_has_the_figures_of_the_program() -> None:
    of_customers = math.sqrt(epsilon_to_rho(1.0, 1e-5) / 2)
    of_line = [twin_guarantee(TwinDesign(epsilon=1.0, change=0.05), change) for change in (0.05, 0.5)]
    advantages = [of_customers, *(promise.advantage for promise in of_line)]
    right = [at_most(50 * (1 + advantage)) for advantage in advantages]
    rows = (
        f"| ε | 1 at δ = 1e-5 | {at_most(of_line[0].epsilon)} if they change by 5 %; "
        f"{at_most(of_line[1].epsilon)} if by 50 % |",
        "| advantage of the best test | {} | {}; {} |".format(*map(at_most, advantages)),
        "| it is right at most | {} % of the time | {} %; {} % of the time |".format(*right),
    )
    for page in (README, HOME):
        assert all(row in page for row in rows)
