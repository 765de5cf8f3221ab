"""The network evidence in words and a table."""

from __future__ import annotations

from dp_powerflow.evidence.collect import Evidence, Row
from dp_powerflow.evidence.theorem import SCOPE

PER_INSTANCE = (
    "Per-instance evidence about this one network, not differential privacy: it is no bound over all pairs "
    "of networks, and publishing any figure of it leaks."
)


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
        f"r is {_share(evidence.lines.weakest)} / {_share(evidence.lines.median)} / "
        f"{_share(evidence.lines.strongest)} of the weakest / median / strongest line"
        + (
            "."
            if evidence.lines.median_metres is None
            else f", {1000 * evidence.lines.median_metres:.3g} mm of a median line."
        ),
        "",
        f"κ exact {evidence.amplification.exact:.4g} "
        f"(up to ‖ΔY‖ = {evidence.amplification.largest_radius:.3g}), as printed "
        f"{evidence.amplification.paper:.3g}; ‖b‖ = {evidence.norm_b:.4g}.",
        f"‖M̃⁻¹‖: paper's closed form {printed}; load box {box}; Monte Carlo {operating.mu:.4g} "
        f"({evidence.monte_carlo.days} days, δ = {operating.delta:.2g} at confidence "
        f"{evidence.monte_carlo.confidence:g}).",
        "",
        *(
            f"- {'holds' if item.holds else 'FAILS'}: {item.name} — {item.finding}"
            for item in evidence.assumptions
        ),
        "",
        "| mode | ε, one step | ε, one day | δ, one day | ε, corpus | largest r within the policy |",
        "|---|---|---|---|---|---|",
        *(_table_row(row) for row in evidence.rows),
        "",
    ]
    for row in evidence.rows:
        lines.append(f"- **{row.mode}** covers: {SCOPE[row.mode]}")
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


def _table_row(row: Row) -> str:
    largest = "none" if row.largest_r is None else f"{row.largest_r:.3g}"
    return (
        f"| {row.mode} | {_number(row.step.epsilon)} | {_number(row.day.epsilon)} | {row.day.delta:.2g} | "
        f"{_number(row.corpus.epsilon)} | {largest} |"
    )


def _number(value: float | None) -> str:
    return "no bound" if value is None else f"{value:.4g}"


def _share(value: float | None) -> str:
    return "?" if value is None else f"{value:.2g}"
