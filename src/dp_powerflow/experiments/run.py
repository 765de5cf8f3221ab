"""One entry point for every experiment: run it, write its tables, say where."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from dp_powerflow.errors import ConfigError
from dp_powerflow.experiments.theorem import run_theorem, to_json, to_markdown

NAMES = ("theorem",)


def run_experiment(
    name: str, oedi: Path | None, output: Path, calibration_days: int, progress: Callable[[int, int], None]
) -> tuple[str, list[Path]]:
    """Text of the result, and the files it was written to."""
    if name not in NAMES:
        raise ConfigError(f"there is no experiment '{name}'; there is {', '.join(NAMES)}")
    if oedi is None:
        raise ConfigError("this experiment needs the OEDI profiles; name their folder with --oedi")
    rows = run_theorem(oedi, calibration_days=calibration_days, progress=progress)
    text = to_markdown(rows)
    output.mkdir(parents=True, exist_ok=True)
    table, values = output / "theorem.md", output / "theorem.json"
    table.write_text(text, encoding="utf-8")
    values.write_text(json.dumps(to_json(rows), indent=1), encoding="utf-8")
    return text, [table, values]
