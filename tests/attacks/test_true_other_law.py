"""A number about a law that the release does not draw from must not be read as one about the release."""

from __future__ import annotations

import numpy as np
import pytest

from dp_powerflow._certify import evidence_lines
from dp_powerflow.evidence.collect import Evidence, Instance, Policy, collect_evidence, plain
from dp_powerflow.grid.reduction import Network
from dp_powerflow.model.law import ClassLaw, nominal_law
from dp_powerflow.privacy.random import StreamKey
from support.line_feeders import chain

MARK = "not this release"


def evidence(*, random_q: bool) -> Evidence:
    of_class = ClassLaw.gaussian(
        np.zeros(2), 0.09 * np.eye(2), margins=(0.1, 10.0), q_covariance=np.eye(2) if random_q else None
    )
    law = nominal_law(np.full(3, 0.02 + 0.01j), of_class, 0.15 if random_q else None)
    policy = Policy(radius=1e-9, epsilon=50.0, delta=0.9, days=1, calibration_days=20)
    key = StreamKey.from_insecure_seed(0)
    return collect_evidence(Instance(Network(chain(3)), law), policy, key, curves=False)


@pytest.mark.parametrize("random_q", [True, False])
def test_rows_about_another_law_are_marked_in_text_and_json(random_q: bool) -> None:
    """At ffefb60 `certify` printed ε of the corrected mode beside a release that draws untruncated loads."""
    found = evidence(random_q=random_q)
    lines = evidence_lines(found)
    rows = {row["mode"]: row["law"] for row in plain(found)["rows"]}
    other = {"paper", "corrected"} if random_q else set()
    assert {mode for mode, law in rows.items() if law == MARK} == other
    first = lines.index(next(line for line in lines if line.startswith("| row ")))
    table = {line.split("|")[1].strip() for line in lines[first + 2 : lines.index("", first)]}
    bounds = {f"{mode} ({MARK})" if mode in other else mode for mode in rows}
    assert bounds < table
    assert len(table - bounds) == 2
    for printed in table - bounds:
        assert printed.startswith("formula as printed, not a bound here")
        assert (MARK in printed) is random_q
