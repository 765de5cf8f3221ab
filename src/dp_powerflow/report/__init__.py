"""One renderer per result: what the numbers of the layers below mean, for a reader."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rendered:
    """A result, rendered.

    Attributes
    ----------
    lines : list of str
        Markdown for a person.
    json_text : str
        The same as JSON for a machine.
    """

    lines: list[str]
    json_text: str
