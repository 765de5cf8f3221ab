"""`verify`: what a third party, or an auditor with the private state, can recompute of a release."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from dp_powerflow.config import Config, TwinNetwork, read_config
from dp_powerflow.errors import ConfigError, PrivacyError
from dp_powerflow.evidence.collect import Evidence
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.assembly import feeder_of
from dp_powerflow.pipeline.charge import network_identity
from dp_powerflow.pipeline.manifest.model import MODEL_FILE
from dp_powerflow.pipeline.network import evidence_of, lines_of, true_section
from dp_powerflow.pipeline.run import internal_report, nodes_of, report_bytes
from dp_powerflow.pipeline.twin import spread_of, stored_twin, twin_key
from dp_powerflow.pipeline.twin_report import twin_report
from dp_powerflow.pipeline.verify.private import verify_private
from dp_powerflow.pipeline.verify.report import VerifyReport
from dp_powerflow.pipeline.verify.run import verify_release
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.twin.draw import Twin, draw_twin, parameters_of, rebuilder_of


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
        audit = _Audit(release, read_config(config), PrivateState.inspect(private))
        report = verify_private(release, private, audit.report, audit.twin_is_the_one_kept)
    lines = [*_lines(report), f"verdict: {report.verdict}"]
    content = {"verdict": report.verdict, **asdict(report)}
    return Verification(lines, json.dumps(content), report.ok)


@dataclass(frozen=True, eq=False)
class _Audit:
    """What a config and the private state give again; PRIVATE."""

    release: Path
    config: Config
    state: PrivateState

    def report(self) -> bytes:
        """The internal report; that of a twin is made with a twin drawn anew."""
        feeder = feeder_of(self.config)
        model = LoadModel.load(self.release / MODEL_FILE)
        key = self.state.stream_key().bind("release", self.config.release.id)
        if isinstance(self.config.network, TwinNetwork):
            dropped = self.config.feeder.drop_islanded
            source = rebuilder_of(feeder, spread_of(self.config), drop_islanded=dropped)
            twin = self._drawn(feeder).feeder(source)
            nodes = nodes_of(self.config, twin, model, key)
            found = twin_report(self.config, self.state, feeder, twin, model, nodes)
            return internal_report(self.config, True, found)
        nodes = nodes_of(self.config, feeder, model, key)
        secret = self.state.stream_key()
        evidence: Evidence | str
        try:
            evidence = evidence_of(self.config, feeder, model, nodes, secret, curves=False)
        except PrivacyError as error:
            if true_section(self.config).require_evidence:
                raise
            evidence = f"none: {error}"
        return report_bytes(self.config, evidence, lines_of(self.config, feeder, model, nodes, secret))

    def twin_is_the_one_kept(self) -> bool:
        """Whether key and true network give the twin that all was solved on."""
        feeder = feeder_of(self.config)
        kept = stored_twin(self.config, self.state, network_identity(self.config, self.state, feeder))
        return kept is not None and kept.to_json() == self._drawn(feeder).to_json()

    def _drawn(self, feeder: Feeder) -> Twin:
        dataset = network_identity(self.config, self.state, feeder)
        key = twin_key(self.config, self.state, dataset)
        spread = spread_of(self.config)
        return draw_twin(parameters_of(rebuilder_of(feeder, spread), spread), spread, key)


def _lines(report: VerifyReport) -> list[str]:
    checks = [f"{'ok  ' if check.ok else 'FAIL'}  {check.name}: {check.sentence}" for check in report.checks]
    attested = [f"attested, not checked  {statement}" for statement in report.attested]
    return [*checks, *attested]
