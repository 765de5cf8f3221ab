"""`certify`: the network evidence of a config, printed and kept in the private state directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from dp_powerflow.config import Config
from dp_powerflow.errors import ConfigError
from dp_powerflow.evidence.calibration import Progress
from dp_powerflow.evidence.collect import plain
from dp_powerflow.evidence.lines.collect import LineReport
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.inputs import read_network
from dp_powerflow.pipeline.modes.base import Solvable, mode_of
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.report.evidence import evidence_lines, line_lines
from dp_powerflow.report.figures import draw_epsilon_against_radius, line_figures
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
    config: Config,
    model_path: Path | None,
    *,
    line_draws: int | None = None,
    progress: Progress | None = None,
) -> Certification:
    """Evaluate and write the evidence; spends nothing.

    Parameters
    ----------
    line_draws : days drawn for the losses per line in place of the config's, 0 for none.
    """
    state = PrivateState.open(config.release.state, insecure_seed=config.release.insecure_seed)
    directory = state.internal_directory(config.release.id)
    path = model_path or directory / MODEL_FILE
    if not path.is_file():
        raise ConfigError(
            f"there is no load model at {path}; run 'dp-powerflow release' first, or name one with --model"
        )
    model = LoadModel.load(path)
    inputs, mode = read_network(config, state, model.n_steps), mode_of(config)
    feeder = inputs.feeder
    scene = mode.scene(inputs, Solvable(feeder, inputs.solar, ""), model)
    evidence, of_lines = mode.evidence(inputs, scene, line_draws, progress)
    lines = [*evidence_lines(evidence), *_about_lines(of_lines)]
    content = {"marking": INTERNAL, **plain(evidence)}
    if of_lines is not None:
        content["line_evidence"] = plain(of_lines)
    text = json.dumps(content, indent=1, sort_keys=True)
    state.write_internal(config.release.id, "network-evidence.json", text.encode())
    state.write_internal(
        config.release.id, "network-evidence.md", "\n".join([f"**{INTERNAL}**", "", *lines, ""]).encode()
    )
    figure = draw_epsilon_against_radius(evidence, INTERNAL)
    state.write_internal(config.release.id, "epsilon-against-radius.svg", figure)
    if isinstance(of_lines, LineReport):
        for name, picture in line_figures(feeder, of_lines, INTERNAL).items():
            state.write_internal(config.release.id, name, picture)
    return Certification(INTERNAL, lines, text, directory)


def _about_lines(found: LineReport | str | None) -> list[str]:
    if found is None:
        return []
    told = [found[:1].upper() + found[1:] + "."] if isinstance(found, str) else line_lines(found)
    return ["", "## Line by line", "", *told]
