"""Differentially private synthetic voltage phasors for distribution grids.

    import dp_powerflow as dpf

    config = dpf.read_config("release.toml")
    dpf.plan(config)                          # what it would cost; spends nothing
    result = dpf.release(config)
    dpf.verify(result.path)
    corpus = dpf.open_corpus(result.path)

Everything a user needs is a name of this module. A name loads what it needs when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dp_powerflow._names import __version__

if TYPE_CHECKING:
    from dp_powerflow import errors
    from dp_powerflow._api import (
        DrawnTwin,
        certify,
        draw_twin,
        fit,
        inspect,
        open_corpus,
        open_feeder,
        open_fleet,
        plan,
        read_config,
        read_meters,
        release,
        release_fleet,
        sample,
        simulate_meters,
        solve,
        verify,
    )
    from dp_powerflow.config import Config
    from dp_powerflow.corpus.gridfm.reader import read_gridfm
    from dp_powerflow.corpus.reader import Corpus
    from dp_powerflow.grid.feeder import Feeder
    from dp_powerflow.loads.declared import LongColumns, MeterFormat, WideColumns
    from dp_powerflow.loads.history import LoadHistory
    from dp_powerflow.model.gaussian import LoadModel
    from dp_powerflow.model.options import FitOptions
    from dp_powerflow.powerflow.batch import BatchSolver, Solution
    from dp_powerflow.privacy.budget import Budget
    from dp_powerflow.privacy.ledger.book import Ledger
    from dp_powerflow.privacy.random import StreamKey
    from dp_powerflow.privacy.state import PrivateState
    from dp_powerflow.twin.guarantee import Spread

__all__ = [
    "BatchSolver",
    "Budget",
    "Config",
    "Corpus",
    "DrawnTwin",
    "Feeder",
    "FitOptions",
    "Ledger",
    "LoadHistory",
    "LoadModel",
    "LongColumns",
    "MeterFormat",
    "PrivateState",
    "Solution",
    "Spread",
    "StreamKey",
    "WideColumns",
    "__version__",
    "certify",
    "draw_twin",
    "errors",
    "fit",
    "inspect",
    "open_corpus",
    "open_feeder",
    "open_fleet",
    "plan",
    "read_config",
    "read_gridfm",
    "read_meters",
    "release",
    "release_fleet",
    "sample",
    "simulate_meters",
    "solve",
    "verify",
]

_ELSEWHERE = {
    "BatchSolver": "powerflow.batch",
    "Budget": "privacy.budget",
    "Config": "config",
    "Corpus": "corpus.reader",
    "Feeder": "grid.feeder",
    "FitOptions": "model.options",
    "Ledger": "privacy.ledger.book",
    "LoadHistory": "loads.history",
    "LoadModel": "model.gaussian",
    "LongColumns": "loads.declared",
    "MeterFormat": "loads.declared",
    "PrivateState": "privacy.state",
    "Solution": "powerflow.batch",
    "Spread": "twin.guarantee",
    "StreamKey": "privacy.random",
    "WideColumns": "loads.declared",
    "read_gridfm": "corpus.gridfm.reader",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'dp_powerflow' has no public name {name!r}")
    if name == "errors":
        return importlib.import_module("dp_powerflow.errors")
    found = getattr(importlib.import_module(f"dp_powerflow.{_ELSEWHERE.get(name, '_api')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
