"""A derived release for a person and for a machine, and what the command line asks of its files."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from dp_powerflow.config import Config
from dp_powerflow.corpus.storage import location
from dp_powerflow.errors import ConfigError
from dp_powerflow.pipeline.deriving.pages import flat, named_tables
from dp_powerflow.pipeline.deriving.reader import Derived
from dp_powerflow.report import Rendered

MOST_FIGURES = 25
"""Figures that are shown; the JSON and the page have more."""


def render_derivation(found: Derived) -> Rendered:
    """What was found, where its tables are, and what it costs."""
    figures = list(flat(found.figures))
    more = len(figures) - MOST_FIGURES
    lines = [
        f"**{found.kind}** of release **{found.release_id}**; it spends {found.manifest.cost.spends}.",
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
        "warnings": list(found.manifest.derived.warnings),
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
        raise ConfigError(f"settings file {path} does not exist; check its path") from None
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
