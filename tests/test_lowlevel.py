"""The names below the public API: which there are, and that they are documented."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from dp_powerflow import lowlevel

ROOT = Path(__file__).resolve().parents[1]
NAMES = vars(lowlevel)["__all__"]


def test_there_are_at_most_sixty_names_and_each_is_there() -> None:
    assert len(NAMES) == len(set(NAMES)) <= 60
    assert all(getattr(lowlevel, name) is not None for name in NAMES)


def test_docstring_page_and_stub_have_the_same_names() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    stub = (ROOT / "src" / "dp_powerflow" / "lowlevel.pyi").read_text(encoding="utf-8")
    assert set(re.findall(r"as (\w+)$", stub, re.MULTILINE)) == set(NAMES)
    table = re.compile(r"^\| subject .*?\n\n", re.MULTILINE | re.DOTALL)
    for text in (lowlevel.__doc__ or "", page):
        (found,) = table.findall(text)
        assert set(re.findall(r"`(\w+)`", found)) == set(NAMES)


def test_importing_the_module_loads_nothing_heavy() -> None:
    heavy = ("numpy", "scipy", "numba", "pyarrow", "dss")
    program = f"import sys, dp_powerflow.lowlevel; print([m for m in {heavy!r} if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "[]"
