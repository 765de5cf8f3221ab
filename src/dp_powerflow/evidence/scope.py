"""What a statement of Theorem 1 covers, in words; a manifest repeats them without the evidence."""

from __future__ import annotations

from typing import Literal

CONFIDENCE = 0.95
"""Of a calibration, unless another is asked for."""
Mode = Literal["paper", "corrected", "full-support"]

SCOPE: dict[Mode, str] = {
    "paper": (
        "Networks within r of this one in Frobenius norm whose voltages lie on the same manifold. With fixed "
        "power factors no change of a line's length, impedance or state is among them: who knows the power "
        "factors rules out any such change from one snapshot."
    ),
    "corrected": (
        "Networks that differ from this one on existing lines by at most r in Frobenius norm, whose voltages "
        "lie on the same manifold. With fixed power factors no change of a line's length, impedance or state "
        "is among them."
    ),
    "full-support": (
        "Networks that differ from this one on existing lines by at most r in Frobenius norm, power factors "
        "free: changes of a line's length or impedance are covered up to that size."
    ),
}
