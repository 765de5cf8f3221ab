"""The section of the manifest on a twin: its entries, and what they say in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from dp_powerflow.grid.feeder import WITHOUT, Figure
from dp_powerflow.manifest.model import (
    Chance,
    Count,
    InWords,
    NetworkSection,
    NotNegative,
    Positive,
    Section,
    Sentence,
    Share,
    at_most,
    in_digits,
)
from dp_powerflow.twin.design import LOG_GRID

_NONE = "the network has none"
_Element = Literal["line", "transformer", "capacitor", "pv"]
_Part = Literal["impedance", "length", "charging", "transformer", "capacitor", "pv"]


class ProtectedSection(Section):
    """Which figures get noise; all others are declared public."""

    lines: Literal["impedance", "length"]
    transformers: bool
    capacitors: bool
    pv: bool
    charging: bool
    codes: bool
    x_ohm_per_km: Positive
    c_nf_per_km: NotNegative


class PresenceSection(Section):
    """Which figures that are protected if present the network has; R and X of lines are always there."""

    present: list[Figure]
    absent: list[Figure]


class Changed(Section):
    """What a twin promises if elements change; no figures where none can be stated."""

    change: Positive
    elements: Count
    epsilon: NotNegative | None
    advantage: Chance | None


class TwinSection(NetworkSection):
    """`guarantee.network` of a release on a twin.

    `presence` is there where figures are protected if present, and nowhere else.
    """

    mode: Literal["twin-network"]
    kind: Literal["differential privacy"]
    definition: Literal["(epsilon, delta)-differential privacy"]
    noise: Literal["laplace", "gaussian"]
    delta: Share
    change: Positive
    change_in_words: Sentence
    protected: ProtectedSection
    presence: PresenceSection | None = None
    charging_epsilon: Positive | None
    code_epsilon: Annotated[float, Field(gt=0.0, le=20.0)] | None
    scales: Annotated[dict[_Part, Count], Field(min_length=1)]
    advantage: Chance
    mu: Positive | None
    epsilon_by_element: Annotated[dict[_Element, Positive], Field(min_length=1)]
    epsilon_granted: Positive
    changes: Annotated[list[Changed], Field(min_length=2, max_length=2)]
    groups: Annotated[list[Changed], Field(min_length=2, max_length=2)]
    group_in_words: Sentence
    days: Literal["any number"]
    twin: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
    published: Literal["voltages", "network", "network and loads"]
    all_nodes: bool
    controls: Literal["frozen", "snapshot", "day"]
    coordinates: Literal["private", "public"]
    accounting: Sentence

    @model_serializer(mode="wrap")
    def _without_empty_presence(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = handler(self)
        if self.presence is None:
            content.pop("presence", None)
        return content

    @property
    def absent(self) -> list[Figure]:
        """Figures that would get noise, and that the network has none of."""
        return [] if self.presence is None else self.presence.absent

    def in_one_sentence(self) -> str:
        return (
            f"They were solved on a twin of the network, with epsilon at most {at_most(self.epsilon)} at "
            f"delta {in_digits(self.delta)} of differential privacy for {self.neighbours}."
        )

    def in_words(self) -> InWords:
        changes = " ".join(self._row_in_words(row) for row in self.shown_changes())
        delta = f"delta {in_digits(self.delta)}" if self.delta else "delta 0"
        sentences = (
            "Differential privacy, one element at a time. The voltages were solved on a twin of the network, "
            "a copy whose figures carry noise, drawn once: any number of days tells no more of the true "
            "network than the twin does.",
            f"Protected, at {delta}: {self.neighbours}. {changes} A coin is right half of the time."
            + (f" {lacks(self.absent)}" if self.absent else ""),
            f"Not protected: {self.not_protected()}.",
        )
        return InWords(
            f"ε ≤ {at_most(self.epsilon)}",
            f"one element changed by {_percent(self.change)}; advantage at most {at_most(self.advantage)}",
            sentences,
            True,
        )

    @staticmethod
    def _row_in_words(row: Changed) -> str:
        if row.epsilon is None or row.advantage is None:
            return f"A change by {_percent(row.change)} is not protected."
        return (
            f"Changed by {_percent(row.change)}, epsilon is at most {at_most(row.epsilon)}, and the best "
            f"test between the two networks is right at most {at_most(50 * (1 + row.advantage))} % of the "
            f"time (advantage {at_most(row.advantage)})."
        )

    def in_full(self) -> str:
        return (
            "A second guarantee of differential privacy covers the network, whose twin all was solved on. "
            f"Unit: {self.neighbours}. Epsilon at most {at_most(self.epsilon)} at delta "
            f"{in_digits(self.delta)}, advantage of the best test at most {at_most(self.advantage)}, for "
            f"{self.days} of days: {self.accounting}. {self.group_in_words} {self.scope}"
        )

    def shown_changes(self) -> list[Changed]:
        """The rows of the certificate: the change that the policy names, and those that are always stated."""
        own = Changed(change=self.change, elements=1, epsilon=self.epsilon, advantage=self.advantage)
        rows = {row.change: row for row in (own, *self.changes)}
        return [rows[change] for change in sorted(rows)]

    def not_protected(self) -> str:
        """What a reader of the certificate might take to be protected, and is not."""
        chosen = self.protected
        figures = {
            "impedances of transformers": chosen.transformers,
            "sizes of capacitors": chosen.capacitors,
            "capacities of PV systems": chosen.pv,
            "conductor codes": chosen.codes,
        }
        public = [words for words, covered in figures.items() if not covered]
        length = "the length of a line against a reader who has its coordinates"
        if self.coordinates == "public":
            length = "the LENGTH OF A LINE, which follows from the published coordinates of its buses"
        return "; ".join(
            [
                "which elements there are and how they are connected",
                "phases, which the angles of the voltages show",
                "switches",
                *public,
                length,
            ]
        )

    def covered(self) -> list[tuple[str, str]]:
        """Figures and what happens to them, for the certificate."""
        chosen = self.protected
        lines = "Total resistance and reactance of a line"
        if chosen.lines == "length":
            lines = "Length of a line (of one without a conductor code: total resistance and reactance)"
        rows = [(lines, self._noise("impedance"))]
        own = "follows from its length in the twin and a public figure per km"
        if chosen.charging:
            own = self._noise("charging", "charging")
        rows.append(("Charging of a line", own))
        rows.append(("Impedance of a transformer", self._noise("transformer", "transformers")))
        rows.append(("Size of a capacitor", self._noise("capacitor", "capacitors")))
        rows.append(("Capacity of a PV system", self._noise("pv", "pv")))
        code = "NOT PROTECTED: declared public"
        if self.code_epsilon is not None:
            code = f"randomised response, epsilon = {in_digits(self.code_epsilon)}"
        if "codes" in self.absent:
            code = _NONE
        return [*rows, ("Conductor code of a line", code)]

    def _noise(self, part: str, figure: Figure = "lengths") -> str:
        if figure in self.absent and figure != "lengths":  # without lengths a line has R and X
            return _NONE
        scale = self.scales.get(part)  # type: ignore[call-overload]
        if scale is None:
            return "NOT PROTECTED: declared public"
        named = "Laplace" if self.noise == "laplace" else "Gaussian"
        return f"{named} noise, scale {at_most(scale * LOG_GRID)} of the logarithm"


def lacks(absent: Sequence[Figure]) -> str:
    """What of the protected figures a network has not."""
    return f"The network has no {', no '.join(WITHOUT[figure] for figure in absent)}."


def _percent(change: float) -> str:
    """A declared share, with the digits that it has."""
    return f"{in_digits(round(100 * change, 10))} %"
