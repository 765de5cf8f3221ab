"""README tells the truth: its commands exist and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from dp_powerflow.cli import app

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_both_make_commands_are_shown_and_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert f"make {target}" in README
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_every_command_in_the_readme_exists_and_has_help_with_an_example() -> None:
    commands = set(re.findall(r"^\s+dp-powerflow (\w+)", README, re.MULTILINE))
    assert {"inspect", "init", "plan", "release", "certify", "verify", "ledger"} <= commands
    for command in commands | {"demo", "experiment"}:
        result = CliRunner().invoke(app, [command, "--help"])
        assert result.exit_code == 0
        assert "Example" in result.output


def test_every_relative_link_leads_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
