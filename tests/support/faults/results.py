"""What came of the cases of a campaign: one line each, and the figures of all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from support.faults.looking import KINDS, LOST, Wrong

KILLS, DISKS, CLOCKS = "kills", "disks", "clocks"


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

    @classmethod
    def read(cls, text: str) -> Line:
        """A line that was kept."""
        fields = json.loads(text)
        return cls(**{**fields, "wrong": tuple(Wrong(**item) for item in fields["wrong"])})


def kept_lines(path: Path) -> list[Line]:
    """What an earlier run of a campaign left; its last line may be half written."""
    if not path.exists():
        return []
    whole = path.read_text().rpartition("\n")[0]
    return [Line.read(text) for text in whole.splitlines()]


def keep(path: Path, line: Line) -> None:
    """Add a line to what is kept."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(line)) + "\n")


def figures(lines: Sequence[Line], about: dict[str, Any]) -> dict[str, Any]:
    """The figures of a campaign, as `docs/results/faults.md` quotes them."""
    by_part = {part: [line for line in lines if line.part == part] for part in (KILLS, DISKS, CLOCKS)}
    killed = by_part[KILLS]
    return {
        **about,
        "kills": {
            **_counted(killed),
            "kills": sum(line.kills for line in killed),
            "resumed": sum(_is_resumed(line) for line in killed),
            "killed more than once": sum(line.kills > 1 for line in killed),
            "by call": dict(Counter(line.call for line in killed).most_common()),
            "by command": _by_group(killed),
        },
        "disks": {**_counted(by_part[DISKS]), "by fault": _by_group(by_part[DISKS])},
        "clocks": {**_counted(by_part[CLOCKS]), "by clock": _by_group(by_part[CLOCKS])},
        "failures": [asdict(line) for line in lines if line.wrong],
    }


def _is_resumed(line: Line) -> bool:
    return all(wrong.kind != LOST for wrong in line.wrong)


def _counted(lines: Iterable[Line]) -> dict[str, int]:
    lines = list(lines)
    found = Counter(kind for line in lines for kind in {wrong.kind for wrong in line.wrong})
    return {"cases": len(lines), **{kind: found[kind] for kind in KINDS}}


def _by_group(lines: Sequence[Line]) -> dict[str, dict[str, int]]:
    groups = dict.fromkeys(line.group for line in lines)
    found = {}
    for group in groups:
        own = [line for line in lines if line.group == group]
        found[group] = {
            "cases": len(own),
            "kills": sum(line.kills for line in own),
            "noticed": sum(line.noticed for line in own),
            "failed": sum(bool(line.wrong) for line in own),
        }
    return found


def table(found: dict[str, Any]) -> str:
    """The closing table."""
    kills = found["kills"]
    rows = [("kills", kills["kills"]), ("cases of kills", kills["cases"]), ("resumed", kills["resumed"])]
    rows += [(kind, kills[kind]) for kind in KINDS]
    rows += [(f"killed: {name}", own["kills"]) for name, own in kills["by command"].items()]
    rows += [(f"killed at: {call}", n) for call, n in kills["by call"].items()]
    for part, by in (("disks", "by fault"), ("clocks", "by clock")):
        rows += [(f"{part}: {name}", own["cases"]) for name, own in found[part][by].items()]
        rows += [(f"{part}: failed", sum(own["failed"] for own in found[part][by].values()))]
    rows += [("failures in all", len(found["failures"]))]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value:>7,}" for name, value in rows)
