"""Commands in a process that may write to one folder and nowhere else, as in a read-only container.

Run as `python -m support.unwritable FOLDER` with a JSON list of commands on stdin; prints their exit codes
and what they print as JSON. Python's own audit refuses every write, so that it holds for root too.
"""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from contextlib import redirect_stdout
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_TARGET = {"os.mkdir": 0, "os.remove": 0, "os.rmdir": 0, "os.rename": 1, "os.symlink": 1, "os.link": 1}


def refuse_writing(folder: str) -> None:
    """From now on every write outside of the folder fails, as without the permission."""
    inside = os.path.realpath(folder) + os.sep

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if not (flags or 0) & _WRITES or path == os.devnull:
                return
        elif event in _TARGET:
            path = arguments[_TARGET[event]]
        else:
            return
        if isinstance(path, int) or (os.path.abspath(os.fsdecode(path)) + os.sep).startswith(inside):
            return
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fsdecode(path))

    sys.addaudithook(look)


def main() -> None:
    refuse_writing(sys.argv[1])
    commands = json.load(sys.stdin)
    from dp_powerflow.cli import main as run

    found = []
    for command in commands:
        sys.argv = ["dp-powerflow", *command]
        printed, code = io.StringIO(), 0
        with redirect_stdout(printed):
            try:
                run()
            except SystemExit as end:
                code = int(end.code or 0)
        found.append((code, printed.getvalue()))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
