"""Runners: the items of a job on threads, processes or a Dask cluster.

The only package that makes pools or processes, or imports Dask.
"""

from __future__ import annotations

from dp_powerflow._parallel.cluster import DaskScheduler
from dp_powerflow._parallel.local import Engine, Kept, Local, Processes, Rest, Runner, Threads, run_on_pool
from dp_powerflow._threads import cores
from dp_powerflow.errors import ConfigError

__all__ = [
    "DaskScheduler",
    "Engine",
    "Kept",
    "Local",
    "Processes",
    "Rest",
    "Runner",
    "Threads",
    "engine_of",
    "run_on_pool",
]


def engine_of(workers: int | None, scheduler: str | None) -> Engine:
    """The engine that the command line asks for: `scheduler` is an address of Dask, 'local' or None."""
    if scheduler is None:
        return Local(workers or cores())
    if scheduler == "local":
        return Processes(workers or cores())
    if workers is not None:
        raise ConfigError(
            "a cluster has its own workers; leave out --workers, or use this machine's with --scheduler local"
        )
    return DaskScheduler(scheduler)
