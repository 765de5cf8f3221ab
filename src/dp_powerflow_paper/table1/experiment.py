"""`dp-powerflow experiment comparison`: the paper's Table II by measurement, resumable.

One result is stored for every row, data set and chunk of runs. PV is left out on every data set: the physics
residual needs the injections of all nodes, and only the loads are private.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from dp_powerflow import __version__
from dp_powerflow.errors import ConfigError, MissingExtraError
from dp_powerflow.lowlevel import cores, run_on_pool
from dp_powerflow_paper.datasets import ExperimentOptions, open_dataset, silent
from dp_powerflow_paper.run import Store, Written, store_of
from dp_powerflow_paper.table1.auditing import AUDIT_CODE, audit_row
from dp_powerflow_paper.table1.bench import Bench, Scale
from dp_powerflow_paper.table1.measuring import Chunk, absent, chunks_of, measure_chunk, put_together
from dp_powerflow_paper.table1.output import write_table
from dp_powerflow_paper.table1.results import Measured
from dp_powerflow_paper.table1.rows import Row, all_rows
from dp_powerflow_paper.table1.tables import Table1

DATA = ("oedi", "simbench", "swiss")
"""Data sets of the table, where they are at hand; `--data` names one, also another."""
NOT_BUILT = "not built yet"
FULL = Scale(days=20, runs=20, trainings=10, calibration_days=1000, audits=600)
QUICK = Scale(days=4, runs=2, trainings=1, calibration_days=60, audits=40, quick=True)
_CODE = 1
"""Raised whenever a change of the code makes stored results worthless."""


@dataclass(frozen=True)
class Task:
    """Work of one process: a chunk of the rows of a family on one data set, or the audit of a row."""

    data: str | None
    rows: tuple[str, ...]
    chunk: int = 0


@dataclass(frozen=True, eq=False)
class Run:
    """One call of the experiment: its size, its rows, and where results are kept."""

    options: ExperimentOptions
    scale: Scale
    rows: tuple[Row, ...]

    def bench(self, data: str) -> Bench:
        """A data set, with the store of its results."""
        dataset = open_dataset(replace(self.options, data=data, pv=False))
        return Bench(dataset, self.scale, self.options.seed, self._store(data, data=dataset.identity))

    @property
    def audits(self) -> Store:
        """Of the audits, which are on a small public network of their own."""
        return self._store("audit", audit=AUDIT_CODE)

    def _store(self, name: str, **facts: Any) -> Store:
        folder = f"table1-{name}{'-quick' if self.options.quick else ''}"
        size = asdict(self.scale)
        return store_of(self.options, folder, version=__version__, code=_CODE, scale=size, **facts)

    def chunks(self, row: Row) -> tuple[Chunk, ...]:
        """Of its runs."""
        return chunks_of(row, self.scale.runs, self.scale.trainings)

    def row(self, key: str) -> Row:
        """By key."""
        return next(row for row in self.rows if row.key == key)


def stored_name(row: str, chunk: int) -> str:
    """Of a result's file."""
    return f"{row}-{chunk}"


def do(run: Run, bench: Callable[[str], Bench], task: Task) -> dict[str, str]:
    """Compute what the store lacks; row → why it cannot be measured on this machine."""
    missing = {}
    for key in task.rows:
        row = run.row(key)
        try:
            if task.data is None:
                run.audits.get_or(key, lambda row=row: audit_row(row, run.scale.audits))  # type: ignore[misc]
                continue
            on = bench(task.data)
            chunk = run.chunks(row)[task.chunk]
            on.store.get_or(
                stored_name(key, task.chunk),
                lambda on=on, row=row, chunk=chunk: measure_chunk(on, row, chunk),  # type: ignore[misc]
            )
        except MissingExtraError as error:
            missing[key] = str(error)
    return missing


@dataclass(frozen=True)
class _Job:
    """Tasks for other processes, each with rows and benches of its own; the stores are what they share."""

    options: ExperimentOptions
    scale: Scale
    tasks: tuple[Task, ...]

    def start(self, threads: int | None) -> Callable[[int], dict[str, str]]:
        run = Run(self.options, self.scale, all_rows())
        bench = cache(run.bench)
        return lambda number: do(run, bench, self.tasks[number])


def tasks_of(run: Run, benches: Mapping[str, Bench]) -> list[Task]:
    """What the stores lack, trainings first: they take longest."""
    families: dict[str, list[Row]] = {}
    for row in run.rows:
        if row.make is not None:
            families.setdefault(row.family or row.key, []).append(row)
    found = []
    for name, bench in benches.items():
        for rows in families.values():
            for chunk in run.chunks(rows[0]):
                lacking = [r.key for r in rows if bench.store.get(stored_name(r.key, chunk.number)) is None]
                if lacking:
                    found.append(Task(name, tuple(lacking), chunk.number))
    found.sort(key=lambda task: run.row(task.rows[0]).extra is None)
    audits = [row.key for row in run.rows if row.make is not None and run.audits.get(row.key) is None]
    return [*found, *(Task(None, (key,)) for key in audits)]


def run_missing(
    run: Run, tasks: Sequence[Task], bench: Callable[[str], Bench], workers: int
) -> dict[str, str]:
    """Do the tasks; row → why it cannot be measured on this machine."""
    missing: dict[str, str] = {}
    done = 0

    def advance(found: dict[str, str]) -> None:
        nonlocal done
        done += 1
        missing.update(found)
        run.options.progress(done, len(tasks))

    run.options.progress(0, len(tasks))
    if workers == 1 or len(tasks) < 2:
        for task in tasks:
            advance(do(run, bench, task))
    else:
        job = _Job(replace(run.options, progress=silent), run.scale, tuple(tasks))
        run_on_pool(workers, job, range(len(tasks)), advance)
    return missing


def collect(run: Run, bench: Bench, missing: Mapping[str, str]) -> dict[str, Measured]:
    """Every row on one data set."""
    found = {}
    for row in run.rows:
        names = [stored_name(row.key, chunk.number) for chunk in run.chunks(row)]
        chunks = [stored for name in names if (stored := bench.store.get(name)) is not None]
        if row.make is None:
            found[row.key] = absent(row, bench.data.name, NOT_BUILT)
        elif row.key in missing or len(chunks) < len(names):
            found[row.key] = absent(row, bench.data.name, missing.get(row.key, "not measured"))
        else:
            found[row.key] = put_together(bench, row, chunks, run.audits.get(row.key) or {})
    return found


def open_benches(run: Run) -> tuple[dict[str, Bench], dict[str, str]]:
    """Data sets at hand, and why others are not."""
    wanted = DATA if run.options.data is None else (run.options.data,)
    benches, left_out = {}, {}
    for name in wanted:
        try:
            benches[name] = run.bench(name)
        except (ConfigError, MissingExtraError) as error:
            if run.options.data is not None:
                raise
            left_out[name] = str(error)
    if not benches:
        raise ConfigError(
            "none of the data sets of the table is at hand; name a folder with --oedi or --swiss"
        )
    return benches, left_out


def run(options: ExperimentOptions, workers: int | None = None) -> Written:
    """Measure what is not stored yet, then write the table.

    Parameters
    ----------
    workers : processes; None for one per core. Figures do not depend on it, times do.
    """
    this = Run(options, QUICK if options.quick else FULL, all_rows())
    benches, left_out = open_benches(this)
    for bench in benches.values():
        _ = bench.setting  # its calibration is stored before several processes ask for it
    engines = workers or cores()
    tasks = tasks_of(this, benches)
    missing = run_missing(this, tasks, benches.__getitem__, engines)
    found = {name: collect(this, bench, missing) for name, bench in benches.items()}
    words = {name: bench.data.words for name, bench in benches.items()}
    table = Table1(
        this.rows,
        found,
        words,
        left_out,
        this.scale,
        options.quick,
        {name: bench.data.n_steps for name, bench in benches.items()},
    )
    return write_table(options.out, table)
