"""`verify`: what a third party, or an auditor with the private state, can recompute of a release."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from dp_powerflow.config import Config, read_config
from dp_powerflow.errors import ConfigError
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.inputs import read_network
from dp_powerflow.pipeline.manifest.model import MODEL_FILE
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.verify.private import verify_private
from dp_powerflow.pipeline.verify.report import VerifyReport
from dp_powerflow.pipeline.verify.run import verify_release
from dp_powerflow.privacy.state import PrivateState


@dataclass(frozen=True)
class Verification:
    """Lines for a person, JSON for a machine, and whether this may be called a release."""

    lines: list[str]
    json_text: str
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
        report = _audit(release, read_config(config), PrivateState.inspect(private))
    lines = [*_lines(report), f"verdict: {report.verdict}"]
    content = {"verdict": report.verdict, **asdict(report)}
    return Verification(lines, json.dumps(content), report.ok)


def _audit(release: Path, config: Config, state: PrivateState) -> VerifyReport:
    """What a config and the private state give again, by the code that makes releases."""
    model, mode = LoadModel.load(release / MODEL_FILE), mode_of(config)
    inputs = read_network(config, state, model.n_steps)
    kept = mode.kept_is_the_one(inputs)
    return verify_private(
        release,
        state.root,
        recompute=lambda: mode.report_again(inputs, model).content,
        redraw=None if kept is None else lambda: bool(kept),
    )


def _lines(report: VerifyReport) -> list[str]:
    checks = [f"{'ok  ' if check.ok else 'FAIL'}  {check.name}: {check.sentence}" for check in report.checks]
    attested = [f"attested, not checked  {statement}" for statement in report.attested]
    return [*checks, *attested]
