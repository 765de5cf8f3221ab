"""`python -m support.fuzz`: the campaign, or one input of it again."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from support.fuzz.campaign import Tallies, input_of, run_campaign, work
from support.fuzz.doors import DOORS
from support.fuzz.judging import judged
from support.fuzz.planted import run_planted
from support.fuzz.world import World, without_warnings


def main() -> int:
    """Exit code 1 if something failed, or if a planted input was accepted."""
    parser = argparse.ArgumentParser(prog="python -m support.fuzz", description="Try inputs of every format.")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long, all formats together")
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same inputs")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--format", action="append", choices=list(DOORS), help="only these; may be repeated")
    parser.add_argument(
        "--case", type=int, help="with one --format: this input again, with what became of it"
    )
    parser.add_argument("--input", type=Path, help="with one --format: this file, with what became of it")
    parser.add_argument(
        "--out", type=Path, default=Path("fuzz-output"), help="folder of tallies and failures"
    )
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    names = chosen.format or list(DOORS)
    if chosen.work is not None:
        work(chosen.work, names, seed=chosen.seed, minutes=chosen.minutes)
        return 0
    if chosen.case is not None or chosen.input is not None:
        return _again(names[0], chosen.seed, chosen.case, chosen.input)
    planted = run_planted(chosen.seed)
    tallies = run_campaign(chosen.out, names, minutes=chosen.minutes, seed=chosen.seed, jobs=chosen.jobs)
    text = table(tallies) + "\n" + planted.table()
    (chosen.out / "summary.md").write_text(text)
    sys.stdout.write(text)
    return 1 if planted.accepted or any(tally.failed for tally in tallies.values()) else 0


def _again(name: str, seed: int, case: int | None, path: Path | None) -> int:
    with tempfile.TemporaryDirectory() as folder:
        with without_warnings():
            door = DOORS[name](World(Path(folder)))
        content = path.read_bytes() if path is not None else input_of(door, name, seed, case or 0)
        outcome = judged(door, content)
    sys.stdout.write(f"{content[:2000]!r}\n{outcome.kind} {outcome.signature}\n{outcome.detail}\n")
    return int(outcome.kind == "failure")


def table(tallies: Tallies) -> str:
    """Format, inputs, refused, accepted, failures, inputs per second."""
    lines = ["| format | inputs | refused | accepted | failures | per second |", "|---|--:|--:|--:|--:|--:|"]
    for name, tally in tallies.items():
        speed = tally.inputs / tally.seconds if tally.seconds else 0.0
        counts = (tally.inputs, tally.refused, tally.accepted, tally.failed)
        lines.append(f"| {name} | " + " | ".join(f"{count:,}" for count in counts) + f" | {speed:,.0f} |")
    each = [(tally.inputs, tally.refused, tally.accepted, tally.failed) for tally in tallies.values()]
    total = [sum(column) for column in zip(*each, strict=True)]
    lines.append("| all | " + " | ".join(f"{count:,}" for count in total) + " | |")
    failures = [
        f"- {name}: {signature} ({count:,} times)"
        for name, tally in tallies.items()
        for signature, count in sorted(tally.signatures.items())
    ]
    return "\n".join([*lines, "", *failures, ""])


if __name__ == "__main__":
    sys.exit(main())
