"""Kills, full disks and wrong clocks, for as long as one likes: `make faults`.

    python tests/faults/run.py --minutes 60 --out faults.jsonl

Cases come in an order that follows from the seed. Each is a line of the file as soon as it is done; the same
command goes on after the last line. Exit code 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.faults.shim import PLAN, Shim, preloaded, why_not


def main() -> int:
    """Start this very program with the library that strikes, in a folder of its own."""
    parser = argparse.ArgumentParser(description="Kills, full disks and wrong clocks.")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long; the last case is finished")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the cases")
    parser.add_argument("--short", action="store_true", help="the few cases of 'make test'")
    parser.add_argument("--out", type=Path, default=Path("faults.jsonl"), help="file of the cases")
    chosen, reason = parser.parse_args(), why_not()
    if reason is not None:
        sys.stderr.write(f"{reason}\n")
        return 2
    # In memory, where there is such a place: a flush costs nothing there, and kills come as well.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        if PLAN in os.environ:
            return campaign(chosen, Path(folder))
        environment = preloaded(Path(folder))
        return subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode


def campaign(chosen: argparse.Namespace, root: Path) -> int:
    """Try one case after the other; the last line of an earlier run may be half written."""
    from support.faults.bench import Bench
    from support.faults.strikes import long_items, short_items, warm_up
    from support.stores import MISSING, served

    end = time.monotonic() + 60.0 * chosen.minutes
    text = chosen.out.read_text() if chosen.out.exists() else ""
    lines: list[dict[str, Any]] = [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]
    done = {line["name"] for line in lines}
    stores = nullcontext() if MISSING or chosen.short else served()
    with stores as store, chosen.out.open("w", buffering=1) as out:
        out.writelines(f"{json.dumps(line)}\n" for line in lines)
        warm_up(root, short=chosen.short)
        bench, short = Bench(root, Shim()), chosen.short
        for name, do in short_items(bench, chosen.seed) if short else long_items(bench, chosen.seed, store):
            if name in done:
                continue
            lines.append(asdict(do(name)))
            out.write(f"{json.dumps(lines[-1])}\n")
            if lines[-1]["wrong"] or len(lines) % 25 == 0:
                sys.stdout.write(f"{len(lines)} cases; {name}: {'; '.join(lines[-1]['wrong']) or 'right'}\n")
                sys.stdout.flush()
            if time.monotonic() > end:
                break
    counts = Counter[str]()
    for line in lines:
        for name in (line["part"], f"{line['part']}, {line['group']}"):
            counts[name] += 1
        counts["kills in all"] += line["kills"]
        counts["failures in all"] += bool(line["wrong"])
    sys.stdout.write("\n".join(f"{name:60} {number:7,}" for name, number in counts.items()) + "\n")
    return int(counts["failures in all"] > 0)


if __name__ == "__main__":
    sys.exit(main())
