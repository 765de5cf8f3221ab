"""The docs site: it builds without a warning, asks no other host, and figures and claims have a source."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import dp_powerflow as dpf
from dp_powerflow import TwinDesign
from dp_powerflow.cli import app
from dp_powerflow.manifest.model import at_most
from dp_powerflow.privacy.budget import epsilon_to_rho
from dp_powerflow.twin.design import twin_guarantee
from support.pages import is_a_command
from support.pages_that_run import ROOT, Site

DOCS = ROOT / "docs"
GENERATED = {"changelog.md", "notebooks/producer.md", "notebooks/consumer.md"}
"""Pages that the build makes and the repository does not hold."""
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_RESOURCE = re.compile(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="(?:https?:)?//', re.IGNORECASE)
_MENTION = re.compile(r"`((?:src|tests|benchmarks|examples|docs)/[\w./-]+\.(?:py|md|toml|json|csv))")


def pages() -> list[Path]:
    """Every page that the repository holds."""
    return sorted(DOCS.rglob("*.md"))


def test_the_site_builds_without_a_warning(site: Site) -> None:
    assert site.exit_code == 0, site.said
    assert "WARNING" not in site.said, site.said


def test_no_page_asks_another_host_for_anything(site: Site) -> None:
    built = sorted(site.folder.rglob("*.html"))
    assert len(built) > len(pages())
    for page in built:
        found = _RESOURCE.search(page.read_text(encoding="utf-8"))
        assert found is None, f"{page.name}: {found and found[0]}"
    for sheet in site.folder.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name


def test_every_page_is_in_the_navigation_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(
        r"^ +- (?:\"[^\"]+\": |[^:\n]+: )?(\S+\.md)$", text[text.index("\nnav:") :], re.MULTILINE
    )
    assert sorted(listed) == sorted({page.relative_to(DOCS).as_posix() for page in pages()} | GENERATED)


def test_every_public_name_is_on_one_page_of_the_reference(site: Site) -> None:
    page = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    named = re.findall(r"^::: dp_powerflow\.(\w+)$", page, re.MULTILINE)
    assert sorted([*named, "__version__"]) == sorted(dir(dpf))
    built = site.html("reference/api.md")
    for name in named:
        assert re.search(rf'id="dp_powerflow\.{name}[".]', built), name


def test_the_page_of_the_command_line_has_every_command_and_option(site: Site) -> None:
    built = html.unescape(site.html("reference/cli.md"))
    for name, command in _commands(typer.main.get_command(app), "dp-powerflow"):
        assert name in built, name
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert f"<code>{parameter.opts[0]}" in built, f"{name} {parameter.opts[0]}"


def _commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    for key, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{name} {key}")
        else:
            yield f"{name} {key}", command


def test_every_claim_has_unit_neighbours_proof_and_a_test_that_exists() -> None:
    text = (DOCS / "explanation" / "guarantee.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!claim|-)(.+) \|$", text[text.index("## Claims") :], re.MULTILINE)
    assert len(rows) > 10
    for row in rows:
        claim, unit, neighbours, _, _, proof, test, audit = re.split(r" \| ", row)
        assert unit
        assert neighbours
        assert _LINK.search(proof), claim
        named = re.findall(r"`(test_\w+\.py)`", test + audit)
        assert named or "contracts" in test, claim
        for name in named:
            assert len(list((ROOT / "tests").rglob(name))) == 1, name


def test_links_into_the_repository_lead_somewhere(site: Site) -> None:
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        for target in _LINK.findall((ROOT / name).read_text(encoding="utf-8")):
            path, _, anchor = target.partition("#")
            if "://" in path or not path:
                continue
            assert (ROOT / path).exists(), f"{name}: {target}"
            if anchor and path.startswith("docs/"):
                built = site.html(path.removeprefix("docs/"))
                assert f'id="{anchor}"' in built, f"{name}: {target}"


def test_files_that_the_docs_and_the_code_mention_exist() -> None:
    for page in [*pages(), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for path in _MENTION.findall(page.read_text(encoding="utf-8")):
            assert (ROOT / path).exists(), f"{page.name}: {path}"
    for folder in ("src", "tests", "benchmarks", "examples"):
        for file in (ROOT / folder).rglob("*.py"):
            for path in re.findall(r"\bdocs/[\w/-]+\.(?:md|json)\b", file.read_text(encoding="utf-8")):
                assert (ROOT / path).exists() or file == Path(__file__), f"{file.name}: {path}"


RESULTS = sorted((ROOT / "docs" / "results").glob("*.md"))
COMMAND = re.compile(
    r"\b(?:dp-powerflow \w+|python (?:benchmarks|examples|tests)/\S+\.py|pytest\b|"
    r"make (?:demo|bench|faults|fuzz))"
)


def sections(text: str) -> list[str]:
    """What stands before the first heading of level two, then every section of that level."""
    return re.split(r"^(?=## )", text, flags=re.MULTILINE)


def tables_without_a_command(text: str) -> list[str]:
    """Titles of sections with a table for which neither they nor the head of the page name a command."""
    head, *rest = sections(text)
    if COMMAND.search(head):
        return []
    found = [part for part in (head, *rest) if re.search(r"^\|[ :|-]+\|$", part, re.MULTILINE)]
    return [part.splitlines()[0] for part in found if not COMMAND.search(part)]


@pytest.mark.parametrize("page", RESULTS, ids=lambda page: page.stem)
def test_every_table_has_a_command_in_its_section(page: Path) -> None:
    assert tables_without_a_command(page.read_text(encoding="utf-8")) == []


def test_the_page_of_numbers_gives_every_figure_a_command_and_a_page() -> None:
    text = (ROOT / "docs" / "results" / "index.md").read_text(encoding="utf-8")
    rows = [row for row in re.findall(r"^\| (.+) \|$", text, re.MULTILINE) if not row.startswith("figure")]
    assert len(rows) > 25
    for row in rows:
        *_, command, page = re.split(r" (?<!\\)\| ", row)
        assert command == "the same" or COMMAND.search(command), row
        assert re.search(r"\]\((\w[\w-]*\.md)[#)]", page), row
    linked = set(re.findall(r"\]\((\w[\w-]*\.md)[#)]", text))
    assert {page.name for page in RESULTS} - {"index.md"} <= linked


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


def test_every_command_of_the_page_has_these_options() -> None:
    for command in re.findall(r"`(dp-powerflow [^`]+)`", PAGE):
        assert is_a_command(command), command
