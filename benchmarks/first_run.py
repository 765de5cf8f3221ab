"""What the first run on a machine costs: processor seconds with an empty cache of kernels, and again.

Times are user and system seconds of the command and its children.

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

COMMANDS = {"release": ["release", "c.toml"], "verify": ["verify", "out"], "demo": ["demo", "--out", "demo"]}


def seconds(command: list[str], folder: Path, cache: Path) -> float:
    """Processor seconds of one command of the program."""
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    whole = [sys.executable, "-c", "from dp_powerflow.cli import main; main()", *command]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    subprocess.run(whole, cwd=folder, env=environment, check=True, capture_output=True)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime - start.ru_utime + end.ru_stime - start.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=28)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: dict[str, dict[str, float]] = {}
    print(f"{'command':10} {'first run':>10} {'again':>10}   processor seconds")
    for name, command in COMMANDS.items():
        with tempfile.TemporaryDirectory() as cache:
            rows[name] = {}
            for kind in ("first", "again"):
                with tempfile.TemporaryDirectory() as place:
                    folder = Path(place)
                    (folder / "c.toml").write_text(workloads.new(options.days))
                    if name == "verify":
                        seconds(COMMANDS["release"], folder, Path(cache) / "other")
                    rows[name][kind] = round(seconds(command, folder, Path(cache) / "measured"), 2)
        print(f"{name:10} {rows[name]['first']:>10} {rows[name]['again']:>10}")
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
