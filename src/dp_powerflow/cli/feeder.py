"""`inspect`, `certify` and `experiment`: what a feeder is, and what the paper says about it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

from rich.table import Table
from rich.text import Text
from typer import Argument, Option

import dp_powerflow as dpf
from dp_powerflow.cli.terminal import FEEDER, AsJson, ConfigFile, err, out, print_markdown, progress, say
from dp_powerflow.errors import FeederError, printable, require


def inspect(
    feeder: Annotated[str, Argument(help=FEEDER)],
    taps: Annotated[Path | None, Option(help="CSV file of regulator taps.")] = None,
    save_taps: Annotated[
        Path | None, Option(help="Write the regulator taps, INTERNAL, to this CSV file.")
    ] = None,
    base_mva: Annotated[float, Option(help="Power base per phase [MVA].")] = 1.0,
    drop_islanded: Annotated[bool, Option(help="Leave out nodes that no source feeds.")] = False,
    as_json: AsJson = False,
) -> None:
    """Describe a feeder (INTERNAL: the output describes the private network).

    Example: `dp-powerflow inspect ieee123 --json`
    """
    from dp_powerflow._inspection import LABELS
    from dp_powerflow.grid.feeder import TAPS_DECLARED, TAPS_INTERNAL
    from dp_powerflow.grid.refusals import in_full
    from dp_powerflow.grid.sources import feeder_problems, read_taps, write_taps

    table = None if taps is None else read_taps(taps)
    with progress("inspecting"):
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
            say(f"{start}: {sentence}")
    for note in cast(tuple[str, ...], summary["notes"]):
        say(f"note: {note}")


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
    config: ConfigFile,
    model: Annotated[
        Path | None, Option(help="Load model to use; default: the one that the release fitted.")
    ] = None,
    line_draws: Annotated[
        int | None,
        Option(help="Days to draw for the losses per line; default: network.line_draws.", min=0),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute the network evidence alone: Theorem 1, losses per line, audit (INTERNAL; spends nothing).

    Example: `dp-powerflow certify release.toml`
    """
    with progress("calibrating") as (advance, _):
        result = dpf.certify(dpf.read_config(config), model=model, line_draws=line_draws, on_progress=advance)
    if as_json:
        out.print_json(result.json_text)
        return
    err.print(result.marking, style="bold red")
    print_markdown(result.lines)
    say(f"written to {result.directory}")


def experiment(
    name: Annotated[str, Argument(help="theorem, wasserstein, …: a wrong name lists them all.")],
    config: Annotated[
        Path | None,
        Argument(help="Config (TOML) with the feeder, meters and sun to use instead of --data."),
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
    with progress(name) as (advance, _):
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
        say(f"written: {path}")
