"""The figures that a privacy officer signs by are those of the program."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dp_powerflow import TwinDesign
from dp_powerflow.cli import app
from dp_powerflow.manifest.model import LARGEST_DELTA, LARGEST_EPSILON, NO_PROTECTION, Release, at_most
from dp_powerflow.manifest.true import SMALLEST_SHARE
from dp_powerflow.privacy.budget import epsilon_to_rho
from dp_powerflow.twin.design import twin_guarantee

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "sign-a-release.md").read_text(encoding="utf-8")
DELTA = 1e-5


def rows(heading: str) -> list[list[str]]:
    """Cells of the first table below a heading, without its head."""
    table = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = re.findall(r"^\|(.*)\|$", table, re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines[2:]]


def right(advantage: float) -> str:
    return f"{at_most(50 * (1 + advantage))} %"


@pytest.mark.parametrize("row", rows("Which ε for the customers"), ids=lambda row: row[0])
def test_the_odds_of_the_customers_are_those_of_the_quality_page(row: list[str]) -> None:
    epsilon = float(row[0])
    advantage = min(math.sqrt(epsilon_to_rho(epsilon, DELTA) / 2), math.tanh(epsilon / 2) + 2 * DELTA)
    factor = float(row[1].removeprefix("× ").replace(",", ""))
    assert math.exp(epsilon) <= factor <= 1.01 * math.exp(epsilon)
    assert row[2:4] == [at_most(advantage), right(advantage)]


@pytest.mark.parametrize("row", rows("Which ε for the network"), ids=lambda row: row[0])
def test_the_odds_of_the_network_are_those_of_plan(row: list[str]) -> None:
    design = TwinDesign(epsilon=float(row[0]), change=0.05)
    small, large = (twin_guarantee(design, change).advantage for change in (0.05, 0.5))
    assert row[1:] == [at_most(small), right(small), at_most(large), right(large)]


def test_what_is_marked_as_no_protection_is_what_the_program_marks() -> None:
    assert NO_PROTECTION in PAGE
    assert (LARGEST_EPSILON, LARGEST_DELTA, SMALLEST_SHARE) == (10.0, 1e-3, 0.01)


def test_nothing_records_who_looked_and_the_page_says_that_choosing_by_a_look_is_a_leak() -> None:
    """A record that only `plan` kept was empty for an owner who ran `release` first."""
    assert set(Release.model_fields) == {"id", "software", "insecure_seed", "simulated_loads", "warnings"}
    assert "Choosing settings by internal pages is a leak that no guarantee covers" in PAGE


def test_every_command_of_the_page_has_these_options() -> None:
    for command in re.findall(r"`dp-powerflow ([^`]+)`", PAGE):
        name, *words = command.split()
        shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"})
        assert shown.exit_code == 0
        assert all(word in shown.output for word in words if word.startswith("--"))
