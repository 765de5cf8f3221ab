"""What is known of one row on one data set after all its runs, as it is stored and shown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dp_powerflow_paper.sources import Guarantee
from dp_powerflow_paper.wasserstein.evaluation import mean_and_error

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
