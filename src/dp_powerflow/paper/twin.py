"""Twins of public feeders: what a design promises, what it costs in accuracy, whether power flow solves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from dp_powerflow.grid.feeder import Feeder, Protected
from dp_powerflow.grid.sources import Rebuilder, open_feeder
from dp_powerflow.paper.datasets import Dataset, ExperimentOptions, Progress, open_dataset
from dp_powerflow.paper.run import Written, csv_text, write_results
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.twin.design import TwinDesign, twin_guarantee
from dp_powerflow.twin.draw import draw_twin, parameters_of
from dp_powerflow.twin.utility import (
    SURROGATES,
    VoltageDistance,
    predict,
    surrogate_load,
    voltage_distance,
)
from dp_powerflow.units import ComplexArray

EPSILONS = (4.0, 2.0, 1.0, 0.5)
CHANGES = (0.01, 0.05, 0.1)
SOLVED_EPSILON = 0.5
"""Spread at which it is counted how many twins have a power flow."""
_LENGTHS, _ALL = "lengths of lines", "everything"


@dataclass(frozen=True)
class DesignRow:
    """One design on one data set: ε at every change, and distances of several twins [p.u.]."""

    protects: str
    epsilon: float
    epsilons: tuple[float, ...]
    mean: VoltageDistance
    standard_error: VoltageDistance
    median: VoltageDistance
    largest: VoltageDistance


@dataclass(frozen=True)
class SolvedRow:
    """How many twins of a public feeder were solved, under which public loads."""

    feeder: str
    loads: str
    epsilon: float
    twins: int
    snapshots: int
    failed_snapshots: int
    failed_twins: int


@dataclass(frozen=True)
class _Size:
    twins: int
    solved: int
    days: int
    predicted: int


_FULL, _QUICK = _Size(twins=20, solved=1000, days=28, predicted=20), _Size(4, 20, 4, 4)


def run(options: ExperimentOptions) -> Written:
    """All tables; public data, so that they may be shown."""
    size = _QUICK if options.quick else _FULL
    data = open_dataset(options)
    work = _Counter(options.progress, len(EPSILONS) * 2 * size.twins + len(SURROGATES) * size.solved)
    rows = [
        _design_row(data, size, protects, epsilon, options.seed, work)
        for protects in (_LENGTHS, _ALL)
        for epsilon in EPSILONS
    ]
    solved = [row for name in SURROGATES for row in _solved_rows(name, size.solved, options.seed, work)]
    text = _markdown(data, rows, solved, size)
    content = {"data": data.name, "designs": [asdict(r) for r in rows], "solved": [asdict(r) for r in solved]}
    contents = {"twin.md": text, "twin.csv": _csv(rows), "twin.json": json.dumps(content, indent=1)}
    return write_results(options.out, text, contents)


class _Counter:
    """Counts what is done and tells."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def step(self) -> None:
        self._done += 1
        self._progress(self._done, self._total)


def _design(protects: str, epsilon: float) -> TwinDesign:
    lengths, everything = Protected(lines="length"), Protected(transformers=True, capacitors=True)
    return TwinDesign(epsilon, protected=lengths if protects == _LENGTHS else everything)


def _twins(feeder: Feeder, design: TwinDesign, seed: int, count: int) -> Iterator[Feeder]:
    source = Rebuilder(feeder, design.protected)
    parameters = parameters_of(source, design)
    for number in range(count):
        key = StreamKey.from_insecure_seed(seed).bind("twin", str(number))
        yield draw_twin(parameters, design, key).feeder(source)


def _magnitudes(feeder: Feeder, load: ComplexArray) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    solution = BatchSolver(feeder).solve(load)
    solution.raise_if_failed()
    return np.abs(solution.v)


def _design_row(
    data: Dataset, size: _Size, protects: str, epsilon: float, seed: int, work: _Counter
) -> DesignRow:
    design = _design(protects, epsilon)
    load = data.true_load(data.spread_days(size.days)).reshape(-1, data.network.n)
    true = _magnitudes(data.feeder, load)
    found = []
    for twin in _twins(data.feeder, design, seed, size.twins):
        found.append(voltage_distance(true, _magnitudes(twin, load)))
        work.step()
    table = np.array([(d.pooled, d.worst_node, d.median_node, d.rms) for d in found])
    return DesignRow(
        protects,
        epsilon,
        tuple(twin_guarantee(design, x).epsilon for x in CHANGES),
        VoltageDistance(*table.mean(axis=0).tolist()),
        VoltageDistance(*(table.std(axis=0, ddof=1) / np.sqrt(size.twins)).tolist()),
        VoltageDistance(*np.median(table, axis=0).tolist()),
        VoltageDistance(*table.max(axis=0).tolist()),
    )


def _solved_rows(name: str, twins: int, seed: int, work: _Counter) -> list[SolvedRow]:
    feeder = open_feeder(name)
    loads = {
        "nominal": np.asarray(-feeder.nominal_injection[feeder.retained])[None],
        "a day scattered by node": surrogate_load(feeder),
    }
    failed: dict[str, list[int]] = {words: [] for words in loads}
    for twin in _twins(feeder, _design(_ALL, SOLVED_EPSILON), seed, twins):
        solver = BatchSolver(twin)
        for words, load in loads.items():
            failed[words].append(solver.solve(load).n_failed)
        work.step()
    return [
        SolvedRow(name, words, SOLVED_EPSILON, twins, twins * len(load), sum(found), sum(map(bool, found)))
        for (words, load), found in zip(loads.items(), failed.values(), strict=True)
    ]


def _markdown(data: Dataset, rows: list[DesignRow], solved: list[SolvedRow], size: _Size) -> str:
    changes = " / ".join(f"{100 * x:g} %" for x in CHANGES)
    lines = [
        f"{data.words}; true loads of {size.days} days on {size.twins} twins each.",
        "W1 in p.u., mean ± standard error over twins, median and largest in brackets;",
        f"ε for one element changed by {changes}.",
        "",
        "| noise on | design ε | ε | W1 pooled | W1 of the worst node |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.protects} | {row.epsilon:g} | {' / '.join(f'{e:.3g}' for e in row.epsilons)} | "
        f"{_cell(row, 'pooled')} | {_cell(row, 'worst_node')} |"
        for row in rows
    ]
    lines += ["", "Power flow on twins with noise on everything:", ""]
    lines += ["| feeder | loads | ε | twins | snapshots | without solution |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {r.feeder} | {r.loads} | {r.epsilon:g} | {r.twins} | {r.snapshots:,} | {r.failed_snapshots} |"
        for r in solved
    ]
    lines += ["", "What `plan` predicts from the design alone, on public feeders and public loads:", ""]
    lines += ["| feeder | ε, everything | W1 pooled, median (largest) | worst node |", "|---|---|---|---|"]
    lines += [
        f"| {found.feeder} | {epsilon:g} | {found.median.pooled:.2g} ({found.largest.pooled:.2g}) | "
        f"{found.median.worst_node:.2g} ({found.largest.worst_node:.2g}) |"
        for epsilon in EPSILONS
        for found in predict(_design(_ALL, epsilon), twins=size.predicted)
    ]
    return "\n".join(lines) + "\n"


def _cell(row: DesignRow, which: str) -> str:
    parts = (row.mean, row.standard_error, row.median, row.largest)
    mean, error, median, largest = (getattr(part, which) for part in parts)
    return f"{mean:.2g} ± {error:.1g} ({median:.2g}, {largest:.2g})"


def _csv(rows: list[DesignRow]) -> str:
    epsilons = [f"epsilon at x={x:g}" for x in CHANGES]
    return csv_text(
        ["noise on", "epsilon", *epsilons, "W1 pooled", "standard error", "largest"],
        (
            [r.protects, r.epsilon, *r.epsilons, r.mean.pooled, r.standard_error.pooled, r.largest.pooled]
            for r in rows
        ),
    )
