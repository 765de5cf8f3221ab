"""Kills releases with SIGKILL at random moments and finishes them; run as a process of its own.

It forks before any thread is started, so that a run costs no start of an interpreter.
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

from dp_powerflow.pipeline.run import run_release
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import PrivateState
from support.small import small_config, tree_hash


def start(folder: Path) -> int:
    pid = os.fork()
    if pid == 0:
        warnings.simplefilter("ignore")
        try:
            run_release(small_config(folder), workers=1)
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
        os._exit(0)
    return pid


def main(root: Path, kills: int) -> None:
    # The first run may compile; only the second tells how long a run takes.
    for name in ("warm-up", "reference"):
        began = time.monotonic()
        reference = root / name
        reference.mkdir()
        assert os.waitpid(start(reference), 0)[1] == 0
        length = time.monotonic() - began
    expected = tree_hash(reference / "out")
    moments = random.Random(1)
    interrupted = 0
    results = []
    for k in range(kills):
        folder = root / f"run{k}"
        folder.mkdir()
        pid = start(folder)
        time.sleep(moments.uniform(0.02, 1.0) * length)
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        interrupted += os.WIFSIGNALED(status)
        finished = os.waitpid(start(folder), 0)[1] == 0
        state = PrivateState.inspect(folder / "state")
        spends = len(Ledger.open(state, create=False).spends())
        same = finished and tree_hash(folder / "out") == expected
        leftovers = [path.name for path in folder.iterdir() if path.name not in ("out", "state")]
        results.append({"finished": finished, "same": same, "spends": spends, "leftovers": leftovers})
    print(json.dumps({"interrupted": interrupted, "seconds": length, "results": results}))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
