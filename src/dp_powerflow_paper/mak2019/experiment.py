"""Bilevel obfuscation of loads on transmission cases by AC optimal power flow, and exactly on a feeder.

The last table is about what the least cost gives away when it goes into restored loads as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow import StreamKey
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.datasets import ExperimentOptions
from dp_powerflow_paper.dvorkin2020.case import Case, read_feeder15
from dp_powerflow_paper.fioretto2019.acopf import CostBand
from dp_powerflow_paper.fioretto2019.cases import read_case
from dp_powerflow_paper.mak2019.noise import LoadPrivacy, obfuscate, served_grid, true_loads
from dp_powerflow_paper.mak2019.release import Draw, kept, measure_draw
from dp_powerflow_paper.mak2019.restoration import (
    ExactLoads,
    LinearGrid,
    LinearLimits,
    RestoredLoads,
    ServedGrid,
    restore,
)
from dp_powerflow_paper.run import Job, Written, block, computed, mean_of, row, store_of, write_report


@dataclass(frozen=True, eq=False)
class TrueFeeder:
    """A feeder with its true loads.

    Attributes
    ----------
    served : everything else.
    active : PRIVATE (load,) active powers [p.u.].
    """

    served: LinearGrid
    active: FloatArray


def linear_feeder(case: Case, tightened: float = 1.0) -> TrueFeeder:
    """A case of private dispatch whose loads are restored instead.

    Parameters
    ----------
    tightened : share of the lines' ratings that is taken, so that some lines bind.
    """
    places = np.flatnonzero(case.load_p > 0.0)
    generators = case.generators
    served = LinearGrid(
        network=case.network,
        limits=LinearLimits(tightened * case.s_max, case.u_min, case.u_max),
        generators=generators,
        price=case.cost[generators],
        most=case.p_max[generators],
        places=places,
        tan_theta=case.load_q[places] / case.load_p[places],
    )
    return TrueFeeder(served, case.load_p[places])


def feeder15(folder: Path, tightened: float = 1.0) -> TrueFeeder:
    """The 15-node feeder of the reference cases."""
    return linear_feeder(read_feeder15(folder), tightened)


_STEPS = 10
_NEAR = 1e-5
"""Relative distance from an end of the band at which loads count as lying on it."""


def load_from_cost(others: FloatArray, position: int, cost: float, served: ServedGrid) -> float:
    """The one load [p.u.] that an attacker does not know, from the least cost and all other loads.

    Newton's method from the mean of the others, with nodal prices for slopes.

    Parameters
    ----------
    others : (load,) active powers [p.u.]; what stands at `position` is not read.
    cost : O*.
    """
    known = np.delete(others, position)
    guess = np.insert(known, position, known.mean())
    for _ in range(_STEPS):
        found = served.dispatch(guess)
        if not found.feasible:
            guess[position] *= 0.5
            continue
        step = (cost - found.cost) / float(served.slope(found)[position])
        guess[position] = max(guess[position] + step, 0.0)
        if abs(step) < _NEAR * known.mean():
            break
    return float(guess[position])


def at_an_end(found: RestoredLoads, band: CostBand) -> bool:
    """Whether the least cost of restored loads is at an end of the band: then O* is one of two figures."""
    return found.solution.feasible and abs(abs(found.gap(band)) - band.share) <= _NEAR


TIGHTENED = 0.5
"""Share of the feeder's ratings, so that lines bind and prices differ."""
_VERSION = 1


@dataclass(frozen=True)
class Scale:
    """Size of the experiment.

    Attributes
    ----------
    cases : (case, α [p.u.]) by AC optimal power flow.
    feeder : α [p.u.] on the 15-node feeder.
    """

    cases: tuple[tuple[str, float], ...] = (("case14", 0.1), ("case39", 0.1), ("case39", 1.0))
    feeder: tuple[float, ...] = (0.002, 0.005, 0.02)
    draws: int = 20


QUICK = Scale(cases=(("case14", 0.1),), feeder=(0.005,), draws=5)


@dataclass(frozen=True)
class CaseRow:
    """A case at one α: shares over the draws, means and largest figures of |C*/O* − 1|."""

    case: str
    alpha: float
    draws: int
    noisy_feasible: float
    feasible: float
    noisy_gap: float | None
    relaxed_kept: float
    relaxed_worst: float
    kept: float
    worst: float
    noisy_distance: float
    distance: float


@dataclass(frozen=True)
class ExactRow:
    """The feeder at one α: shares of draws, and means of Σ|d̂ − d̃| [p.u.]."""

    alpha: float
    draws: int
    noisy_feasible: float
    relaxed_kept: float
    kept: float
    exact_kept: float
    relaxed_far: float
    far: float
    exact_far: float
    at_an_end: float


def measure_case(name: str, alpha: float, draws: int, seed: int) -> CaseRow:
    """All draws of one case at one α, ε = 1, β = 1 %."""
    case = read_case(name)
    served, true = served_grid(case), true_loads(case)
    band = CostBand(served.dispatch(true).cost)
    key = StreamKey.from_insecure_seed(seed).bind("case", name)
    found: list[Draw] = []
    for draw in range(draws):
        noisy = obfuscate(true, LoadPrivacy(alpha), key.bind("draw", str(draw)))
        found.append(measure_draw(true, noisy, served, band))
    return CaseRow(
        case=name,
        alpha=alpha,
        draws=draws,
        noisy_feasible=float(np.mean([each.noisy_feasible for each in found])),
        feasible=float(np.mean([each.feasible for each in found])),
        noisy_gap=mean_of([abs(each.noisy_gap) for each in found]),
        relaxed_kept=float(np.mean([kept(each.relaxed_gap, band) for each in found])),
        relaxed_worst=float(np.nanmax([abs(each.relaxed_gap) for each in found])),
        kept=float(np.mean([kept(each.gap, band) for each in found])),
        worst=float(np.nanmax([abs(each.gap) for each in found])),
        noisy_distance=float(np.mean([each.noisy_distance for each in found])),
        distance=float(np.mean([each.distance for each in found])),
    )


def measure_feeder(folder: Path, alpha: float, draws: int, seed: int) -> ExactRow:
    """All draws on the 15-node feeder: relaxation, restoration and the exact program."""
    feeder = feeder15(folder, TIGHTENED)
    served, true = feeder.served, feeder.active
    band = CostBand(served.dispatch(true).cost)
    key = StreamKey.from_insecure_seed(seed).bind("case", "feeder15")
    plain, ways, far, ends = [], [], [], []
    for draw in range(draws):
        noisy = obfuscate(true, LoadPrivacy(alpha), key.bind("draw", str(draw)))
        plain.append(served.dispatch(np.maximum(noisy, 0.0)).feasible)
        found = (served.relaxed(noisy, band), restore(noisy, served, band), ExactLoads()(noisy, served, band))
        ways.append([kept(each.gap(band), band) for each in found])
        far.append([_apart(each, noisy) for each in found])
        ends.append(at_an_end(found[-1], band))
    shares, means = np.mean(ways, axis=0).tolist(), np.mean(far, axis=0).tolist()
    return ExactRow(
        alpha=alpha,
        draws=draws,
        noisy_feasible=float(np.mean(plain)),
        relaxed_kept=shares[0],
        kept=shares[1],
        exact_kept=shares[2],
        relaxed_far=means[0],
        far=means[1],
        exact_far=means[2],
        at_an_end=float(np.mean(ends)),
    )


def measure_leak(name: str) -> dict[str, float]:
    """Errors of loads that are found from the least cost and all other loads, one after the other [p.u.]."""
    case = read_case(name)
    served, true = served_grid(case), true_loads(case)
    cost = served.dispatch(true).cost
    errors = [
        abs(load_from_cost(true, position, cost, served) - load)
        for position, load in enumerate(true.tolist())
    ]
    return {"loads": len(true), "worst": max(errors), "smallest load": float(true.min())}


def run(options: ExperimentOptions) -> Written:
    """The experiment of the command line: tables."""
    scale = QUICK if options.quick else Scale()
    draws, seed = scale.draws, options.seed
    store = store_of(options, "mak2019", version=_VERSION, draws=draws)
    cases = {f"{name}-{alpha:g}": row(measure_case, name, alpha, draws, seed) for name, alpha in scale.cases}
    feeder = {
        f"feeder15-{alpha:g}": row(measure_feeder, options.reference_folder, alpha, draws, seed)
        for alpha in scale.feeder
    }
    leak: dict[str, Job] = {"leak-case14": lambda: measure_leak("case14")}
    found = computed(store, cases | feeder | leak, options.progress)
    content: dict[str, Any] = {
        "cases": [found[name] for name in cases],
        "feeder": [found[name] for name in feeder],
        "leak": found["leak-case14"],
    }
    rows, exact = (
        [CaseRow(**each) for each in content["cases"]],
        [ExactRow(**each) for each in content["feeder"]],
    )
    return write_report(options.out, "mak2019", to_markdown(rows, exact, content["leak"]), content)


def to_markdown(rows: Sequence[CaseRow], exact: Sequence[ExactRow], leak: dict[str, float]) -> str:
    """The tables of docs/results/systems.md."""
    lines = block(
        "ε = 1, β = 1 %. Loads that can be served; least cost within the band; largest |C*/O* − 1|:",
        "case | α | draws | noisy, served | restored, served | cost off, noisy | relaxation in the band | "
        "its worst | restored in the band | its worst | ‖d̃−d‖₁ | ‖d̂−d‖₁",
        (
            f"{row.case} | {row.alpha:g} | {row.draws} | {_share(row.noisy_feasible)} | "
            f"{_share(row.feasible)} | {_percent(row.noisy_gap)} | {_share(row.relaxed_kept)} | "
            f"{_percent(row.relaxed_worst)} | {_share(row.kept)} | {_percent(row.worst)} | "
            f"{row.noisy_distance:.2f} | {row.distance:.2f}"
            for row in rows
        ),
    )
    lines += block(
        "The 15-node feeder by LinDistFlow, half of its ratings; mean Σ\\|d̂ − d̃\\|:",
        "α | draws | noisy, served | in the band: relaxation | restored | exact | distance: relaxation | "
        "restored | exact | at an end of the band",
        (
            f"{row.alpha:g} | {row.draws} | {_share(row.noisy_feasible)} | {_share(row.relaxed_kept)} | "
            f"{_share(row.kept)} | {_share(row.exact_kept)} | {row.relaxed_far:.4f} | {row.far:.4f} | "
            f"{row.exact_far:.4f} | {_share(row.at_an_end)}"
            for row in exact
        ),
    )
    lines.append(
        f"Every one of the {leak['loads']:g} loads of case14 is found from O* and the other loads to "
        f"{leak['worst']:.1e} p.u.; the smallest is {leak['smallest load']:.3f} p.u.\n"
    )
    return "\n".join(lines)


def _apart(found: RestoredLoads, noisy: FloatArray) -> float:
    return float(np.abs(found.active - noisy).sum())


def _share(value: float) -> str:
    return f"{100.0 * value:.0f} %"


def _percent(value: float | None) -> str:
    return "—" if value is None else f"{100.0 * value:.3g} %"
