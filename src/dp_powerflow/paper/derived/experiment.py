"""Fidelity of derived releases on a public feeder: hosting capacity, optimal dispatch, reliability.

The data are public, so the true network may be studied here; a release is refused on it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dp_powerflow._parallel import Processes
from dp_powerflow._threads import cores
from dp_powerflow.errors import ConfigError, DpPowerflowError
from dp_powerflow.paper.datasets import ExperimentOptions, open_dataset, silent
from dp_powerflow.paper.derived.measures import Compared, compared
from dp_powerflow.paper.derived.studies import CASES, OTHER_DAYS, TRUE, Bench, Case
from dp_powerflow.paper.derived.tables import Row, Values, draw_figure, row_of, to_csv, to_markdown
from dp_powerflow.paper.run import Store, Written, fingerprint_of, write_results

VERSION = 1
"""Of the results: a change of what is computed makes another one."""


@dataclass(frozen=True)
class Size:
    """Runs of every case that is drawn, and days of a study."""

    runs: int
    days: int


FULL, QUICK = Size(20, 4), Size(2, 2)

Task = tuple[Case, int]
"""A case and the number of its run."""


@dataclass(frozen=True)
class _Job:
    """Work for other processes, each with a bench of its own; the store is what they share."""

    options: ExperimentOptions
    size: Size
    store: Store
    tasks: tuple[Task, ...]

    def start(self, threads: int | None) -> Callable[[int], int]:
        bench = Bench(open_dataset(self.options), self.size.days, self.options.seed)
        kinds = compared()

        def do(task: int) -> int:
            computed(bench, kinds, self.store, self.tasks[task])
            return task

        return do


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
    store = Store(options.out / f"derived-{data.name}", _fingerprint(data.identity, size, options, kinds))
    tasks = [(TRUE, 0), (OTHER_DAYS, 0), *((case, k) for k in range(size.runs) for case in CASES)]
    missing = tuple(task for task in tasks if store.get(_file(task)) is None)
    if missing:
        done = 0

        def note(_: int) -> None:
            nonlocal done
            done += 1
            options.progress(done, len(missing))

        job = _Job(replace(options, progress=silent), size, store, missing)
        Processes(workers or cores()).run(job, range(len(missing)), note)
    bench = Bench(data, size.days, options.seed)
    found = {task: computed(bench, kinds, store, task) for task in tasks}
    rows = rows_of(kinds, found, size)
    return _write(options, data.name, to_markdown(data.words, rows, size.runs, size.days), rows, size)


def rows_of(kinds: Sequence[Compared], found: dict[Task, dict[str, Values | None]], size: Size) -> list[Row]:
    """A row for every kind, figure and case."""
    rows = []
    for each in kinds:
        name = each.kind.name
        true = found[TRUE, 0][name]
        if true is None:
            raise DpPowerflowError(f"'{name}' has no figures on the true network; look at the data set")
        for case in (OTHER_DAYS, *CASES):
            runs = [found[case, k][name] for k in range(size.runs if case.repeats else 1)]
            rows += [row_of(each, measure, case, true, runs) for measure in each.measures]
    return rows


def computed(bench: Bench, kinds: Sequence[Compared], store: Store, task: Task) -> dict[str, Values | None]:
    """Figures of one study by kind, stored or computed now; None where a kind could not be computed."""

    def compute() -> dict[str, Any]:
        study = bench.study(*task)
        result: dict[str, Any] = {}
        for each in kinds:
            try:
                findings = each.kind.find(study, workers=1)
            except DpPowerflowError as error:
                result[each.kind.name] = {"failed": str(error)}
                continue
            result[each.kind.name] = {
                measure.name: measure.of(findings).tolist() for measure in each.measures
            }
        return result

    stored = store.get_or(_file(task), compute)
    return {
        name: None if "failed" in values else {key: np.array(value) for key, value in values.items()}
        for name, values in stored.items()
    }


def _file(task: Task) -> str:
    return f"{task[0].name}-{task[1]}"


def _fingerprint(identity: str, size: Size, options: ExperimentOptions, kinds: Sequence[Compared]) -> str:
    return fingerprint_of(
        {
            "data": identity,
            "days": size.days,
            "seed": options.seed,
            "version": VERSION,
            "kinds": [[repr(each.kind), [measure.name for measure in each.measures]] for each in kinds],
            "cases": [asdict(case) for case in (TRUE, OTHER_DAYS, *CASES)],
        }
    )


def _write(options: ExperimentOptions, name: str, text: str, rows: list[Row], size: Size) -> Written:
    stem = f"derived-{name}{'-quick' if options.quick else ''}"
    facts = {"size": asdict(size), "seed": options.seed, "rows": [asdict(row) for row in rows]}
    contents: dict[str, str | bytes] = {
        f"{stem}.md": text,
        f"{stem}.csv": to_csv(rows),
        f"{stem}.json": json.dumps(facts, indent=1),
    }
    for form in ("svg", "png"):
        contents[f"{stem}.{form}"] = draw_figure(rows, form)
    return write_results(options.out, text, contents)
