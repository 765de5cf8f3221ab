"""The docs site: it builds without a warning, asks no other host, and leads from every claim to its proof."""

from __future__ import annotations

import html
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import dp_powerflow as dpf
from dp_powerflow.cli import app
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


def test_parameters_of_the_api_come_from_the_docstrings(site: Site) -> None:
    shown = html.unescape(site.html("reference/api.md")).lower()
    for words in ("parameters", "returns", "raises", "spends nothing", "configerror"):
        assert words in shown, words


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


def links(page: str) -> set[str]:
    """Pages that a page of the docs links to."""
    targets = _LINK.findall((DOCS / page).read_text(encoding="utf-8"))
    own = [target.split("#")[0] for target in targets if "://" not in target]
    return {posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) for target in own if target}


def test_unit_neighbours_sensitivity_and_proof_are_two_clicks_from_home() -> None:
    first = links("index.md")
    assert "explanation/guarantee.md" in first
    second = set().union(*(links(page) for page in first - GENERATED if page.endswith(".md")))
    proofs = {"explanation/proofs.md", "explanation/load-model.md"}
    assert proofs <= first | second


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
