"""Runs commands that send themselves signals at chosen moments; run as a process of its own.

It makes a release itself, then forks for every case: a case costs neither the start of an interpreter nor
what every process does once. A signal that a process sends to itself comes at a known moment.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dp_powerflow import Ledger, cli
from dp_powerflow.cli.terminal import StageLines
from dp_powerflow.pipeline import release as release_module
from dp_powerflow.pipeline.release import run_release
from support.faults.looking import in_child
from support.small import small_config, small_raw, tree_hash, write_toml

DAYS = 300
"""Three parts."""


@dataclass(frozen=True)
class Case:
    """A signal, when it comes, and whether it comes again while the command clears up."""

    number: int
    stage: str
    in_parts: bool = False
    twice: bool = False


CASES = {
    "before": Case(signal.SIGTERM, "reading the feeder"),
    "charged": Case(signal.SIGINT, "network evidence (INTERNAL)"),
    "parts": Case(signal.SIGHUP, "drawing loads and solving", in_parts=True),
    "twice": Case(signal.SIGINT, "network evidence (INTERNAL)", twice=True),
}


def send(case: Case) -> None:
    """Plant the signal where the command tells its progress."""
    now = ""
    describe, advance, clear_up = StageLines.describe, StageLines.advance, release_module._clear_up

    def described(self: StageLines, stage: str) -> None:
        nonlocal now
        now = stage
        describe(self, stage)
        if stage == case.stage and not case.in_parts:
            os.kill(os.getpid(), case.number)

    def advanced(self: StageLines, done: int, total: int) -> None:
        advance(self, done, total)
        if now == case.stage and case.in_parts and done:
            os.kill(os.getpid(), case.number)

    def again(*arguments: object, **options: object) -> None:
        os.kill(os.getpid(), case.number)
        clear_up(*arguments, **options)  # type: ignore[arg-type]

    StageLines.describe, StageLines.advance = described, advanced  # type: ignore[method-assign]
    if case.twice:
        release_module._clear_up = again


def release(folder: Path, prepare: Callable[[], None]) -> None:
    """The command, as a new process has it."""
    for case in CASES.values():
        to_default = signal.default_int_handler if case.number == signal.SIGINT else signal.SIG_DFL
        signal.signal(case.number, to_default)
    prepare()
    sys.argv = ["dp-powerflow", "release", str(folder / "release.toml"), "--workers", "2"]
    cli.main()


def run_case(folder: Path, case: Case, expected: dict[str, str]) -> dict[str, object]:
    """Interrupt a release, look at what it left, then make it again."""
    folder.mkdir()
    write_toml(folder / "release.toml", small_raw(release={"days": DAYS}))
    ended = in_child(lambda: release(folder, lambda: send(case)), folder / "log")
    ledger = folder / "state" / "ledger.sqlite"
    found = {
        "code": ended.code,
        "text": ended.text,
        "spends": len(Ledger.inspect(ledger.parent).spends()) if ledger.exists() else 0,
        "parts": len(list(folder.glob("out.partial-*/data/*.parquet"))),
        "partial": any(folder.glob("out.partial-*")),
    }
    again = in_child(lambda: release(folder, lambda: None), folder / "log")
    assert again.code == 0, again.text
    charges = len(Ledger.inspect(ledger.parent).spends())
    return {**found, "resumed": tree_hash(folder / "out") == expected, "charges": charges}


def main(root: Path) -> None:
    warnings.simplefilter("ignore")
    (root / "whole").mkdir()
    run_release(small_config(root / "whole", release={"days": DAYS}), workers=1)
    expected = tree_hash(root / "whole" / "out")
    results = {name: run_case(root / name, case, expected) for name, case in CASES.items()}
    print(json.dumps(results))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
