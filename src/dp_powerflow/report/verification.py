"""What `verify` found, for a person and for a machine."""

from __future__ import annotations

import json
from collections.abc import Iterable

from dp_powerflow.fleet.feeders import partition
from dp_powerflow.pipeline.verify.report import Check, VerifyReport
from dp_powerflow.report import Rendered


def render_verification(report: VerifyReport) -> Rendered:
    """Every check of a release; of a fleet, the feeders that are as they should be get one line together."""
    feeders = [check for check in report.checks if check.name.startswith(partition(""))]
    shown = [check for check in report.checks if check not in feeders or not check.ok]
    if feeders:
        intact = sum(check.ok for check in feeders)
        sentence = f"{intact} of {len(feeders)} feeders have intact releases."
        shown.append(Check("releases", intact == len(feeders), sentence))
    attested = (f"attested, not checked  {statement}" for statement in report.attested)
    lines = [*_lines(shown), *attested, f"verdict: {report.verdict}"]
    return Rendered(lines, json.dumps(report.to_json()))


def _lines(checks: Iterable[Check]) -> Iterable[str]:
    return (f"{'ok  ' if check.ok else 'FAIL'}  {check.name}: {check.sentence}" for check in checks)
