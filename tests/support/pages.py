"""Names of functions and tests on the pages of docs/, looked up in the code."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def exists(path: str) -> bool:
    """Whether a dotted path below `dp_powerflow`, such as 'grid.reduction.Network.b', names something."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        name = "dp_powerflow." + ".".join(parts[:cut])
        try:
            target = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # a module that exists and cannot be imported
            continue
        for part in parts[cut:]:
            if not hasattr(target, part):
                return False
            target = getattr(target, part)
        return True
    return False


@cache
def _written_tests() -> str:
    return "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))


def is_a_test(name: str) -> bool:
    """Whether some test of the repository has this name."""
    return f"def {name}(" in _written_tests()
