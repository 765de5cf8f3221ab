"""Names of functions, tests and commands on the pages of docs/, looked up in the code."""

from __future__ import annotations

import importlib
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import typer

from dp_powerflow.cli import app
from dp_powerflow_paper.run import EXPERIMENTS

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "dp-powerflow"


def exists(path: str) -> bool:
    """Whether a dotted path names something, such as 'grid.reduction.Network.b' below `dp_powerflow`."""
    parts = path.removeprefix("dp_powerflow_paper.").split(".")
    top = "dp_powerflow" if path == ".".join(parts) else "dp_powerflow_paper"
    for cut in range(len(parts), 0, -1):
        name = ".".join([top, *parts[:cut]])
        try:
            target: Any = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # a module that exists and cannot be imported
            continue
        for part in parts[cut:]:
            if not hasattr(target, part) and part not in getattr(target, "__dataclass_fields__", {}):
                return False
            target = getattr(target, part, None)
        return True
    return False


@cache
def _written_tests() -> str:
    return "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))


def is_a_test(name: str) -> bool:
    """Whether some test of the repository has this name."""
    return f"def {name}(" in _written_tests()


def is_a_command(text: str) -> bool:
    """Whether a line such as 'dp-powerflow experiment theorem --oedi DIR' names a command and its options."""
    program, *words = shlex.split(text)
    group: Any = typer.main.get_command(app)
    if program == PROGRAM and words and words[0].startswith("--"):
        return words[0] in {option for found in group.params for option in found.opts}
    if program != PROGRAM or not words or words[0] not in group.commands:
        return False
    if words[0] == "experiment" and (len(words) < 2 or words[1] not in EXPERIMENTS):
        return False
    command = group.commands[words[0]]
    if hasattr(command, "commands"):
        if len(words) < 2 or words[1] not in command.commands:
            return False
        command = command.commands[words[1]]
    parameters = command.params
    known = {option for found in parameters for option in (*found.opts, *found.secondary_opts)}
    return all(word.split("=")[0] in known for word in words[1:] if word.startswith("-"))
