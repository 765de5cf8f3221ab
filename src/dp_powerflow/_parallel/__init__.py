"""Engines: the numbered tasks of one job, and crews of workers that keep what they have begun.

The only package that makes pools or processes, or imports Dask.
"""

from __future__ import annotations

from dp_powerflow._parallel.cluster import DaskScheduler, LocalDask, run_on
from dp_powerflow._parallel.fitness import NOTHING, Needs, refuse_unfit_workers
from dp_powerflow._parallel.local import Local, Processes, Threads, WorkerDefectError, run_on_pool
from dp_powerflow._parallel.processes import (
    DEFECTS,
    Answer,
    Crew,
    CrewJob,
    Engine,
    Job,
    OnTold,
    Rest,
    Result,
    Runner,
    Sealed,
    Tell,
    ThreadedJob,
    Work,
)
from dp_powerflow._threads import cores
from dp_powerflow.errors import ConfigError

__all__ = [
    "DEFECTS",
    "NOTHING",
    "Answer",
    "Crew",
    "CrewJob",
    "DaskScheduler",
    "Engine",
    "Job",
    "Local",
    "LocalDask",
    "Needs",
    "OnTold",
    "Processes",
    "Rest",
    "Result",
    "Runner",
    "Sealed",
    "Tell",
    "ThreadedJob",
    "Threads",
    "Work",
    "WorkerDefectError",
    "engine_of",
    "refuse_unfit_workers",
    "run_on",
    "run_on_pool",
]


def engine_of(workers: int | None, scheduler: str | None) -> Engine:
    """The engine that the command line asks for: `scheduler` is an address, 'local' or None for no Dask."""
    if scheduler is None:
        return Local(workers or cores())
    if scheduler == "local":
        return LocalDask(workers or cores())
    if workers is not None:
        raise ConfigError(
            "a cluster has workers of its own; leave out --workers, or start a cluster with --scheduler local"
        )
    return DaskScheduler(scheduler)
