"""Tap files: `transformer,winding,tap` in CSV, the tap as a ratio of nominal turns."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from pathlib import Path

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import Tap

COLUMNS = ("transformer", "winding", "tap")


def read_taps(path: Path) -> tuple[Tap, ...]:
    """Taps declared in a file."""
    if not path.is_file():
        raise FeederError(f"tap file {path} does not exist; write one with 'inspect --save-taps'")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise FeederError(f"tap file {path} must have the columns {', '.join(COLUMNS)}")
            return tuple(_tap(row, path, reader.line_num) for row in reader)
    except (UnicodeDecodeError, csv.Error):
        raise FeederError(f"tap file {path} is not CSV text; write one with 'inspect --save-taps'") from None


def write_taps(path: Path, taps: Iterable[Tap]) -> None:
    """Write taps so that `read_taps` gives them back exactly."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows((tap.transformer, tap.winding, repr(tap.ratio)) for tap in taps)


def _tap(row: dict[str, str | None], path: Path, line: int) -> Tap:
    try:
        tap = Tap(str(row["transformer"]), int(row["winding"] or ""), float(row["tap"] or ""))
    except ValueError:
        raise FeederError(
            f"tap file {path}, line {line}: winding must be a whole number and tap a ratio"
        ) from None
    if not (math.isfinite(tap.ratio) and 0.5 <= tap.ratio <= 1.5):
        raise FeederError(f"tap file {path}, line {line}: a tap is a turns ratio between 0.5 and 1.5")
    return tap
