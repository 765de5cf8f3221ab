"""Circuits and cases of a test, from the file of its name in the folder `data` beside it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def tables_of(test: str) -> dict[str, Any]:
    """Every text and table by its name."""
    path = Path(test)
    text = (path.parent / "data" / f"{path.stem}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
