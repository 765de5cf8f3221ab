"""Noise on branches with restoration, on three transmission cases, and its feeder form on IEEE 123."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dp_powerflow import BatchSolver, Feeder, StreamKey, open_feeder
from dp_powerflow.lowlevel import surrogate_load, voltage_distance
from dp_powerflow_paper.datasets import ExperimentOptions
from dp_powerflow_paper.fioretto2019.acopf import optimal_power_flow
from dp_powerflow_paper.fioretto2019.cases import CASES, read_case, reference_cost
from dp_powerflow_paper.fioretto2019.feeder import LengthPrivacy, NoisyLines
from dp_powerflow_paper.fioretto2019.noise import BranchPrivacy
from dp_powerflow_paper.fioretto2019.release import measure_draw
from dp_powerflow_paper.run import Job, Written, block, computed, mean_of, row, store_of, write_report

_VERSION = 1


@dataclass(frozen=True)
class Scale:
    """Size of the experiment.

    Attributes
    ----------
    lengths : (change, shortest length [km]) of the feeder form.
    """

    cases: tuple[str, ...] = CASES
    alphas: tuple[float, ...] = (0.1, 1.0, 10.0)
    draws: int = 20
    lengths: tuple[tuple[float, float], ...] = ((0.05, 0.08), (0.05, 0.03), (0.2, 0.03))


QUICK = Scale(cases=("case14",), alphas=(1.0,), draws=5, lengths=((0.05, 0.03),))


@dataclass(frozen=True)
class FeederRow:
    """IEEE 123 at one change of length: means over the draws [p.u.]; `failed` is a share of snapshots."""

    change: float
    shortest_km: float
    alpha: float
    draws: int
    failed: float
    pooled: float | None
    worst_node: float | None


def measure_case(name: str, alpha: float, draws: int, seed: int) -> dict[str, Any]:
    """Shares and means over all draws of one case at one α, ε = 1."""
    case = read_case(name)
    cost = optimal_power_flow(case.public, case.true).cost
    key = StreamKey.from_insecure_seed(seed).bind("case", name)
    found = [
        measure_draw(case, BranchPrivacy(alpha), cost, key.bind("draw", str(draw))) for draw in range(draws)
    ]
    means = {name: [getattr(each, name) for each in found] for name in vars(found[0])}
    return {"case": name, "alpha": alpha, "draws": draws} | {
        name: mean_of(values) if name.endswith("gap") else float(np.mean(values))
        for name, values in means.items()
    }


def measure_feeder(feeder: Feeder, change: float, shortest_km: float, draws: int, seed: int) -> FeederRow:
    """W1 of |v| under public loads, true network against restored ones, ε = 1."""
    privacy = LengthPrivacy(1.0, change, shortest_km)
    load = surrogate_load(feeder)
    true = np.abs(BatchSolver(feeder).solve(load).v)
    found, solved = [], []
    for draw in range(draws):
        restored = NoisyLines(feeder, privacy).draw(np.random.default_rng((seed, draw)))
        v = np.abs(BatchSolver(restored).solve(load).v)
        there = np.isfinite(v).all(axis=1)
        solved.append(float(there.mean()))
        if there.any():
            found.append(voltage_distance(true[there], v[there]))
    return FeederRow(
        change=change,
        shortest_km=shortest_km,
        alpha=privacy.alpha,
        draws=draws,
        failed=1.0 - float(np.mean(solved)),
        pooled=mean_of([each.pooled for each in found]),
        worst_node=mean_of([each.worst_node for each in found]),
    )


def run(options: ExperimentOptions) -> Written:
    """The experiment of the command line: tables."""
    scale = QUICK if options.quick else Scale()
    draws, seed, feeder = scale.draws, options.seed, open_feeder("ieee123")
    store = store_of(options, "fioretto2019", version=_VERSION, draws=draws)
    costs: dict[str, Job] = {f"cost-{name}": partial(_costs, name) for name in scale.cases}
    cases: dict[str, Job] = {
        f"{name}-{alpha:g}": partial(measure_case, name, alpha, draws, seed)
        for name in scale.cases
        for alpha in scale.alphas
    }
    lengths = {
        f"ieee123-{change:g}-{shortest:g}": row(measure_feeder, feeder, change, shortest, draws, seed)
        for change, shortest in scale.lengths
    }
    found = computed(store, costs | cases | lengths, options.progress)
    content: dict[str, Any] = {
        "costs": {name: found[f"cost-{name}"] for name in scale.cases},
        "cases": [found[name] for name in cases],
        "feeder": [found[name] for name in lengths],
    }
    feeders = [FeederRow(**each) for each in content["feeder"]]
    text = to_markdown(content["costs"], content["cases"], feeders)
    return write_report(options.out, "fioretto2019", text, content)


def _costs(name: str) -> dict[str, Any]:
    case = read_case(name)
    branches = case.public.branches
    return {
        "ours": optimal_power_flow(case.public, case.true).cost,
        "runopp": reference_cost(name),
        "branches": len(branches.start),
        "lossless": float(branches.lossless.mean()),
    }


def to_markdown(
    costs: Mapping[str, Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], lengths: Sequence[FeederRow]
) -> str:
    """The tables of docs/results/systems.md."""
    lines = block(
        "Least costs of the true networks:",
        "case | pandapower's `runopp` | ours | branches | without noise as published",
        (
            f"{name} | {found['runopp']:.3f} | {found['ours']:.3f} | {found['branches']} | "
            f"{100.0 * found['lossless']:.0f} %"
            for name, found in costs.items()
        ),
    )
    lines += block(
        "ε = 1, ρ = 10, β = 1 %, λ = 10. Networks with a power flow: noise as published (exact ratio), noise "
        "on g and b, restored.",
        "case | α | draws | noise as published | noise on both | restored | cost off, noisy | "
        "cost off, restored | ‖g̃−g‖₁ | ‖ġ−g‖₁",
        (
            f"{row['case']} | {row['alpha']:g} | {row['draws']} | "
            f"{100.0 * row['published_feasible']:.0f} % | {100.0 * row['noisy_feasible']:.0f} % | "
            f"{100.0 * row['feasible']:.0f} % | "
            f"{_percent(row['noisy_gap'])} | {_percent(row['gap'])} | "
            f"{row['noisy_distance']:.1f} | {row['distance']:.1f}"
            for row in rows
        ),
    )
    lines += block(
        "The feeder form on IEEE 123, ε = 1, under public loads:",
        "hidden | of a line of | α [1/km] | draws | snapshots that fail | W1 of \\|v\\|, pooled | worst node",
        (
            f"±{100.0 * each.change:g} % | {1000.0 * each.shortest_km:g} m | {each.alpha:.3g} | "
            f"{each.draws} | {100.0 * each.failed:.0f} % | {_shown(each.pooled)} | {_shown(each.worst_node)}"
            for each in lengths
        ),
    )
    return "\n".join(lines)


def _percent(value: float | None) -> str:
    return "—" if value is None else f"{100.0 * value:.2g} %"


def _shown(value: float | None) -> str:
    return "—" if value is None else f"{value:.4f}"
