"""`verify` on the corpus of a fleet."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from dp_powerflow.errors import ConfigError
from dp_powerflow.fleet.feeders import partition
from dp_powerflow.fleet.verify import verify_fleet
from dp_powerflow.pipeline.verify.report import Check
from dp_powerflow.report.verification import Verification


def verify_fleet_directory(
    fleet: Path,
    private: Path | None,
    config: Path | None,
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Check every feeder of a fleet and what is said of the whole."""
    if config is not None:
        raise ConfigError(
            "--config recomputes the evidence of one release; give the directory of one feeder with it"
        )
    report = verify_fleet(fleet, private, progress=progress)
    feeders = [check for check in report.checks if check.name.startswith(partition(""))]
    intact = sum(check.ok for check in feeders)
    summary = Check(
        "releases", intact == len(feeders), f"{intact} of {len(feeders)} feeders have intact releases."
    )
    # Thousands of feeders: those that are as they should be get one line together.
    rest = [check for check in report.checks if check not in feeders or not check.ok]
    lines = [
        f"{'ok  ' if check.ok else 'FAIL'}  {check.name}: {check.sentence}" for check in (*rest, summary)
    ]
    lines += [f"attested, not checked  {statement}" for statement in report.attested]
    lines.append(f"verdict: {report.verdict}")
    return Verification(lines, json.dumps(report.to_json()), report.ok)
