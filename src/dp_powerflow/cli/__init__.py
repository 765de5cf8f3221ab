"""The command line: parse, call, print. A command stands next to its renderer, by subject."""

from __future__ import annotations

import atexit
import gc
import json
import logging
import sys
import warnings
from typing import Annotated, TextIO

import typer
from typer import Exit, Option

import dp_powerflow as dpf
from dp_powerflow._ending import ENDING, NO_MEMORY, run
from dp_powerflow.cli import checks, fleet, release
from dp_powerflow.cli.terminal import err, out, say, write_what_can_be
from dp_powerflow.errors import DpPowerflowError

app = typer.Typer(
    name="dp-powerflow",
    help="Differentially private synthetic voltage phasors for distribution grids.",
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
export = typer.Typer(
    help="Write a release in another tool's layout. Example: `dp-powerflow export gridfm release graphs`",
    no_args_is_help=True,
)
for command in (
    *(release.inspect, release.certify, release.init, release.plan, release.release, checks.verify),
    *(checks.sign, checks.review, checks.derive, checks.fidelity, checks.quality, fleet.fleet),
    *(checks.ledger, release.demo, release.experiment),
):
    app.command()(command)
export.command("gridfm")(checks.export_gridfm)
app.add_typer(export, name="export")

_NO_THREAD = "can't start new thread"
"""What Python says where a thread has no room for its stack."""
FIRST_SCREEN = """\
Voltages of distribution grids that can be published: synthetic, with differential privacy.

  dp-powerflow demo                        two releases on public data, side by side; takes minutes
  dp-powerflow init --feeder FEEDER.dss --meters METERS.csv
                                           write the config of a release of your own data
  dp-powerflow plan release.toml           would it work, and what does it cost? spends nothing
  dp-powerflow release release.toml        make it

The demo writes its pages to demo-output/index.html. All commands: dp-powerflow --help"""


def main() -> None:
    """Run a command: what `dp_powerflow.__main__` does, once this is imported."""
    run(run_command)


def run_command() -> None:
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
        say(f"error: {error}")
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        reason = error.strerror or str(error)
        said = f"error: cannot read or write{where}: {reason}; check the path and its permissions"
        say(ENDING.sentence(said))
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and str(error) != _NO_THREAD:
            raise
        say(ENDING.sentence(f"error: {NO_MEMORY}"))
        sys.exit(2)


class _Notes(logging.Handler):
    """What the package logs, as notes for people."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"note: {record.getMessage()}")


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
        say(f"note: {message}")
    else:
        err.file.write(warnings.formatwarning(message, category, filename, lineno, line))


@app.callback(invoke_without_command=True)
def version(
    context: typer.Context,
    show: Annotated[bool, Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Differentially private synthetic voltage phasors for distribution grids."""
    if show:
        out.print(dpf.__version__, highlight=False)
        raise Exit
    if context.invoked_subcommand is None:
        out.print(FIRST_SCREEN, markup=False, highlight=False, soft_wrap=True)
