"""Public figures of a twin: what its noise promises of a change, and what its charge is recorded under."""

from __future__ import annotations

from typing import Any

from dp_powerflow.errors import PrivacyError
from dp_powerflow.twin.design import TwinDesign, twin_guarantee

CHANGES = (0.05, 0.5)
"""Changes of one element that a guarantee is always stated for, beside its own."""
_VERSION = "_version-"
GROUPS = (2, 10)
"""Numbers of elements changed together that the guarantee of a twin is also stated for."""


def changed(design: TwinDesign, change: float, elements: int) -> dict[str, Any]:
    """One row of figures; none where the noise says nothing any more."""
    try:
        found = twin_guarantee(design, change, elements=elements)
    except PrivacyError:
        return {"change": change, "elements": elements, "epsilon": None, "advantage": None}
    return {
        "change": change,
        "elements": elements,
        "epsilon": found.epsilon,
        "advantage": found.advantage,
    }


def charged_as(twin_id: str, version: int) -> str:
    """What the charge of a twin is recorded under: its id, with a number from the second version on."""
    return twin_id if version == 1 else f"{twin_id}{_VERSION}{version}"


def version_of(charged: str, twin_id: str) -> int | None:
    """Which version of a network a charge was for; None if it was for something else."""
    if charged == twin_id:
        return 1
    stem, _, number = charged.rpartition(_VERSION)
    return int(number) if stem == twin_id and number.isascii() and number.isdigit() else None
