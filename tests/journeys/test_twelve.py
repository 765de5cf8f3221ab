"""The twelve journeys come to what they came to before: verdicts, ε, refusals, shapes, figures, swings."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dp_powerflow as dpf
from dp_powerflow.fidelity.metered import metered_days
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.plan import make_ready, open_state
from dp_powerflow.units import FloatArray
from journeys.twelve import DAYS, FEEDERS, JOURNEYS, own_meters, source_of

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden.json").read_text())
FIGURES = 1e-6
"""Relative: other versions of a library, other last digits."""
LONG = {"SMART-DS"}
# Largest daily swing of a node, released over metered; what they are is in docs/results/demo.md.
LIKE_THE_METERS = (0.25, 4.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.campaign] * (name in LONG)) for name in JOURNEYS]
)
def test_a_journey_comes_to_what_it_came_to(name: str, tmp_path: Path) -> None:
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


def daily_swing(magnitude: FloatArray) -> float:
    """Mean over days of highest less lowest |v| of a day, at the node where it is largest [p.u.]."""
    return float(np.ptp(magnitude, axis=1).mean(axis=0).max())


@pytest.mark.campaign
@pytest.mark.parametrize("name", FEEDERS)
def test_released_voltages_swing_as_those_of_the_meters(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The meters are simulated, so what they come to on the true network is no secret."""
    own_meters(tmp_path, source_of(name), homes=1000, days=7)
    config, corpus = dpf.read_config(tmp_path / "release.toml"), dpf.open_corpus(tmp_path / "release")
    ready, model = make_ready(config, open_state(config)), LoadModel.load(tmp_path / "release" / "model.json")
    released = np.abs(corpus.voltages())
    metered = metered_days(ready.inputs, mode_of(config), model, DAYS).magnitude
    assert 0.9 <= released.min() <= released.max() <= 1.1
    assert not corpus.scaled_down().any()
    assert LIKE_THE_METERS[0] < daily_swing(released) / daily_swing(metered) < LIKE_THE_METERS[1]
    for key, of in {"released": released, "metered": metered}.items():
        record_property(f"{name}, {key}", f"{of.min():.4f} {of.max():.4f} {daily_swing(of):.4f}")
