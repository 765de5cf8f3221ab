"""Whatever a page shows to be typed can be typed: Python and commands run, the rest says why it does not."""

from __future__ import annotations

import re
import shlex
import shutil
import tomllib
from collections.abc import Collection
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dp_powerflow.cli import app
from dp_powerflow.config import Config
from dp_powerflow.fleet.feeders import FleetConfig
from support.pages import PROGRAM, is_a_command
from support.pages_that_run import ROOT, Block, blocks_in, blocks_of, commands_of, run_python

ELSEWHERE = {
    "index.md": "tests/test_readme.py",
    "tutorial/first-release.md": "tests/docs/test_tutorials.py",
    "tutorial/first-corpus.md": "tests/docs/test_tutorials.py",
    "how-to/use-a-release.md": "tests/ecosystem/test_recipes.py",
}
"""Pages whose Python and commands another test runs, because it looks at what they give."""
TYPED = {page for page in ELSEWHERE if page.startswith("tutorial/")}
"""Pages of which another test types every line into a shell."""
NOT_YET_MADE = {"how-to/twin.md", "how-to/own-data.md"}
"""Pages that plan a release before it is there."""
RUN = ("python", "console")
RECORDS = "results/"
"""Commands on these pages are what a figure was made by: minutes to hours. They are looked up, not run."""
OTHER_PROGRAMS = re.compile(
    r"(?:[A-Z_]+=\S+ )*"
    r"(?:python (?P<script>\S+\.py)(?P<options>( .*)?)|pytest .*|make (?P<target>\S+)|python -m .*"
    r"|pip .*|openssl .*|dask .*|export .*|gridfm_(?:graphkit|datakit) .*|/usr/bin/time -v dp-powerflow .*)"
)


def pages() -> list[str]:
    """Every page of the docs, by its path below docs/."""
    return sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))


def to_run(page: str) -> tuple[Block, ...]:
    """Blocks of a page that run here."""
    if page.startswith(RECORDS) or page in ELSEWHERE:
        return ()
    return tuple(block for block in blocks_of(page) if block.language in RUN and block.skip is None)


RUNNING = [page for page in pages() if to_run(page)]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNING)
def test_the_blocks_of_a_page_run_from_top_to_bottom(
    page: str, worlds: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds["fleet" if page == "how-to/fleet.md" else "operated"]
    folder = Path(shutil.copytree(world, tmp_path / "world"))
    if page in NOT_YET_MADE:
        shutil.rmtree(folder / "release")
    monkeypatch.chdir(folder)
    for block in to_run(page):
        if block.language == "python":
            for package in re.findall(r"to_(pandas|polars|xarray|zarr)\(|corpus\.(windows)\(", block.text):
                pytest.importorskip("torch" if package[1] else package[0])
            run_python(block.text, {})
        else:
            for command in commands_of(block):
                done = CliRunner().invoke(app, shlex.split(command.line, comments=True)[1:])
                assert done.exit_code == 0, f"{command.line}\n{done.output}\n{done.exception!r}"


def test_a_page_that_another_test_runs_is_named_there() -> None:
    for page, test in ELSEWHERE.items():
        if (ROOT / "docs" / page).exists():
            assert page in (ROOT / test).read_text(encoding="utf-8"), f"{test} does not mention {page}"


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{page}" for page in pages() if page not in TYPED)])
def test_every_command_that_is_shown_exists(page: str) -> None:
    shown = blocks_in((ROOT / page).read_text(encoding="utf-8"))
    saved = {block.title for block in shown}
    for block in shown:
        if block.language != "console":
            continue
        lines = [command.line for command in commands_of(block)]
        assert lines, f"{page}: a console block has no line that begins with '$'"
        for line in lines:
            assert known(line, saved), f"{page}: {line}"


def known(line: str, saved: Collection[str | None] = ()) -> bool:
    """Whether a command exists: program and options, script or target; those of others are taken as they are.

    `saved` are the files that the page lets its reader save.
    """
    for part in re.split(r" && ", re.sub(r"\s+#.*$", "", line)):
        typed = re.sub(r"^(?:[A-Z_]+=\S+ )*", "", part)
        if typed.startswith(PROGRAM):
            if not is_a_command(typed):
                return False
            continue
        found = OTHER_PROGRAMS.fullmatch(part)
        if found is None:
            return False
        if found["script"] and not (found["script"] in saved or runs(found["script"], found["options"])):
            return False
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        if found["target"] and not re.search(rf"^{found['target']}:", makefile, re.MULTILINE):
            return False
    return True


def runs(script: str, options: str) -> bool:
    """Whether there is such a script in the repository and it names the options."""
    file = ROOT / script
    wanted = re.findall(r"(?<!\S)--[\w-]+", options)
    return file.is_file() and all(f'"{option}"' in file.read_text(encoding="utf-8") for option in wanted)


@pytest.mark.parametrize("page", pages())
def test_a_block_that_does_not_run_says_why(page: str) -> None:
    for block in blocks_of(page):
        assert block.language in {*RUN, "toml", "text", "sh"}, f"{page}: a block of {block.language}"
        if block.skip is not None:
            assert len(block.skip.split()) > 1, f"{page}: {block.skip!r} is no reason"


@pytest.mark.parametrize("page", pages())
def test_every_key_of_a_config_that_is_shown_exists(page: str) -> None:
    for block in blocks_of(page):
        if block.language != "toml" or block.title is not None:
            continue
        for section, values in tomllib.loads(block.text).items():
            if section == "overrides":
                continue
            allowed = keys_of(section)
            assert set(values) <= allowed, f"{page}: [{section}] {set(values) - allowed}"


@cache
def keys_of(section: str) -> set[str]:
    """The keys that a section of a release or of a fleet may have."""
    found: set[str] = set()
    for model in (Config, FleetConfig):
        schema = model.model_json_schema()
        entry = schema["properties"].get(section)
        if entry is not None:
            for name in re.findall(r"#/\$defs/(\w+)", str(entry)):
                found |= schema["$defs"][name].get("properties", {}).keys()
    return found
