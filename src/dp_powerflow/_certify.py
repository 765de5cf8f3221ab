"""`certify`: the evidence about a network, as a whole and line by line, in words, tables and figures.

It is printed and kept in the private state directory. Figures are files: ε against r, and the evidence per
line as map, histogram and over days; INTERNAL, but for public feeders. No window is ever opened.
"""

from __future__ import annotations

import io
import json
import logging
import math
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dp_powerflow._inspection import INTERNAL
from dp_powerflow._texts import filled
from dp_powerflow.config import Config
from dp_powerflow.errors import ConfigError, MissingExtraError, require
from dp_powerflow.evidence.calibration import Progress
from dp_powerflow.evidence.collect import NOT_THIS_RELEASE, BoundCurve, BoundRow, Evidence, plain
from dp_powerflow.evidence.lines.collect import SIZES, LineReport
from dp_powerflow.evidence.scope import SCOPE
from dp_powerflow.grid.buses import bus_name
from dp_powerflow.grid.feeder import Feeder, Line
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
    model = kept_model(config, state) if model_path is None else _load(model_path)
    if model is None:
        raise _no_model(directory / MODEL_FILE)
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
    try:
        figures = {"epsilon-against-radius.svg": draw_epsilon_against_radius(evidence, INTERNAL)}
        if isinstance(of_lines, LineReport):
            figures |= line_figures(inputs.feeder, of_lines, INTERNAL)
    except MissingExtraError as error:  # the evidence is there without them
        figures, lines = {}, [*lines, "", f"No figures: {error}."]
    for name, picture in figures.items():
        state.write_internal(config.release.id, name, picture)
    return Certification(INTERNAL, lines, text, directory)


def _load(path: Path) -> LoadModel:
    if not path.is_file():
        raise _no_model(path)
    return LoadModel.load(path)


def _no_model(path: Path) -> ConfigError:
    return ConfigError(
        f"there is no load model at {path}; run 'dp-powerflow release' first, or name one with --model"
    )


def _about_lines(found: LineReport | str | None) -> list[str]:
    if found is None:
        return []
    told = [found[:1].upper() + found[1:] + "."] if isinstance(found, str) else line_lines(found)
    return ["", "## Line by line", "", *told]


def evidence_lines(evidence: Evidence) -> list[str]:
    """Markdown, line by line."""
    metres = evidence.lines.median_metres
    return _lines(
        "evidence.md",
        {"figure": _figure, "mode": _mode},
        **{field.name: getattr(evidence, field.name) for field in fields(evidence)},
        per_instance=PER_INSTANCE,
        scope=SCOPE,
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
    sizes = np.array([row.protected or 0.0 for row in rows])
    return _lines(
        "lines.md",
        {"share": _share, "middle": _median},
        report=report,
        request=report.request,
        evidence=report.evidence,
        rows=rows,
        switches=len(report.evidence.rows) - len(rows),
        levels=LEVELS,
        shown=min(_WORST_SHOWN, len(rows)),
        worst=[*worst[:_WORST_SHOWN], *middle],
        proved=sum(row.lower is not None and row.lower > 0.0 for row in rows),
        quantiles=np.quantile(sizes, (0.1, 0.5, 0.9), method="lower").tolist() if rows else (),
        errors=[row.attack_error for row in rows if row.attack_error is not None],
        with_loads=[row.attack_error_with_loads for row in rows if row.attack_error_with_loads is not None],
        median=np.median,
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


def _median(values: list[float | None]) -> str:
    found = float(np.median([np.inf if value is None else value for value in values]))
    return "none" if not np.isfinite(found) else f"{found:g}"


def _lines(template: str, filters: dict[str, Callable[..., str]], **facts: object) -> list[str]:
    return filled(template, filters, **facts).rstrip("\n").split("\n")


EXTRA = "plots"
_MARKING: ContextVar[str | None] = ContextVar("marking of every figure", default=None)
_STYLES = {"corrected": "--", "full-support": "-", "paper": ":"}
_COLOURS = {"corrected": "C1", "full-support": "C0", "paper": "C2"}
_OTHER_COLOUR = "0.55"
_POLICY_COLOUR = "C3"
_WIDE = 110


def draw_epsilon_against_radius(evidence: Evidence, marking: str | None, form: str = "svg") -> bytes:
    """ε of one day against r, as the bytes of an SVG or PNG file.

    One curve per mode, with a band for the public floors that were tried; the policy's r and ε per day; below
    it the modes that have no number at the policy's r, and why.
    """
    figure = new_figure((8.0, 6.0), marking)
    axes: Any = figure.add_subplot()
    axes.set_xscale("log")
    axes.set_yscale("log")
    drawn = [mode for mode in _STYLES if _draw_mode(axes, [c for c in evidence.curves if c.mode == mode])]
    _draw_policy(axes, evidence)
    axes.set_xlabel("r, Frobenius norm of a change of lines [p.u.]")
    axes.set_ylabel("ε of one released day")
    axes.set_title("Theorem 1 on this network" + ("" if drawn else ": no bound at any r shown"), fontsize=11)
    axes.grid(True, which="major", color="0.92")
    if evidence.lines.median:
        share = evidence.lines.median / evidence.policy.radius  # per p.u.
        above = axes.secondary_xaxis("top", functions=(lambda r: r * share, lambda part: part / share))
        above.set_xlabel("r as a share of the admittance of a median line", fontsize=8)
        above.tick_params(labelsize=8)
    figure.legend(
        loc="outside lower center",
        ncols=2,
        fontsize=8,
        frameon=False,
        title=_refused(evidence),
        title_fontsize=8,
    )
    return figure_bytes(figure, form)


def _draw_mode(axes: Any, curves: list[BoundCurve]) -> bool:
    """The curve of a mode without a floor, the band of all floors, and where its bound ends."""
    bounded = [curve for curve in curves if any(value is not None for value in curve.epsilon)]
    if not bounded:
        return False
    curve, other = bounded[0], bounded[0].law == NOT_THIS_RELEASE
    colour = _OTHER_COLOUR if other else _COLOURS[curve.mode]
    values = np.array([[np.nan if v is None else v for v in item.epsilon] for item in bounded])
    seen = np.isfinite(values).any(axis=0)
    radius = np.array(curve.radius)
    low, high = np.nanmin(values[:, seen], axis=0), np.nanmax(values[:, seen], axis=0)
    floors = f"floors {bounded[0].floor:g} to {bounded[-1].floor:g}" if len(bounded) > 1 else ""
    axes.fill_between(radius[seen], low, high, color=colour, alpha=0.25, linewidth=0)
    own = np.isfinite(values[0])
    label = f"{curve.mode}: floor {curve.floor:g}" + f" (band: {floors})" * bool(floors)
    label += f", {NOT_THIS_RELEASE}" * other
    axes.plot(radius[own], values[0][own], _STYLES[curve.mode], color=colour, label=label)
    if not own.all():
        ended = f"{curve.mode}: no bound beyond r = {radius[own][-1]:.2g}"
        axes.plot(radius[own][-1:], values[0][own][-1:], "x", color=colour, markersize=8, label=ended)
    return True


def _draw_policy(axes: Any, evidence: Evidence) -> None:
    """The policy's r and ε per day."""
    policy = evidence.policy
    daily = policy.epsilon / policy.days
    axes.axhline(daily, color=_POLICY_COLOUR, linewidth=0.8)
    axes.axvline(policy.radius, color=_POLICY_COLOUR, linewidth=0.8)
    axes.plot(
        [policy.radius],
        [daily],
        "s",
        color=_POLICY_COLOUR,
        label=f"policy: r = {policy.radius:g}, ε = {daily:.3g} a day "
        f"({policy.epsilon:g} for {policy.days} days)",
    )


def _refused(evidence: Evidence) -> str:
    """The modes without a number at the policy's r, with the first reason of each."""
    rows = [row for row in evidence.rows if row.day.epsilon is None]
    told = [f"{row.mode}: no number at the policy's r, {'; '.join(row.day.violations)}" for row in rows]
    return "\n".join(line for sentence in told for line in textwrap.wrap(sentence, _WIDE))


_NONE_COLOUR = "firebrick"
_SWITCH_COLOUR = "0.75"


def line_figures(feeder: Feeder, report: LineReport, marking: str | None) -> dict[str, bytes]:
    """File name → SVG; empty without protected x."""
    if report.protected_delta is None:
        return {}
    return {
        "lines-map.svg": draw_map(feeder, report, marking),
        "lines-histogram.svg": draw_histogram(report, marking),
        "lines-over-days.svg": draw_over_days(report, marking),
    }


def draw_map(feeder: Feeder, report: LineReport, marking: str | None) -> bytes:
    """The feeder with every line coloured by its protected x."""
    figure = new_figure((8.5, 6.0), marking)
    axes: Any = figure.add_subplot()
    at = positions(feeder)
    protected = {row.line: row.protected for row in report.evidence.rows}
    found = [size for size in protected.values() if size is not None]
    limits = min(found, default=SIZES[0]) / 1.5, max(found, default=SIZES[-1]) * 1.5
    norm = require("matplotlib.colors", EXTRA).LogNorm(*limits)
    colours = require("matplotlib", EXTRA).colormaps["viridis"]
    for line in feeder.lines:
        first, second = ends(feeder, line)
        if first not in at or second not in at:
            continue
        size = protected.get(line.name)
        colour = _NONE_COLOUR if size is None else colours(norm(size))
        if line.is_switch:
            colour = _SWITCH_COLOUR
        axes.plot(*zip(at[first], at[second], strict=True), color=colour, linewidth=2.2)
    figure.colorbar(
        require("matplotlib.cm", EXTRA).ScalarMappable(norm, colours),
        ax=axes,
        label=f"protected x at ε = {report.request.epsilon:g}, δ = {report.protected_delta:.2g}, one day",
    )
    axes.set_title("red: no x tested is protected; grey: switches", fontsize=9)
    axes.set_aspect("equal" if feeder.coordinates else "auto")
    axes.set_axis_off()
    return figure_bytes(figure)


def draw_histogram(report: LineReport, marking: str | None) -> bytes:
    """Lines by protected x."""
    figure = new_figure((7.0, 4.0), marking)
    axes: Any = figure.add_subplot()
    rows = [row for row in report.evidence.rows if not row.is_switch]
    counts = [sum(row.protected is None for row in rows)]
    counts += [sum(row.protected == size for row in rows) for size in SIZES]
    labels = ["none", *(f"{100 * size:g} %" for size in SIZES)]
    first = next((k for k, count in enumerate(counts[1:], 1) if count), 1)
    shown = [0, *range(first, len(counts))]
    colours = [_NONE_COLOUR, *["C0"] * (len(shown) - 1)]
    axes.bar(range(len(shown)), [counts[k] for k in shown], color=colours)
    axes.set_xticks(range(len(shown)), [labels[k] for k in shown], rotation=45, fontsize=8)
    axes.set_xlabel("largest x tested that is protected")
    axes.set_ylabel("lines")
    axes.set_title(f"ε = {report.request.epsilon:g}, δ = {report.protected_delta:.2g}, one day", fontsize=10)
    return figure_bytes(figure)


def draw_over_days(report: LineReport, marking: str | None) -> bytes:
    """Protected x of a few typical lines against days."""
    figure = new_figure((7.0, 4.5), marking)
    axes: Any = figure.add_subplot()
    means = {row.line: row.mean for row in report.evidence.rows}
    names = sorted(report.over_days[0].protected, key=lambda name: means[name]) if report.over_days else []
    for name in names:
        points = [
            (item.days, size) for item in report.over_days if (size := item.protected[name]) is not None
        ]
        if points:
            axes.plot(*zip(*points, strict=True), "o-", label=f"{name} (mean loss {means[name]:.2g})")
            days = np.array([1.0, max(item.days for item in report.over_days)])
            axes.plot(days, points[0][1] * np.sqrt(points[0][0] / days), ":", color="0.7", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("days released (dotted: 1/√days)")
    axes.set_ylabel("largest x tested that is protected")
    delta = max((item.delta for item in report.over_days), default=1.0)
    axes.set_title(f"ε = {report.request.epsilon:g}, δ = {delta:.2g} for all days together", fontsize=10)
    if names:
        axes.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure_bytes(figure)


def ends(feeder: Feeder, line: Line) -> tuple[str, str]:
    """Names of the buses a line joins."""
    first, second = (
        bus_name(feeder.nodes[node], is_source=bool(np.isin(node, feeder.slack)))
        for node in (line.nodes[0], line.nodes[-1])
    )
    return first, second


def positions(feeder: Feeder) -> dict[str, tuple[float, float]]:
    """Bus → place: coordinates of the source where it has them, else a tree by steps from the source."""
    if feeder.coordinates:
        return dict(feeder.coordinates)
    joined: dict[str, list[str]] = {}
    for line in feeder.lines:
        first, second = ends(feeder, line)
        joined.setdefault(first, []).append(second)
        joined.setdefault(second, []).append(first)
    place: dict[str, tuple[float, float]] = {}
    height = 0.0
    for root in joined:
        if root in place:
            continue
        stack = [(root, 0)]
        while stack:
            bus, depth = stack.pop()
            if bus in place:
                continue
            place[bus] = (float(depth), height)
            onward = [other for other in joined[bus] if other not in place]
            if not onward:
                height += 1.0
            stack += [(other, depth + 1) for other in onward]
    return place


@contextmanager
def marked_figures(marking: str | None) -> Iterator[None]:
    """Every figure that is made within has this marking, if it has none of its own."""
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
