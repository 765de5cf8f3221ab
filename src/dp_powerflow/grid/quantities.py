"""Which figures of a network a twin may protect, by name; nothing here knows a network."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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

    def covers(self, quantity: Quantity) -> bool:
        """Whether a figure that is not of a line is covered."""
        covered = {
            Quantity.TRANSFORMER: self.transformers,
            Quantity.CAPACITOR: self.capacitors,
            Quantity.PV: self.pv,
        }
        return covered[quantity]


Protect = Literal["all", "if present"]
"""Whether all that is declared protected must be in a network, or is protected where it is."""
Figure = Literal["lengths", "codes", "charging", "transformers", "capacitors", "pv"]
"""Figures beside R and X that a twin may protect, as manifests name them."""

WITHOUT: Mapping[Figure, str] = {
    "lengths": "line with a conductor code and a length with a unit",
    "codes": "line with a conductor code",
    "charging": "charging of a line",
    "transformers": "transformer",
    "capacitors": "capacitor",
    "pv": "PV system",
}
"""What a network without a figure has none of."""

_MEASURED: Mapping[Figure, Quantity] = {
    "lengths": Quantity.LENGTH,
    "charging": Quantity.CHARGING,
    "transformers": Quantity.TRANSFORMER,
    "capacitors": Quantity.CAPACITOR,
    "pv": Quantity.PV,
}


def declared_figures(protected: Protected) -> tuple[Figure, ...]:
    """The figures beside R and X that noise is to cover."""
    lengths = protected.lines == "length"
    return tuple(f for f in WITHOUT if (lengths if f == "lengths" else getattr(protected, f)))


def absent_figures(
    protected: Protected, quantities: Collection[Quantity], *, coded: bool
) -> tuple[Figure, ...]:
    """The declared figures of which a network has none.

    Parameters
    ----------
    quantities : that the network, or its twin, has levels of.
    coded : whether a line of it has a conductor code that is drawn.
    """
    there: dict[Figure, bool] = {figure: quantity in quantities for figure, quantity in _MEASURED.items()}
    there["codes"] = coded
    return tuple(figure for figure in declared_figures(protected) if not there[figure])
