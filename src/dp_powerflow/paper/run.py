"""One entry point for every experiment: run it, write its tables, say where.

To add an experiment, write a function that takes `ExperimentOptions` and returns what it has `Written`, and
add one entry to `EXPERIMENTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from dp_powerflow.errors import ConfigError
from dp_powerflow.paper import lines, theorem, twin
from dp_powerflow.paper.datasets import ExperimentOptions
from dp_powerflow.paper.recovery import experiment as recovery
from dp_powerflow.paper.results import Written
from dp_powerflow.paper.wasserstein import experiment as wasserstein

EXPERIMENTS: Mapping[str, Callable[[ExperimentOptions], Written]] = MappingProxyType(
    {
        "theorem": theorem.run,
        "wasserstein": wasserstein.run,
        "recovery": recovery.run,
        "lines": lines.run,
        "twin": twin.run,
    }
)


def run_experiment(name: str, options: ExperimentOptions) -> Written:
    """Run one experiment of `EXPERIMENTS`."""
    if name not in EXPERIMENTS:
        raise ConfigError(f"there is no experiment '{name}'; there is {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name](options)
