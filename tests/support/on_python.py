"""What a small release is made of and what its readers find, under whichever Python runs this. Prints JSON.

Run as `python -m support.on_python read FOLDER…` for releases that are there, or `… make FOLDER` for two new
ones. Warnings are errors. Used by `.ci/pythons`, which compares what two Pythons print.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

from support.reading import everything
from support.release_bits import release_bits

MADE = ("true-network", "twin-network")
STATED = {"manifest.json", "certificate.html"}
"""Files that name the versions of Python and of packages."""


def made(folder: Path) -> dict[str, dict[str, str]]:
    """SHA-256 of the files of new releases, but for those that state versions."""
    found = {}
    for mode in MADE:
        (folder / mode).mkdir(parents=True)
        hashes = release_bits(folder / mode, mode, 1)
        found[mode] = {name: value for name, value in hashes.items() if name not in STATED}
    return found


def mistake(folder: Path) -> str:
    """What the command says of a directory that is no release."""
    program = "from dp_powerflow.cli import main; main()"
    command = [sys.executable, "-W", "error", "-c", program, "verify", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def main() -> None:
    warnings.simplefilter("error")
    what, *folders = sys.argv[1:]
    found: dict[str, Any]
    if what == "make":
        found = dict(made(Path(folders[0])))
    else:
        found = {folder: everything(Path(folder)) for folder in folders}
        found["mistake"] = mistake(Path(folders[0]))
    sys.stdout.write(json.dumps(found, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
