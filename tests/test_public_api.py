"""The front door: which names there are, what they cost to import, and that their examples run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import dp_powerflow as dpf

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"^::: dp_powerflow\.(\w+)$", PAGE, re.MULTILINE)) - {"errors"})
FUNCTIONS = [name for name in NAMES if name.islower()]
TYPES = [name for name in NAMES if not name.islower()]
HEAVY = ("numpy", "scipy", "numba", "pyarrow", "dss", "pandas", "matplotlib", "pydantic")


def test_the_public_names_are_those_of_the_page_and_no_others() -> None:
    assert sorted(vars(dpf)["__all__"]) == sorted((*NAMES, "__version__", "errors"))
    assert sorted(name for name in dir(dpf) if not name.startswith("_")) == sorted((*NAMES, "errors"))


def test_type_checkers_see_the_names_that_there_are() -> None:
    stub = (ROOT / "src" / "dp_powerflow" / "__init__.pyi").read_text(encoding="utf-8")
    assert set(re.findall(r"as (\w+)$", stub, re.MULTILINE)) == set(vars(dpf)["__all__"])
    for module, name in re.findall(r"^from dp_powerflow\.([\w.]+) import \w+ as (\w+)$", stub, re.MULTILINE):
        found = getattr(importlib.import_module(f"dp_powerflow.{module}"), name)
        assert getattr(dpf, name) is found


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="releese"):
        getattr(dpf, "releese")  # noqa: B009


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = f"import sys, dp_powerflow; print([m for m in {HEAVY!r} if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "[]"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_says_what_it_takes_gives_and_refuses(name: str) -> None:
    text = inspect.getdoc(getattr(dpf, name)) or ""
    for section in ("Parameters", "Returns", "Raises", "Examples"):
        assert f"\n{section}\n{'-' * len(section)}\n" in text, section
    for parameter in inspect.signature(getattr(dpf, name)).parameters:
        assert re.search(rf"^{parameter}( :|,|$)", text, re.MULTILINE), parameter


@pytest.mark.parametrize("name", TYPES)
def test_every_type_is_documented(name: str) -> None:
    assert len(inspect.getdoc(getattr(dpf, name)) or "") > 20


@pytest.fixture(scope="module")
def beside_a_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `release.toml`, the release it makes, and one with tables for graph models."""
    folder = tmp_path_factory.mktemp("front-door")
    config = runpy.run_path(str(ROOT / "examples" / "release.py"))["CONFIG"]
    (folder / "release.toml").write_text(config, encoding="utf-8")
    dpf.release(dpf.read_config(folder / "release.toml"), workers=1)
    for old, new in {
        'controls = "day"  ': 'controls = "frozen"\npublish = "network and loads"  ',
        'output = "release"': 'output = "tables"',
        'state = "private-state"': 'state = "state-of-tables"',
        "days = 14": "days = 2",
    }.items():
        assert old in config
        config = config.replace(old, new)
    (folder / "tables.toml").write_text(config, encoding="utf-8")
    dpf.release(dpf.read_config(folder / "tables.toml"), workers=1)
    return folder


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_example_in_a_docstring_runs(
    name: str, monkeypatch: pytest.MonkeyPatch, beside_a_release: Path
) -> None:
    monkeypatch.chdir(beside_a_release)
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(getattr(dpf, name), name, globs={})
    assert example.examples
    outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(example)
    assert outcome.failed == 0


@pytest.mark.parametrize("name", ["by_hand.py", "release.py"])
def test_the_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")


def test_every_example_is_run_by_a_test() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert [path.name for path in (ROOT / "examples").glob("*.py") if f'"{path.name}"' not in tests] == []


def test_readers_of_examples_never_see_a_submodule() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.py")]
    deeper = re.compile(r"^\s*(>>> )?(from dp_powerflow\.|import dp_powerflow\.)", re.MULTILINE)
    assert [str(page) for page in pages if deeper.search(page.read_text(encoding="utf-8"))] == []


def test_controls_that_act_through_a_day_need_its_number_of_steps() -> None:
    feeder = dpf.open_feeder("ieee13")
    with pytest.raises(dpf.errors.PowerFlowError, match="needs steps"):
        dpf.solve(feeder, feeder.nominal_load[None, :], controls="day")
