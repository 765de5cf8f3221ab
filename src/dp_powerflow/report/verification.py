"""`verify`: what a third party, or an auditor with the private state, can recompute of a release."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from dp_powerflow.config import read_config
from dp_powerflow.errors import ConfigError
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.release.assembly import feeder_of
from dp_powerflow.release.network import evidence_of
from dp_powerflow.release.pipeline import nodes_of, report_bytes
from dp_powerflow.release.verify import verify_release
from dp_powerflow.release.verify_private import verify_private
from dp_powerflow.release.verify_report import VerifyReport


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
    else:
        recompute = None if config is None else _recomputation(release, private, config)
        report = verify_private(release, private, recompute)
    lines = [*_lines(report), f"verdict: {report.verdict}"]
    content = {"verdict": report.verdict, **asdict(report)}
    return Verification(lines, json.dumps(content), report.ok)


def _recomputation(release: Path, private: Path, config: Path) -> Callable[[], bytes]:
    def recompute() -> bytes:
        settings = read_config(config)
        state = PrivateState.inspect(private)
        feeder = feeder_of(settings)
        model = LoadModel.load(release / "model.json")
        key = state.stream_key().bind("release", settings.release.id)
        nodes = nodes_of(settings, feeder, model, key)
        evidence = evidence_of(settings, feeder, model, nodes, state.stream_key(), curves=False)
        return report_bytes(settings, evidence)

    return recompute


def _lines(report: VerifyReport) -> list[str]:
    checks = [f"{'ok  ' if check.ok else 'FAIL'}  {check.name}: {check.sentence}" for check in report.checks]
    attested = [f"attested, not checked  {statement}" for statement in report.attested]
    return [*checks, *attested]
