"""What `verify` prints of a fleet: counts, then the feeders that failed, however many feeders there are."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import cast

import pytest

from dp_powerflow.cli.checks import render_verification
from dp_powerflow.cli.fleet import render_fleet_plan
from dp_powerflow.fleet.run import FleetPlan, Outcome
from dp_powerflow.manifest.model import Check
from dp_powerflow.manifest.verify import VerifyReport

GOOD = Check("files", True, "All files are there.")
BAD = Check("files", False, "data/part-0.parquet was changed.")
SEEDED = Check("random source", False, "The noise came from an insecure seed.")
WHOLE = Check("feeders", True, "All feeders are there and nothing else.")


def feeder(*checks: Check) -> VerifyReport:
    return VerifyReport("north_feeder", "0", checks, ())


def fleet(*reports: VerifyReport, attested: tuple[str, ...] = ()) -> VerifyReport:
    """As `verify_fleet` puts it together."""
    checks = [WHOLE]
    for number, report in enumerate(reports, start=1):
        bad = [check for check in report.failures if check != SEEDED]
        sentence = f"{bad[0].name}: {bad[0].sentence}" if bad else "Its release is intact."
        checks.append(Check(f"feeder=feeder-{number:04d}", not bad, sentence))
    return VerifyReport("north", "0", tuple(checks), attested)


def lines(report: VerifyReport) -> list[str]:
    return render_verification(report).lines


def test_intact_feeders_are_counted_in_one_line_and_the_others_are_told() -> None:
    whole = "ok    feeders: All feeders are there and nothing else."
    assert lines(fleet(*[feeder(GOOD)] * 1000)) == [
        whole,
        "ok    releases: 1,000 feeders intact.",
        "verdict: release",
    ]
    assert lines(fleet(*[feeder(GOOD)] * 997, *[feeder(BAD)] * 3)) == [
        whole,
        "FAIL  releases: 997 of 1,000 feeders intact.",
        *(f"FAIL  feeder=feeder-{k:04d}: files: data/part-0.parquet was changed." for k in (998, 999, 1000)),
        "verdict: not intact",
    ]


def test_twenty_failed_feeders_are_told_the_rest_counted_and_the_json_has_all() -> None:
    report = fleet(*[feeder(BAD)] * 55)
    rendered = render_verification(report)
    assert sum(line.startswith("FAIL  feeder=") for line in rendered.lines) == 20
    assert rendered.lines[-2] == "FAIL  and 35 more feeders; --json lists all."
    found = json.loads(rendered.json_text)
    assert sum(not check["ok"] for check in found["checks"]) == 55


def test_statements_that_differ_in_a_name_are_one_line() -> None:
    attested = (
        *(f"Twin 'north_feeder-{k:04d}' was drawn once." for k in range(1, 1001)),
        "The owner's key was kept secret.",
        "The owner's word is all there is.",
    )
    assert [line for line in lines(fleet(feeder(GOOD), attested=attested)) if "attested" in line] == [
        "attested, not checked  Twin 'north_feeder-0001' was drawn once. The same holds for 999 more.",
        "attested, not checked  The owner's key was kept secret.",
        "attested, not checked  The owner's word is all there is.",
    ]


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (feeder(GOOD), "VerifyReport('north_feeder': release, 1 check)"),
        (feeder(GOOD, SEEDED), "VerifyReport('north_feeder': demonstration, 2 checks)"),
        (feeder(BAD), "VerifyReport('north_feeder': not intact, 1 check, failed: files)"),
        (
            fleet(*[feeder(BAD)] * 5),
            "VerifyReport('north': not intact, 6 checks, failed: feeder=feeder-0001, feeder=feeder-0002, "
            "feeder=feeder-0003 and 2 more)",
        ),
    ],
    ids=["release", "demonstration", "not intact", "fleet"],
)
def test_a_report_is_shown_in_one_line(report: VerifyReport, said: str) -> None:
    assert repr(report) == said


# ------------------------------------------------------------------------------- the plan of a fleet


def rows(good: int, *, refused: tuple[int, ...] = ()) -> list[str]:
    """The lines about the feeders of a fleet."""
    problems = dict.fromkeys(refused, ("No | source.", "feeder-without-source"))
    feeders = tuple(
        Outcome(f"street {k}", f"feeder-{k:04d}", problem, code)
        for k in range(1, good + 1)
        for problem, code in [problems.get(k, (None, None))]
    )
    config = SimpleNamespace(
        fleet=SimpleNamespace(id="f", days=3),
        model=SimpleNamespace(epsilon=1.0),
        network=SimpleNamespace(mode="twin-network"),
    )
    cap = SimpleNamespace(unit="load-point")
    cost = SimpleNamespace(delta=1e-5, loads_cap=cap, warnings=(), notes=(), estimator=None, predicted=())
    loads = SimpleNamespace(
        already_charged=True, affordable=True, after=SimpleNamespace(left={"epsilon": 1.0})
    )
    planned = SimpleNamespace(config=config, cost=cost, loads=loads, feeders=feeders, ingest=None)
    lines = render_fleet_plan(cast(FleetPlan, planned)).lines
    return lines[lines.index("|---|---|---|") + 1 :]


def test_a_large_fleet_lists_all_that_are_refused_and_twenty_others() -> None:
    found = rows(1000, refused=(500, 900))
    assert "| street 500 | feeder-0500 | cannot be released: No / source. |" in found
    assert "| street 900 | feeder-0900 | cannot be released: No / source. |" in found
    assert len([row for row in found if row.startswith("| street")]) == 22
    assert "And 978 more that can be released; --json lists all." in found
    assert found[-3:] == [
        "**2 feeders cannot be released**, all else could:",
        "",
        "- `feeder-without-source`: 2 (street 500, street 900)",
    ]
