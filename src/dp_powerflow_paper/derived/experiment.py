"""Fidelity of derived releases on a public feeder: hosting capacity, optimal dispatch, reliability.

The data are public, so the true network may be studied here; a release is refused on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dp_powerflow.errors import ConfigError, DpPowerflowError, PowerFlowError
from dp_powerflow.lowlevel import Processes, Study, cores
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.datasets import ExperimentOptions, open_dataset, silent
from dp_powerflow_paper.derived.studies import CASES, OTHER_DAYS, TRUE, Bench, Case, Compared, compared
from dp_powerflow_paper.derived.tables import Row, Values, draw_figure, row_of, to_markdown
from dp_powerflow_paper.run import Store, Written, store_of, write_report

VERSION = 1
"""Of the results: a change of what is computed makes another one."""


@dataclass(frozen=True)
class Size:
    """Runs of every case that is drawn, and days of a study."""

    runs: int
    days: int


FULL, QUICK = Size(10, 4), Size(2, 2)

Task = tuple[Case, int]
"""A case and the number of its run."""
Found = dict[Task, dict[str, Values | None]]
"""What a study gave, by name of the kind; None where it gave nothing."""


@dataclass(frozen=True)
class _Job:
    """Work for other processes, each with a bench of its own; the stores are what they share.

    A run is one piece of work, as its cases share fits.
    """

    options: ExperimentOptions
    size: Size
    stores: dict[str, Store]

    def start(self, threads: int | None) -> Callable[[int], int]:
        bench = Bench(open_dataset(self.options), self.size.days, self.options.seed)
        kinds = compared()

        def do(run: int) -> int:
            for task in tasks_of(run):
                computed(bench, kinds, self.stores, task)
            return run

        return do


def tasks_of(run: int) -> list[Task]:
    """Studies of one run; the first has those too that nothing is drawn for."""
    return [*([(TRUE, 0), (OTHER_DAYS, 0)] if run == 0 else []), *((case, run) for case in CASES)]


def run(options: ExperimentOptions, workers: int | None = None) -> Written:
    """Compute what is not stored yet, then write tables and the figure.

    Parameters
    ----------
    workers : processes; None for one per core. Results do not depend on it.
    """
    if options.controls != "frozen":
        raise ConfigError("controls always act in experiment 'derived', as in a release; remove --controls")
    size = QUICK if options.quick else FULL
    data = open_dataset(options)
    kinds = compared()
    stores = {each.name: _store(options, data.name, data.identity, size, each) for each in kinds}
    tasks = {run: tasks_of(run) for run in range(size.runs)}
    missing = [
        run
        for run, own in tasks.items()
        if any(store.get(_file(task)) is None for store in stores.values() for task in own)
    ]
    done = 0

    def note(_: int) -> None:
        nonlocal done
        done += 1
        options.progress(done, len(missing))

    if missing:
        job = _Job(replace(options, progress=silent), size, stores)
        Processes(workers or cores()).map(job, missing, note)
    bench = Bench(data, size.days, options.seed)
    found = {task: computed(bench, kinds, stores, task) for own in tasks.values() for task in own}
    rows = rows_of(kinds, found, size)
    return _write(options, data.name, to_markdown(data.words, rows, size.runs, size.days), rows, size)


def rows_of(kinds: Sequence[Compared], found: Found, size: Size) -> list[Row]:
    """A row for every kind, figure and case."""
    rows = []
    for each in kinds:
        true = found[TRUE, 0][each.name]
        if true is None:
            raise PowerFlowError(f"{each.words}: no figures on the true network; choose another data set")
        for case in (OTHER_DAYS, *CASES):
            runs = [found[case, k][each.name] for k in range(size.runs if case.repeats else 1)]
            rows += [row_of(each, measure, case, true, runs) for measure in each.measures]
    return rows


def computed(
    bench: Bench, kinds: Sequence[Compared], stores: Mapping[str, Store], task: Task
) -> dict[str, Values | None]:
    """Figures of one study by kind, stored or computed now; None where a kind could not be computed."""
    made: list[Study] = []

    def compute(each: Compared) -> dict[str, Any]:
        if not made:
            made.append(bench.study(*task))
        try:
            findings = each.kind.find(made[0], workers=1)
        except DpPowerflowError as error:
            return {"failed": str(error)}
        return {measure.name: finite_or_none(measure.of(findings)) for measure in each.measures}

    stored = {each.name: stores[each.name].get_or(_file(task), partial(compute, each)) for each in kinds}
    return {
        name: None
        if "failed" in values
        else {key: np.array(value, np.float64) for key, value in values.items()}
        for name, values in stored.items()
    }


def finite_or_none(figures: FloatArray) -> list[float | None]:
    """Figures as JSON has them, which has no NaN: null where there is none."""
    return [value if math.isfinite(value) else None for value in figures.tolist()]


def _plain(row: Row) -> dict[str, Any]:
    """A row as JSON has it."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in asdict(row).items()
    }


def _file(task: Task) -> str:
    return f"{task[0].name}-{task[1]}"


def _store(options: ExperimentOptions, name: str, identity: str, size: Size, each: Compared) -> Store:
    return store_of(
        options,
        f"derived-{name}/{each.name}",
        data=identity,
        days=size.days,
        version=VERSION,
        kind=repr(each.kind),
        measures=[measure.name for measure in each.measures],
        cases=[asdict(case) for case in (TRUE, OTHER_DAYS, *CASES)],
    )


def _write(options: ExperimentOptions, name: str, text: str, rows: list[Row], size: Size) -> Written:
    stem = f"derived-{name}{'-quick' if options.quick else ''}"
    facts = {"size": asdict(size), "seed": options.seed, "rows": [_plain(row) for row in rows]}
    figures = {stem: partial(draw_figure, rows)}
    return write_report(options.out, stem, text, facts, figures)
