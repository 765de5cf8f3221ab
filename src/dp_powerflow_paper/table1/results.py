"""What is known of one row on one data set after all its runs, as it is stored and shown;
and rows held against the earlier experiments, the same settings through their own code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from scipy import stats

from dp_powerflow import TwinDesign
from dp_powerflow_paper.sources import Guarantee
from dp_powerflow_paper.table1.bench import LINE_CHANGE, MATCHED, NETWORK_TARGET, P_MAX, Bench
from dp_powerflow_paper.twin import Draws, Setting
from dp_powerflow_paper.wasserstein.evaluation import evaluate, mean_and_error
from dp_powerflow_paper.wasserstein.search import Configuration

Value = tuple[float, float]
"""Mean over runs and its standard error; NaN for the error of one run."""


@dataclass(frozen=True)
class Claim:
    """A guarantee, and what an audit found of it.

    Attributes
    ----------
    guarantee : as the system states it.
    audited : lower confidence bound on ε at the guarantee's δ; None where there was no audit.
    """

    guarantee: Guarantee
    audited: float | None = None


@dataclass(frozen=True)
class Probe:
    """A property that was tested, not declared.

    Attributes
    ----------
    passed : what the test found; None if it does not apply.
    words : one sentence on what was seen.
    """

    passed: bool | None
    words: str


NOT_TESTED = Probe(None, "not tested")


@dataclass(frozen=True)
class Measured:
    """A row on one data set.

    Attributes
    ----------
    row, data : names.
    loads, network : claims; None where nothing is claimed.
    figures : by name of `Figures`, mean and standard error over the runs; missing where it has none.
    true : the same of the true data.
    other : figures of a release that is none of voltages, by name with the unit in it.
    unlimited, true_y : what the tests of these columns found.
    noisy_voltages : whether noise is added to the voltages, so that their correlation is the one that counts.
    runs, fits : releases that were measured, and models that were fitted or trained for them.
    fit_seconds, day_seconds : processor time of one fit, and of one released day.
    absent : why there is nothing, None if there is something.
    """

    row: str
    data: str
    loads: Claim | None = None
    network: Claim | None = None
    figures: Mapping[str, Value] = field(default_factory=dict)
    true: Mapping[str, float] = field(default_factory=dict)
    other: Mapping[str, Value] = field(default_factory=dict)
    unlimited: Probe = NOT_TESTED
    true_y: Probe = NOT_TESTED
    noisy_voltages: bool = False
    runs: int = 0
    fits: int = 0
    fit_seconds: float | None = None
    day_seconds: float | None = None
    absent: str | None = None

    def mean(self, name: str) -> float | None:
        """Mean of a figure over the runs; None if it has none."""
        found = self.figures.get(name)
        return None if found is None or not math.isfinite(found[0]) else found[0]

    @property
    def lag1(self) -> tuple[float | None, float | None]:
        """Lag-1 correlation of the release and of the truth: of |v| if they are noisy, else of the loads."""
        name = "lag1_voltage" if self.noisy_voltages or "lag1_load" not in self.figures else "lag1_load"
        return self.mean(name), self.true.get(name)

    @property
    def residual_ratio(self) -> float | None:
        """Physics residual over that of the true data."""
        own, true = self.mean("residual"), self.true.get("residual")
        return None if own is None or not true else own / true

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def summary(runs: Sequence[Mapping[str, float | None]]) -> Mapping[str, Value]:
    """Mean and standard error over runs of every figure that any of them has."""
    names = dict.fromkeys(name for run in runs for name, value in run.items() if value is not None)
    found = {}
    for name in names:
        values = [math.nan if (value := run.get(name)) is None else float(value) for run in runs]
        found[name] = mean_and_error(values)
    return found


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
