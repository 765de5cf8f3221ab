"""Kills releases with SIGKILL at random moments and finishes them; run as a process of its own.

It makes a release itself, then forks: a run costs neither the start of an interpreter nor what every process
does once (imports, compiled kernels). It has no threads that a fork would lose. The meters are read once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

from dp_powerflow.config import Config
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.pipeline.inputs import history_of
from dp_powerflow.pipeline.run import run_release
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import PrivateState
from support.small import small_config, tree_hash

DAYS = 300
"""Three parts: a kill before, between and after them."""


def config_of(folder: Path) -> Config:
    return small_config(folder, release={"days": DAYS})


def start(folder: Path, history: LoadHistory) -> int:
    pid = os.fork()
    if pid == 0:
        warnings.simplefilter("ignore")
        try:
            run_release(config_of(folder), workers=1, history=history)
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
        os._exit(0)
    return pid


def main(root: Path, kills: int) -> None:
    history = history_of(config_of(root), None)
    for name in ("warm-up", "reference"):
        (root / name).mkdir()
    run_release(config_of(root / "warm-up"), workers=1)
    assert len(list((root / "warm-up" / "out" / "data").iterdir())) == 3
    reference = root / "reference"
    began = time.monotonic()
    assert os.waitpid(start(reference, history), 0)[1] == 0
    length = time.monotonic() - began
    expected = tree_hash(reference / "out")
    assert tree_hash(root / "warm-up" / "out") == expected
    moments = random.Random(1)
    interrupted = 0
    results = []
    for k in range(kills):
        folder = root / f"run{k}"
        folder.mkdir()
        pid = start(folder, history)
        time.sleep(moments.uniform(0.02, 1.0) * length)
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        interrupted += os.WIFSIGNALED(status)
        finished = os.waitpid(start(folder, history), 0)[1] == 0
        state = PrivateState.inspect(folder / "state")
        spends = len(Ledger.open(state, create=False).spends())
        same = finished and tree_hash(folder / "out") == expected
        leftovers = [path.name for path in folder.iterdir() if path.name not in ("out", "state")]
        results.append({"finished": finished, "same": same, "spends": spends, "leftovers": leftovers})
    print(json.dumps({"interrupted": interrupted, "seconds": length, "results": results}))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
