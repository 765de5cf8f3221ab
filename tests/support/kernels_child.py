"""Makes a small release, verifies it, and prints which kernels had to be compiled for that, as JSON.

Run as `python -m support.kernels_child MODE`, MODE one of `support.release_bits.NETWORKS`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from numba.core import event

import dp_powerflow
from support.release_bits import release_bits


class Compilations(event.Listener):  # type: ignore[misc]
    """Names of the functions compiled, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_start(self, event: Any) -> None:
        function = event.data["dispatcher"].py_func
        self.names.append(f"{function.__module__}.{function.__qualname__}")

    def on_end(self, event: Any) -> None:
        """Nothing more to count."""


def main() -> None:
    seen = Compilations()
    event.register("numba:compile", seen)
    with tempfile.TemporaryDirectory() as name:
        files = release_bits(Path(name), sys.argv[1], 1)
        dp_powerflow.verify(Path(name) / "out")
    print(json.dumps({"compiled": seen.names, "files": files, "package": dp_powerflow.__file__}))  # noqa: T201


if __name__ == "__main__":
    main()
