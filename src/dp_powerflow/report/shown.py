"""Something for a reader, as Markdown and as JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shown:
    """Lines of Markdown for a person, JSON for a machine."""

    lines: list[str]
    json_text: str
