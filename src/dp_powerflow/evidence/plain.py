"""Results as plain values for JSON: numbers that are not finite become null."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

_DERIVED = ("epsilon", "delta", "formula", "bias", "floor", "mu", "denominator", "scope", "largest_radius")


def plain(value: Any) -> Any:
    """A frozen result, with the figures derived from it, as dictionaries, lists and numbers."""
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        derived = [name for name in _DERIVED if name not in names and hasattr(type(value), name)]
        return {name: plain(getattr(value, name)) for name in (*names, *derived)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (np.integer, np.bool_)):
        return value.item()
    return value
