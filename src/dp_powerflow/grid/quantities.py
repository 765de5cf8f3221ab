"""Names of what a network holds, for whoever speaks of networks and has none: configs, manifests."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

LINE, SWITCH, TRANSFORMER = "line", "switch", "transformer"
KINDS = (LINE, SWITCH, TRANSFORMER)
"""What joins two buses; a transformer is whatever is neither line nor switch, such as a regulator."""


class Quantity(StrEnum):
    """What a parameter measures; the first four are of lines."""

    LENGTH = "length"
    RESISTANCE = "resistance"
    REACTANCE = "reactance"
    CHARGING = "charging"
    TRANSFORMER = "transformer"
    CAPACITOR = "capacitor"
    PV = "pv"


LINE_QUANTITIES = (Quantity.LENGTH, Quantity.RESISTANCE, Quantity.REACTANCE)


@dataclass(frozen=True)
class Protected:
    """Which figures the noise of a twin covers; all else of a network is its frame: public, and rounded.

    Attributes
    ----------
    lines : "impedance": the totals of R and of X of every line; "length": of a line with a conductor code its
        length alone, the code being public (of the others R and X).
    transformers, capacitors, pv : whether their impedances, sizes, capacities are covered.
    charging : whether the total charging of a line is a level of its own; otherwise it follows from the
        twin's length of the line and a public figure per km.
    codes : whether conductor codes are drawn too; with "length" only.
    x_ohm_per_km, c_nf_per_km : public reactance and charging of a line without a code, per phase.
    """

    lines: Literal["length", "impedance"] = "impedance"
    transformers: bool = False
    capacitors: bool = False
    pv: bool = False
    charging: bool = False
    codes: bool = False
    x_ohm_per_km: float = 0.4
    c_nf_per_km: float = 10.0
