"""`derive`, `fidelity` and `export`: what is computed from a finished release."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import dp_powerflow as dpf
from dp_powerflow.cli.terminal import AsJson, ConfigFile, Rendered, err, progress, say, show
from dp_powerflow.errors import ConfigError

if TYPE_CHECKING:
    from dp_powerflow.corpus.gridfm.export import GridfmExport
    from dp_powerflow.fidelity.report import FidelityReport
    from dp_powerflow.pipeline.deriving.derived import Derived


MOST_FIGURES = 25
"""Figures that are shown; the JSON and the page have more."""


def derive(
    kind: Annotated[
        str, typer.Argument(help="opf, hosting-capacity or reliability: a wrong name lists them all.")
    ],
    source: Annotated[
        Path, typer.Argument(help="Directory of a release that publishes its twin; or its config (TOML).")
    ],
    settings: Annotated[Path | None, typer.Option(help="Public settings (TOML); default: all as is.")] = None,
    output: Annotated[
        Path | None, typer.Option("--out", help="Folder; default: RELEASE-KIND next to the release.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Workers; default: one per core.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Compute dispatch, hosting capacity or reliability from the twin of a release; spends nothing.

    Example: `dp-powerflow derive hosting-capacity release.toml --out hosting`
    """
    from dp_powerflow.config import read_toml

    given = {} if settings is None else read_toml(settings, "settings file", "check its path")
    opened = dpf.read_config(source) if source.is_file() else source
    with progress(kind) as (advance, describe):
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
        say(f"warning: {warning}")
    show(render_derivation(found), as_json)
    say(f"derived: {found.path}")


def render_derivation(found: Derived) -> Rendered:
    """What was found, where its tables are, and what it costs."""
    from dp_powerflow.pipeline.deriving.derived import flat, named_tables

    content = {
        "derived": str(found.path),
        "kind": found.kind,
        "release": found.release_id,
        "figures": dict(found.figures),
        "sentences": list(found.sentences),
        "tables": list(found.tables),
        "warnings": list(found.warnings),
    }
    figures, tables = list(flat(found.figures)), list(named_tables(found.manifest.tables).values())
    return Rendered.of("derived.md", content, found=found, most=MOST_FIGURES, figures=figures, tables=tables)


def usual_folder(source: Path | dpf.Config, kind: str) -> Path:
    """Where a derived release goes by default: beside the release.

    Raises
    ------
    ConfigError : the release is at a URL, beside which there is no folder.
    """
    from dp_powerflow.corpus.storage import location

    place = location(source.release.output) if isinstance(source, dpf.Config) else source
    if not isinstance(place, Path):
        raise ConfigError("the release is at a URL; name the folder of the derived release with --out")
    place = place.absolute()
    return place.with_name(f"{place.name}-{kind}")


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
    from dp_powerflow.corpus.storage import location, one_reading
    from dp_powerflow.fidelity.measure import fidelity_of_release
    from dp_powerflow.fidelity.report import LEAK, MARKING
    from dp_powerflow.fidelity.verdicts import FULL, QUICK

    opened = dpf.read_config(config)
    with progress("fidelity") as (advance, describe), one_reading(location(release)) as place:
        effort = QUICK if quick else FULL
        report, page = fidelity_of_release(place, opened, effort, describe, advance)
    err.print(MARKING, style="bold red")
    say(LEAK)
    show(render_fidelity(report), as_json)
    alarms = report.attacks.alarms
    for alarm in alarms:
        err.print(alarm, style="bold red", markup=False, highlight=False, soft_wrap=True)
    say(f"page: {page}")
    if alarms:
        raise typer.Exit(1)


def render_fidelity(report: FidelityReport) -> Rendered:
    """INTERNAL. A table of figures with verdicts, the attacks, and what to trust."""
    from dp_powerflow.fidelity.report import GROUPS, MARKING, SIGNS, in_words, shown

    return Rendered.of(
        "fidelity.md",
        json.loads(report.to_json()),
        {"shown": shown, "words": in_words},
        report=report,
        attacks=report.attacks,
        marking=MARKING,
        groups=GROUPS,
        signs=SIGNS,
    )


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
    as_json: AsJson = False,
) -> None:
    """Write published twins as gridfm-graphkit reads them, with a configuration that trains on them.

    Example: `dp-powerflow export gridfm release graphs --perturbed 2000 --seed 1`
    """
    variety = dpf.GridfmVariety(perturbed, seed=seed, per_network=per_network) if perturbed else None
    with progress("exporting") as (advance, _):
        made = dpf.export_gridfm(releases, directory, variety=variety, on_progress=advance)
    show(render_export(made), as_json)


def render_export(made: GridfmExport) -> Rendered:
    """The networks of a folder for gridfm-graphkit, and how to train on it."""
    content = {
        "path": str(made.path),
        "config": str(made.config),
        "networks": [asdict(network) for network in made.networks],
    }
    return Rendered.of("gridfm.md", content, made=made)
