"""How long short commands take, warm, and how many modules they import; also beside an earlier commit.

    python benchmarks/startup.py [--rounds 5] [--only verify plan] [--against COMMIT] [--no-demo]

Every command runs in a process of its own, as a user types it: `--help`, `verify` of a release of 28 days on
a twin, `plan` and `inspect` of its config, and `demo`. A first run of each, which compiles, is not counted.
With `--against` the same commands are run from an archive of that commit, taking turns, and the ratio is in
processor time: on a machine that others use as well, wall time says little. `demo` runs once a round of its
own, at most three times.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import workloads

PROGRAM = """
import atexit, pathlib, sys
counted = pathlib.Path(sys.argv.pop(1)).resolve()
atexit.register(lambda: counted.write_text(str(len(sys.modules))))
sys.argv[0] = "dp-powerflow"
from dp_powerflow.cli import main
main()
"""
MOST_DEMOS = 3


@dataclass
class Times:
    """Best of all runs of a command."""

    wall: float = float("inf")
    processor: float = float("inf")
    modules: int = 0


@dataclass(frozen=True)
class Place:
    """A version of the package, and a release that it made."""

    name: str
    source: Path
    folder: Path

    def run(self, *arguments: str) -> Times:
        """One command, in a process of its own."""
        counted = self.folder / "modules"
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        found = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(counted), *arguments],
            cwd=self.folder,
            # As installed: bytecode of both is kept.
            env=os.environ | {"PYTHONPATH": str(self.source), "PYTHONDONTWRITEBYTECODE": ""},
            capture_output=True,
            text=True,
        )
        wall = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if found.returncode != 0:
            raise SystemExit(f"{self.name}: {' '.join(arguments)} failed\n{found.stderr[-2000:]}")
        processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Times(wall, processor, int(counted.read_text()))

    def command(self, name: str) -> Times:
        """One of the commands of the table."""
        if name == "demo":
            shutil.rmtree(self.folder / "demo", ignore_errors=True)
        arguments = {
            "--help": ("--help",),
            "verify": ("verify", "out"),
            "plan": ("plan", "next.toml"),
            "inspect": ("inspect", "ieee123"),
            "demo": ("demo", "--out", "demo"),
        }
        return self.run(*arguments[name])


def prepared(name: str, source: Path, folder: Path) -> Place:
    """A version with a release to verify, and a config to plan from."""
    folder.mkdir()
    first = workloads.new(28)
    (folder / "c.toml").write_text(first, encoding="utf-8")
    later = first.replace('id = "bench"', 'id = "next"').replace('output = "out"', 'output = "next"')
    (folder / "next.toml").write_text(later, encoding="utf-8")
    place = Place(name, source, folder)
    place.run("release", "c.toml")
    return place


def measured(places: list[Place], name: str, rounds: int) -> list[Times]:
    """Best of so many rounds, the versions taking turns."""
    best = [Times() for _ in places]
    for number in range(rounds + 1):
        for place, times in zip(places, best, strict=True):
            found = place.command(name)
            if number == 0:
                continue  # it compiled, or read files for the first time
            times.wall, times.processor = min(times.wall, found.wall), min(times.processor, found.processor)
            times.modules = found.modules
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=["--help", "verify", "plan", "inspect", "demo"])
    parser.add_argument("--against", metavar="COMMIT")
    parser.add_argument("--no-demo", action="store_true", help="leave the demo out, which takes long")
    options = parser.parse_args()
    names = [("--help" if name == "help" else name) for name in options.only]
    with tempfile.TemporaryDirectory() as scratch:
        places = [prepared("now", workloads.REPOSITORY / "src", Path(scratch) / "now")]
        if options.against:
            earlier = workloads.archived(options.against, Path(scratch) / "archive")
            places.append(prepared(options.against, earlier, Path(scratch) / "earlier"))
        print(f"{'command':10} {'version':>12} {'wall':>8} {'processor':>10} {'modules':>8} {'ratio':>6}")
        for name in names:
            if name == "demo" and options.no_demo:
                continue
            rounds = min(options.rounds, MOST_DEMOS) if name == "demo" else options.rounds
            best = measured(places, name, rounds)
            for place, times in zip(places, best, strict=True):
                ratio = times.processor / best[0].processor
                print(
                    f"{name:10} {place.name[:12]:>12} {times.wall:6.2f} s {times.processor:8.2f} s "
                    f"{times.modules:8d} {ratio:6.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
