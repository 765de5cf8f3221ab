"""`fleet`: many feeders and one meter source. Its plan is INTERNAL, since it names the feeders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dp_powerflow._ending import ENDING
from dp_powerflow.cli.release import predicted_words
from dp_powerflow.cli.terminal import (
    AsJson,
    Rendered,
    Scheduler,
    Workers,
    err,
    escaped,
    out,
    progress,
    say,
    show,
    show_ingest,
)

if TYPE_CHECKING:
    from dp_powerflow.fleet.run import FleetPlan, FleetResult


MOST_FEEDERS = 20
"""Feeders of a plan that are listed though nothing is wrong with them; the JSON has all."""


MOST_KEYS = 8
"""Feeders of a kind of refusal that are named; the others are counted."""


FLEET_MARKING = "INTERNAL: names feeders and says which of them can be released; not for publication"


MOST_FAILURES = 20
"""Failures that are told one by one; the others are counted."""


def fleet(
    config: Annotated[Path, typer.Argument(help="TOML file of a fleet: many feeders, one meter source.")],
    only_plan: Annotated[
        bool, typer.Option("--plan", help="Say what it would cost (INTERNAL); spend nothing.")
    ] = False,
    workers: Workers = None,
    scheduler: Scheduler = None,
    as_json: AsJson = False,
) -> None:
    """Make one corpus of many feeders; run it again to finish it. Exit code 1 if a feeder failed.

    Example: `dp-powerflow fleet fleet.toml --plan`
    """
    from dp_powerflow._parallel import engine_of
    from dp_powerflow.fleet.feeders import read_fleet_config
    from dp_powerflow.fleet.run import FAILURES_FILE, plan_fleet, run_fleet

    fleet_config = read_fleet_config(config)
    if only_plan:
        with progress("feeders") as (advance, _):
            planned = plan_fleet(fleet_config, engine=engine_of(workers, scheduler), progress=advance)
        show_ingest(planned.ingest)
        err.print(FLEET_MARKING, style="bold red")
        show(render_fleet_plan(planned), as_json)
        if not planned.possible:
            raise typer.Exit(3)
        return

    ENDING.resumes = True
    with progress("fleet") as (advance, describe):
        engine = engine_of(workers, scheduler)
        result = run_fleet(fleet_config, engine=engine, say=describe, progress=advance)
    show_ingest(result.ingest)
    for warning in result.warnings:
        say(f"warning: {warning}")
    made = render_fleet_result(result)
    if as_json:
        out.print_json(made.json_text)
    for line in made.lines:
        say(line)
    for outcome in result.failed[:MOST_FAILURES]:
        say(f"INTERNAL: {outcome.name} ({outcome.key}) failed: {outcome.problem}")
    if len(result.failed) > MOST_FAILURES:
        more, where = len(result.failed) - MOST_FAILURES, result.internal / FAILURES_FILE
        say(f"INTERNAL: {more:,} more failed; all are listed in {where}")
    if result.failed:
        raise typer.Exit(1)


def render_fleet_plan(planned: FleetPlan) -> Rendered:
    """INTERNAL. What a fleet would cost the customers and every network."""
    from dp_powerflow.fleet.manifest import fleet_words
    from dp_powerflow.pipeline.plan import SPREADS

    config, cost, loads, plans = planned.config, planned.cost, planned.loads, planned.feeders
    fleet, usable = config.fleet, [plan for plan in plans if plan.problem is None]
    refused: dict[str, list[str]] = {}
    for plan in plans:
        if plan.code is not None and not plan.released:
            refused.setdefault(plan.code, []).append(plan.key)
    refused = dict(sorted(refused.items(), key=lambda item: -len(item[1])))
    content = {
        "marking": FLEET_MARKING,
        "fleet": fleet.id,
        "customers": {
            "epsilon": config.model.epsilon,
            "delta": cost.delta,
            "unit": str(cost.loads_cap.unit),
            "already_charged": loads.already_charged,
            "affordable": loads.affordable,
            "left": loads.after.left,
        },
        "ingest": None if planned.ingest is None else planned.ingest.to_json(),
        "feeders": [
            {
                "feeder": plan.key,
                **{name: getattr(plan, name) for name in ("name", "released", "problem", "code")},
                "affordable": None if plan.network is None else plan.network.affordable,
                "left": None if plan.network is None else plan.network.after.left,
            }
            for plan in plans
        ],
        "refusals": [{"code": code, "feeders": keys} for code, keys in refused.items()],
    }
    return Rendered.of(
        "fleet-plan.md",
        content,
        {"escaped": escaped, "predicted": predicted_words},
        fleet=fleet,
        mode=config.network.mode,
        epsilon=config.model.epsilon,
        cost=cost,
        loads=loads,
        plans=plans,
        usable=usable,
        customers=fleet_words()["customers"],
        spreads=SPREADS,
        left_out={plan.name for plan in usable[MOST_FEEDERS:]},
        refused=refused,
        count=sum(map(len, refused.values())),
        most_keys=MOST_KEYS,
    )


def render_fleet_result(result: FleetResult) -> Rendered:
    """INTERNAL. How many feeders of a fleet are released, and where to look."""
    failed, all_of = len(result.failed), len(result.outcomes)
    lines = [
        f"INTERNAL: {all_of - failed:,} of {all_of:,} feeders are in {result.path}; see {result.internal}"
    ]
    content = {"fleet": str(result.path), "released": all_of - failed, "internal": str(result.internal)}
    return Rendered(lines, json.dumps(content))
