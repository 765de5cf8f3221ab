"""Who is interrupted: customers and drawn load of every section."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow._threads import in_order
from dp_powerflow.derived.reliability.settings import ReliabilitySettings
from dp_powerflow.derived.study import Progress, Study
from dp_powerflow.errors import ConfigError
from dp_powerflow.grid.feeder import GROUND, Feeder
from dp_powerflow.model.sample import columns_of, placed_load
from dp_powerflow.units import KW_PER_MW, FloatArray, IntArray

_SLIGHT = 1e-9


@dataclass(frozen=True, eq=False)
class Points:
    """Customers and load.

    Attributes
    ----------
    customers : integer (load,) of every load of the feeder.
    declared : whether these are declared numbers, no rule.
    node_kw : (node, step) mean drawn load of every node of the feeder over all days [kW].
    """

    customers: IntArray
    declared: bool
    node_kw: FloatArray


def points_of(
    study: Study, settings: ReliabilitySettings, workers: int | None, progress: Progress | None
) -> Points:
    """Customers and mean drawn loads of a study."""
    customers = study.customers
    return Points(
        customers=_by_rule(study.feeder, settings.kw_per_customer) if customers is None else customers,
        declared=customers is not None,
        node_kw=_mean_day(study, workers, progress),
    )


def require_customers(study: Study) -> None:
    """Refuse numbers of customers that are not of this feeder, or all zero.

    Raises
    ------
    ConfigError : they are.
    """
    loads, customers = len(study.feeder.loads), study.customers
    if loads == 0 or (customers is None and all(load.kw <= 0.0 for load in study.feeder.loads)):
        raise ConfigError("reliability needs customers, and this feeder has no loads; choose another feeder")
    if customers is None:
        return
    if customers.shape != (loads,) or np.any(customers < 0) or not np.any(customers > 0):
        raise ConfigError(
            "numbers of customers must be one per load, none negative and not all zero; correct the column "
            "'customers' of feeder.loads"
        )


def _by_rule(feeder: Feeder, kw_per_customer: float) -> IntArray:
    """As many as the nominal load takes, at least one; a load without power has none."""
    kw = np.array([load.kw for load in feeder.loads])
    return np.where(kw > 0.0, np.maximum(1, np.ceil(kw / kw_per_customer - _SLIGHT)), 0).astype(np.int64)


def _mean_day(study: Study, workers: int | None, progress: Progress | None) -> FloatArray:
    """(node, step) mean over the drawn days [kW]; blocks are added up in their order."""
    source, steps = study.source, study.steps
    solver = study.make_solver(1)
    width = columns_of(solver, source.law)

    def total(block: int) -> FloatArray:
        load = placed_load(source.law, source.block(block), width)
        return np.asarray(load.real.reshape(-1, steps, width).sum(axis=0))

    summed = np.zeros((steps, width))
    for done, found in enumerate(in_order(total, range(source.n_blocks), workers), start=1):
        summed += found
        if progress is not None:
            progress(done, source.n_blocks)
    mean_kw = summed.T * (study.feeder.base_mva * KW_PER_MW / study.days)
    found_kw = np.zeros((len(study.feeder.nodes), steps))
    if solver.columns == "elements":
        grounded = {GROUND, *study.feeder.neutral.tolist()}
        for load, kw in zip(study.feeder.loads, mean_kw, strict=True):
            nodes = [node for branch in load.branches for node in branch if node not in grounded]
            for node in nodes:
                found_kw[node] += kw / len(nodes)
    else:
        found_kw[study.feeder.retained] = mean_kw
    return found_kw
