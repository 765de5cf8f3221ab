"""Environments in which a process computes as on other x86-64 processors.

A library picks its code by the processor it finds: OpenBLAS its kernels, NumPy its vector loops, numba its
instructions, the C library its elementary functions. Each can be told to find less.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT_S = 1200

_DISPATCHED = " ".join(name for name in __cpu_dispatch__ if __cpu_features__.get(name))
"""What NumPy's build picks at run time and this processor has; it refuses to leave out what is not there."""

PROCESSORS: dict[str, dict[str, str]] = {
    "native": {},
    "haswell": {"OPENBLAS_CORETYPE": "Haswell"},
    "nehalem": {
        "OPENBLAS_CORETYPE": "Nehalem",
        "NPY_DISABLE_CPU_FEATURES": _DISPATCHED,
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "+aes",
    },
}
"""The three runs whose bits must be equal.

Each compiles kernels of its own, once. Of a processor that is named, numba still uses all features that it
finds, unless they are named as well.
"""

WITHOUT_FMA = PROCESSORS["nehalem"] | {
    "NUMBA_CPU_NAME": "nehalem",
    "NUMBA_CPU_FEATURES": "+aes",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F",
}
"""A processor of 2008: no fused multiply-add, in the C library neither."""


def environment_of(settings: dict[str, str]) -> dict[str, str]:
    """The environment of a process that runs this tree with some settings."""
    paths = os.pathsep.join(str(ROOT / name) for name in ("src", "tests"))
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # here BLAS takes as many as it likes
    outside = {name: value for name, value in os.environ.items() if name not in threads}
    return {**outside, "PYTHONPATH": paths, **settings}


def output_of(module: str, environment: dict[str, str], *arguments: str) -> Any:
    """What `python -m module arguments` prints as JSON, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, *arguments],
        env=environment_of(environment),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
