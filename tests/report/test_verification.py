"""What `verify` prints of a fleet: counts, then the feeders that failed, however many feeders there are."""

from __future__ import annotations

import json

from dp_powerflow.cli.checks import render_verification
from dp_powerflow.fleet.manifest import FleetReport
from dp_powerflow.fleet.verify import kinds_of
from dp_powerflow.manifest.model import Check
from dp_powerflow.manifest.verify import VerifyReport

GOOD = Check("files", True, "All files are there.")
BAD = Check("files", False, "data/part-0.parquet was changed.")
SEEDED = Check("random source", False, "The noise came from an insecure seed.")
WHOLE = Check("feeders", True, "All feeders are there and nothing else.")


def feeder(*checks: Check) -> VerifyReport:
    return VerifyReport("north_feeder", "0", checks, ())


def fleet(*reports: VerifyReport, attested: tuple[str, ...] = ()) -> FleetReport:
    """As `verify_fleet` puts it together."""
    checks = [WHOLE]
    for number, report in enumerate(reports, start=1):
        bad = [check for check in report.failures if check != SEEDED]
        sentence = f"{bad[0].name}: {bad[0].sentence}" if bad else "Its release is intact."
        checks.append(Check(f"feeder=feeder-{number:04d}", not bad, sentence))
    return FleetReport("north", "0", tuple(checks), attested, (), kinds_of(reports))


def lines(report: VerifyReport) -> list[str]:
    return render_verification(report).lines


def test_intact_feeders_are_one_line_with_the_number_of_checks() -> None:
    manifest = Check("manifest", True, "Good.")
    assert lines(fleet(*[feeder(GOOD, manifest)] * 1000)) == [
        "ok    feeders: All feeders are there and nothing else.",
        "ok    releases: 1,000 feeders intact: 2 checks each.",
        "verdict: release",
    ]
    assert "ok    releases: 1 feeder intact: 2 checks each." in lines(fleet(feeder(GOOD, manifest)))


def test_a_failure_is_counted_by_its_kind_and_told_with_its_feeder() -> None:
    manifest = Check("manifest", True, "Good.")
    report = fleet(*[feeder(GOOD, manifest)] * 997, *[feeder(BAD, manifest)] * 3)
    assert lines(report) == [
        "ok    feeders: All feeders are there and nothing else.",
        "FAIL  releases: 997 of 1,000 feeders intact.",
        "FAIL    files: fails in 3 of 1,000 feeders.",
        "ok      manifest: no feeder fails.",
        *(f"FAIL  feeder=feeder-{k:04d}: files: data/part-0.parquet was changed." for k in (998, 999, 1000)),
        "verdict: not intact",
    ]
    assert not report.intact


def test_twenty_failed_feeders_are_told_the_rest_counted_and_the_json_has_all() -> None:
    report = fleet(*[feeder(BAD)] * 55)
    rendered = render_verification(report)
    assert sum(line.startswith("FAIL  feeder=") for line in rendered.lines) == 20
    assert rendered.lines[-2] == "FAIL  and 35 more feeders; --json lists all."
    found = json.loads(rendered.json_text)
    assert sum(not check["ok"] for check in found["checks"]) == 55
    assert found["feeder_checks"] == [{"name": "files", "feeders": 55, "failed": 55}]


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


def test_a_report_is_shown_in_one_line() -> None:
    assert repr(feeder(GOOD, SEEDED)) == "VerifyReport('north_feeder': demonstration, 2 checks)"
    failed = ", ".join(f"feeder=feeder-000{k}" for k in (1, 2, 3))
    said = f"FleetReport('north': not intact, 6 checks, failed: {failed} and 2 more)"
    assert repr(fleet(*[feeder(BAD)] * 5)) == said
