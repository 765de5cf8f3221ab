"""The figure of ε against the radius can be read: one curve per mode, the policy marked, refusals named."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dp_powerflow._certify import draw_epsilon_against_radius
from dp_powerflow.evidence.collect import BoundCurve, Evidence, Policy, RadiusInLines
from dp_powerflow.evidence.scope import Mode

RADII = (1e-12, 1e-10, 1e-8, 1e-6)


def curve(mode: Mode, floor: float, *epsilon: float | None, law: Any = "this release") -> BoundCurve:
    return BoundCurve(mode, law, floor, RADII, epsilon, (0.01,) * len(RADII))


def evidence(*curves: BoundCurve, refused: str = "") -> Evidence:
    """What the figure reads of the evidence."""
    day = SimpleNamespace(epsilon=None, violations=(refused,))
    rows = [SimpleNamespace(mode="paper", day=day)] if refused else []
    policy = Policy(radius=1e-9, epsilon=100.0, delta=0.1, days=10)
    lines = RadiusInLines(1e-10, 1e-11, 1e-12, None)
    return cast(Evidence, SimpleNamespace(policy=policy, curves=curves, rows=rows, lines=lines))


def words(picture: bytes) -> list[str]:
    """Every text of an SVG file, which has its letters as shapes and its words as remarks."""
    return re.findall(r"<!-- (.*?) -->", picture.decode())


def test_a_curve_has_its_floors_as_a_band_and_says_where_its_bound_ends() -> None:
    made = draw_epsilon_against_radius(
        evidence(
            curve("full-support", 0.0, 1e-3, 1e-1, 10.0, None),
            curve("full-support", 0.1, 1e-4, 1e-2, None, None),
            curve("corrected", 0.0, 1e-5, 1e-3, 1e-1, 10.0, law="not this release"),
            refused="Assumption 1 fails",
        ),
        "INTERNAL",
    )
    shown = words(made)
    assert "INTERNAL" in shown
    assert "full-support: floor 0 (band: floors 0 to 0.1)" in shown
    assert "full-support: no bound beyond r = 1e-08" in shown
    assert "corrected: floor 0, not this release" in shown
    assert "policy: r = 1e-09, ε = 10 a day (100 for 10 days)" in shown
    assert "paper: no number at the policy's r, Assumption 1 fails" in shown
    assert "r, Frobenius norm of a change of lines [p.u.]" in shown
    assert len([text for text in shown if text.startswith(("full-support", "corrected"))]) == 3


@pytest.mark.parametrize("form", ["svg", "png"])
def test_a_network_without_any_bound_has_a_figure_that_says_so(form: str) -> None:
    made = draw_epsilon_against_radius(evidence(curve("paper", 0.0, None, None, None, None)), None, form)
    if form == "svg":
        assert "Theorem 1 on this network: no bound at any r shown" in words(made)
    assert made.startswith(b"<?xml" if form == "svg" else b"\x89PNG")
