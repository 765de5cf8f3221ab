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

from dp_powerflow import cli
from dp_powerflow.cli.terminal import StageLines
from dp_powerflow.pipeline import release as release_module
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.ledger.book import Ledger
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


def forked(folder: Path, prepare: Callable[[], None]) -> int:
    """Run the command in a process of its own; its exit code."""
    pid = os.fork()
    if pid == 0:
        for stream, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        for number in {case.number for case in CASES.values()}:
            signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
        warnings.simplefilter("ignore")
        prepare()
        sys.argv = ["dp-powerflow", "release", str(folder / "release.toml"), "--workers", "2"]
        try:
            cli.main()
        except SystemExit as done:
            os._exit(int(done.code or 0))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run_case(folder: Path, case: Case, expected: dict[str, str]) -> dict[str, object]:
    """Interrupt a release, look at what it left, then make it again."""
    folder.mkdir()
    write_toml(folder / "release.toml", small_raw(release={"days": DAYS}))
    code = forked(folder, lambda: send(case))
    found = {
        "code": code,
        "stdout": (folder / "stdout").read_text(),
        "stderr": (folder / "stderr").read_text(),
        "spends": len(Ledger.inspect(folder / "state").spends()) if spent(folder) else 0,
        "parts": len(list(folder.glob("out.partial-*/data/*.parquet"))),
        "partial": any(folder.glob("out.partial-*")),
    }
    assert forked(folder, lambda: None) == 0, (folder / "stderr").read_text()
    charges = len(Ledger.inspect(folder / "state").spends())
    return {**found, "resumed": tree_hash(folder / "out") == expected, "charges": charges}


def spent(folder: Path) -> bool:
    return (folder / "state" / "ledger.sqlite").exists()


def main(root: Path) -> None:
    warnings.simplefilter("ignore")
    (root / "whole").mkdir()
    run_release(small_config(root / "whole", release={"days": DAYS}), workers=1)
    expected = tree_hash(root / "whole" / "out")
    results = {name: run_case(root / name, case, expected) for name, case in CASES.items()}
    print(json.dumps(results))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
