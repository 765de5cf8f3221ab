"""What `verify` found, for a person and for a machine."""

from __future__ import annotations

import json

from dp_powerflow.fleet.names import partition
from dp_powerflow.pipeline.manifest.policy import NO_PROTECTION, Check
from dp_powerflow.pipeline.release_checks import SEED
from dp_powerflow.pipeline.verify import VerifyReport
from dp_powerflow.report import Rendered


def render_verification(report: VerifyReport) -> Rendered:
    """Every check of a release; of a fleet, the feeders that are as they should be get one line together."""
    feeders = [check for check in report.checks if check.name.startswith(partition(""))]
    shown = [check for check in report.checks if check not in feeders or not check.ok]
    if feeders:
        intact = sum(check.ok for check in feeders)
        sentence = f"{intact} of {len(feeders)} feeders have intact releases."
        shown.append(Check("releases", intact == len(feeders), sentence))
    checks = (f"{_mark(check, report)}  {check.name}: {check.sentence}" for check in shown)
    attested = (f"attested, not checked  {statement}" for statement in report.attested)
    warnings = (f"WARNING  {warning}" for warning in report.warnings)
    weak = f"; {NO_PROTECTION}" if any(text.startswith(NO_PROTECTION) for text in report.warnings) else ""
    found = f"{report.verdict}: intact" if report.verdict == "demonstration" else report.verdict
    lines = [*warnings, *checks, *attested, f"verdict: {found}{weak}"]
    return Rendered(lines, json.dumps(report.to_json()))


def _mark(check: Check, report: VerifyReport) -> str:
    """Of a demonstration that is intact, the seed is no failure but what makes it one."""
    if check.name == SEED and not check.ok and report.intact:
        return "demo"
    return "ok  " if check.ok else "FAIL"
