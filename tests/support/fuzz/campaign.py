"""Many inputs of all formats, in processes that may hang or die; what fails is kept and made smaller."""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from support.fuzz.changes import damaged
from support.fuzz.doors import DOORS, opened
from support.fuzz.judging import Door, judged
from support.fuzz.world import World


def input_of(door: Door, name: str, seed: int, case: int) -> bytes:
    """The input of a number: it hangs on the format, the seed and the number alone."""
    rng = random.Random(f"{name}/{seed}/{case}")
    start = rng.choice(door.seeds)
    try:
        return door.mutate(rng, start)
    except Exception:  # changes may not go together, such as a row of a table that was dropped
        return damaged(rng, start)


SLICE_SECONDS = 3.0
"""How long one format has its turn; one that is read quickly has three times as long."""
_QUICK = 100
HANG_SECONDS = 120
"""An input that is not done by then ends the process that tries it."""
MOST_BYTES = 12 << 30
_KEPT = 3


@dataclass
class Tally:
    """What became of the inputs of one format.

    Attributes
    ----------
    kinds : how many inputs were accepted, refused, or a failure.
    signatures : of the failures, how often each came.
    """

    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    signatures: Counter[str] = field(default_factory=Counter)

    def count(self, kind: str, signature: str = "") -> None:
        """One more."""
        self.kinds[kind] += 1
        if kind == "failure":
            self.signatures[signature] += 1

    def __add__(self, other: Tally) -> Tally:
        kinds, signatures = self.kinds + other.kinds, self.signatures + other.signatures
        return Tally(self.seconds + other.seconds, kinds, signatures)


Tallies = dict[str, Tally]


def run_campaign(out: Path, names: Sequence[str], *, minutes: float, seed: int, jobs: int) -> Tallies:
    """Try inputs of all these formats for so long, in so many processes; what they found, added up."""
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60.0 * minutes
    with ThreadPoolExecutor(jobs) as threads:
        each = list(threads.map(partial(_watched_job, out, names, end), range(seed, seed + jobs)))
    return {name: sum((tallies[name] for tallies in each), Tally()) for name in names}


def _watched_job(out: Path, names: Sequence[str], end: float, seed: int) -> Tallies:
    """What processes found of which the next begins where one died."""
    tallies = {name: Tally() for name in names}
    command = [
        sys.executable,
        "-m",
        "support.fuzz",
        "--seed",
        str(seed),
        *(f"--format={name}" for name in names),
    ]
    while (left := end - time.monotonic()) > 0.0:
        begun = json.dumps({name: tally.kinds.total() for name, tally in tallies.items()})
        asked = [*command, "--minutes", str(left / 60.0), "--begun", begun]
        with (out / f"log-{seed}.txt").open("ab") as log:
            process = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
        entry: dict[str, Any] = {"format": "", "case": 0}
        assert process.stdout is not None
        for line in process.stdout:
            entry = json.loads(line)
            tally = tallies[entry["format"]]
            if "kind" in entry:
                tally.count(entry["kind"], entry["signature"])
                tally.seconds += entry["seconds"]
                _keep(out, entry, tally)
        if process.wait() and entry["format"] and "kind" not in entry:
            entry |= {
                "kind": "failure",
                "signature": f"the process dies with {process.returncode}",
                "seed": seed,
            }
            tallies[entry["format"]].count(entry["kind"], entry["signature"])
            _keep(out, entry, tallies[entry["format"]])
        elif process.returncode:
            raise RuntimeError(f"no input could be tried; see {out}/log-{seed}.txt")
    return tallies


def _keep(out: Path, entry: dict[str, Any], tally: Tally) -> None:
    """A failure in a file; the first few of each kind."""
    if entry["kind"] == "failure" and tally.signatures[entry["signature"]] <= _KEPT:
        stem = "".join(sign if sign.isalnum() else "-" for sign in entry["format"])
        (out / f"{stem}-{entry['seed']}-{entry['case']}.json").write_text(json.dumps(entry, indent=1))


# ------------------------------------------------------------------------------------- within the process
def work(names: Sequence[str], begun: dict[str, int], *, seed: int, minutes: float) -> None:
    """Try inputs of all formats in turn until the time is over; says each before and after it is tried."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    end, seen = time.monotonic() + 60.0 * minutes, set[str]()
    with os.fdopen(os.dup(1), "w", buffering=1) as say, tempfile.TemporaryDirectory() as scratch:
        os.dup2(2, 1)  # nothing else gets between
        world = World(Path(scratch))
        while time.monotonic() < end:
            for name in names:
                door, since, tried = opened(world, name), time.monotonic(), 0
                while (spent := time.monotonic() - since) < SLICE_SECONDS * (
                    3 if tried > _QUICK * spent else 1
                ):
                    about: dict[str, Any] = {"format": name, "seed": seed, "case": begun[name]}
                    say.write(json.dumps(about) + "\n")
                    signal.alarm(HANG_SECONDS)
                    about |= _tried(door, input_of(door, name, seed, begun[name]), seen)
                    signal.alarm(0)
                    begun[name], tried = begun[name] + 1, tried + 1
                    say.write(json.dumps({**about, "seconds": time.monotonic() - since - spent}) + "\n")
                if time.monotonic() > end:
                    break


def _tried(door: Door, content: bytes, seen: set[str]) -> dict[str, str]:
    """What became of an input; one that fails for the first time in this way is made smaller."""
    outcome = judged(door, content)
    if outcome.kind == "failure" and outcome.signature not in seen:
        seen.add(outcome.signature)
        content = smaller(door, content, outcome.signature)
    return asdict(outcome) | ({"input": content.hex()} if outcome.kind == "failure" else {})


def smaller(door: Door, content: bytes, signature: str, tries: int = 150) -> bytes:
    """A shorter input that fails the same way: pieces are cut out as long as it does."""
    end, width = time.monotonic() + 20.0, max(1, len(content) // 2)
    while width and tries > 0 and time.monotonic() < end:
        for piece in _without_pieces(content, width):
            tries -= 1
            if judged(door, piece).signature == signature:
                content, width = piece, max(1, min(width, len(piece) // 2))
                break
            if tries <= 0 or time.monotonic() > end:
                break
        else:
            width //= 2
    return content


def _without_pieces(content: bytes, width: int) -> Iterator[bytes]:
    for start in range(0, len(content), width):
        yield content[:start] + content[start + width :]


# ------------------------------------------------------------------------------------------- command line
def main() -> int:
    """Exit code 1 if something failed."""
    parser = argparse.ArgumentParser(prog="python -m support.fuzz", description="Try inputs of every format.")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long, all formats together")
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same inputs")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--format", action="append", choices=list(DOORS), help="only these; may be repeated")
    parser.add_argument(
        "--case", type=int, help="with one --format: this input again, with what became of it"
    )
    parser.add_argument("--out", type=Path, default=Path("fuzz-output"), help="folder of failures and table")
    parser.add_argument("--begun", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    names = chosen.format or list(DOORS)
    if chosen.begun is not None:
        work(names, json.loads(chosen.begun), seed=chosen.seed, minutes=chosen.minutes)
        return 0
    if chosen.case is not None:
        with tempfile.TemporaryDirectory() as folder:
            door = opened(World(Path(folder)), names[0])
            content = input_of(door, names[0], chosen.seed, chosen.case)
            outcome = judged(door, content)
        sys.stdout.write(f"{content[:2000]!r}\n{outcome.kind} {outcome.signature}\n{outcome.detail}\n")
        return int(outcome.kind == "failure")
    tallies = run_campaign(chosen.out, names, minutes=chosen.minutes, seed=chosen.seed, jobs=chosen.jobs)
    (chosen.out / "summary.md").write_text(text := table(tallies))
    sys.stdout.write(text)
    return int(any(tally.signatures for tally in tallies.values()))


def table(tallies: Tallies) -> str:
    """Format, inputs, refused, accepted, failures, inputs per second."""
    lines = ["| format | inputs | refused | accepted | failures | per second |", "|---|--:|--:|--:|--:|--:|"]
    for name, tally in {**tallies, "all": sum(tallies.values(), Tally())}.items():
        counts = (tally.kinds.total(), *(tally.kinds[kind] for kind in ("refused", "accepted", "failure")))
        speed = counts[0] / tally.seconds if tally.seconds else 0.0
        lines.append(f"| {name} | " + " | ".join(f"{count:,}" for count in (*counts, round(speed))) + " |")
    found = [(name, *item) for name, tally in tallies.items() for item in sorted(tally.signatures.items())]
    return "\n".join([*lines, "", *(f"- {name}: {what} ({n:,} times)" for name, what, n in found), ""])
