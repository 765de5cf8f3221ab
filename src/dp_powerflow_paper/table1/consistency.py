"""Rows of the table against the earlier experiments: the same settings through their own code."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from dp_powerflow import TwinDesign
from dp_powerflow_paper.table1.bench import LINE_CHANGE, MATCHED, NETWORK_TARGET, P_MAX, Bench
from dp_powerflow_paper.table1.results import Measured, Value
from dp_powerflow_paper.twin import Draws
from dp_powerflow_paper.twin_settings import Setting
from dp_powerflow_paper.wasserstein.evaluation import evaluate, mean_and_error
from dp_powerflow_paper.wasserstein.search import Configuration

SURE = 0.9973
"""Probability with which two equal figures agree: that of three standard errors; Student's t for few runs."""


@dataclass(frozen=True)
class Check:
    """A figure of the table beside that of an earlier experiment.

    Attributes
    ----------
    here, there : pooled W1 of |v| [p.u.], mean and standard error over runs.
    runs : behind each of them.
    """

    data: str
    row: str
    experiment: str
    here: Value
    there: Value
    runs: int

    @property
    def apart(self) -> float | None:
        """Distance in standard errors of the difference; None where there is no error."""
        error = math.hypot(self.here[1], self.there[1])
        if not math.isfinite(error):
            return None
        distance = abs(self.here[0] - self.there[0])
        return 0.0 if distance == 0.0 else distance / error if error > 0.0 else math.inf

    @property
    def agrees(self) -> bool | None:
        """Whether the two are within their error bars; None if there are none."""
        apart = self.apart
        if apart is None:
            return None
        return bool(apart <= stats.t.ppf((1.0 + SURE) / 2.0, 2 * (self.runs - 1)))


def checks_of(name: str, bench: Bench, found: Mapping[str, Measured], runs: int) -> Iterator[Check]:
    """The true data, the twin and DP-Powerflow's variants of one data set, each through earlier code."""
    for row, experiment, there in elsewhere(bench, runs):
        measured = found.get(row)
        here = None if measured is None else measured.figures.get("w1_pooled")
        if here is not None and there is not None:
            yield Check(name, row, experiment, here, there, runs)


def elsewhere(bench: Bench, runs: int) -> Iterator[tuple[str, str, Value | None]]:
    """Row, experiment and its pooled W1; None where it refuses. Stored: what is known is not made again."""
    yield "loads-true", "noise-free", (0.0, 0.0)
    drawn = bench.store.get_or("check-twin", lambda: {"pooled": _twins(bench, runs)})
    yield "network-twin", "twin", mean_and_error([math.nan if w1 is None else w1 for w1 in drawn["pooled"]])
    load = MATCHED.epsilon
    for row, config in (
        ("dp-powerflow-literal", Configuration("literal", None, load, P_MAX, bounds=P_MAX)),
        ("dp-powerflow-floor", Configuration("dp-powerflow", NETWORK_TARGET, load, P_MAX, bounds=P_MAX)),
        ("dp-powerflow-full-support", Configuration("full-support", NETWORK_TARGET, load)),
    ):
        outcome = evaluate(bench.lab, config)
        yield row, "wasserstein", None if outcome.refused else outcome.pooled


def _twins(bench: Bench, runs: int) -> list[Any]:
    """Pooled W1 of true loads on twins, as the twin experiment draws and solves them."""
    data, load = bench.data, bench.truth.load
    everywhere = np.zeros((load.shape[0] * load.shape[1], data.network.n), dtype=np.complex128)
    everywhere[:, data.loaded] = load.reshape(len(everywhere), -1)
    setting = Setting(data.feeder.name, data.words, everywhere, compared=data.loaded)
    design = TwinDesign(MATCHED.epsilon, LINE_CHANGE, data.protected)
    draw = Draws(setting, (design,), runs, bench.seed + 1).start(None)
    found = [draw(number)[1] for number in range(runs)]
    return [w1 if math.isfinite(w1) else None for w1 in found]
