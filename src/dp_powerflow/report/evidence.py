"""`certify`: the evidence about a network, as a whole and line by line, in words, tables and figures.

It is printed and kept in the private state directory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dp_powerflow.config import Config
from dp_powerflow.errors import ConfigError
from dp_powerflow.evidence.calibration import Progress
from dp_powerflow.evidence.collect import NOT_THIS_RELEASE, Evidence, Row, plain
from dp_powerflow.evidence.lines.collect import LineReport
from dp_powerflow.evidence.lines.evidence import LineRow
from dp_powerflow.evidence.scope import SCOPE
from dp_powerflow.manifest.model import MODEL_FILE
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.inputs import read_network
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.plan import kept_model
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.report.figures import draw_epsilon_against_radius, line_figures
from dp_powerflow.report.inspection import INTERNAL

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
    feeder = inputs.feeder
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
    figure = draw_epsilon_against_radius(evidence, INTERNAL)
    state.write_internal(config.release.id, "epsilon-against-radius.svg", figure)
    if isinstance(of_lines, LineReport):
        for name, picture in line_figures(feeder, of_lines, INTERNAL).items():
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
    policy = evidence.policy
    box = "no bound" if evidence.load_box is None else f"{evidence.load_box.mu:.3g}"
    printed = "no bound" if evidence.printed.denominator <= 0.0 else f"{evidence.printed.mu:.3g}"
    operating = evidence.monte_carlo.operating
    lines = [
        PER_INSTANCE,
        "",
        f"Policy: r = {policy.radius:g} p.u., ε ≤ {policy.epsilon:g}, δ ≤ {policy.delta:g}, "
        f"{policy.days} days.",
        f"r is {_part_of_line(evidence.lines.weakest)} / {_part_of_line(evidence.lines.median)} / "
        f"{_part_of_line(evidence.lines.strongest)} of the weakest / median / strongest line"
        + (
            "."
            if evidence.lines.median_metres is None
            else f", {1000 * evidence.lines.median_metres:.3g} mm of a median line."
        ),
        "",
        f"κ exact {evidence.amplification.exact:.4g} "
        f"(up to ‖ΔY‖ = {evidence.amplification.largest_radius:.3g}), as printed "
        f"{evidence.amplification.paper:.3g}; ‖b‖ = {evidence.norm_b:.4g}.",
        *_about_hidden(evidence),
        f"‖M̃⁻¹‖: paper's closed form {printed}; load box {box}; Monte Carlo {operating.mu:.4g} "
        f"({evidence.monte_carlo.days} days, δ = {operating.delta:.2g} at confidence "
        f"{evidence.monte_carlo.confidence:g}).",
        "",
        *(
            f"- {'holds' if item.holds else 'FAILS'}: {item.name} — {item.finding}"
            for item in evidence.assumptions
        ),
        "",
        "| row | ε, one step | ε, one day | δ, one day | ε, corpus | largest r within the policy |",
        "|---|---|---|---|---|---|",
        *_printed_rows(evidence),
        *(_table_row(row) for row in evidence.rows),
        "",
        *_about_the_formula(evidence),
        *_about_other_laws(evidence),
    ]
    for row in evidence.rows:
        lines.append(f"- **{_mode(row)}** covers: {SCOPE[row.mode]}")
        if row.day.violations:
            lines.append(f"  No number for a day, because {'; '.join(row.day.violations)}.")
        else:
            t = row.day.terms
            lines.append(
                f"  Terms of a day: ψ̄τ {t.tail:.3g}, ψ̄²/2 {t.quadratic:.3g}, mean {t.mean:.3g}, Jacobian "
                f"{t.jacobian:.3g} (no noise on the loads crosses this floor), α {t.alpha:.2g}."
            )
    lines.append(f"- Corpus: {evidence.rows[0].corpus.rule}.")
    return lines


def _about_hidden(evidence: Evidence) -> list[str]:
    told = []
    if evidence.hidden:
        told.append(
            f"{evidence.n} nodes have a random load of their own; {evidence.hidden} more carry public "
            "generation alone, are not released, and are eliminated implicitly."
        )
    if evidence.days_of_generation > 1:
        told.append("Days have different generation: every δ of one day is the mean over them.")
    return told


def _printed_rows(evidence: Evidence) -> list[str]:
    """The printed formula with either κ: smallest / median / largest sample of a day, day and corpus."""
    lines = []
    other = f", {NOT_THIS_RELEASE}" if evidence.rows[0].law == NOT_THIS_RELEASE else ""
    for found in (evidence.printed_formula.exact, evidence.printed_formula.as_printed):
        samples = " / ".join(_figure(terms.formula) for terms in (found.least, found.median, found.most))
        corpus = _figure(found.day.formula * evidence.policy.days)
        lines.append(
            f"| {evidence.printed_formula.label} (κ {found.kappa}{other}) | {samples} | "
            f"{_figure(found.day.formula)} | {found.delta:.2g} | {corpus} | — |"
        )
    return lines


def _about_the_formula(evidence: Evidence) -> list[str]:
    """Every term of the printed formula with the exact κ, and how ‖M̃⁻¹‖ was calibrated."""
    found = evidence.printed_formula.exact
    calibration = found.calibration
    lines = [
        f"**{evidence.printed_formula.label}**: B + ψ̄·τ(δ) of the paper's Theorem 1 per sample (smallest / "
        "median / largest step of a day) and per day. Its conditions fail here, so these figures bound "
        "nothing; the rows below them are bounds wherever they show a number. With κ as printed the formula "
        "is infinite once α reaches 1/4.",
        f"μ₀ = {calibration.mu_0:.4g} in place of ‖M̃⁻¹‖⋆ (Remark mc_calibration): {calibration.exceeding} of "
        f"{calibration.days} days exceed μ₀′ = {calibration.mu_prime:.4g}, so δ_M ≤ {calibration.delta:.2g} "
        f"(Clopper–Pearson, confidence {calibration.confidence:g}); δ of the tail {found.tail_delta:.2g}.",
        "",
        "| κ exact | ψ̄·τ | ψ̄²/2 | mean term | Jacobian | sum | ψ̄ | τ | γ | d | C⋆ | α |",
        "|---" * 12 + "|",
    ]
    named = {"smallest": found.least, "median": found.median, "largest": found.most, "day": found.day}
    for name, terms in named.items():
        figures = (
            *(terms.tail, terms.quadratic, terms.mean, terms.jacobian, terms.formula),
            *(terms.psi_bar, terms.tau, terms.gamma, terms.d, terms.c_star, terms.alpha),
        )
        lines.append(f"| {name} | {' | '.join(_figure(value) for value in figures)} |")
    return [*lines, ""]


def _figure(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "∞"


def _about_other_laws(evidence: Evidence) -> list[str]:
    if all(row.law != NOT_THIS_RELEASE for row in evidence.rows):
        return []
    return [
        f"Rows marked '{NOT_THIS_RELEASE}', and the printed formula, are about loads truncated to their "
        "margins at fixed power factors. This release draws untruncated loads with random reactive power: "
        "those rows say nothing about it.",
        "",
    ]


def _mode(row: Row) -> str:
    """Name of the mode, marked where its law is not the one that the release draws from."""
    return f"{row.mode} ({NOT_THIS_RELEASE})" if row.law == NOT_THIS_RELEASE else row.mode


def _table_row(row: Row) -> str:
    largest = "none" if row.largest_r is None else f"{row.largest_r:.3g}"
    step = "as of the day" if row.step is None else _number(row.step.epsilon)
    return (
        f"| {_mode(row)} | {step} | {_number(row.day.epsilon)} | {row.day.delta:.2g} | "
        f"{_number(row.corpus.epsilon)} | {largest} |"
    )


def _number(value: float | None) -> str:
    return "no bound" if value is None else f"{value:.4g}"


def _part_of_line(value: float | None) -> str:
    return "?" if value is None else f"{value:.2g}"


def line_lines(report: LineReport) -> list[str]:
    """Markdown, line by line."""
    evidence, request = report.evidence, report.request
    rows = [row for row in evidence.rows if not row.is_switch]
    return [
        f"Neighbours: one line, {' or '.join(evidence.changes)} (x = {request.x:g}); {len(rows)} lines and "
        f"{len(evidence.rows) - len(rows)} switches; one day of {evidence.steps} steps.",
        f"{evidence.draws} days drawn and solved under each network. The smallest δ they support is "
        f"**{evidence.supported:.2g}** (confidence {evidence.confidence:g}, all bounds together); ε below is "
        f"read off at δ = {evidence.delta:.2g}, never below that.",
        "",
        *_shares(rows, len(evidence.rows) - len(rows)),
        "",
        *_horizons(rows),
        "",
        *_worst(rows),
        "",
        *_surroundings(report, rows),
    ]


def _shares(rows: list[LineRow], switches: int) -> list[str]:
    def row(title: str, of: Callable[[LineRow], float | None]) -> str:
        shares = [_share(sum(_within(of(item), level) for item in rows), len(rows)) for level in LEVELS]
        none = _share(sum(of(item) is None for item in rows), len(rows))
        return f"| {title} | {' | '.join(shares)} | {none} |"

    levels = " | ".join(f"ε ≤ {level:g}" for level in LEVELS)
    return [
        f"Share of the lines (switches, {switches} here, left out):",
        "",
        f"| | {levels} | no ε of the grid |",
        "|---|" + "---|" * (len(LEVELS) + 1),
        row("**both directions**", lambda item: item.epsilon),
        row("days drawn on the true network", lambda item: item.forward),
        row("days drawn on the neighbour", lambda item: item.reverse),
        row("both, probabilistic DP (Pr[Λ > ε] ≤ δ)", lambda item: item.epsilon_tail),
    ]


def _horizons(rows: list[LineRow]) -> list[str]:
    if not rows or not rows[0].horizons:
        return []
    lines = [
        "More days, median line and share within ε ≤ 10 (sums over disjoint groups of the draws; in brackets "
        "what adding up gives):",
        "",
        "| days | δ | median ε | share with ε ≤ 10 |",
        "|---|---|---|---|",
    ]
    for position, first in enumerate(rows[0].horizons):
        items = [row.horizons[position] for row in rows]
        summed = _median(item.summed_epsilon for item in items)
        added = _median(item.added_epsilon for item in items)
        share = _share(sum(_within(item.summed_epsilon, 10.0) for item in items), len(items))
        by_adding = _share(sum(_within(item.added_epsilon, 10.0) for item in items), len(items))
        lines.append(
            f"| {first.days} | {first.summed_delta:.2g} ({first.added_delta:.2g}) | {summed} ({added}) | "
            f"{share} ({by_adding}) |"
        )
    return lines


def _worst(rows: list[LineRow]) -> list[str]:
    ordered = sorted(rows, key=lambda row: row.mean, reverse=True)
    return [
        f"The {min(_WORST_SHOWN, len(rows))} worst lines, and the one in the middle:",
        "",
        "| line | audit's lower bound ≤ ε ≤ | forward | reverse | mean Λ | largest Λ | days with Λ = ∞ | "
        "protected x | attack's error of x |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_row(row) for row in ordered[:_WORST_SHOWN]),
        *([_row(ordered[len(ordered) // 2])] if len(ordered) > _WORST_SHOWN else []),
    ]


def _row(row: LineRow) -> str:
    lower = "—" if row.lower is None else f"{row.lower:.2g}"
    protected = "—" if row.protected is None else f"{row.protected:g}"
    error = "—" if row.attack_error is None else f"{row.attack_error:.2g}"
    return (
        f"| {row.line} | {lower} … {_epsilon(row.epsilon)} | {_epsilon(row.forward)} | "
        f"{_epsilon(row.reverse)} | {row.mean:.3g} | {row.worst:.3g} | {100 * row.infinite:.2g} % | "
        f"{protected} | {error} |"
    )


def _surroundings(report: LineReport, rows: list[LineRow]) -> list[str]:
    request = report.request
    lines = []
    if report.audit_delta is not None:
        shown = sum(row.lower is not None and row.lower > 0.0 for row in rows)
        agreement = (
            "no lower bound passes its upper bound"
            if not report.contradicted
            else f"**{len(report.contradicted)} lower bounds pass their upper bound: there is a bug, or the "
            f"mechanism does not draw what the model says** ({', '.join(report.contradicted)})"
        )
        lines.append(
            f"- Audit ({report.audit_days} days under each network, δ = {report.audit_delta:.2g}): a "
            f"threshold test proves ε > 0 on {shown} of {len(rows)} lines; {agreement}."
        )
    if report.protected_delta is not None:
        sizes = np.array([row.protected or 0.0 for row in rows])
        quantiles = ", ".join(f"{value:g}" for value in np.quantile(sizes, (0.1, 0.5, 0.9), method="lower"))
        lines.append(
            f"- Protected x at ε = {request.epsilon:g}, δ = {report.protected_delta:.2g}, one day: "
            f"{quantiles} at the 10, 50 and 90 % quantile of the lines; none found for "
            f"{sum(row.protected is None for row in rows)}."
        )
    errors = [row.attack_error for row in rows if row.attack_error is not None]
    with_loads = [row.attack_error_with_loads for row in rows if row.attack_error_with_loads is not None]
    if errors:
        lines.append(
            f"- Regression attack on {request.regressed_days} released days, every other line known: error "
            f"of x {min(errors):.2g} … {np.median(errors):.2g} (median) … {max(errors):.2g}; with the loads "
            f"published beside the voltages {np.median(with_loads):.1g}: that must never be done."
        )
    return lines


def _within(value: float | None, level: float) -> bool:
    return value is not None and value <= level


def _share(count: int, total: int) -> str:
    return f"{100 * count / max(1, total):.0f} % [{count}]"


def _epsilon(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"


def _median(values: Iterable[float | None]) -> str:
    found = float(np.median([np.inf if value is None else value for value in values]))
    return "none" if not np.isfinite(found) else f"{found:g}"
