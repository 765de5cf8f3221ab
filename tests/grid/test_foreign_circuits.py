"""Circuits that utilities resemble: each ends where OpenDSS ends, or is refused with the name of what is not
modelled. The rows of the table in docs/results/solvers.md are logged.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow import Feeder, OperatedSolver, open_feeder
from dp_powerflow.errors import DpPowerflowError
from support.engine_controls import ControlledEngine, agreement, random_loads, starts_of
from support.feeder_survey import opendss_masters

LOG = logging.getLogger(__name__)
SNAPSHOTS = 41
CLOSE = 1e-6
"""Largest |ΔV| where taps are equal [p.u.]."""
FLOATING = "ieee9500"
FLOATING_CLOSE = 1e-4
"""The same where generators stand on buses without ground: OpenDSS itself is no closer there."""
STIFF = "rahul123/ieee123master_base.dss"
"""Its source has 1e-8 ohm, so that rounding hides more at the node that it holds."""
CIRCUITS = (
    "ckt5/Master_ckt5.dss",
    "ckt7/Master_ckt7.dss",
    "epri_dpv/J1/Master_noPV.dss",
    "epri_dpv/J1/Master_withPV.dss",
    "epri_dpv/M1/Master_NoPV.dss",
    "8500-Node/Master.dss",
    "8500-Node/Master-unbal.dss",
)
REFUSED = {
    "4Bus-YYD/YYD-Master.DSS": "no load and no generation",
    "9500-primary-network/Master-unbal-initial-config.dss": "line 87 of Master-unbal-initial-config.dss",
}
"""Circuits that are refused, and what the sentence names."""


def neutral(feeder: Feeder) -> list[int]:
    operation = feeder.as_operated
    return [0] * len(operation.regulators) + [int(bank.closed) for bank in operation.capacitors]


def check(name: str, source: Path, n: int, *, from_neutral: bool) -> None:
    """Compare random snapshots with OpenDSS from the same taps."""
    if name in REFUSED:
        with pytest.raises(DpPowerflowError, match=REFUSED[name]) as refusal:
            open_feeder(source, drop_islanded=True)
        LOG.info("| `%s` | refused: %s | | |", name, refusal.value)
        return
    solver = OperatedSolver(open_feeder(source, drop_islanded=True), threads=1)
    if from_neutral:
        solver._first = np.array([neutral(solver.feeder)], dtype=np.int64)
    load = random_loads(solver.feeder, n)
    solution = solver.solve(load, nodes="all")
    floating = FLOATING in name
    engine = ControlledEngine(solver.feeder, tolerance=1e-5 if floating else 1e-9).run(
        load, starts_of(solver, load)
    )
    found = agreement(solution, engine)
    solved = int(solution.converged.sum())
    start = "neutral" if from_neutral else "table"
    row = (name, start, solved, n, found.same, found.settled, found.largest)
    LOG.info("| `%s`, %s | %d of %d | %d of %d | %.1e |", *row)
    assert solution.mismatch[solution.converged].max() <= (1e-7 if name == STIFF else 1e-8)
    assert solved >= 0.97 * n
    assert found.same == found.settled >= 0.85 * n
    assert found.largest <= (FLOATING_CLOSE if floating else CLOSE)


@pytest.mark.slow
def test_a_feeder_of_epri_ends_where_opendss_ends(circuits: Path) -> None:
    check("M1", circuits / "epri_dpv/M1/Master_NoPV.dss", 12, from_neutral=False)


@pytest.mark.campaign
@pytest.mark.parametrize("from_neutral", [False, True], ids=["table", "neutral"])
@pytest.mark.parametrize("name", CIRCUITS)
def test_foreign_circuits_end_where_opendss_ends_or_are_refused_by_name(
    name: str, from_neutral: bool, circuits: Path
) -> None:
    check(name, circuits / name, SNAPSHOTS, from_neutral=from_neutral)


@pytest.mark.campaign
def test_every_circuit_of_the_wheel_ends_where_opendss_ends_or_is_refused_by_name(
    foreign_cases: Path,
) -> None:
    failed = {}
    for source in opendss_masters(foreign_cases):
        name = source.relative_to(foreign_cases).as_posix()
        try:
            check(name, source, SNAPSHOTS, from_neutral=False)
        except (AssertionError, DpPowerflowError) as error:
            failed[name] = str(error)
    assert failed == {}
