"""The command line: parse, call, print."""

from __future__ import annotations

import atexit
import gc
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO, cast

import typer
from rich.table import Table
from rich.text import Text

import dp_powerflow as dpf
from dp_powerflow._ending import ENDING, NO_MEMORY, run
from dp_powerflow.errors import ConfigError, DpPowerflowError, FeederError
from dp_powerflow.report import Rendered, Terminal, printable, write_what_can_be

if TYPE_CHECKING:
    from dp_powerflow.loads.report import IngestReport
    from dp_powerflow.pipeline.release import ReleaseResult

app = typer.Typer(
    name="dp-powerflow",
    help="Differentially private synthetic voltage phasors for distribution grids.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
export = typer.Typer(
    help="Write a release in another tool's layout. Example: `dp-powerflow export gridfm release graphs`",
    no_args_is_help=True,
)
app.add_typer(export, name="export")
out = Terminal()
err = Terminal(stderr=True)

FEEDER = "ieee13, ieee123, PATH.dss, PATH.json (pandapower) or simbench:CODE"
ConfigFile = Annotated[Path, typer.Argument(help="Config of the release (TOML).")]
Workers = Annotated[int | None, typer.Option(help="Parts to make in parallel; default: one per core.", min=1)]
Scheduler = Annotated[
    str | None,
    typer.Option(help="Address of a Dask cluster, such as tls://host:8786; 'local' to start one here."),
]
_NO_THREAD = "can't start new thread"
"""What Python says where a thread has no room for its stack."""
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main() -> None:
    """Run a command: what `dp_powerflow.__main__` does, once this is imported."""
    run(command)


def command() -> None:
    """Run a command without its signals: errors of the input become one sentence and exit code 2."""
    # Modules are objects that stay; to look through them for garbage takes a tenth of a short command.
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)  # nor once more at the end
    write_what_can_be()
    warnings.showwarning = _show_warning
    notes = logging.getLogger(dpf.__name__)
    notes.addHandler(_Notes())
    notes.setLevel(logging.INFO)
    try:
        app()
    except DpPowerflowError as error:
        if "--json" in sys.argv:
            out.print_json(json.dumps(error.to_dict()))
        _say(f"error: {error}")
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        reason = error.strerror or str(error)
        said = f"error: cannot read or write{where}: {reason}; check the path and its permissions"
        _say(ENDING.sentence(said))
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and str(error) != _NO_THREAD:
            raise
        _say(ENDING.sentence(f"error: {NO_MEMORY}"))
        sys.exit(2)


class _Notes(logging.Handler):
    """What the package logs, as notes for people."""

    def emit(self, record: logging.LogRecord) -> None:
        _say(f"note: {record.getMessage()}")


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Warnings of this package are sentences for people; others are as Python shows them."""
    if category.__module__.partition(".")[0] == dpf.__name__:
        _say(f"note: {message}")
    else:
        err.file.write(warnings.formatwarning(message, category, filename, lineno, line))


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Differentially private synthetic voltage phasors for distribution grids."""
    if show:
        out.print(dpf.__version__, highlight=False)
        raise typer.Exit


@app.command()
def inspect(
    feeder: Annotated[str, typer.Argument(help=FEEDER)],
    taps: Annotated[Path | None, typer.Option(help="CSV file of regulator taps.")] = None,
    save_taps: Annotated[
        Path | None, typer.Option(help="Write the regulator taps, INTERNAL, to this CSV file.")
    ] = None,
    base_mva: Annotated[float, typer.Option(help="Power base per phase [MVA].")] = 1.0,
    drop_islanded: Annotated[bool, typer.Option(help="Leave out nodes that no source feeds.")] = False,
    as_json: AsJson = False,
) -> None:
    """Describe a feeder (INTERNAL: the output describes the private network).

    Example: `dp-powerflow inspect ieee123 --json`
    """
    from dp_powerflow.grid.buses import in_full
    from dp_powerflow.grid.feeder import TAPS_DECLARED, TAPS_INTERNAL
    from dp_powerflow.grid.sources import feeder_problems, read_taps, write_taps
    from dp_powerflow.report.inspection import LABELS

    table = None if taps is None else read_taps(taps)
    with _progress("inspecting"):
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
        out.print_json(json.dumps(summary))
        return
    err.print(str(summary["marking"]), style="bold red")
    out.print(_two_columns({label: summary[key] for key, label in LABELS.items()}))
    starts = {"modelled": "modelled", "left_out": "left out", "refused": "refused", "no_twin": "no twin"}
    for key, start in starts.items():
        for sentence in cast(tuple[str, ...], summary[key]):
            _say(f"{start}: {sentence}")
    for note in cast(tuple[str, ...], summary["notes"]):
        _say(f"note: {note}")


@app.command()
def certify(
    config: ConfigFile,
    model: Annotated[
        Path | None, typer.Option(help="Load model to use; default: the one that the release fitted.")
    ] = None,
    line_draws: Annotated[
        int | None,
        typer.Option(help="Days to draw for the losses per line; default: network.line_draws.", min=0),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute the network evidence alone: Theorem 1, losses per line, audit (INTERNAL; spends nothing).

    Example: `dp-powerflow certify release.toml`
    """
    with _progress("calibrating") as (advance, _):
        result = dpf.certify(dpf.read_config(config), model=model, line_draws=line_draws, on_progress=advance)
    if as_json:
        out.print_json(result.json_text)
        return
    err.print(result.marking, style="bold red")
    _print_markdown(result.lines)
    _say(f"written to {result.directory}")


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="Config to write.")] = Path("release.toml"),
    feeder: Annotated[str | None, typer.Option(help=FEEDER)] = None,
    meters: Annotated[Path | None, typer.Option(help="CSV or Parquet file of meter readings.")] = None,
    services: Annotated[
        Path | None, typer.Option(help="Public list of customers; default: one is written from the meters.")
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(help="twin-network (default) or true-network, the paper's."),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(help="kW, W, 'kWh per interval' or 'Wh per interval', unless a column name says it."),
    ] = None,
    time_zone: Annotated[
        str | None, typer.Option(help="Time zone of the stamps, such as Europe/Berlin.")
    ] = None,
    interval_label: Annotated[
        str | None,
        typer.Option(help="start or end: which end of its interval a stamp marks."),
    ] = None,
    first_day: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d"], help="First day of the readings; it is published."),
    ] = None,
    last_day: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], help="Last day of the readings; it is published.")
    ] = None,
    customer_column: Annotated[
        str | None, typer.Option(help="Column of customer ids, if its name is not clear.")
    ] = None,
    time_column: Annotated[
        str | None, typer.Option(help="Column of time stamps, if its name is not clear.")
    ] = None,
    active_column: Annotated[
        str | None, typer.Option(help="Column of active readings, if its name is not clear.")
    ] = None,
    taps: Annotated[Path | None, typer.Option(help="CSV file of regulator taps, declared public.")] = None,
    latitude: Annotated[float | None, typer.Option(help="Latitude of a clear sky for PV systems.")] = None,
    days: Annotated[int | None, typer.Option(help="Number of days in the corpus.", min=1)] = None,
    release_id: Annotated[str | None, typer.Option("--id", help="Name of the release.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a commented config for your feeder and meters, or an example on public data without them.

    It takes only the format from private data: columns, step, ids. All figures are public ones, and the days
    are those that you declare.

    Example: `dp-powerflow init --feeder my/master.dss --meters meters.csv --time-zone Europe/Berlin
    --first-day 2024-01-01 --last-day 2024-12-31`
    """
    from dp_powerflow.setup import DEFAULT_MODE, SetupRequest, set_up, write_example
    from dp_powerflow.setup.facts import DeclaredFormat, Named

    if feeder is None and meters is None:
        own = (services, unit, time_zone, interval_label, customer_column, time_column, active_column)
        own_days = (first_day, last_day, days)
        if any(option is not None for option in (*own, *own_days, taps, latitude, release_id)):
            raise ConfigError("these options describe your own data; add --feeder and --meters")
        written = write_example(path, mode or DEFAULT_MODE)
    elif feeder is None or meters is None:
        raise ConfigError("a config for your own data needs both --feeder and --meters")
    else:
        columns = Named(customer_column, time_column, active_column)
        read = None if first_day is None or last_day is None else (first_day.date(), last_day.date())
        request = SetupRequest(
            config=path,
            feeder=feeder,
            meters=meters,
            services=services,
            taps=taps,
            declared=DeclaredFormat(unit, time_zone, interval_label, columns, read),
            mode=mode or DEFAULT_MODE,
            days=days,
            release_id=release_id,
            latitude=latitude,
        )
        with _progress("init") as (_, describe):
            written = set_up(request, describe)
    if as_json:
        files = {"config": str(written.config), "services": written.services and str(written.services)}
        out.print_json(json.dumps(files | {"notes": list(written.notes)}))
        return
    for note in written.notes:
        _say(f"INTERNAL: {note}")
    for file in (written.services, written.config):
        if file is not None:
            _say(f"written: {file}")
    _say(f"next: dp-powerflow plan {path}")


@app.command()
def plan(config: ConfigFile, as_json: AsJson = False) -> None:
    """Check whether a release would work and what it costs; spends nothing. Exit code 3: not affordable.

    Example: `dp-powerflow plan release.toml`
    """
    from dp_powerflow.report.results import internal_lines, render_plan

    with _progress("plan") as (_, describe):
        planned = dpf.plan(dpf.read_config(config), on_stage=describe)
    _show_ingest(planned.ingest)
    _show(render_plan(planned), as_json)
    marking, *lines = internal_lines(planned) or [""]
    if marking:
        err.print(marking, style="bold red")
    for line in lines:
        _say(f"network: {line}")
    if not planned.affordable:
        raise typer.Exit(3)


@app.command()
def release(
    config: ConfigFile, workers: Workers = None, scheduler: Scheduler = None, as_json: AsJson = False
) -> None:
    """Make the release; run it again to finish one that was interrupted.

    Example: `dp-powerflow release release.toml`
    """
    ENDING.resumes = True
    _release(dpf.read_config(config), workers, scheduler, as_json)


@app.command()
def verify(
    release: Annotated[
        str, typer.Argument(help="Directory or URL of a release or fleet; folder of a derived release.")
    ],
    private: Annotated[
        Path | None,
        typer.Option(help="Private state directory, to check commitment and ledger (auditors)."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="With --private: config of the release, to recompute its evidence.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--release", help="Of a derived release: the release it came from, to recompute it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute all that a third party can check of a release; exit code 1 if it is not intact.

    Example: `dp-powerflow verify release`
    """
    opened = None if config is None else dpf.read_config(config)
    with _progress("verifying") as (advance, _):
        report = dpf.verify(release, private=private, config=opened, source=source, on_progress=advance)
    from dp_powerflow.report.verification import render_verification

    rendered = render_verification(report)
    if private is not None:
        _say("INTERNAL: these checks used the private state")
    if as_json:
        out.print_json(rendered.json_text)
    else:
        out.print("\n".join(rendered.lines), markup=False, highlight=False, soft_wrap=True)
    if not report.intact:
        raise typer.Exit(1)


@app.command()
def derive(
    kind: Annotated[
        str,
        typer.Argument(help="opf, hosting-capacity or reliability: a wrong name lists them all."),
    ],
    source: Annotated[
        Path,
        typer.Argument(help="Directory of a release that publishes its twin; or its config (TOML)."),
    ],
    settings: Annotated[Path | None, typer.Option(help="Public settings (TOML); default: all as is.")] = None,
    output: Annotated[
        Path | None, typer.Option("--out", help="Folder to create; default: RELEASE-KIND beside the release.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Workers; default: one per core.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Compute dispatch, hosting capacity or reliability from the twin of a release; spends nothing.

    Example: `dp-powerflow derive hosting-capacity release.toml --out hosting`
    """
    from dp_powerflow.report.results import read_settings, render_derivation, usual_folder

    given = {} if settings is None else read_settings(settings)
    opened = dpf.read_config(source) if source.is_file() else source
    with _progress(kind) as (advance, describe):
        found = dpf.derive(
            kind,
            opened,
            output or usual_folder(opened, kind),
            settings=given,
            workers=workers,
            on_stage=describe,
            on_progress=advance,
        )
    for warning in found.warnings:
        _say(f"warning: {warning}")
    _show(render_derivation(found), as_json)
    _say(f"derived: {found.path}")


@app.command()
def fidelity(
    release: Annotated[str, typer.Argument(help="Directory or URL of a release.")],
    config: ConfigFile,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer customers, days and fits: under a minute.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare a release with its true meters and feeder, and attack it (INTERNAL; spends nothing).

    Do not choose settings by it: no epsilon covers that. Exit code 1 if an attack learned more than epsilon
    allows.

    Example: `dp-powerflow fidelity release release.toml`
    """
    from dp_powerflow.corpus.storage import local_copy, location
    from dp_powerflow.fidelity.measure import Watch, fidelity_of_release
    from dp_powerflow.fidelity.report import LEAK, MARKING
    from dp_powerflow.fidelity.verdicts import FULL, QUICK
    from dp_powerflow.manifest.model import MANIFEST_FILE
    from dp_powerflow.report.results import render_fidelity

    opened = dpf.read_config(config)
    with (
        _progress("fidelity") as (advance, describe),
        local_copy(location(release), one_of=(MANIFEST_FILE,)) as directory,
    ):
        kept = fidelity_of_release(directory, opened, QUICK if quick else FULL, Watch(describe, advance))
    err.print(MARKING, style="bold red")
    _say(LEAK)
    _show(render_fidelity(kept.report), as_json)
    alarms = kept.report.attacks.alarms
    for alarm in alarms:
        err.print(alarm, style="bold red", markup=False, highlight=False, soft_wrap=True)
    _say(f"page: {kept.page}")
    if alarms:
        raise typer.Exit(1)


@app.command()
def quality(
    release: Annotated[str, typer.Argument(help="Directory or URL of a release, or of a fleet.")],
    page: Annotated[
        Path | None, typer.Option("--out", help="Make the page again and write it to this file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say where the quality page of a release is, make it again, or print its figures.

    Example: `dp-powerflow quality release --out quality.html`
    """
    from dp_powerflow._files import write_named
    from dp_powerflow.corpus.storage import location
    from dp_powerflow.fleet.names import PAGE_FILE, is_fleet
    from dp_powerflow.manifest.model import QUALITY_FILE

    of_fleet = is_fleet(release)
    file = PAGE_FILE if of_fleet else QUALITY_FILE
    released = location(release) / file
    is_there = released.exists()
    if is_there and page is None and not as_json:
        _say(f"the page of the {'fleet' if of_fleet else 'release'}: {released}")
        return
    with _progress("looking at the corpus") as (advance, describe):
        if of_fleet:
            content, figures = _fleet_quality(release, describe, advance)
        else:
            found = dpf.quality(dpf.open_corpus(release), on_progress=advance)
            content, figures = found.to_html(), found.to_json()
    if as_json:
        typer.echo(figures, nl=False)
    if page is not None or not as_json:
        target = page or Path(file)
        write_named(target, content)
        _say(f"written: {target}")


def _fleet_quality(
    path: str, describe: Callable[[str], None], advance: Callable[[int, int], None]
) -> tuple[bytes, str]:
    """Page and key figures of a fleet; feeders without a page of their own are looked at."""
    from dp_powerflow.fleet.manifest import read_entries
    from dp_powerflow.fleet.overview import fleet_page, read_summaries

    fleet = dpf.open_fleet(path)
    entries = read_entries(fleet.path)
    summaries = read_summaries(fleet.path, entries)
    for name in fleet.names:
        if name not in summaries:
            describe(f"looking at feeder {name}")
            summaries[name] = dpf.quality(fleet.feeder(name), on_progress=advance).summary
    made = fleet_page(str(fleet.manifest["fleet"]["id"]), entries, summaries)
    return made.to_html(), json.dumps(summaries, indent=1) + "\n"


@app.command()
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
    from dp_powerflow.fleet.config import read_fleet_config
    from dp_powerflow.fleet.names import counted
    from dp_powerflow.fleet.run import FAILURES_FILE, Outcome, plan_fleet, run_fleet
    from dp_powerflow.report.progress import ToldFailures
    from dp_powerflow.report.results import FLEET_MARKING, render_fleet_plan, render_fleet_result

    fleet_config = read_fleet_config(config)
    if only_plan:
        with _progress("feeders") as (advance, _):
            planned = plan_fleet(
                fleet_config, engine=engine_of(workers, scheduler), on_event=counted(advance)
            )
        _show_ingest(planned.ingest)
        err.print(FLEET_MARKING, style="bold red")
        _show(render_fleet_plan(planned), as_json)
        if not planned.possible:
            raise typer.Exit(3)
        return

    told = ToldFailures(_say)
    ENDING.resumes = True

    def report(outcome: Outcome) -> None:
        if outcome.problem is not None:
            told.tell(outcome.name, outcome.key, outcome.problem)

    with _progress("fleet") as (advance, describe):
        result = run_fleet(
            fleet_config,
            engine=engine_of(workers, scheduler),
            say=describe,
            on_event=counted(advance),
            on_outcome=report,
        )
    _show_ingest(result.ingest)
    for warning in result.warnings:
        _say(f"warning: {warning}")
    _show_fleet(render_fleet_result(result), as_json)
    told.rest(result.internal / FAILURES_FILE)
    if result.failed:
        raise typer.Exit(1)


def _show_fleet(rendered: Rendered, as_json: bool) -> None:
    """What became of a fleet: INTERNAL lines on stderr, JSON on stdout if it is asked for."""
    if as_json:
        out.print_json(rendered.json_text)
    for line in rendered.lines:
        _say(line)


@app.command()
def ledger(
    state: Annotated[Path, typer.Argument(help="Private state directory.")],
    releases: Annotated[
        list[str] | None, typer.Argument(help="With --witness: directories or URLs of releases or fleets.")
    ] = None,
    witness: Annotated[
        bool, typer.Option("--witness", help="Compare the ledger with earlier releases.")
    ] = False,
    accept_unanchored: Annotated[
        str | None,
        typer.Option(help="Accept a ledger without its anchor; record why.", metavar="REASON"),
    ] = None,
    account: Annotated[str | None, typer.Option(help="Account whose cap to change.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="New cap on epsilon.")] = None,
    delta: Annotated[float | None, typer.Option(help="New cap on delta.")] = None,
    radius: Annotated[
        float | None,
        typer.Option(help="New radius [p.u.], for an account of a true network."),
    ] = None,
    reason: Annotated[str, typer.Option(help="Who decided it and why; recorded for ever.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show what was spent (PRIVATE); --account changes a cap, --witness looks for lost charges.

    Example: `dp-powerflow ledger private-state --witness release-1 release-2`
    """
    from dp_powerflow.pipeline.radius import restate_radius
    from dp_powerflow.privacy.ledger.book import Ledger
    from dp_powerflow.report.verification import render_ledger

    if witness is not bool(releases):
        raise ConfigError("give releases or fleets with --witness, and only with it")
    if witness:
        _hear(state, releases or [], as_json)
        return
    if accept_unanchored is not None:
        Ledger.accept_unanchored(state, accept_unanchored)

    figures = (epsilon, delta, radius)
    if account is None and (figures != (None, None, None) or reason):
        raise ConfigError("name the account to change with --account")
    opened = Ledger.inspect(state)
    if account is not None and radius is not None:
        restate_radius(opened, account, radius, reason)
    if account is not None and (radius is None or figures[:2] != (None, None)):
        opened.change_figures(account, epsilon, delta, reason)
    _show(render_ledger(opened.summary()), as_json)


def _hear(state: Path, releases: list[str], as_json: bool) -> None:
    from dp_powerflow.fleet.witness import hear_witnesses
    from dp_powerflow.report.verification import render_testimony

    found = hear_witnesses(state, releases)
    _show(render_testimony(found), as_json)
    if found.contradictions:
        raise typer.Exit(1)


@export.command("gridfm")
def export_gridfm(
    releases: Annotated[list[str], typer.Argument(help="Releases that publish their twin, or fleets.")],
    directory: Annotated[Path, typer.Argument(help="Folder to create.")],
    perturbed: Annotated[
        int, typer.Option(help="Perturbed scenarios to add to every release; they cost nothing.", min=0)
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the perturbations; public.", min=0)] = 0,
    per_network: Annotated[
        int, typer.Option(help="Perturbed scenarios on each perturbed network.", min=1)
    ] = 8,
    phasors: Annotated[
        bool,
        typer.Option("--phasors", help="Keep phasors; do not turn them back by their nominal angles."),
    ] = False,
    keep_switches: Annotated[
        bool,
        typer.Option("--keep-switches", help="Do not merge switches of almost no impedance."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write published twins as gridfm-graphkit reads them, with a configuration that trains on them.

    Example: `dp-powerflow export gridfm release graphs --perturbed 2000 --seed 1`
    """
    from dp_powerflow.report.results import render_export

    variety = dpf.GridfmVariety(perturbed, seed=seed, per_network=per_network) if perturbed else None
    style = dpf.GridfmStyle(turned=not phasors, merged=not keep_switches)
    with _progress("exporting") as (advance, _):
        made = dpf.export_gridfm(releases, directory, style=style, variety=variety, on_progress=advance)
    _show(render_export(made), as_json)


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--out", help="Folder to create.")] = Path("demo-output"),
    as_json: AsJson = False,
) -> None:
    """Make a release on a twin and the paper's, on IEEE 123 with simulated homes, and compare them.

    Example: `dp-powerflow demo --out demo-output`
    """
    from dp_powerflow.report.demo import Demo

    begun = Demo.begin(output)
    for config in (begun.twin, begun.paper):
        _say(f"release '{config.release.id}', mode {config.network.mode}")
        with _progress("release") as (advance, describe):
            result = begun.release(config, describe, advance)
        _show_release(config, result, False)
    with _progress("comparing") as (_, describe):
        sides = begun.compare(describe)
    _show(begun.table(sides), as_json)
    if not as_json:
        out.print(begun.closing_words(sides), markup=False, highlight=False, soft_wrap=True)


def _release(config: dpf.Config, workers: int | None, scheduler: str | None, as_json: bool) -> None:
    with _progress("release") as (advance, describe):
        result = dpf.release(
            config, workers=workers, scheduler=scheduler, on_stage=describe, on_progress=advance
        )
    _show_release(config, result, as_json)


def _show_release(config: dpf.Config, result: ReleaseResult, as_json: bool) -> None:
    from dp_powerflow.pipeline.modes.base import mode_of

    _show_ingest(result.ingest)
    for warning in result.warnings:
        _say(f"warning: {warning}")
    if as_json:
        content = {
            "release": str(result.path),
            "internal": str(result.internal),
            "warnings": list(result.warnings),
        }
        out.print_json(json.dumps(content))
        return
    _say(f"released: {result.path}")
    mismatch = "" if result.worst_mismatch is None else f"{result.worst_mismatch:.1e} p.u."
    found = mode_of(config).outcome(result.evidence_met)
    _say(
        f"INTERNAL: largest power mismatch before rounding {mismatch or 'not measured again'}; {found}; "
        f"see {result.internal}"
    )


@app.command()
def experiment(
    name: Annotated[
        str,
        typer.Argument(help="theorem, wasserstein, …: a wrong name lists them all."),
    ],
    config: Annotated[
        Path | None,
        typer.Argument(help="Config (TOML) with the feeder, meters and sun to use instead of --data."),
    ] = None,
    oedi: Annotated[
        Path | None, typer.Option(envvar="DP_POWERFLOW_OEDI", help="Folder of the OEDI profiles.")
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(envvar="DP_POWERFLOW_REFERENCE", help="Folder of reference cases of other systems."),
    ] = None,
    swiss: Annotated[
        Path | None, typer.Option(envvar="DP_POWERFLOW_SWISS", help="Folder of the Swiss meters.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="oedi, simbench, swiss or simulated; default: oedi if at hand; comparison: all at hand."
        ),
    ] = None,
    pv: Annotated[bool, typer.Option("--pv/--no-pv", help="PV systems, where the data set has them.")] = True,
    volt_var: Annotated[
        bool, typer.Option("--volt-var/--no-volt-var", help="Volt-var control, or unit power factor.")
    ] = True,
    controls: Annotated[
        str,
        typer.Option(help="frozen (taps of the nominal load), or snapshot or day (regulators act)."),
    ] = "frozen",
    output: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for the results; default: experiment-output."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small run, to try it out.")] = False,
    calibration_days: Annotated[int, typer.Option(help="Days of the Monte Carlo calibration.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of every draw; an experiment is never a release.")] = 0,
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
    with _progress(name) as (advance, _):
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
        err.print(INTERNAL, style="bold red")
    out.print(written.text, markup=False, highlight=False, soft_wrap=True)
    for path in written.files:
        _say(f"written: {path}")


def _show(rendered: Rendered, as_json: bool) -> None:
    """A result on stdout."""
    if as_json:
        out.print_json(rendered.json_text)
    else:
        _print_markdown(rendered.lines)


def _show_ingest(found: IngestReport | None) -> None:
    """What reading the meters found, on stderr and marked INTERNAL; nothing for simulated loads."""
    if found is not None:
        err.print(found.marking, style="bold red")
        for line in found.summary():
            _say(f"meters: {line}")


def _say(text: str) -> None:
    """One line on stderr, as it is."""
    err.print(text, markup=False, highlight=False, soft_wrap=True)


def _progress(title: str) -> AbstractContextManager[tuple[Callable[[int, int], None], Callable[[str], None]]]:
    """Progress on stderr: one callback for progress, one for the stage."""
    from dp_powerflow.report.progress import progress

    return progress(err, title)


def _print_markdown(lines: Iterable[str]) -> None:
    from rich.markdown import Markdown  # takes a tenth of what a short command takes

    out.print(Markdown(printable("\n".join(lines))))


def _two_columns(values: dict[str, object]) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in values.items():
        if isinstance(value, dict):
            value = ", ".join(f"{name} {ratio:.5f}" for name, ratio in value.items()) or "none"
        shown = f"{value:.6g}" if isinstance(value, float) else "unknown" if value is None else str(value)
        table.add_row(Text(key), Text(printable(shown)))
    return table
