"""Synthetic data sets of grids beside the published figures, and on feeders of ours."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from dp_powerflow import open_feeder
from dp_powerflow.lowlevel import clear_sky
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.datasets import ExperimentOptions
from dp_powerflow_paper.dvorkin2023.capacities import (
    AtRandom,
    CapacityMechanism,
    LargestNoisyScore,
    Selection,
    infeasible_share,
)
from dp_powerflow_paper.dvorkin2023.cases import matpower_case
from dp_powerflow_paper.dvorkin2023.records import PowerRecords, RecordMechanism, solar_records, wind_records
from dp_powerflow_paper.dvorkin2023.release import CHANGE, feeder_case
from dp_powerflow_paper.dvorkin2023.restored import DispatchCase, repaired_unasked
from dp_powerflow_paper.run import Job, Written, block, computed, store_of, write_report

EPSILON = 1.0
WAYS = ("noise", "rounds", "random", "laplace", "unasked")
"""Noise of ε/2; rounds after it; rounds with a random selection; noise of all of ε; that repaired unasked."""
SELECTIONS = 1000
"""Selections that are tried on the scores of every draw."""
RTS_CHANGE = 5.0
"""α of the published experiment on RTS-73 [MW]."""
_VERSION = 4
_RTS = ("rts73", "pglib_opf_case73_ieee_rts.m")


@dataclass(frozen=True)
class Scale:
    """Size of a run: draws per row, sizes of α for records, rounds for capacities."""

    runs: int = 20
    changes: tuple[float, ...] = (0.05, 0.15, 0.25)
    rounds: tuple[int, ...] = (1, 5, 10)


QUICK = Scale(runs=3, changes=(0.15,), rounds=(1, 5))


def record_row(plant: str, records: PowerRecords, change: float, runs: int, seed: int) -> dict[str, Any]:
    """Losses over the draws, and both sensitivities."""
    mechanism, regression = RecordMechanism(EPSILON, change), records.regression
    generators = [np.random.default_rng([seed, run]) for run in range(runs)]
    restored = np.array([regression.loss(mechanism.release(records, each)) for each in generators])
    plain = np.array([regression.loss(mechanism.laplace(records, each)) for each in generators])
    return {
        "plant": plant,
        "change": change,
        "true": regression.loss(records.power),
        "restored": float(restored.mean()),
        "spread": float(restored.std(ddof=1)),
        "laplace": float(plain.mean()),
        "sensitivity": regression.loss_sensitivity(change),
        "published sensitivity": regression.published_loss_sensitivity(change),
    }


@dataclass(frozen=True, eq=False)
class _Grid:
    """A grid whose capacities are released, its true costs, and what is hidden."""

    case: DispatchCase
    capacity: FloatArray
    change: float

    @property
    def price(self) -> float:
        return self.case.dearest

    def released(self, rounds: int, selection: Selection, generator: np.random.Generator) -> list[FloatArray]:
        """After the noise and after every round."""
        mechanism = CapacityMechanism(EPSILON, self.change, rounds, self.price, selection=selection)
        return list(mechanism.release(self.case, self.capacity, generator))

    def infeasible(self, capacity: FloatArray) -> float:
        return infeasible_share(self.case, capacity)


def capacity_row(name: str, grid: _Grid, rounds: int, runs: int, seed: int) -> dict[str, Any]:
    """Share of infeasible records by every way to spend ε, errors of costs, and what a selection is worth."""
    case, honest = grid.case, LargestNoisyScore()
    true = case.costs(grid.capacity, grid.price)
    selection = CapacityMechanism(EPSILON, grid.change, rounds, grid.price).queries[1].scale
    shares, gaps, hits, largest = [], [], [], []
    for run in range(runs):
        streams = [np.random.default_rng([seed, run, way]) for way in range(5)]
        with_rounds = grid.released(rounds, honest, streams[0])
        (noisy,) = grid.released(0, honest, streams[1])
        at_random = grid.released(rounds, AtRandom(), streams[2])
        unasked = repaired_unasked(noisy, case, rounds, streams[3])
        found = (with_rounds[0], with_rounds[-1], at_random[-1], noisy, unasked)
        shares.append([grid.infeasible(each) for each in found])
        costs = [case.costs(each, grid.price) for each in found]
        gaps.append([np.mean(np.abs(each / true - 1.0)) for each in costs])
        scores = np.abs(true - costs[0])
        largest.append(float(scores.max()))
        picked = [honest(scores, selection, streams[4]) for _ in range(SELECTIONS)]
        hits.append(np.mean(np.array(picked) == np.argmax(scores)))
    share, gap = np.mean(shares, axis=0).tolist(), np.mean(gaps, axis=0).tolist()
    return {
        "grid": name,
        "change": grid.change,
        "rounds": rounds,
        "records": len(case.records),
        "infeasible": dict(zip(WAYS, share, strict=True)),
        "cost gap": dict(zip(WAYS, gap, strict=True)),
        "noise over largest score": selection / float(np.mean(largest)),
        "worst selected": float(np.mean(hits)),
        "binding": float(np.mean(true > case.costs(1e6 * grid.capacity, grid.price) * (1.0 + 1e-9))),
    }


def run(options: ExperimentOptions) -> Written:
    """The experiment of the command line: tables."""
    scale, seed = QUICK if options.quick else Scale(), options.seed
    store = store_of(options, "dvorkin2023", version=_VERSION, scale=asdict(scale))
    plants = {
        "turbine": wind_records(options.folder("reference")),
        "PV": solar_records(clear_sky(40.0, 14, 96)),
    }
    case, capacity = feeder_case(open_feeder("ieee123"))
    grids = {
        "RTS-73": _Grid(*matpower_case(options.folder("reference").joinpath(*_RTS)), RTS_CHANGE),
        "IEEE 123": _Grid(case, capacity, CHANGE * float(np.median(capacity))),
    }
    records: dict[str, Job] = {
        f"records-{plant}-{change:g}": partial(record_row, plant, own, change, scale.runs, seed)
        for plant, own in plants.items()
        for change in scale.changes
    }
    capacities: dict[str, Job] = {
        f"capacities-{name.lower().replace(' ', '-')}-{rounds}": partial(
            capacity_row, name, grid, rounds, scale.runs, seed
        )
        for name, grid in grids.items()
        for rounds in scale.rounds
    }
    done = computed(store, records | capacities, options.progress)
    kinds = {"records": records, "capacities": capacities}
    found = {kind: [done[name] for name in jobs] for kind, jobs in kinds.items()}
    return write_report(options.out, "dvorkin2023", to_markdown(found, scale), found)


def to_markdown(found: dict[str, list[dict[str, Any]]], scale: Scale) -> str:
    """The tables of docs/results/systems.md."""
    lines = block(
        f"Power records, ε = 1, mean of {scale.runs} draws:",
        "plant | α | loss, true | restored | spread of a draw | Laplace alone | over true | "
        "sensitivity of the loss | as in the public code",
        (
            f"{row['plant']} | {row['change']:g} | {row['true']:.3g} | {row['restored']:.3g} | "
            f"{row['spread']:.2g} | {row['laplace']:.3g} | {row['laplace'] / row['true']:.1f}× | "
            f"{row['sensitivity']:.3g} | {row['published sensitivity']:.3g}"
            for row in found["records"]
        ),
    )
    lines += block(
        f"Capacities of lines, ε = 1, mean of {scale.runs} draws; infeasible records in per cent:",
        "grid | α | rounds | noise of ε/2 | then rounds | rounds, random selection | Laplace with all of ε "
        "| that, repaired unasked | records with a line at its limit",
        (
            f"{row['grid']} | {row['change']:.3g} | {row['rounds']} | "
            + " | ".join(f"{100 * row['infeasible'][way]:.1f} %" for way in WAYS)
            + f" | {100 * row['binding']:.0f} %"
            for row in found["capacities"]
        ),
    )
    lines += block(
        "The same draws: error of costs, and what a selection is worth.",
        "grid | rounds | error of costs: rounds | random selection | Laplace | repaired unasked | noise of "
        "a selection over the largest score | worst record selected | by chance",
        (
            f"{row['grid']} | {row['rounds']} | "
            + " | ".join(f"{100 * row['cost gap'][way]:.2f} %" for way in WAYS[1:])
            + f" | {row['noise over largest score']:.3g} | {100 * row['worst selected']:.1f} % | "
            f"{100 / row['records']:.1f} %"
            for row in found["capacities"]
        ),
    )
    return "\n".join(lines)
