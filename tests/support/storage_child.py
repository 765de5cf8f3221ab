"""A release to a URL that kills itself once its first part is there: `python storage_child.py FOLDER URL`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from dp_powerflow._parallel import Processes
from dp_powerflow.pipeline.release import run_release
from support.small import small_config

CALIBRATION_DAYS = 20


def kill_after_the_first_part(done: int, total: int) -> None:
    # The calibration reports its 20 days too; the corpus has fewer parts.
    if done == 1 and total < CALIBRATION_DAYS:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    config = small_config(Path(sys.argv[1]), release={"output": sys.argv[2]})
    run_release(config, engine=Processes(1), progress=kill_after_the_first_part)


if __name__ == "__main__":
    main()
