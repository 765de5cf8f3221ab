"""Private dispatch on the paper's feeder of 15 nodes beside its published figures, and on feeders of ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from dp_powerflow import StreamKey, open_feeder
from dp_powerflow_paper.datasets import ExperimentOptions
from dp_powerflow_paper.dvorkin2020.case import Case, Privacy, case_of, read_feeder15
from dp_powerflow_paper.dvorkin2020.leaks import neighbours
from dp_powerflow_paper.dvorkin2020.policy import (
    Expected,
    TailCost,
    TargetVariance,
    TotalVariance,
    Variant,
    loads_from,
)
from dp_powerflow_paper.dvorkin2020.program import Program, least_cost, published_signs
from dp_powerflow_paper.run import Job, Written, block, computed, store_of, write_report

TARGET_LINES = (0, 4, 5, 6, 8, 10, 11, 12)
"""Lines of the 15-node feeder that have noise of their own in TaV."""
PUBLISHED: Mapping[str, float] = MappingProxyType({"CC": 4.280, "ToV": 4.636, "CVaR": 4.342})
PUBLISHED_LEAST = 3.960
_VERSION = 3


@dataclass(frozen=True)
class Scale:
    """Size of the experiment: draws of noise, own feeders, and customers whose neighbours are solved."""

    draws: int = 20_000
    feeders: tuple[str, ...] = ("ieee13", "ieee123")
    customers: int | None = None


QUICK = Scale(draws=2000, feeders=("ieee13",), customers=3)


@dataclass(frozen=True)
class VariantRow:
    """One variant on one feeder. ε are the largest over the neighbours that were solved."""

    feeder: str
    variant: str
    published: float | None
    least: float
    cost: float
    cvar: float
    lines: int
    rank: int
    least_std: float
    short: int
    single: float
    jointly: float
    imbalance: float
    recovered: float
    own: float | None = None
    elsewhere: float | None = None
    joint_low: float | None = None
    joint_high: float | None = None
    outside: float | None = None


def variants() -> tuple[Variant, ...]:
    """Those of the paper."""
    return Expected(), TotalVariance(), TargetVariance(TARGET_LINES), TailCost()


def measure(case: Case, privacy: Privacy, variant: Variant, scale: Scale, seed: int) -> VariantRow:
    """Solve, draw, and solve the neighbours of some customers."""
    meant = privacy.sigma(case)
    sigma = privacy.sigma(case, variant.lines) if isinstance(variant, TargetVariance) else meant
    program = Program(case, sigma, variant, target=meant)
    policy = program.solve()
    dispatch = policy.dispatch(policy.noise(StreamKey.from_insecure_seed(seed), scale.draws))
    violations = policy.violations(dispatch)
    there = meant > 0.0
    ratio = policy.flow_std[there] / meant[there]
    row = VariantRow(
        feeder="",
        variant=variant.name,
        published=PUBLISHED.get(variant.name),
        least=least_cost(case),
        cost=policy.cost,
        cvar=policy.cvar(0.1),
        lines=int(there.sum()),
        rank=policy.rank,
        least_std=float(ratio.min()),
        short=int((ratio < 1.0 - 1e-9).sum()),
        single=max(violations.generators, violations.voltages, violations.flows),
        jointly=violations.jointly,
        imbalance=float(np.abs(dispatch.p.sum(axis=1) - case.load_p.sum()).max()),
        recovered=float(np.abs(loads_from(case, dispatch) - case.load_p).max()),
    )
    lines = np.flatnonzero(there)
    if scale.customers is not None:
        lines = lines[:: max(1, len(lines) // scale.customers)][: scale.customers]
    found = list(neighbours(program, privacy, lines.tolist()))
    joint = sorted(each.jointly for each in found)
    return replace(
        row,
        own=max(each.own for each in found),
        elsewhere=max(each.elsewhere for each in found),
        joint_low=joint[0],
        joint_high=joint[-1],
        outside=min(each.outside for each in found),
    )


def imbalance_as_published(case: Case, privacy: Privacy, scale: Scale, seed: int) -> dict[str, float]:
    """Largest sum of set-points that is missing with the public program's signs, by variant [p.u.]."""
    found = {}
    for variant in (Expected(), TotalVariance()):
        policy = Program(case, privacy.sigma(case), variant, signs=published_signs(case)).solve()
        dispatch = policy.dispatch(policy.noise(StreamKey.from_insecure_seed(seed), scale.draws))
        found[variant.name] = float(np.abs(dispatch.p.sum(axis=1) - case.load_p.sum()).max())
    return found


def run(options: ExperimentOptions) -> Written:
    """The experiment of the command line: tables."""
    scale, seed = QUICK if options.quick else Scale(), options.seed
    store = store_of(options, "dvorkin2020", version=_VERSION, scale=asdict(scale))
    case, privacy = read_feeder15(options.folder("reference")), Privacy()
    tried = [("feeder15", case, privacy, variant) for variant in variants()]
    for name in scale.feeders:
        own = case_of(open_feeder(name))
        of_own = Privacy(delta=1.0 / int((own.load_p > 0.0).sum()))
        tried += [(name, own, of_own, variant) for variant in (Expected(), TotalVariance())]

    def measured(feeder: str, each: Case, claimed: Privacy, variant: Variant) -> dict[str, Any]:
        small = scale if feeder == "feeder15" else replace(scale, customers=2)
        return _plain(replace(measure(each, claimed, variant, small, seed), feeder=feeder))

    jobs: dict[str, Job] = {f"{one[0]}-{one[3].name}": partial(measured, *one) for one in tried}
    jobs["published-signs"] = partial(imbalance_as_published, case, privacy, scale, seed)
    found = computed(store, jobs, options.progress)
    signs = found.pop("published-signs")
    content = {"rows": list(found.values()), "published signs": signs}
    text = to_markdown([_row(each) for each in found.values()], signs, scale)
    return write_report(options.out, "dvorkin2020", text, content)


def to_markdown(rows: list[VariantRow], signs: Mapping[str, float], scale: Scale) -> str:
    """The tables of docs/results/systems.md."""

    def published(row: VariantRow) -> str:
        return "—" if row.published is None or row.feeder != "feeder15" else f"{row.published:.3f}"

    lines = block(
        f"Costs, and what {scale.draws:,} draws of noise do:",
        "feeder | variant | cost, published | cost | over least | CVaR | least Std f / σ | "
        "lines short of σ | worst single limit | any limit | imbalance [p.u.]",
        (
            f"{row.feeder} | {row.variant} | {published(row)} | {row.cost:.3f} | "
            f"{100.0 * (row.cost / row.least - 1.0):+.1f} % | {row.cvar:.3f} | {row.least_std:.3f} | "
            f"{row.short} of {row.lines} | {100.0 * row.single:.2f} % | {100.0 * row.jointly:.1f} % | "
            f"{row.imbalance:.0e}"
            for row in rows
        ),
    )
    lines += [
        f"Least cost on feeder15 without noise: {rows[0].least:.3f}, published {PUBLISHED_LEAST:.3f}.",
        "",
    ]
    lines += block(
        "What neighbours lose, both solved to their own optimum, at the claimed δ (claimed: ε = 1 of the own "
        "line):",
        "feeder | variant | ε, own line | ε, another line | noise fills | outside the noise, least | "
        "ε, all flows | error of recovered loads [p.u.]",
        (
            f"{row.feeder} | {row.variant} | {_shown(row.own)} | {_shown(row.elsewhere)} | "
            f"{row.rank} of {row.lines} | {100.0 * (row.outside or 0.0):.0f} % | "
            f"{_shown(row.joint_low)} … {_shown(row.joint_high)} | {row.recovered:.0e}"
            for row in rows
        ),
    )
    wrong = ", ".join(f"{name} {value:.3f}" for name, value in signs.items())
    lines.append(f"Largest imbalance with the signs of the public program [p.u.]: {wrong}.\n")
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    if value is None:
        return "—"
    return "∞" if math.isinf(value) else f"{value:.2f}"


def _plain(row: VariantRow) -> dict[str, Any]:
    """Values for JSON, which has no infinity."""
    return {
        name: "inf" if isinstance(value, float) and math.isinf(value) else value
        for name, value in asdict(row).items()
    }


def _row(stored: dict[str, Any]) -> VariantRow:
    values: dict[str, Any] = {name: math.inf if value == "inf" else value for name, value in stored.items()}
    return VariantRow(**values)
