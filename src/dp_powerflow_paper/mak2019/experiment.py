"""Bilevel obfuscation of loads on transmission cases by AC optimal power flow.

The last sentence is about what the least cost gives away when it goes into restored loads as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dp_powerflow import StreamKey
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.datasets import ExperimentOptions
from dp_powerflow_paper.fioretto2019.acopf import CostBand
from dp_powerflow_paper.fioretto2019.cases import read_case
from dp_powerflow_paper.mak2019.noise import LoadPrivacy, obfuscate, served_grid, true_loads
from dp_powerflow_paper.mak2019.release import Draw, kept, measure_draw
from dp_powerflow_paper.mak2019.restoration import AcGrid
from dp_powerflow_paper.run import Job, Written, block, computed, mean_of, row, store_of, write_report

_STEPS = 10
_NEAR = 1e-5
"""Relative change at which Newton's method stops."""


def load_from_cost(others: FloatArray, position: int, cost: float, served: AcGrid) -> float:
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


_VERSION = 1


@dataclass(frozen=True)
class Scale:
    """Size of the experiment.

    Attributes
    ----------
    cases : (case, α [p.u.]) by AC optimal power flow.
    """

    cases: tuple[tuple[str, float], ...] = (("case14", 0.1), ("case39", 0.1), ("case39", 1.0))
    draws: int = 20


QUICK = Scale(cases=(("case14", 0.1),), draws=5)


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
    leak: dict[str, Job] = {"leak-case14": lambda: measure_leak("case14")}
    found = computed(store, cases | leak, options.progress)
    content: dict[str, Any] = {"cases": [found[name] for name in cases], "leak": found["leak-case14"]}
    rows = [CaseRow(**each) for each in content["cases"]]
    return write_report(options.out, "mak2019", to_markdown(rows, content["leak"]), content)


def to_markdown(rows: Sequence[CaseRow], leak: dict[str, float]) -> str:
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
    lines.append(
        f"Every one of the {leak['loads']:g} loads of case14 is found from O* and the other loads to "
        f"{leak['worst']:.1e} p.u.; the smallest is {leak['smallest load']:.3f} p.u.\n"
    )
    return "\n".join(lines)


def _share(value: float) -> str:
    return f"{100.0 * value:.0f} %"


def _percent(value: float | None) -> str:
    return "—" if value is None else f"{100.0 * value:.3g} %"
