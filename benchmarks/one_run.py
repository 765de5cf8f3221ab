"""One tool on one case in a process of its own: python one_run.py TOOL VARIANT CASE SNAPSHOTS OUT.npz."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np


def peak_mib() -> float:
    """Peak resident memory of this process; the kernel's ru_maxrss would include that of its parent."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return float(line.split()[1]) / 1024.0
    return float("nan")


def main() -> None:
    tool, variant, case, snapshots, out = sys.argv[1:]
    outcome = importlib.import_module(f"peers.{tool}").run(case, int(snapshots), variant)
    np.savez(
        out,
        seconds=outcome.seconds,
        which=np.array(outcome.which),
        v=outcome.v,
        note=outcome.note,
        flops=outcome.flops,
        processor_s=outcome.processor_s,
        peak_mib=peak_mib(),
    )


if __name__ == "__main__":
    main()
