"""What readers give of a release, as hashes.

Run as `python -m support.reading FOLDER…`: where nothing is compiled, and compiling raises. Prints JSON.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import dp_powerflow as dpf
from dp_powerflow.corpus.gridfm.tables import read_gridfm


def _hash(*values: Any) -> str:
    found = hashlib.sha256()
    for value in values:
        array = np.ascontiguousarray(value)
        found.update(f"{array.dtype} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def _read(folder: Path) -> str:
    """Every reader of the package that needs no extra one."""
    corpus = dpf.open_corpus(folder / "out")
    read: list[Any] = [
        corpus.voltages(),
        corpus.phasors(days=[1]).va_deg,
        corpus.node_series(nodes=[0])["vm_pu"],
    ]
    read += [batch.phasors.vm_pu for batch in corpus.batches(2)]
    return _hash(*read, *(getattr(corpus, name)() for name in corpus.holds if name != "voltages"))


def everything(folder: Path) -> dict[str, Any]:
    """What readers give, of a release or a fleet in `folder/out`."""
    out = folder / "out"
    if (out / "fleet.json").exists():
        fleet = dpf.open_fleet(out)
        return {"voltages": [_hash(fleet.feeder(name).voltages()) for name in fleet.names]}
    found = {"read": _read(folder)}
    if (out / "twin").is_dir():
        found["tables"] = _hash(read_gridfm(out / "twin").voltage())
    return found


def main() -> None:
    dispatcher: Any = importlib.import_module("numba.core.dispatcher")

    def refuse(self: Any, *_: Any) -> None:
        raise AssertionError(f"{self.py_func.__module__}.{self.py_func.__qualname__} is to be compiled")

    dispatcher._FunctionCompiler.compile = refuse
    found = {folder: everything(Path(folder)) for folder in sys.argv[1:]}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
