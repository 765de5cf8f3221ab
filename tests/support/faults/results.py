"""What came of the cases of a campaign: one line each, and the figures of all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from support.faults.looking import KINDS, LOST, Wrong

KILLS, DISKS, CLOCKS = "kills", "disks", "clocks"
PARTS = (KILLS, DISKS, CLOCKS)


@dataclass(frozen=True)
class Line:
    """What came of one case.

    Attributes
    ----------
    part : kills, disks or clocks.
    group : the command that was killed, how the disk failed, or how the clock was wrong.
    wrong : what must not be.
    call : the kind of system call at which a command was killed first.
    kills : how often it was killed.
    noticed : whether it ended otherwise than undisturbed.
    """

    part: str
    name: str
    group: str
    wrong: tuple[Wrong, ...]
    call: str = ""
    kills: int = 0
    noticed: bool = False


def kept_lines(path: Path) -> list[Line]:
    """What an earlier run of a campaign left; its last line may be half written."""
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    kept = [json.loads(text) for text in whole.splitlines()]
    return [Line(**{**each, "wrong": tuple(Wrong(**item) for item in each["wrong"])}) for each in kept]


def keep(path: Path, line: Line) -> None:
    """Add a line to what is kept."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(line)) + "\n")


def figures(lines: Sequence[Line], about: dict[str, Any]) -> dict[str, Any]:
    """The figures of a campaign, as `docs/results/faults.md` quotes them."""
    found = {part: _of_part([line for line in lines if line.part == part]) for part in PARTS}
    return {**about, **found, "failures": [asdict(line) for line in lines if line.wrong]}


def _of_part(lines: Sequence[Line]) -> dict[str, Any]:
    wrong = Counter(kind for line in lines for kind in {each.kind for each in line.wrong})
    groups = dict.fromkeys(line.group for line in lines)
    return {
        **{"cases": len(lines), "kills": sum(line.kills for line in lines)},
        "resumed": sum(all(wrong.kind != LOST for wrong in line.wrong) for line in lines),
        **{kind: wrong[kind] for kind in KINDS},
        "by call": dict(Counter(line.call for line in lines).most_common()),
        "by group": {name: _of_group([line for line in lines if line.group == name]) for name in groups},
    }


def _of_group(lines: Sequence[Line]) -> dict[str, int]:
    counted = {name: sum(getattr(line, name) for line in lines) for name in ("kills", "noticed")}
    return {"cases": len(lines), **counted, "failed": sum(bool(line.wrong) for line in lines)}


def table(found: dict[str, Any]) -> str:
    """The closing table."""
    rows: list[tuple[str, int]] = []
    for part in PARTS:
        own = found[part]
        rows += [(f"{part}: {name}", own[name]) for name in ("cases", "kills", "resumed", *KINDS)]
        rows += [(f"{part}, {name}", group["cases"]) for name, group in own["by group"].items()]
    rows += [("failures in all", len(found["failures"]))]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value:>7,}" for name, value in rows)
