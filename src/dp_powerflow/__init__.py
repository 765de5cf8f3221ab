"""Differentially private synthetic voltage phasors for distribution grids.

    import dp_powerflow as dpf

    config = dpf.read_config("release.toml")
    dpf.plan(config)                          # what it would cost; spends nothing
    result = dpf.release(config)
    dpf.verify(result.path)
    corpus = dpf.open_corpus(result.path)

Everything a user needs is a name of this module. A name loads what it needs when it is first used; type
checkers and editors read `__init__.pyi`.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

_NAMES = {
    "_names": "__version__",
    "_api": "DrawnTwin certify derive draw_twin export_gridfm fidelity fit inspect open_corpus "
    "open_derived open_feeder open_fleet plan quality read_config read_meters release release_fleet review "
    "sample sign simulate_meters solve verify",
    "config": "Config",
    "corpus.gridfm.export": "GridfmVariety",
    "corpus.gridfm.tables": "read_gridfm",
    "corpus.reader": "Corpus",
    "fidelity.report": "FidelityReport",
    "grid.feeder": "Feeder",
    "grid.quantities": "Protected",
    "loads.declared": "LongColumns MeterFormat WideColumns",
    "loads.history": "LoadHistory",
    "model.gaussian": "LoadModel",
    "model.options": "FitOptions",
    "pipeline.deriving.derived": "Derived",
    "powerflow.batch": "BatchSolver Solution",
    "powerflow.operated": "OperatedSolution OperatedSolver",
    "privacy.budget": "Budget",
    "privacy.ledger.book": "Ledger",
    "privacy.random": "StreamKey",
    "privacy.state": "PrivateState",
    "quality.measure": "Quality",
    "twin.design": "TwinDesign",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = ["errors", *_MODULE_OF]


class _Front(ModuleType):
    """This module. A package of the name of a public function, once imported, does not take its place."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _MODULE_OF and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Front


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for."""
    if name == "errors":
        return importlib.import_module("dp_powerflow.errors")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'dp_powerflow' has no public name {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"dp_powerflow.{_MODULE_OF[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
