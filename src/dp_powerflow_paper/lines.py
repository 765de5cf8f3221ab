"""Exact losses per line on IEEE 123: what one released day tells of each line's admittance."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from dp_powerflow import Feeder, StreamKey, open_feeder
from dp_powerflow._certify import line_lines
from dp_powerflow.evidence.lines.collect import LineReport, LineRequest, collect_lines
from dp_powerflow.evidence.lines.evidence import LineLoss
from dp_powerflow.lowlevel import ClassLaw, LoadLaw, PublicSpread, nominal_law, plain
from dp_powerflow_paper.datasets import ExperimentOptions, Progress
from dp_powerflow_paper.run import Written, write_report

STEP_MINUTES = 15
SPREAD_P = 0.3
"""Standard deviation of log p."""
SPREAD_Q = 0.15
"""Standard deviation of q's random part, as a share of the mean p."""
X = 0.01
FULL = LineRequest(x=X, draws=500, audit_days=150)
QUICK = LineRequest(x=X, draws=40, audit_days=0)


@dataclass(frozen=True)
class Result:
    """The report, and the time it took [s]."""

    report: LineReport
    wall: float
    processor: float


def flat_law(feeder: Feeder, steps: int) -> LoadLaw:
    """Nominal load at every step in the mean; both spreads with the program's public correlation."""
    nominal = -feeder.nominal_injection[feeder.retained]
    correlation = PublicSpread().covariance(steps, 24 * 60 // steps)
    mean = np.full(steps, -(SPREAD_P**2) / 2.0)
    of_class = ClassLaw.gaussian(mean, SPREAD_P**2 * correlation, q_covariance=correlation)
    return nominal_law(nominal, of_class, SPREAD_Q)


def run_lines(
    feeder: Feeder,
    request: LineRequest,
    *,
    steps: int = 24 * 60 // STEP_MINUTES,
    seed: int = 0,
    progress: Progress | None = None,
) -> Result:
    """Evaluate every line of a public feeder."""
    key = StreamKey.from_insecure_seed(seed)
    wall, processor = time.perf_counter(), time.process_time()
    report = collect_lines(LineLoss(feeder, flat_law(feeder, steps)), request, key, progress)
    return Result(report, time.perf_counter() - wall, time.process_time() - processor)


def to_markdown(result: Result) -> str:
    """The tables of docs/results/network.md."""
    time_taken = (
        f"Time taken: {result.wall / 60.0:.1f} minutes ({result.processor / 60.0:.1f} minutes of processor)."
    )
    return "\n".join([*line_lines(result.report), "", time_taken]) + "\n"


def to_json(result: Result) -> dict[str, Any]:
    """Plain values."""
    return {
        "report": plain(result.report),
        "wall seconds": result.wall,
        "processor seconds": result.processor,
    }


def run(options: ExperimentOptions) -> Written:
    """The experiment of the command line: tables."""
    feeder = open_feeder("ieee123")
    result = run_lines(feeder, QUICK if options.quick else FULL, seed=options.seed, progress=options.progress)
    return write_report(options.out, "lines", to_markdown(result), to_json(result))
