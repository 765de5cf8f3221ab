"""Many inputs of all formats, in processes that may hang or die; what fails is kept and made smaller."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from support.fuzz.changes import damaged
from support.fuzz.doors import DOORS
from support.fuzz.judging import Door, Outcome, judged
from support.fuzz.world import World, without_warnings


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
_QUICK = 100.0
HANG_SECONDS = 120.0
"""An input that is not done by then is one that hangs, or the process is given up."""
MOST_BYTES = 12 << 30
_TRIES = 150
_KEPT = 3
_NOW, _STATE, _FAILURES = "now.txt", "state.json", "failures.jsonl"


@dataclass
class Tally:
    """What became of the inputs of one format.

    Attributes
    ----------
    next_case : number of the next input.
    accepted, refused, failed : numbers of inputs.
    seconds : how long they took.
    signatures : of the failures, how often each came.
    """

    next_case: int = 0
    accepted: int = 0
    refused: int = 0
    failed: int = 0
    seconds: float = 0.0
    signatures: dict[str, int] = field(default_factory=dict)

    @property
    def inputs(self) -> int:
        """Number of all inputs."""
        return self.accepted + self.refused + self.failed

    def count(self, outcome: Outcome) -> None:
        """One more."""
        self.next_case += 1
        if outcome.kind == "failure":
            self.failed += 1
            self.signatures[outcome.signature] = self.signatures.get(outcome.signature, 0) + 1
        else:
            setattr(self, outcome.kind, getattr(self, outcome.kind) + 1)


Tallies = dict[str, Tally]


def run_campaign(out: Path, names: Sequence[str], *, minutes: float, seed: int, jobs: int) -> Tallies:
    """Try inputs of all these formats for so long, in so many processes; what they found, added up."""
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60.0 * minutes
    workers = [_Worker(out / f"job-{job}", names, seed + job, end) for job in range(jobs)]
    for worker in workers:
        worker.start()
    while time.monotonic() < end + HANG_SECONDS and any(worker.goes_on() for worker in workers):
        time.sleep(0.5)
    for worker in workers:
        worker.stop()
    return added_up([read_tallies(worker.folder) for worker in workers])


def added_up(each: Sequence[Tallies]) -> Tallies:
    """The tallies of several processes together."""
    total: Tallies = {}
    for tallies in each:
        for name, tally in tallies.items():
            found = total.setdefault(name, Tally())
            for key in ("next_case", "accepted", "refused", "failed", "seconds"):
                setattr(found, key, getattr(found, key) + getattr(tally, key))
            for signature, count in tally.signatures.items():
                found.signatures[signature] = found.signatures.get(signature, 0) + count
    return total


class _Worker:
    """A process that tries inputs, started again whenever it dies or hangs."""

    def __init__(self, folder: Path, names: Sequence[str], seed: int, end: float) -> None:
        self.folder, self._names, self._seed, self._end = folder, names, seed, end
        folder.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, or start it again where the last one stopped."""
        (self.folder / _NOW).write_text("")
        left = max(0.0, self._end - time.monotonic())
        command = [
            sys.executable,
            "-m",
            "support.fuzz",
            "--work",
            str(self.folder),
            "--seed",
            str(self._seed),
        ]
        command += ["--minutes", f"{left / 60.0:.3f}", *(f"--format={name}" for name in self._names)]
        with (self.folder / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def goes_on(self) -> bool:
        """Whether there is more to wait for; what died or hangs is entered as a failure and started again."""
        assert self._process is not None
        code = self._process.poll()
        if code == 0:
            return False
        if code is None and not self._hangs():
            return True
        if code is None:
            self._kill()
        self._enter("hangs" if code is None else f"dies with {code}")
        if time.monotonic() < self._end:
            self.start()
            return True
        return False

    def stop(self) -> None:
        """End it."""
        assert self._process is not None
        if self._process.poll() is None:
            self._kill()

    def _kill(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _hangs(self) -> bool:
        now = self.folder / _NOW
        return time.time() - now.stat().st_mtime > HANG_SECONDS

    def _enter(self, what: str) -> None:
        """The input that was being tried is a failure."""
        name, _, case = (self.folder / _NOW).read_text().strip().rpartition(" ")
        tallies = read_tallies(self.folder)
        if name in DOORS and case.isdigit():
            tally = tallies.setdefault(name, Tally())
            tally.next_case = max(tally.next_case, int(case))
            tally.count(Outcome("failure", f"the process {what}"))
            _keep(self.folder, {"format": name, "case": int(case), "signature": f"the process {what}"})
        write_tallies(self.folder, tallies)


def read_tallies(folder: Path) -> Tallies:
    """What a process has counted so far."""
    path = folder / _STATE
    stored = json.loads(path.read_text()) if path.is_file() else {}
    return {name: Tally(**fields) for name, fields in stored.items()}


def write_tallies(folder: Path, tallies: Tallies) -> None:
    """Keep them, in one step."""
    temporary = folder / f"{_STATE}.new"
    temporary.write_text(json.dumps({name: asdict(tally) for name, tally in tallies.items()}, indent=1))
    temporary.replace(folder / _STATE)


def _keep(folder: Path, failure: dict[str, object]) -> None:
    with (folder / _FAILURES).open("a") as file:
        file.write(json.dumps(failure) + "\n")


# ------------------------------------------------------------------------------------- within the process
def work(folder: Path, names: Sequence[str], *, seed: int, minutes: float) -> None:
    """Try inputs of all formats in turn until the time is over."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    end = time.monotonic() + 60.0 * minutes
    tallies = read_tallies(folder)
    with tempfile.TemporaryDirectory() as scratch, (folder / _NOW).open("r+b", buffering=0) as now:
        world, doors = World(Path(scratch)), {}
        while time.monotonic() < end:
            for name in names:
                if name not in doors:
                    with without_warnings():
                        doors[name] = DOORS[name](world)
                tally = tallies.setdefault(name, Tally())
                _turn(folder, now.fileno(), doors[name], (name, seed), tally)
                write_tallies(folder, tallies)
                if time.monotonic() > end:
                    break


def _turn(folder: Path, now: int, door: Door, which: tuple[str, int], tally: Tally) -> None:
    name, seed = which
    begin = time.monotonic()
    seconds = SLICE_SECONDS * (3.0 if tally.inputs > _QUICK * tally.seconds else 1.0)
    while time.monotonic() - begin < seconds:
        case = tally.next_case
        os.pwrite(now, f"{name} {case}".ljust(80).encode(), 0)
        content = input_of(door, name, seed, case)
        outcome = judged(door, content)
        tally.count(outcome)
        if outcome.kind == "failure" and tally.signatures[outcome.signature] <= _KEPT:
            small = (
                smaller(door, content, outcome.signature)
                if tally.signatures[outcome.signature] == 1
                else content
            )
            stem = "".join(sign if sign.isalnum() else "-" for sign in name)
            kept = folder / f"{stem}-{case}.input"
            kept.write_bytes(small)
            entry = {"format": name, "seed": seed, "case": case, "input": kept.name, **asdict(outcome)}
            _keep(folder, entry)
    tally.seconds += time.monotonic() - begin


def smaller(door: Door, content: bytes, signature: str, tries: int = _TRIES) -> bytes:
    """A shorter input that fails the same way: pieces are cut out as long as it does."""
    end = time.monotonic() + 20.0
    width = max(1, len(content) // 2)
    while width >= 1 and tries > 0 and time.monotonic() < end:
        shorter = None
        for piece in _without_pieces(content, width):
            tries -= 1
            if judged(door, piece).signature == signature:
                shorter = piece
                break
            if tries <= 0 or time.monotonic() > end:
                break
        if shorter is None:
            width //= 2
        else:
            content = shorter
            width = min(width, max(1, len(content) // 2))
    return content


def _without_pieces(content: bytes, width: int) -> Iterator[bytes]:
    for start in range(0, len(content), width):
        yield content[:start] + content[start + width :]
