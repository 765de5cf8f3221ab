"""`certify`: the network evidence of a config, printed and kept in the private state directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from dp_powerflow.certificate.calibration import Progress
from dp_powerflow.certificate.plain import plain
from dp_powerflow.config import Config
from dp_powerflow.errors import ConfigError
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.release.assembly import feeder_of
from dp_powerflow.release.network import evidence_of
from dp_powerflow.release.pipeline import nodes_of
from dp_powerflow.report.evidence_table import evidence_lines
from dp_powerflow.report.figures import draw_epsilon_against_radius
from dp_powerflow.report.inspection import INTERNAL

MODEL_FILE = "model.json"


@dataclass(frozen=True)
class Certification:
    """What `certify` shows, and where it was written."""

    marking: str
    lines: list[str]
    json_text: str
    directory: Path


def certify_config(
    config: Config, model_path: Path | None, *, progress: Progress | None = None
) -> Certification:
    """Evaluate and write the evidence; spends nothing."""
    state = PrivateState.open(config.release.state, insecure_seed=config.release.insecure_seed)
    directory = state.internal_directory(config.release.id)
    path = model_path or directory / MODEL_FILE
    if not path.is_file():
        raise ConfigError(
            f"there is no load model at {path}; run 'dp-powerflow release' first, or name one with --model"
        )
    model = LoadModel.load(path)
    feeder = feeder_of(config)
    nodes = nodes_of(config, feeder, model, state.stream_key().bind("release", config.release.id))
    evidence = evidence_of(config, feeder, model, nodes, state.stream_key(), progress=progress)
    lines = evidence_lines(evidence)
    text = json.dumps({"marking": INTERNAL, **plain(evidence)}, indent=1, sort_keys=True)
    state.write_internal(config.release.id, "network-evidence.json", text.encode())
    state.write_internal(
        config.release.id, "network-evidence.md", "\n".join([f"**{INTERNAL}**", "", *lines, ""]).encode()
    )
    figure = draw_epsilon_against_radius(evidence, INTERNAL)
    state.write_internal(config.release.id, "epsilon-against-radius.svg", figure)
    return Certification(INTERNAL, lines, text, directory)
