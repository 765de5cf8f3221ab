"""Many inputs of all formats, each format in a child that may hang or die; failures are kept.

python -m support.fuzz --minutes 60 --seed 1
python -m support.fuzz --seed 1 --format config --case 17
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from support.faults.looking import in_child
from support.fuzz.changes import damaged
from support.fuzz.doors import DOORS, opened
from support.fuzz.judging import Door, judged
from support.fuzz.world import World

MOST_SECONDS = 4.0
"""How long one format has its turn at most."""
HANG_SECONDS = 120
"""An input that is not done by then ends the process that tries it."""
MOST_BYTES = 12 << 30
FAILURE = "failure"


def input_of(door: Door, name: str, seed: int, case: int) -> bytes:
    """The input of a number: it depends on the format, the seed and the number alone."""
    rng = random.Random(f"{name}/{seed}/{case}")
    start = rng.choice(door.seeds)
    try:
        return door.mutate(rng, start)
    except Exception:  # changes may not go together, such as a row of a table that was dropped
        return damaged(rng, start)


def run_campaign(out: Path, names: Sequence[str], *, minutes: float, seed: int) -> dict[str, Counter[str]]:
    """Try inputs of these formats in turn; how many were accepted, refused, or a failure of some kind.

    Every format has a turn. The first failure of each kind is a line of `failures.jsonl`, with its input.
    """
    end, counts = time.monotonic() + 60.0 * minutes, {name: Counter[str]() for name in names}
    seconds = min(MOST_SECONDS, 60.0 * minutes / len(names))
    with tempfile.TemporaryDirectory() as scratch, (out / "failures.jsonl").open("a", buffering=1) as kept:
        world, lines = World(Path(scratch)), Path(scratch) / "slice.jsonl"
        for turn, name in enumerate(itertools.cycle(names)):
            if turn >= len(names) and time.monotonic() > end:
                break
            lines.write_text("")
            counted, door = counts[name], opened(world, name)
            ended = in_child(
                partial(work, door, name, seed, counted.total(), seconds, lines), Path(scratch) / "log"
            )
            tried = [json.loads(line) for line in lines.read_text().splitlines()]
            if ended.code != 0:
                tried.append({"case": counted.total() + len(tried), "signature": f"code {ended.code}"})
                tried[-1] |= {"kind": FAILURE, "detail": ended.text[-3000:]}
            for entry in tried:
                kind = entry["kind"] if entry["kind"] != FAILURE else f"{FAILURE}: {entry['signature']}"
                counted[kind] += 1
                if entry["kind"] == FAILURE and counted[kind] == 1:
                    content = input_of(door, name, seed, entry["case"]).hex()
                    kept.write(json.dumps({"format": name, "seed": seed, **entry, "input": content}) + "\n")
    return counts


def work(door: Door, name: str, seed: int, first: int, seconds: float, lines: Path) -> None:
    """Try inputs of one format for a while, with a line for each; a child does."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    end = time.monotonic() + seconds
    with lines.open("w", buffering=1) as say:
        for case in itertools.count(first):
            signal.alarm(HANG_SECONDS)
            outcome = judged(door, input_of(door, name, seed, case))
            signal.alarm(0)
            say.write(json.dumps({"case": case, **asdict(outcome)}) + "\n")
            if time.monotonic() > end:
                break


def main() -> int:
    """Exit code 1 if something failed."""
    parser = argparse.ArgumentParser(prog="python -m support.fuzz", description="Try inputs of every format.")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long, all formats together")
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same inputs")
    parser.add_argument("--format", action="append", choices=list(DOORS), help="only these; may be repeated")
    parser.add_argument("--case", type=int, help="with one --format: what becomes of this input")
    parser.add_argument("--out", type=Path, default=Path("fuzz-output"), help="folder of failures and table")
    chosen = parser.parse_args()
    names = chosen.format or list(DOORS)
    if chosen.case is not None:
        with tempfile.TemporaryDirectory() as folder:
            door = opened(World(Path(folder)), names[0])
            content = input_of(door, names[0], chosen.seed, chosen.case)
            outcome = judged(door, content)
        sys.stdout.write(f"{content[:2000]!r}\n{outcome.kind} {outcome.signature}\n{outcome.detail}\n")
        return int(outcome.kind == FAILURE)
    chosen.out.mkdir(parents=True, exist_ok=True)
    counts = run_campaign(chosen.out, names, minutes=chosen.minutes, seed=chosen.seed)
    total = sum(counts.values(), Counter[str]())
    told = json.dumps({**counts, "all": total}, indent=1)
    (chosen.out / "summary.json").write_text(told)
    sys.stdout.write(f"{told}\n")
    return int(any(kind.startswith(FAILURE) for kind in total))
