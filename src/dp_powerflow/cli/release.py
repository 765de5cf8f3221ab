"""`init`, `plan`, `release`, `demo`, and `inspect`, `certify`, `experiment`: from own data to a release."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from rich.table import Table
from rich.text import Text
from typer import Argument, Exit, Option

import dp_powerflow as dpf
from dp_powerflow._ending import ENDING
from dp_powerflow.cli import terminal
from dp_powerflow.errors import ConfigError, FeederError, printable, require

if TYPE_CHECKING:
    from dp_powerflow.pipeline.feasibility import Look
    from dp_powerflow.pipeline.plan import Plan, PlannedRelease, YearlyCost
    from dp_powerflow.pipeline.release import ReleaseResult
    from dp_powerflow.privacy.ledger.accounts import Promised


def init(
    path: Annotated[Path, Argument(help="Config to write.")] = Path("release.toml"),
    feeder: Annotated[str | None, Option(help=terminal.FEEDER)] = None,
    meters: Annotated[Path | None, Option(help="CSV or Parquet file of meter readings.")] = None,
    services: Annotated[
        Path | None, Option(help="Public list of customers; default: one is written from the meters.")
    ] = None,
    mode: Annotated[str | None, Option(help="twin-network (default) or true-network, the paper's.")] = None,
    unit: Annotated[
        str | None,
        Option(help="kW, W, 'kWh per interval' or 'Wh per interval', unless a column name says it."),
    ] = None,
    time_zone: Annotated[str | None, Option(help="Time zone of the stamps, such as Europe/Berlin.")] = None,
    interval_label: Annotated[
        str | None, Option(help="start or end: which end of its interval a stamp marks.")
    ] = None,
    first_day: Annotated[
        datetime | None, Option(formats=["%Y-%m-%d"], help="First day of the readings; it is published.")
    ] = None,
    last_day: Annotated[
        datetime | None, Option(formats=["%Y-%m-%d"], help="Last day of the readings; it is published.")
    ] = None,
    customer_column: Annotated[
        str | None, Option(help="Column of customer ids, if its name is not clear.")
    ] = None,
    time_column: Annotated[
        str | None, Option(help="Column of time stamps, if its name is not clear.")
    ] = None,
    active_column: Annotated[
        str | None, Option(help="Column of active readings, if its name is not clear.")
    ] = None,
    taps: Annotated[Path | None, Option(help="CSV file of regulator taps, declared public.")] = None,
    loads: Annotated[Path | None, Option(help="CSV file of nominal loads, declared public.")] = None,
    latitude: Annotated[float | None, Option(help="Latitude of a clear sky for PV systems.")] = None,
    days: Annotated[int | None, Option(help="Number of days in the corpus.", min=1)] = None,
    release_id: Annotated[str | None, Option("--id", help="Name of the release.")] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Write a commented config for your feeder and meters, or an example on public data without them.

    It takes only the format from private data: columns, step, ids. All figures are public ones, and the days
    are those that you declare.

    Example: `dp-powerflow init --feeder my/master.dss --meters meters.csv --time-zone Europe/Berlin
    --first-day 2024-01-01 --last-day 2024-12-31`
    """
    from dp_powerflow.setup import DEFAULT_MODE, DeclaredFormat, SetupRequest, set_up, write_example

    if feeder is None and meters is None:
        own = (services, unit, time_zone, interval_label, customer_column, time_column, active_column)
        own_days = (first_day, last_day, days)
        if any(option is not None for option in (*own, *own_days, taps, loads, latitude, release_id)):
            raise ConfigError("these options describe your own data; add --feeder and --meters")
        written = write_example(path, mode or DEFAULT_MODE)
    elif feeder is None or meters is None:
        raise ConfigError("a config for your own data needs both --feeder and --meters")
    else:
        columns = customer_column, time_column, active_column
        read = None if first_day is None or last_day is None else (first_day.date(), last_day.date())
        request = SetupRequest(
            config=path,
            feeder=feeder,
            meters=meters,
            services=services,
            taps=taps,
            loads=loads,
            declared=DeclaredFormat(unit, time_zone, interval_label, *columns, read),
            mode=mode or DEFAULT_MODE,
            days=days,
            release_id=release_id,
            latitude=latitude,
        )
        with terminal.progress("init") as (_, describe):
            written = set_up(request, describe)
    if as_json:
        files = {"config": str(written.config), "services": written.services and str(written.services)}
        terminal.out.print_json(json.dumps(files | {"notes": list(written.notes)}))
        return
    for note in written.notes:
        terminal.say(f"INTERNAL: {note}")
    for file in (written.services, written.config):
        if file is not None:
            terminal.say(f"written: {file}")
    terminal.say(f"next: dp-powerflow plan {path}")


def plan(config: terminal.ConfigFile, as_json: terminal.AsJson = False) -> None:
    """Check whether a release would work and what it costs; spends nothing. Exit code 3: not affordable.

    Example: `dp-powerflow plan release.toml`
    """
    with terminal.progress("plan") as (_, describe):
        planned = dpf.plan(dpf.read_config(config), on_stage=describe)
    terminal.show_ingest(planned.ingest)
    terminal.show(render_plan(planned), as_json)
    marking, *lines = internal_lines(planned) or [""]
    if marking:
        terminal.err.print(marking, style="bold red")
    for line in lines:
        terminal.say(f"network: {line}")
    if not planned.affordable:
        raise Exit(3)


def render_plan(found: PlannedRelease) -> terminal.Rendered:
    """The cost of a release, query by query, what it leaves of both budgets, and whether it would work.

    The lines are public. The JSON also holds the INTERNAL look, marked so; as lines it is `internal_lines`.
    """
    from dp_powerflow.pipeline.modes.base import INTERNAL, left_afterwards, promise_warnings
    from dp_powerflow.pipeline.plan import SPREADS

    plan, config, loads, network = found.plan, found.mode.config, found.loads, found.network
    warnings = (*promise_warnings(config), *plan.warnings, *found.feasibility.warnings)
    accounts = {"customers": (loads, plan.epsilon), "network": (network, config.network.epsilon)}
    short = {
        who: preview
        for who, (preview, _) in accounts.items()
        if not preview.affordable and not preview.already_charged
    }
    content = {
        **{name: getattr(plan, name) for name in ("epsilon", "delta", "rho", "request_sha256")},
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
        "estimator": None if plan.estimator is None else asdict(plan.estimator),
        "predicted_errors": [asdict(error) | {"too_large": error.too_large} for error in plan.predicted],
        "warnings": list(warnings),
        "notes": list(plan.notes),
        "ingest": None if found.ingest is None else found.ingest.to_json(),
    }
    return terminal.Rendered.of(
        "plan.md",
        content,
        {"escaped": terminal.escaped, "promise": _promise, "predicted": predicted_words},
        found=found,
        plan=plan,
        release=config.release,
        accounts=accounts,
        short=short,
        warnings=warnings,
        megabytes=f"{found.corpus_bytes / 1e6:,.1f}",
        left=left_afterwards(loads),
        spreads=SPREADS,
        network=found.mode.plan_lines(network),
        kept=any(cost.kept_network is not None for cost in found.yearly),
        look=found.feasibility.public,
    )


def predicted_words(plan: Plan, by_noise: bool) -> str:
    """How wrong noise will make the load model: by the noise of its queries, or by fits to stand-ins."""
    from dp_powerflow.pipeline.plan import error_in_words

    return "; ".join(error_in_words(error) for error in plan.predicted if (error.between is None) is by_noise)


def internal_lines(found: PlannedRelease) -> list[str]:
    """INTERNAL. What public loads do on the network itself, for the data owner alone."""
    from dp_powerflow._texts import lines_of
    from dp_powerflow.pipeline.modes.base import INTERNAL

    look = found.feasibility.internal
    counted = found.mode.counts_customers
    return [] if look is None else lines_of("look.txt", {}, look=look, marking=INTERNAL, counted=counted)


def _promise(stated: Promised) -> str:
    at = f" at δ = {min(stated.delta, 1.0):.3g}" if stated.delta else ""
    return f"ε = {stated.epsilon:.4g}{at}"


def _yearly(cost: YearlyCost) -> dict[str, Any]:
    promises = {"customers": cost.customers, "network": cost.network, "network_kept": cost.kept_network}
    stated = {
        name: None if of is None else {"epsilon": of.epsilon, "delta": of.delta}
        for name, of in promises.items()
    }
    return {"releases": cost.releases, **stated}


def _look(look: Look | None) -> dict[str, Any] | None:
    return None if look is None else asdict(look) | {"unsolved_share": look.unsolved_share}


def release(
    config: terminal.ConfigFile,
    workers: terminal.Workers = None,
    scheduler: terminal.Scheduler = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Make the release; run it again to finish one that was interrupted.

    Example: `dp-powerflow release release.toml`
    """
    ENDING.resumes = True
    opened = dpf.read_config(config)
    with terminal.progress("release") as (advance, describe):
        result = dpf.release(
            opened, workers=workers, scheduler=scheduler, on_stage=describe, on_progress=advance
        )
    _show_release(opened, result, as_json)


def _show_release(config: dpf.Config, result: ReleaseResult, as_json: bool) -> None:
    from dp_powerflow.pipeline.modes.base import mode_of

    terminal.show_ingest(result.ingest)
    for warning in result.warnings:
        terminal.say(f"warning: {warning}")
    if as_json:
        content = {"release": str(result.path), "internal": str(result.internal)}
        terminal.out.print_json(json.dumps(content | {"warnings": list(result.warnings)}))
        return
    terminal.say(f"released: {result.path}")
    mismatch = "" if result.worst_mismatch is None else f"{result.worst_mismatch:.1e} p.u."
    found = mode_of(config).said("outcome", met=result.evidence_met)
    terminal.say(
        f"INTERNAL: largest power mismatch before rounding {mismatch or 'not measured again'}; {found}; "
        f"see {result.internal}"
    )


def demo(
    output: Annotated[Path, Option("--out", help="Folder to create.")] = Path("demo-output"),
    as_json: terminal.AsJson = False,
) -> None:
    """Make a release on a twin and the paper's, on IEEE 123 with simulated homes, and compare them.

    Example: `dp-powerflow demo --out demo-output`
    """
    from dp_powerflow.cli.demo import Demo, render_sides

    begun = Demo.begin(output)
    for config in (begun.twin, begun.paper):
        terminal.say(f"release '{config.release.id}', mode {config.network.mode}")
        with terminal.progress("release") as (advance, describe):
            result = begun.release(config, describe, advance)
        _show_release(config, result, False)
    with terminal.progress("comparing") as (_, describe):
        sides = begun.compare(describe)
    terminal.show(render_sides(sides), as_json)
    if not as_json:
        terminal.out.print(begun.closing_words(sides), markup=False, highlight=False, soft_wrap=True)


# --- a feeder, and what the paper says about it -------------------------------------------------------------
def inspect(
    feeder: Annotated[str, Argument(help=terminal.FEEDER)],
    taps: Annotated[Path | None, Option(help="CSV file of regulator taps.")] = None,
    save_taps: Annotated[
        Path | None, Option(help="Write the regulator taps, INTERNAL, to this CSV file.")
    ] = None,
    base_mva: Annotated[float, Option(help="Power base per phase [MVA].")] = 1.0,
    drop_islanded: Annotated[bool, Option(help="Leave out nodes that no source feeds.")] = False,
    as_json: terminal.AsJson = False,
) -> None:
    """Describe a feeder (INTERNAL: the output describes the private network).

    Example: `dp-powerflow inspect ieee123 --json`
    """
    from dp_powerflow._inspection import LABELS
    from dp_powerflow.grid.feeder import TAPS_DECLARED, TAPS_INTERNAL
    from dp_powerflow.grid.refusals import in_full
    from dp_powerflow.grid.sources import feeder_problems, read_taps, write_taps

    table = None if taps is None else read_taps(taps)
    with terminal.progress("inspecting"):
        try:
            opened = dpf.open_feeder(feeder, taps=table, base_mva=base_mva, drop_islanded=drop_islanded)
        except FeederError:
            found = feeder_problems(feeder, taps=table, base_mva=base_mva, drop_islanded=drop_islanded)
            if len(found) < 2:
                raise
            raise in_full(found) from None
        if save_taps is not None:
            declared = opened.taps_from.startswith(TAPS_DECLARED)
            write_taps(save_taps, opened.taps, origin=opened.taps_from if declared else TAPS_INTERNAL)
        summary = dpf.inspect(opened).to_json()
    if as_json:
        terminal.out.print_json(json.dumps(summary))
        return
    terminal.err.print(str(summary["marking"]), style="bold red")
    terminal.out.print(_two_columns({label: summary[key] for key, label in LABELS.items()}))
    starts = {"modelled": "modelled", "left_out": "left out", "refused": "refused", "no_twin": "no twin"}
    for key, start in starts.items():
        for sentence in cast(tuple[str, ...], summary[key]):
            terminal.say(f"{start}: {sentence}")
    for note in cast(tuple[str, ...], summary["notes"]):
        terminal.say(f"note: {note}")


def _two_columns(values: dict[str, object]) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in values.items():
        if isinstance(value, dict):
            value = ", ".join(f"{name} {ratio:.5f}" for name, ratio in value.items()) or "none"
        shown = f"{value:.6g}" if isinstance(value, float) else "unknown" if value is None else str(value)
        table.add_row(Text(key), Text(printable(shown, lines=True)))
    return table


def certify(
    config: terminal.ConfigFile,
    model: Annotated[
        Path | None, Option(help="Load model to use; default: the one that the release fitted.")
    ] = None,
    line_draws: Annotated[
        int | None, Option(help="Days to draw for the losses per line; default: network.line_draws.", min=0)
    ] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Compute the network evidence alone: Theorem 1, losses per line, audit (INTERNAL; spends nothing).

    Example: `dp-powerflow certify release.toml`
    """
    with terminal.progress("calibrating") as (advance, _):
        result = dpf.certify(dpf.read_config(config), model=model, line_draws=line_draws, on_progress=advance)
    if as_json:
        terminal.out.print_json(result.json_text)
        return
    terminal.err.print(result.marking, style="bold red")
    terminal.print_markdown(result.lines)
    terminal.say(f"written to {result.directory}")


def experiment(
    name: Annotated[str, Argument(help="theorem, wasserstein, …: a wrong name lists them all.")],
    config: Annotated[
        Path | None, Argument(help="Config (TOML) with the feeder, meters and sun to use instead of --data.")
    ] = None,
    oedi: Annotated[
        Path | None, Option(envvar="DP_POWERFLOW_OEDI", help="Folder of the OEDI profiles.")
    ] = None,
    reference: Annotated[
        Path | None,
        Option(envvar="DP_POWERFLOW_REFERENCE", help="Folder of reference cases of other systems."),
    ] = None,
    swiss: Annotated[
        Path | None, Option(envvar="DP_POWERFLOW_SWISS", help="Folder of the Swiss meters.")
    ] = None,
    data: Annotated[
        str | None,
        Option(help="oedi, simbench, swiss or simulated; default: oedi if at hand; comparison: all at hand."),
    ] = None,
    pv: Annotated[bool, Option("--pv/--no-pv", help="PV systems, where the data set has them.")] = True,
    volt_var: Annotated[
        bool, Option("--volt-var/--no-volt-var", help="Volt-var control, or unit power factor.")
    ] = True,
    controls: Annotated[
        str, Option(help="frozen (taps of the nominal load), or snapshot or day (regulators act).")
    ] = "frozen",
    output: Annotated[
        Path | None, Option("--out", help="Folder for the results; default: experiment-output.")
    ] = None,
    quick: Annotated[bool, Option("--quick", help="A small run, to try it out.")] = False,
    calibration_days: Annotated[int, Option(help="Days of the Monte Carlo calibration.")] = 1000,
    seed: Annotated[int, Option(help="Seed of every draw; an experiment is never a release.")] = 0,
) -> None:
    """Run one of the paper's experiments, with tables and figures; run it again to resume.

    On a CONFIG with a private feeder or private meters everything is INTERNAL and goes to the private state
    directory; nothing is charged, and choosing settings by it is a leak.

    Example: `dp-powerflow experiment wasserstein --oedi oedi-ieee123 --out results`

    Example: `dp-powerflow experiment theorem release.toml --quick`
    """
    from dp_powerflow.pipeline.modes.base import INTERNAL
    from dp_powerflow_paper.datasets import ExperimentOptions
    from dp_powerflow_paper.run import DEFAULT_FOLDER, check_name, results_folder, run_experiment

    check_name(name, on_a_config=config is not None)
    require("matplotlib", "plots")  # before hours of work, not after
    with terminal.progress(name) as (advance, _):
        options = ExperimentOptions(
            out=DEFAULT_FOLDER,
            oedi=oedi,
            reference=reference,
            swiss=swiss,
            data=data,
            config=None if config is None else dpf.read_config(config),
            pv=pv,
            volt_var=volt_var,
            controls=controls,  # type: ignore[arg-type]  # checked there
            quick=quick,
            calibration_days=calibration_days,
            seed=seed,
            progress=advance,
        )
        written = run_experiment(name, replace(options, out=results_folder(options, output)))
    if options.is_private:
        terminal.err.print(INTERNAL, style="bold red")
    terminal.out.print(written.text, markup=False, highlight=False, soft_wrap=True)
    for path in written.files:
        terminal.say(f"written: {path}")
