"""`fidelity`, for the terminal. INTERNAL."""

from __future__ import annotations

from dp_powerflow.fidelity.report import GROUPS, MARKING, SIGNS, FidelityReport, in_words, shown
from dp_powerflow.report import Rendered


def render_fidelity(report: FidelityReport) -> Rendered:
    """INTERNAL. A table of figures with verdicts, the attacks, and what to trust."""
    lines = [
        f"**{MARKING}**",
        "",
        "| figure | release | real | floor | ratio | verdict |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for group, title in GROUPS.items():
        own = [one for one in report.findings if one.group == group]
        lines += [f"| **{title}** | | | | | |"] if own else []
        lines += [
            f"| {one.title}{f' [{one.unit}]' if one.unit else ''} | {shown(one.drawn)} | {shown(one.real)} | "
            f"{shown(one.floor)} | {shown(one.ratio)} | {SIGNS[one.verdict]} {one.verdict} |"
            for one in own
        ]
    if isinstance(report.network, str):
        lines += ["", f"Voltages: {report.network}."]
    lines += ["", *_attack_lines(report), "", f"**{report.summary}**"]
    return Rendered(lines, report.to_json())


def _attack_lines(report: FidelityReport) -> list[str]:
    attacks = report.attacks
    rows = [
        f"| {name} | {own.right} of {own.tried} | {own.interval()[0]:.2f} to {own.interval()[1]:.2f} | "
        f"{limit.success:.3f} | {in_words(attacks.found_epsilon(own))} |"
        for name, (own, limit) in attacks.games.items()
    ]
    if attacks.line is not None:
        own, (low, high) = attacks.line.guesses, attacks.line.guesses.interval()
        rows.append(
            f"| a line of the twin, changed by {attacks.line.change:.0%} | {own.right} of {own.tried} | "
            f"{low:.2f} to {high:.2f} | {attacks.line.allowed:.3f} | {in_words(attacks.line.found_epsilon)} |"
        )
    return ["| attack | right | 95 % interval | allowed | ε at least |", "|---|--:|--:|--:|--:|", *rows]
