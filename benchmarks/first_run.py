"""What the first run on a machine compiles: processor seconds with and without kernels compiled ahead.

Each command runs in a fresh process with an empty cache: once as the package is (kernels compiled ahead are
used if `make kernels` has made some), once with `DP_POWERFLOW_KERNELS=compile`. Times are user and system
seconds of the command and its children, most of them not spent compiling: compare the columns.

    python benchmarks/first_run.py [--days 28] [--out first_run.json]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import workloads

SWITCH = "DP_POWERFLOW_KERNELS"
COMMANDS = {"release": ["release", "c.toml"], "verify": ["verify", "out"], "demo": ["demo", "--out", "demo"]}


def seconds(command: list[str], folder: Path, settings: dict[str, str]) -> float:
    """Processor seconds of one command of the program."""
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = "from dp_powerflow.cli import main; main()"
    environment = {name: value for name, value in os.environ.items() if name != SWITCH} | settings
    whole = [sys.executable, "-c", code, *command]
    subprocess.run(whole, cwd=folder, env=environment, check=True, capture_output=True)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime - start.ru_utime + end.ru_stime - start.ru_stime


def compiled(cache: Path) -> int:
    """Kernels that a run had to compile, by what it left in an empty cache."""
    return sum(1 for _ in cache.rglob("*.kernel"))


def run_all(days: int, kind: str, folder: Path) -> dict[str, dict[str, float]]:
    """Seconds and kernels compiled of each command, each with an empty cache."""
    settings = {} if kind == "as shipped" else {SWITCH: "compile"}
    (folder / "c.toml").write_text(workloads.new(days))
    found = {}
    for name, command in COMMANDS.items():
        cache = folder / f"cache of {name}"
        first = seconds(command, folder, {**settings, "NUMBA_CACHE_DIR": str(cache)})
        found[name] = {"seconds": round(first, 2), "kernels compiled": compiled(cache)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=28)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = {}
    for kind in ("as shipped", "nothing shipped"):
        with tempfile.TemporaryDirectory() as name:
            rows[kind] = run_all(options.days, kind, Path(name))
    print(f"{'command':10} {'as shipped':>28} {'nothing shipped':>28}   first run, processor time")
    for command in COMMANDS:
        cells = (rows[kind][command] for kind in rows)
        texts = [f"{each['seconds']:.1f} s, {each['kernels compiled']} compiled" for each in cells]
        print(f"{command:10} {texts[0]:>28} {texts[1]:>28}")
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
