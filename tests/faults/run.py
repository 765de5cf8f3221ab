"""Kills, full disks and wrong clocks, for as long as one likes: `make faults`.

    python tests/faults/run.py --minutes 60 --out faults.json

Cases come in an order that follows from the seed. Each is a line of `faults.jsonl` as soon as it is done; the
same command goes on after the last line. Exit code 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.faults.results import Line, figures, keep, kept_lines, table
from support.faults.shim import PLAN, Shim, preloaded, why_not


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description="Kills, full disks and wrong clocks.")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long; the last case is finished")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the cases")
    parser.add_argument("--short", action="store_true", help="the few cases of 'make test'")
    parser.add_argument("--out", type=Path, default=Path("faults.json"), help="file of the figures")
    return parser.parse_args()


def main() -> int:
    """Start this very program with the library that strikes, in a folder of its own."""
    reason = why_not()
    if reason is not None:
        sys.stderr.write(f"{reason}\n")
        return 2
    chosen = arguments()
    # In memory, where there is such a place: a flush costs nothing there, and kills come as well.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        if PLAN in os.environ:
            return campaign(chosen, Path(folder))
        environment = preloaded(Path(folder))
        return subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode


def campaign(chosen: argparse.Namespace, root: Path) -> int:
    """Try one case after the other."""
    from support.faults.bench import Bench
    from support.faults.strikes import long_items, short_items, warm_up
    from support.stores import MISSING, served

    end = time.monotonic() + 60.0 * chosen.minutes
    kept = chosen.out.with_suffix(".jsonl")
    lines = [] if chosen.short else kept_lines(kept)
    done = {line.name for line in lines}
    with nullcontext() if MISSING or chosen.short else served() as store:
        warm_up(root, short=chosen.short)
        bench = Bench(root, Shim())
        short = chosen.short
        for item in short_items(bench, chosen.seed) if short else long_items(bench, chosen.seed, store):
            if item.name in done:
                continue
            lines.append(item.do(item.name))
            keep(kept, lines[-1])
            report(lines)
            if time.monotonic() > end:
                break
    about = {"seed": chosen.seed, "commit": commit()}
    found = figures(lines, about)
    chosen.out.write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.write(table(found) + "\n")
    return 1 if found["failures"] else 0


def report(lines: list[Line]) -> None:
    """What is wrong with the last case, and now and then how far it is."""
    line = lines[-1]
    for wrong in line.wrong:
        sys.stdout.write(f"FAILED {line.name}: {wrong.kind}: {wrong.words}\n")
    if len(lines) % 25 == 0 or line.wrong:
        failed, kills = sum(bool(item.wrong) for item in lines), sum(item.kills for item in lines)
        sys.stdout.write(f"{len(lines)} cases, {kills} kills, {failed} failed; last: {line.name}\n")
    sys.stdout.flush()


def commit() -> str:
    """What is tried."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
