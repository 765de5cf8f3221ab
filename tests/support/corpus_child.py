"""A run in a process of its own: `python corpus_child.py TARGET [KILL_AT]`.

With KILL_AT the process kills itself with SIGKILL just before its KILL_AT-th operation on a file. Without, it
writes a line once it is ready. It ends with the hashes, or with exit code 2 and one sentence. If
CORPUS_CHILD_EXTRAS is in the environment, powers and states are written beside the voltages.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from dp_powerflow.corpus.schema import NOTHING, CorpusLayout
from dp_powerflow.corpus.storage import file_hashes
from dp_powerflow.errors import CorpusError
from support.corpora import EXTRAS, write_corpus

LAYOUT = CorpusLayout(days=12, steps=24, nodes=7, days_per_part=3)
WATCHED = {"open", "os.mkdir", "os.rename", "os.remove", "os.chmod"}


def kill_at(operation: int, below: str) -> None:
    left = operation

    def count() -> None:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in WATCHED and str(arguments[0]).startswith(below):
            count()

    wait_for_disk = os.fsync

    def fsync(descriptor: int) -> None:
        count()
        wait_for_disk(descriptor)

    os.fsync = fsync  # type: ignore[assignment]
    sys.addaudithook(hook)


def main() -> int:
    target = Path(sys.argv[1])
    if "CORPUS_CHILD_USER" in os.environ:
        os.setuid(int(os.environ["CORPUS_CHILD_USER"]))
    if len(sys.argv) > 2:
        kill_at(int(sys.argv[2]), str(target))
    else:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
    try:
        write_corpus(target, LAYOUT, extras=EXTRAS if "CORPUS_CHILD_EXTRAS" in os.environ else NOTHING)
    except CorpusError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(json.dumps(file_hashes(target)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
