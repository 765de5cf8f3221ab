"""Hosting capacity: how much PV each node bears on every drawn day."""

from __future__ import annotations

from dp_powerflow.derived.hosting.kind import HostingCapacity

__all__ = ["HostingCapacity"]
