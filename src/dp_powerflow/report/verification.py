"""`verify`: what a third party, or an auditor with the private state, can recompute."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dp_powerflow.config import read_config
from dp_powerflow.errors import ConfigError
from dp_powerflow.pipeline.audit import audit_release
from dp_powerflow.pipeline.verify.private import verify_private
from dp_powerflow.pipeline.verify.report import Check, VerifyReport
from dp_powerflow.pipeline.verify.run import verify_release
from dp_powerflow.report import Rendered


@dataclass(frozen=True)
class Verification(Rendered):
    """The report, rendered, and whether this may be called a release."""

    ok: bool


def verify_directory(release: Path, private: Path | None, config: Path | None) -> Verification:
    """Check a release from itself alone, and with the private state if it is given."""
    if config is not None and private is None:
        raise ConfigError("--config recomputes the evidence and needs --private STATE beside it")
    if private is None:
        report = verify_release(release)
    elif config is None:
        report = verify_private(release, private)
    else:
        report = audit_release(release, read_config(config), private)
    return rendered(report, report.checks)


def rendered(report: VerifyReport, checks: Iterable[Check]) -> Verification:
    """A report of which these checks are shown."""
    lines = [f"{'ok  ' if check.ok else 'FAIL'}  {check.name}: {check.sentence}" for check in checks]
    lines += [f"attested, not checked  {statement}" for statement in report.attested]
    lines.append(f"verdict: {report.verdict}")
    return Verification(lines, json.dumps(report.to_json()), report.ok)
