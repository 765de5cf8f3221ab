"""Optimal dispatch: the least-cost power of declared units at every drawn snapshot, with AC check."""

from __future__ import annotations

from dp_powerflow.derived.dispatch.kind import DeclaredUnit, OptimalDispatch

__all__ = ["DeclaredUnit", "OptimalDispatch"]
