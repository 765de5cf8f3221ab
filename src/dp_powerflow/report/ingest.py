"""What reading the meters found (INTERNAL), for a person and for a machine."""

from __future__ import annotations

import json
from typing import Any, Protocol

from dp_powerflow.report import Rendered


class Ingest(Protocol):
    """Counts and sentences of an ingest report; a renderer needs no more of the meters."""

    @property
    def marking(self) -> str:
        """Says that all of it is INTERNAL."""

    def summary(self) -> tuple[str, ...]:
        """Sentences, totals only."""

    def to_json(self) -> dict[str, Any]:
        """Counts by their names, with the marking."""


def render_ingest(found: Ingest) -> Rendered:
    """The marking, then a line for every finding."""
    return Rendered([found.marking, *found.summary()], json.dumps(found.to_json()))
