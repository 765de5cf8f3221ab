"""Theorem 1 on a data set: the formula as printed, and every mode that is a bound, against the floor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dp_powerflow import StreamKey
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.evidence.calibration import Progress
from dp_powerflow.evidence.collect import (
    BoundRow,
    Evidence,
    Instance,
    Policy,
    PrintedFormula,
    collect_evidence,
    printed_formula,
)
from dp_powerflow.evidence.theorem import CONFIDENCE
from dp_powerflow.lowlevel import ClassLaw, LoadLaw, PublicSpread, network_facts, plain
from dp_powerflow_paper.datasets import Dataset, ExperimentOptions, open_dataset
from dp_powerflow_paper.run import Written, block, table, write_report

FLOORS = (1e-4, 1e-3, 1e-2, 1e-1)
QUICK_FLOORS, QUICK_DAYS = (1e-4, 1e-1), 60
"""Of a look: the ends of the range, and fewer days of the calibration."""
DELTA = 1e-5
"""Of the printed formula, as in the paper."""
TOTAL_DELTA = 0.1
"""Of a day, everything included, where a bound is looked for: the calibration alone takes 0.003."""
EPSILON = 50.0
SEED = 0


@dataclass(frozen=True)
class FloorRow:
    """One floor: the printed formula at the paper's δ, and the evidence in every mode."""

    floor: float
    formula: PrintedFormula
    evidence: Evidence


def run_theorem(
    data: Dataset,
    *,
    floors: tuple[float, ...] = FLOORS,
    calibration_days: int = 1000,
    progress: Progress | None = None,
) -> tuple[FloorRow, ...]:
    """Evaluate every floor on the empirical Gaussian of a data set, for a day of any date."""
    law, network = empirical_law(data), data.network
    policy = Policy(data.radius, EPSILON, TOTAL_DELTA, days=1, calibration_days=calibration_days)
    facts = network_facts(
        network, volt_var=data.voltvar is not None, released=law.positions, generation=data.generation
    )
    key = StreamKey.from_insecure_seed(SEED)
    rows = []
    for floor in floors:
        wide = law.with_floor(floor)
        instance = Instance(network, wide, data.generation, data.voltvar)
        try:
            evidence = collect_evidence(instance, policy, key, progress=progress, any_day=True)
        except PowerFlowError:  # of days beyond the margins, which concern the full support alone
            instance = replace(instance, law=replace(wide, q_size=None))
            evidence = collect_evidence(instance, policy, key, progress=progress, any_day=True)
        cut = evidence.monte_carlo_truncated
        formula = printed_formula(facts, wide.within(), cut.operating, cut.worst_mu, data.radius, DELTA)
        rows.append(FloorRow(floor, formula, evidence))
    return tuple(rows)


def empirical_law(data: Dataset) -> LoadLaw:
    """The empirical Gaussian of all load points and days, scaled to the nominal load of every node.

    On the OEDI profiles its covariance is singular; add a floor before anything inverts it (paper correction
    15).
    """
    log_load = np.log(np.clip(data.history.load_kw, *data.margins)).reshape(-1, data.n_steps)
    spread = PublicSpread()
    of_class = ClassLaw.gaussian(
        log_load.mean(axis=0),
        np.cov(log_load.T),
        margins=data.margins,
        q_covariance=spread.covariance(data.n_steps, data.history.step_minutes),
    )
    return data.law(of_class, spread.spread * float(np.exp(log_load).mean()))


def run(options: ExperimentOptions) -> Written:
    """The experiment of the command line: tables."""
    data = open_dataset(options if options.config else replace(options, data=options.data or "oedi"))
    days, stem = options.calibration_days, "theorem"
    if options.quick:
        days, stem = min(days, QUICK_DAYS), "theorem-quick"
    floors = QUICK_FLOORS if options.quick else FLOORS
    rows = run_theorem(data, floors=floors, calibration_days=days, progress=options.progress)
    return write_report(options.out, stem, to_markdown(data.words, rows), to_json(rows))


def to_markdown(words: str, rows: tuple[FloorRow, ...]) -> str:
    """The tables of docs/results/network.md."""
    first = rows[0].evidence
    radius = first.policy.radius
    lines = [f"{words}.", "", *_network_lines(first), ""]
    lines += block(
        f"**Formula as printed, with the exact κ, not a bound here**: B + ψ̄·τ(δ) at r = {radius:g}, "
        f"δ = {DELTA:g}, per sample (smallest / median / largest step of a day) and per day; μ₀ and δ_M of "
        f"Remark mc_calibration. Why no bound: {_reason(rows)}.",
        "floor | per sample | per day | μ₀ | δ_M | δ + δ_M",
        map(_formula_line, rows),
    )
    lines += block(
        "Its terms, of the median step and of the day:",
        "floor | of | γ | ψ̄ | ψ̄·τ | ψ̄²/2 | mean term | Jacobian | α | sum",
        (line for row in rows for line in _term_lines(row)),
    )
    lines += block(
        f"What *is* a bound: the largest r whose day stays within ε = {EPSILON:g}, δ = {TOTAL_DELTA:g} "
        "all in all:",
        f"floor | mode | largest r | share of the median line | at r = {radius:g}",
        (_bound_line(row, mode) for row in rows for mode in row.evidence.rows),
    )
    if not any(mode.mode == "full-support" for row in rows for mode in row.evidence.rows):
        lines += [
            "Full support has no number: days beyond the margins have no power flow on this network.",
            "",
        ]
    return "\n".join(lines)


def _network_lines(first: Evidence) -> list[str]:
    box = "none" if first.load_box is None else f"{first.load_box.mu:.3g}"
    share = ["—" if value is None else f"{value:.2g}" for value in _shares(first)]
    rows = [
        f"nodes with load, with PV alone, T | {first.n}, {first.hidden}, {first.steps}",
        f"κ as printed | {first.amplification.paper:.3g}",
        f"κ exact (limit), covered up to ‖ΔY‖ = {first.amplification.largest_radius:.3g} |"
        f" {first.amplification.exact:.4g}",
        f"‖b‖₂ | {first.norm_b:.4g}",
        f"‖M̃⁻¹‖⋆, paper's closed form: denominator | {first.printed.denominator:.4g}"
        f"{' (no bound)' * (first.printed.denominator <= 0.0)}",
        f"‖M̃⁻¹‖⋆, load box with measured voltage range | {box}",
        f"‖M̃⁻¹‖, Monte Carlo, untruncated / truncated | {first.monte_carlo.operating.mu:.3g} /"
        f" {first.monte_carlo_truncated.operating.mu:.3g}, δ = {first.monte_carlo.operating.delta:.2g}"
        f" at confidence {CONFIDENCE:g}",
        f"snapshots outside [0.95, 1.05] | {100 * first.monte_carlo.outside_ansi:.0f} %",
        f"r = {first.policy.radius:g} as a share of the weakest / median / strongest line | "
        f"{' / '.join(share)}",
    ]
    assumptions = (
        f"- {item.name}: {'holds' if item.holds else 'FAILS'} — {item.finding}" for item in first.assumptions
    )
    return [*table("quantity | value", rows), "", *assumptions]


def _shares(evidence: Evidence) -> tuple[float | None, ...]:
    lines = evidence.lines
    return lines.weakest, lines.median, lines.strongest


def _formula_line(row: FloorRow) -> str:
    found, mu = row.formula, row.formula.calibration
    samples = " / ".join(f"{terms.formula:.4g}" for terms in (found.least, found.median, found.most))
    return (
        f"{row.floor:g} | {samples} | {found.day.formula:.4g} | {mu.mu_0:.4g} | {mu.delta:.2g} | "
        f"{found.delta:.2g}"
    )


def _term_lines(row: FloorRow) -> list[str]:
    found = row.formula
    return [
        f"{row.floor:g} | {name} | {t.gamma:.3g} | {t.psi_bar:.3g} | {t.tail:.3g} | {t.quadratic:.3g} | "
        f"{t.mean:.3g} | {t.jacobian:.3g} | {t.alpha:.2g} | {t.formula:.4g}"
        for name, t in (("median step", found.median), ("day", found.day))
    ]


def _bound_line(row: FloorRow, mode: BoundRow) -> str:
    share, lines = "—", row.evidence.lines
    if mode.largest_r is not None and lines.median is not None:
        share = f"{mode.largest_r / row.evidence.policy.radius * lines.median:.2g}"
    found = "none" if mode.largest_r is None else f"{mode.largest_r:.2g}"
    told = mode.day.violations[0] if mode.day.violations else f"ε = {mode.day.epsilon:.3g}"
    return f"{row.floor:g} | {mode.mode} | {found} | {share} | {told}"


def to_json(rows: tuple[FloorRow, ...]) -> list[dict[str, Any]]:
    """Plain values of every term."""
    return [
        {"floor": row.floor, "formula as printed": plain(row.formula), "evidence": plain(row.evidence)}
        for row in rows
    ]


def _reason(rows: tuple[FloorRow, ...]) -> str:
    """Why the printed formula is none, of all floors together."""
    days = [mode.day for row in rows for mode in row.evidence.rows if mode.mode == "corrected"]
    leaves = max(day.delta_parts["support exit"] for day in days)
    failed = dict.fromkeys(item.name.split()[0] for item in rows[0].evidence.assumptions if not item.holds)
    parts = [f"Assumption 1 {', '.join(failed)} does not hold"] if failed else []
    return "; ".join([*parts, f"loads leave the margins under Y′ with probability up to {leaves:.2g}"])
