"""The command line: parse, call, print."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from dp_powerflow import __version__
from dp_powerflow.errors import DpPowerflowError

app = typer.Typer(
    name="dp-powerflow",
    help="Differentially private synthetic voltage phasors for distribution grids.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
out = Console()
err = Console(stderr=True)


def main() -> None:
    """Entry point: errors of the input become one sentence and exit code 2."""
    try:
        app()
    except DpPowerflowError as error:
        err.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(1)


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Differentially private synthetic voltage phasors for distribution grids."""
    if show:
        out.print(__version__, highlight=False)
        raise typer.Exit


@app.command()
def inspect(
    feeder: Annotated[
        str, typer.Argument(help="ieee13, ieee123, PATH.dss, PATH.json (pandapower) or simbench:CODE")
    ],
    taps: Annotated[Path | None, typer.Option(help="CSV file of regulator taps.")] = None,
    save_taps: Annotated[Path | None, typer.Option(help="Write the regulator taps to this CSV file.")] = None,
    base_mva: Annotated[float, typer.Option(help="Power base per phase [MVA].")] = 1.0,
    drop_islanded: Annotated[bool, typer.Option(help="Leave out nodes that no source feeds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What a feeder looks like (INTERNAL: it describes the secret).

    Example: `dp-powerflow inspect ieee123 --json`
    """
    from dp_powerflow.grid.sources import open_feeder
    from dp_powerflow.grid.taps import read_taps, write_taps
    from dp_powerflow.report.inspection import LABELS, inspect_feeder

    opened = open_feeder(
        feeder,
        taps=None if taps is None else read_taps(taps),
        base_mva=base_mva,
        drop_islanded=drop_islanded,
    )
    if save_taps is not None:
        write_taps(save_taps, opened.taps)
    summary = inspect_feeder(opened).to_json()
    if as_json:
        out.print_json(json.dumps(summary))
        return
    marking, notes = str(summary.pop("marking")), summary.pop("notes")
    err.print(marking, style="bold red")
    out.print(_two_columns({LABELS[key]: value for key, value in summary.items()}))
    for note in notes if isinstance(notes, tuple) else ():
        err.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def certify(
    config: Annotated[Path, typer.Argument(help="TOML file of a release.")],
    model: Annotated[
        Path | None, typer.Option(help="Load model to use; by default the one that the release has fitted.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The network evidence by itself: Theorem 1 in every mode (INTERNAL; spends nothing).

    Example: `dp-powerflow certify release.toml`
    """
    from dp_powerflow.config import read_config
    from dp_powerflow.report.certification import certify_config

    with _progress("calibrating") as report:
        result = certify_config(read_config(config), model, progress=report)
    if as_json:
        out.print_json(result.json_text)
        return
    err.print(result.marking, style="bold red")
    out.print(Markdown("\n".join(result.lines)))
    err.print(f"written to {result.directory}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def experiment(
    name: Annotated[str, typer.Argument(help="theorem")],
    oedi: Annotated[
        Path | None, typer.Option(envvar="DP_POWERFLOW_OEDI", help="Folder of the OEDI profiles.")
    ] = None,
    output: Annotated[Path, typer.Option("--out", help="Folder for the results.")] = Path(
        "experiment-output"
    ),
    calibration_days: Annotated[int, typer.Option(help="Days of the Monte Carlo calibration.")] = 1000,
) -> None:
    """Experiments on public data: `theorem` evaluates Theorem 1 on IEEE 123 with the OEDI profiles.

    Example: `dp-powerflow experiment theorem --oedi oedi-ieee123 --out results`
    """
    from dp_powerflow.experiments.run import run_experiment

    with _progress("running") as report:
        text, written = run_experiment(name, oedi, output, calibration_days, report)
    out.print(text, markup=False, highlight=False, soft_wrap=True)
    for path in written:
        err.print(f"written: {path}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr; the callback takes what is done and what there is."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _two_columns(values: dict[str, object]) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in values.items():
        if isinstance(value, dict):
            value = ", ".join(f"{name} {ratio:.5f}" for name, ratio in value.items()) or "none"
        shown = f"{value:.6g}" if isinstance(value, float) else "unknown" if value is None else str(value)
        table.add_row(Text(key), Text(shown))
    return table
