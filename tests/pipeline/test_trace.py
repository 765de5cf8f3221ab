"""The path of a release is short: how many modules of the package one small release runs through."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import dp_powerflow
from dp_powerflow.pipeline.run import run_release
from support.small import small_config

PACKAGE = Path(dp_powerflow.__file__).parent
TWIN: dict[str, Any] = {
    **{"mode": "twin-network", "epsilon": 8.0, "delta": 1e-5, "id": "t1", "change": 0.05},
    **{"transformers": True, "capacitors": True},
    **{"released": "all", "publish": "network and loads", "graph_days": 2},
}


@contextmanager
def modules_visited() -> Iterator[list[str]]:
    """Modules of the package in which a function begins within the block, in the order of the first one."""
    seen: dict[str, None] = {}

    inside: dict[str, str | None] = {}

    def called(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code.co_name == "<module>":
            return
        name = inside.setdefault(code.co_filename, _module(Path(code.co_filename)))
        if name is not None:
            seen.setdefault(name)

    found: list[str] = []
    sys.setprofile(called)
    try:
        yield found
    finally:
        sys.setprofile(None)
        found += seen


def _ours(path: Path) -> bool:
    return PACKAGE in path.parents and path.suffix == ".py"  # a page template is no module


def _module(path: Path) -> str | None:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts) if _ours(path) else None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "most"),
    [
        pytest.param(TWIN | {"publish": "voltages", "graph_days": None}, 60, id="twin"),
        pytest.param(TWIN, 62, id="twin with its tables"),
        # Theorem 1 and the Jacobians beside what a twin needs: more than the aim of 50.
        pytest.param({}, 65, id="true network"),
    ],
)
def test_a_release_visits_few_modules(tmp_path: Path, network: dict[str, Any], most: int) -> None:
    # Once unwatched: compiling kernels under a profiler takes minutes.
    run_release(small_config(tmp_path / "first", release={"days": 3}, network=network), workers=1)
    config = small_config(tmp_path, release={"days": 3}, network=network)
    with modules_visited() as visited:
        run_release(config, workers=1)
    listed = "\n".join(f"{k:3} {name}" for k, name in enumerate(visited, start=1))
    assert "pipeline.run" in visited
    assert len(visited) <= most, f"{len(visited)} modules, in the order of the first call:\n{listed}"
