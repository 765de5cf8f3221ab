"""One entry point for every experiment: run it, write its tables, say where.

To add an experiment, write a function that takes `ExperimentOptions` and returns its text and the files it
wrote, and add one entry to `EXPERIMENTS`. Entries import their experiment when it is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from dp_powerflow.errors import ConfigError
from dp_powerflow.paper.datasets import ExperimentOptions, Progress

Result = tuple[str, list[Path]]
"""Text of the result, and the files it was written to."""
Experiment = Callable[[ExperimentOptions], Result]


def _theorem(options: ExperimentOptions) -> Result:
    from dp_powerflow.paper.theorem import run_theorem, to_json, to_markdown

    rows = run_theorem(
        options.oedi_folder, calibration_days=options.calibration_days, progress=options.progress
    )
    text = to_markdown(rows)
    options.out.mkdir(parents=True, exist_ok=True)
    table, values = options.out / "theorem.md", options.out / "theorem.json"
    table.write_text(text, encoding="utf-8")
    values.write_text(json.dumps(to_json(rows), indent=1), encoding="utf-8")
    return text, [table, values]


def _lines(options: ExperimentOptions) -> Result:
    from dp_powerflow.paper.lines import run

    return run(options)


def _wasserstein(options: ExperimentOptions) -> Result:
    from dp_powerflow.paper.wasserstein.experiment import run_wasserstein

    return run_wasserstein(options)


def _recovery(options: ExperimentOptions) -> Result:
    from dp_powerflow.paper.recovery.experiment import run_recovery_experiment

    return run_recovery_experiment(options)


def _twin(options: ExperimentOptions) -> Result:
    from dp_powerflow.paper.twin import run_twin

    return run_twin(options)


EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {
        "theorem": _theorem,
        "wasserstein": _wasserstein,
        "recovery": _recovery,
        "lines": _lines,
        "twin": _twin,
    }
)
NAMES = tuple(EXPERIMENTS)


def run_experiment(
    name: str,
    oedi: Path | None,
    output: Path,
    calibration_days: int,
    progress: Progress,
    *,
    data: str | None = None,
    quick: bool = False,
    seed: int = 0,
) -> Result:
    """Run one experiment of `EXPERIMENTS`."""
    if name not in EXPERIMENTS:
        raise ConfigError(f"there is no experiment '{name}'; there is {', '.join(NAMES)}")
    options = ExperimentOptions(
        out=output,
        oedi=oedi,
        data=data,
        quick=quick,
        calibration_days=calibration_days,
        seed=seed,
        progress=progress,
    )
    return EXPERIMENTS[name](options)
