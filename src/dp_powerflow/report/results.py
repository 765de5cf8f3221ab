"""What a command found, for a person and for a machine.

The plan of a fleet is INTERNAL, since it names the feeders; so are ingest and fidelity.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_powerflow.config import Config
from dp_powerflow.corpus.storage import location
from dp_powerflow.errors import ConfigError
from dp_powerflow.fidelity.report import GROUPS, MARKING, SIGNS, FidelityReport, shown
from dp_powerflow.fidelity.report import in_words as in_figures
from dp_powerflow.fleet.manifest import fleet_words
from dp_powerflow.fleet.run import FeederPlan, FleetPlan, FleetResult, Refusal, refusals
from dp_powerflow.pipeline.deriving.pages import flat, named_tables
from dp_powerflow.pipeline.feasibility import RANGE_A, Corner, Look
from dp_powerflow.pipeline.modes.base import INTERNAL, left_afterwards
from dp_powerflow.pipeline.outlook import SPREADS, YearlyCost
from dp_powerflow.pipeline.plan import Plan, PlannedRelease, in_words
from dp_powerflow.privacy.ledger.accounts import Statement
from dp_powerflow.privacy.ledger.records import Preview
from dp_powerflow.report import Rendered, markdown

if TYPE_CHECKING:
    from dp_powerflow.corpus.gridfm.export import ExportedNetwork, GridfmExport
    from dp_powerflow.pipeline.deriving.make import Derived

MOST_FEEDERS = 20
"""Feeders of a plan that are listed though nothing is wrong with them; the JSON has all."""
MOST_KEYS = 8
"""Feeders of a kind of refusal that are named; the others are counted."""
FLEET_MARKING = "INTERNAL: names feeders and says which of them can be released; not for publication"


def render_plan(found: PlannedRelease) -> Rendered:
    """The cost of a release, query by query, what it leaves of both budgets, and whether it would work.

    The lines are public. The JSON also holds the INTERNAL look, marked so; as lines it is `internal_lines`.
    """
    plan, release = found.plan, found.mode.config.release
    loads, network = found.loads, found.network
    warnings = (*found.mode.warnings, *plan.warnings, *found.feasibility.warnings)
    lines = markdown(
        "plan.md",
        {"escaped": _escaped, "promise": _promise, "voltages": _voltages, "corner": _corner},
        found=found,
        plan=plan,
        release=release,
        warnings=warnings,
        megabytes=f"{found.corpus_bytes / 1e6:,.1f}",
        left=left_afterwards(loads),
        way_out=_way_out(loads),
        estimator=_estimator_lines(plan),
        network=found.mode.plan_lines(network),
        kept=any(cost.kept_network is not None for cost in found.yearly),
        look=found.feasibility.public,
    )
    content = {
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "rho": plan.rho,
        "unit": str(plan.loads_cap.unit),
        "queries": [query.to_dict() for query in plan.queries],
        "loads": {"affordable": loads.affordable, "left": loads.after.left},
        "network": {"affordable": network.affordable, "left": network.after.left},
        "affordable": found.affordable,
        "yearly": [_yearly(cost) for cost in found.yearly],
        "feasibility": _look(found.feasibility.public),
        "suggested_kw_per_customer": found.feasibility.kw_per_customer,
        "corpus_bytes": found.corpus_bytes,
        "internal": {"marking": INTERNAL, "feasibility": _look(found.feasibility.internal)},
        "request_sha256": plan.request_sha256,
        "estimator": None if plan.estimator is None else asdict(plan.estimator),
        "predicted_errors": [asdict(error) | {"too_large": error.too_large} for error in plan.predicted],
        "warnings": list(warnings),
        "notes": list(plan.notes),
        "ingest": None if found.ingest is None else found.ingest.to_json(),
    }
    return Rendered(lines, json.dumps(content))


def _way_out(loads: Preview) -> str:
    """What customers without budget still allow."""
    if loads.already_charged or loads.affordable:
        return ""
    return " Another draw from a load model that was paid for is free: set model.reuse to its release id."


def _estimator_lines(plan: Plan) -> list[str]:
    """Which load model it is, why, and how wrong noise will make it."""
    if plan.estimator is None:
        return []
    lines = [f"Load model: **{plan.estimator.name}**, because {plan.estimator.why}."]
    fitted, noise = (
        "; ".join(in_words(error) for error in plan.predicted if (error.between is None) is by_noise)
        for by_noise in (False, True)
    )
    if fitted:
        lines.append(
            "How far its loads will be off, by fits to public stand-ins for customers (eight fits in ten, "
            f"and RMS for log levels that spread by {SPREADS[0][0]:g} to {SPREADS[-1][0]:g}): {fitted}."
        )
    if noise:
        lines.append(
            f"By noise in its smallest class, one standard deviation: {noise}. It publishes the dates of the "
            "meters' days; set model.estimator = 'structured' if they are not public."
        )
    return [" ".join(lines), ""]


def internal_lines(found: PlannedRelease) -> list[str]:
    """INTERNAL. What public loads do on the network itself, for the data owner alone."""
    look = found.feasibility.internal
    if look is None:
        return []
    unsolved = f"{look.unsolved} of {look.snapshots} snapshots of public customers have no solution"
    if not look.unsolved and not found.mode.mends:  # one refuses the release; the rule of three
        unsolved += f", so that with 95 % confidence at most {300.0 / look.snapshots:.2g} % of them have none"
    return [
        f"{INTERNAL}; choosing settings by it is a leak, and a release states what was changed after it",
        f"on the network itself {unsolved}; {_voltages(look)}",
        *(f"{name}: {_corner(corner)}" for name, corner in look.corners.items()),
    ]


def _promise(stated: Statement) -> str:
    at = f" at δ = {min(stated.delta, 1.0):.3g}" if stated.delta else ""
    return f"ε = {stated.epsilon:.4g}{at}"


def _yearly(cost: YearlyCost) -> dict[str, Any]:
    kept = cost.kept_network
    return {
        "releases": cost.releases,
        "customers": {"epsilon": cost.customers.epsilon, "delta": cost.customers.delta},
        "network": {"epsilon": cost.network.epsilon, "delta": cost.network.delta},
        "network_kept": None if kept is None else {"epsilon": kept.epsilon, "delta": kept.delta},
    }


def _voltages(look: Look) -> str:
    if look.lowest is None or look.highest is None or look.within is None:
        return "no voltages, because no snapshot was solved"
    return (
        f"voltages {look.lowest:.3f} to {look.highest:.3f} p.u., {100.0 * look.within:.3g} % of them in "
        f"{RANGE_A[0]:g} to {RANGE_A[1]:g}"
    )


def _corner(corner: Corner) -> str:
    if corner.lowest is None or corner.highest is None:
        return "no solution"
    voltages = f"{corner.lowest:.3f} to {corner.highest:.3f} p.u."
    return voltages if corner.solved else f"no solution on every network; {voltages} on the others"


def _look(look: Look | None) -> dict[str, Any] | None:
    return None if look is None else asdict(look) | {"unsolved_share": look.unsolved_share}


def _escaped(text: str) -> str:
    """A sentence in Markdown whose stars are stars."""
    return text.replace("*", "\\*")


def render_fleet_plan(planned: FleetPlan) -> Rendered:
    """INTERNAL. What a fleet would cost the customers and every network."""
    config, cost, loads, plans = planned.config, planned.cost, planned.loads, planned.feeders
    fleet, usable = config.fleet, sum(plan.problem is None for plan in plans)
    refused = refusals([plan for plan in plans if not plan.released])
    lines = [
        f"Fleet **{fleet.id}**: {len(plans):,} feeders, {usable:,} of them usable, {fleet.days} days each, "
        f"network mode {config.network.mode}.",
        "",
        f"Customers: ε at most {config.model.epsilon:.4g} at δ = {cost.delta:g} for all feeders together, "
        f"unit {cost.loads_cap.unit}, replace-one. {_after(loads)}",
        "",
        *fleet_words(fleet.models)["customers"],
        "",
        *_estimator_lines(cost),
        *(f"- warning: {warning}" for warning in cost.warnings),
        *(f"- note: {note}" for note in cost.notes),
        "",
        *_feeder_rows(plans),
        *_refusal_lines(refused),
    ]
    content = {
        "marking": FLEET_MARKING,
        "fleet": fleet.id,
        "customers": {
            "epsilon": config.model.epsilon,
            "delta": cost.delta,
            "unit": str(cost.loads_cap.unit),
            "models": fleet.models,
            "already_charged": loads.already_charged,
            "affordable": loads.affordable,
            "left": loads.after.left,
        },
        "ingest": None if planned.ingest is None else planned.ingest.to_json(),
        "feeders": [
            {
                "feeder": plan.key,
                "name": plan.name,
                "released": plan.released,
                "problem": plan.problem,
                "code": plan.code,
                "affordable": None if plan.network is None else plan.network.affordable,
                "left": None if plan.network is None else plan.network.after.left,
            }
            for plan in plans
        ],
        "refusals": [
            {"code": refusal.code, "feeders": [key for key, _ in refusal.feeders]} for refusal in refused
        ],
    }
    return Rendered(lines, json.dumps(content))


def _feeder_rows(plans: Sequence[FeederPlan]) -> list[str]:
    """A table of feeders: all that cannot be released, and of a large fleet the first of the others."""
    others = [plan for plan in plans if plan.problem is None]
    left_out = {plan.name for plan in others[MOST_FEEDERS:]}
    rows = [f"| {plan.key} | {plan.name} | {_state(plan)} |" for plan in plans if plan.name not in left_out]
    more = [] if not left_out else ["", f"And {len(left_out):,} more that can be released; --json lists all."]
    return ["| feeder | public name | network |", "|---|---|---|", *rows, *more]


def _refusal_lines(refused: Sequence[Refusal]) -> list[str]:
    """How many feeders are refused for which kind of reason; nothing if none is."""
    if not refused:
        return []
    count = sum(len(refusal.feeders) for refusal in refused)
    lines = ["", f"**{count} feeder{'s' * (count > 1)} cannot be released**, all else could:", ""]
    for refusal in refused:
        keys, more = [key for key, _ in refusal.feeders[:MOST_KEYS]], len(refusal.feeders) - MOST_KEYS
        listed = ", ".join(keys) + (f" and {more} more" if more > 0 else "")
        lines.append(f"- `{refusal.code}`: {len(refusal.feeders)} ({_escaped(listed)})")
    return lines


def render_fleet_result(result: FleetResult) -> Rendered:
    """INTERNAL. How many feeders of a fleet are released, and where to look."""
    failed, all_of = len(result.failed), len(result.outcomes)
    lines = [
        f"INTERNAL: {all_of - failed:,} of {all_of:,} feeders are in {result.path}; see {result.internal}"
    ]
    content = {
        "fleet": str(result.path),
        "released": all_of - failed,
        "internal": str(result.internal),
    }
    return Rendered(lines, json.dumps(content))


def _state(plan: FeederPlan) -> str:
    if plan.released:
        return "released"
    if plan.problem is not None:
        return "cannot be released: " + plan.problem.replace("|", "/").replace("\n", " ")
    return "" if plan.network is None else _after(plan.network)


def _after(preview: Preview) -> str:
    if preview.already_charged:
        return "Charged already; costs nothing more."
    if not preview.affordable:
        return f"**Not affordable**: ε = {preview.before.available.epsilon:.4g} is left."
    promise, left = preview.after.promise, preview.after.available
    return (
        f"With all earlier charges ε = {promise.epsilon:.4g} at δ = {promise.delta:.3g}; "
        f"left ε = {left.epsilon:.4g}."
    )


def render_export(made: GridfmExport) -> Rendered:
    """The networks of a folder for gridfm-graphkit, and how to train on it."""
    lines = [
        "| network | buses | nodes merged | released scenarios | perturbed | networks | drawn again |",
        "|---|---|---|---|---|---|---|",
        *(_row(network) for network in made.networks),
        "",
        f"Train on it: `gridfm_graphkit train --config {made.config} --data_path {made.path}`",
    ]
    content = {
        "path": str(made.path),
        "config": str(made.config),
        "networks": [asdict(network) for network in made.networks],
    }
    return Rendered(lines, json.dumps(content))


def _row(network: ExportedNetwork) -> str:
    cells = (
        network.name,
        network.buses,
        network.merged,
        network.released,
        network.perturbed,
        network.networks,
        network.refused,
    )
    return f"| {' | '.join(str(cell) for cell in cells)} |"


MOST_FIGURES = 25
"""Figures that are shown; the JSON and the page have more."""


def render_derivation(found: Derived) -> Rendered:
    """What was found, where its tables are, and what it costs."""
    figures = list(flat(found.figures))
    more = len(figures) - MOST_FIGURES
    lines = [
        f"**{found.kind}** of release **{found.release_id}**; it spends nothing.",
        "",
        *(["| figure | value |", "|---|---|"] if figures else []),
        *(f"| {name} | {value} |" for name, value in figures[:MOST_FIGURES]),
        *([f"| {more} more | see derived.html |"] if more > 0 else []),
        "",
        *(f"- {words}" for words in found.sentences),
        "",
        *(f"- `{table.files}`: {table.rows:,} rows" for table in named_tables(found.manifest.tables)),
    ]
    content = {
        "derived": str(found.path),
        "kind": found.kind,
        "release": found.release_id,
        "figures": dict(found.figures),
        "sentences": list(found.sentences),
        "tables": list(found.tables),
        "warnings": list(found.warnings),
    }
    return Rendered(lines, json.dumps(content))


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a TOML file.

    Raises
    ------
    ConfigError : there is no such file, or it is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(
            f"settings file {path} does not exist; check its path", code="config-not-found"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"settings file {path} is not TOML: {error}") from None


def usual_folder(source: Path | Config, kind: str) -> Path:
    """Where a derived release goes unless somebody says otherwise: beside the release.

    Raises
    ------
    ConfigError : the release is at a URL, beside which there is no folder.
    """
    place = location(source.release.output) if isinstance(source, Config) else source
    if not isinstance(place, Path):
        raise ConfigError("the release is at a URL; name the folder of the derived release with --out")
    place = place.absolute()
    return place.with_name(f"{place.name}-{kind}")


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
        f"{limit.success:.3f} | {in_figures(attacks.found_epsilon(own))} |"
        for name, (own, limit) in attacks.games.items()
    ]
    if attacks.line is not None:
        own, (low, high) = attacks.line.guesses, attacks.line.guesses.interval()
        rows.append(
            f"| a line of the twin, changed by {attacks.line.change:.0%} | {own.right} of {own.tried} | "
            f"{low:.2f} to {high:.2f} | {attacks.line.allowed:.3f} | "
            f"{in_figures(attacks.line.found_epsilon)} |"
        )
    return ["| attack | right | 95 % interval | allowed | ε at least |", "|---|--:|--:|--:|--:|", *rows]
