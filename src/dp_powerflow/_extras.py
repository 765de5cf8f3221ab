"""Optional packages."""

from __future__ import annotations

import importlib
from typing import Any

from dp_powerflow.errors import MissingExtraError


def require(package: str, extra: str) -> Any:
    """Import an optional package, or say how to install it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        # A package that is there but lacks one of its own dependencies is another problem: show that one.
        if error.name != package:
            raise
        raise MissingExtraError(package, extra) from None
