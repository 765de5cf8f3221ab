"""`certify`: the evidence about a network, as a whole and line by line, in words and tables.

It is printed and kept in the private state directory. Figures of experiments are made here too, as files: no
window is ever opened.
"""

from __future__ import annotations

import io
import json
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from dp_powerflow._inspection import INTERNAL
from dp_powerflow._texts import lines_of
from dp_powerflow.config import Config
from dp_powerflow.errors import ConfigError, require
from dp_powerflow.evidence.calibration import Progress
from dp_powerflow.evidence.collect import NOT_THIS_RELEASE, BoundRow, Evidence, plain
from dp_powerflow.evidence.lines.collect import LineReport
from dp_powerflow.evidence.theorem import CONFIDENCE
from dp_powerflow.manifest.model import MODEL_FILE
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.inputs import read_network
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.plan import kept_model
from dp_powerflow.privacy.state import PrivateState

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PER_INSTANCE = (
    "Per-instance evidence about this one network, not differential privacy: it is no bound over all pairs "
    "of networks, and publishing any figure of it leaks."
)
LEVELS = (1.0, 5.0, 10.0)
_WORST_SHOWN = 10


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
    if model_path is None:
        model = kept_model(config, state)
    else:
        model = LoadModel.load(model_path) if model_path.is_file() else None
    if model is None:
        raise ConfigError(
            f"there is no load model at {model_path or directory / MODEL_FILE}; run 'dp-powerflow release' "
            "first, or name one with --model"
        )
    inputs, mode = read_network(config, state, model.n_steps), mode_of(config)
    evidence, of_lines = mode.evidence(inputs, model, line_draws, progress)
    lines = [*evidence_lines(evidence), *_about_lines(of_lines)]
    content = {"marking": INTERNAL, **plain(evidence)}
    if of_lines is not None:
        content["line_evidence"] = plain(of_lines)
    text = json.dumps(content, indent=1, sort_keys=True)
    state.write_internal(config.release.id, "network-evidence.json", text.encode())
    state.write_internal(
        config.release.id, "network-evidence.md", "\n".join([f"**{INTERNAL}**", "", *lines, ""]).encode()
    )
    return Certification(INTERNAL, lines, text, directory)


def _about_lines(found: LineReport | str | None) -> list[str]:
    if found is None:
        return []
    told = [found[:1].upper() + found[1:] + "."] if isinstance(found, str) else line_lines(found)
    return ["", "## Line by line", "", *told]


def evidence_lines(evidence: Evidence) -> list[str]:
    """Markdown, line by line."""
    metres = evidence.lines.median_metres
    return lines_of(
        "evidence.md",
        {"figure": _figure, "mode": _mode},
        **{field.name: getattr(evidence, field.name) for field in fields(evidence)},
        per_instance=PER_INSTANCE,
        confidence=CONFIDENCE,
        other=NOT_THIS_RELEASE,
        formula=evidence.printed_formula,
        metres="" if metres is None else f", {1000 * metres:.3g} mm of a median line",
        box_mu=None if evidence.load_box is None else evidence.load_box.mu,
        printed_mu=None if evidence.printed.denominator <= 0.0 else evidence.printed.mu,
    )


def line_lines(report: LineReport) -> list[str]:
    """Markdown, line by line."""
    rows = [row for row in report.evidence.rows if not row.is_switch]
    worst = sorted(rows, key=lambda row: row.mean, reverse=True)
    middle = [worst[len(worst) // 2]] if len(worst) > _WORST_SHOWN else []
    return lines_of(
        "lines.md",
        {"share": _share},
        report=report,
        confidence=CONFIDENCE,
        rows=rows,
        switches=len(report.evidence.rows) - len(rows),
        levels=LEVELS,
        shown=min(_WORST_SHOWN, len(rows)),
        worst=[*worst[:_WORST_SHOWN], *middle],
        proved=sum(row.lower is not None and row.lower > 0.0 for row in rows),
    )


def _figure(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "∞"


def _mode(row: BoundRow) -> str:
    """Name of the mode, marked where its law is not the one that the release draws from."""
    return f"{row.mode} ({NOT_THIS_RELEASE})" if row.law == NOT_THIS_RELEASE else row.mode


def _share(values: list[float | None], level: float | None) -> str:
    """How many values lie within a level; None counts those that are none."""
    if level is None:
        count = sum(value is None for value in values)
    else:
        count = sum(value is not None and value <= level for value in values)
    return f"{100 * count / max(1, len(values)):.0f} % [{count}]"


EXTRA = "plots"
_MARKING: ContextVar[str | None] = ContextVar("marking of every figure", default=None)


@contextmanager
def marked_figures(marking: str | None) -> Iterator[None]:
    """Every figure that is made within has this marking, if it has none."""
    before = _MARKING.set(marking)
    try:
        yield
    finally:
        _MARKING.reset(before)


def new_figure(size: tuple[float, float], marking: str | None = None) -> Figure:
    """An empty figure of a size [inches], with its marking if it has one; no window is opened."""
    logger = logging.getLogger("matplotlib")
    logger.setLevel(max(logger.level, logging.ERROR))  # where no home can be written, it says so at length
    figure: Figure = require("matplotlib.figure", EXTRA).Figure(figsize=size, layout="constrained")
    if marking:
        figure.suptitle(marking, color="firebrick", fontsize=8, x=0.01, ha="left")
    elif of_all := _MARKING.get():
        # At the right edge, where no title or legend of a figure that knows nothing of it can cover it.
        figure.set_layout_engine("constrained", rect=(0.0, 0.0, 0.97, 1.0))
        figure.text(0.99, 0.5, of_all, color="firebrick", fontsize=8, rotation=90, ha="right", va="center")
    return figure


def figure_bytes(figure: Figure, form: str = "svg") -> bytes:
    """The bytes of an SVG or PNG file, without its date; a PNG file has its marking among its data too."""
    buffer = io.BytesIO()
    metadata = {"Date": None} if form == "svg" else {"Description": _MARKING.get()}
    figure.savefig(buffer, format=form, dpi=150, metadata=metadata)
    return buffer.getvalue()
