"""Mode 'twin-network': voltages solved on a twin of the network. Differential privacy of its elements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.quantities import TRANSFORMER, WITHOUT, Figure, Protected, declared_figures
from dp_powerflow.manifest import model as form
from dp_powerflow.privacy.budget import Neighbours
from dp_powerflow.privacy.ledger.accounts import AccountKind
from dp_powerflow.twin.design import DELTA_LIMIT, LOG_GRID, TwinDesign, twin_guarantee, twin_neighbours

if TYPE_CHECKING:
    from dp_powerflow.config import Config
    from dp_powerflow.manifest.build import Facts

CHANGES = (0.05, 0.5)
"""Changes of one element that a guarantee is always stated for, besides its own."""
GROUPS = (2, 10)
"""Numbers of elements changed together that the guarantee of a twin is also stated for."""
VOLTAGES, WITH_LOADS = "voltages", "network and loads"
_VERSION = "_version-"
_OF_DESIGN, _PROMISED = (
    ("noise", "change", "charging_epsilon", "code_epsilon"),
    ("epsilon", "delta", "advantage", "mu"),
)
_Element = Literal["line", "transformer", "capacitor", "pv"]
_Part = Literal["impedance", "length", "charging", "transformer", "capacitor", "pv"]
Weak = Literal["epsilon", "delta", "coordinates"]


class ProtectedSection(form.Section):
    """Which figures get noise; all others are declared public."""

    lines: Literal["impedance", "length"]
    transformers: bool
    capacitors: bool
    pv: bool
    charging: bool
    codes: bool
    x_ohm_per_km: form.Positive
    c_nf_per_km: form.NotNegative


class PresenceSection(form.Section):
    """Which figures that are protected if present the network has; R and X of lines are always there."""

    present: list[Figure]
    absent: list[Figure]


class Changed(form.Section):
    """What a twin promises if elements change; no figures where none can be stated."""

    change: form.Positive
    elements: form.Count
    epsilon: form.NotNegative | None
    advantage: form.Chance | None


class TwinPolicy(form.NetworkPolicy):
    """`guarantee.network` of a release on a twin.

    Attributes
    ----------
    twin : its public name, the same in every release made on it.
    presence : None where every protected figure must be there.
    published : what is released of the twin: `voltages`, `network`, or `network and loads`.
    all_nodes : whether every node is released, or only nodes with their own load.
    controls : whether taps and capacitors act, and what they start from; "frozen" is the fixed frame.
    coordinates : whether coordinates of the buses are declared public and released.
    """

    account_kind: ClassVar[AccountKind] = AccountKind.NETWORK_TWIN
    template: ClassVar[str] = "twin.txt"
    dated: ClassVar[bool] = True
    derivable: ClassVar[bool] = True

    mode: Literal["twin-network"]
    kind: Literal["differential privacy"]
    noise: Literal["laplace", "gaussian"]
    change: form.Positive
    protected: ProtectedSection
    presence: PresenceSection | None
    charging_epsilon: form.Positive | None
    code_epsilon: Annotated[float, Field(gt=0.0, le=20.0)] | None
    epsilon_granted: form.Positive
    scales: Annotated[dict[_Part, form.Count], Field(min_length=1)]
    advantage: form.Chance
    mu: form.Positive | None
    epsilon_by_element: Annotated[dict[_Element, form.Positive], Field(min_length=1)]
    changes: Annotated[list[Changed], Field(min_length=2, max_length=2)]
    groups: Annotated[list[Changed], Field(min_length=2, max_length=2)]
    twin: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
    published: Literal["voltages", "network", "network and loads"]
    all_nodes: bool
    controls: Literal["frozen", "snapshot", "day"]
    coordinates: Literal["private", "public"]
    weak: list[Weak]

    @classmethod
    def of(cls, config: Config, absent: Iterable[Figure] | None = None) -> Self:
        twin = config.network
        assert twin.mode == "twin-network"
        return cls.made(
            twin.design,
            absent,
            twin=twin.id,
            published=twin.publish,
            all_nodes=twin.released == "all",
            controls=twin.controls,
            coordinates=twin.coordinates,
        )

    @classmethod
    def made(cls, design: TwinDesign, absent: Iterable[Figure] | None, **choices: Any) -> Self:
        """The policy of a design: every figure follows from the public constants.

        Parameters
        ----------
        absent : as of `NetworkPolicy.of`.
        choices : what else is stated: twin, published, all_nodes, controls, coordinates.
        """
        promised = twin_guarantee(design)
        changes = [changed(design, change, 1) for change in CHANGES]
        declared, presence = declared_figures(design.protected), None
        if absent is not None:
            left = list(absent)
            presence = {"present": [figure for figure in declared if figure not in left], "absent": left}
        open_lines = design.protected.lines == "length" and not design.protected.codes
        small = changes[0]["epsilon"]
        weak = {
            "epsilon": small is None or small > form.LARGEST_EPSILON * (1 + form.RELATIVE),
            "delta": promised.delta > form.LARGEST_DELTA,
            "coordinates": choices["coordinates"] == "public" and open_lines,
        }
        return cls.model_validate(
            {
                **choices,
                "mode": "twin-network",
                "kind": "differential privacy",
                **{name: getattr(design, name) for name in _OF_DESIGN},
                "protected": asdict(design.protected),
                "presence": presence,
                "epsilon_granted": design.epsilon,
                "scales": {name: part.scale for name, part in design.parts.items()},
                **{name: getattr(promised, name) for name in _PROMISED},
                "epsilon_by_element": dict(promised.epsilon_of),
                "changes": changes,
                "groups": [changed(design, design.change, elements) for elements in GROUPS],
                "weak": [name for name, is_weak in weak.items() if is_weak],
            }
        )

    def recomputed(self) -> Self:
        names = ("twin", "published", "all_nodes", "controls", "coordinates")
        absent = None if self.presence is None else self.presence.absent
        return self.made(self.design, absent, **{name: getattr(self, name) for name in names})

    @property
    def design(self) -> TwinDesign:
        """Its public constants."""
        return TwinDesign(
            epsilon=self.epsilon_granted,
            protected=Protected(**self.protected.model_dump()),
            delta=self.delta,
            **{name: getattr(self, name) for name in _OF_DESIGN},
        )

    @property
    def absent(self) -> list[Figure]:
        """Figures that would get noise, and that the network has none of."""
        return [] if self.presence is None else self.presence.absent

    @property
    def lacking(self) -> list[str]:
        """The same, each as what the network has none of."""
        return [WITHOUT[figure] for figure in self.absent]

    @property
    def codes_known(self) -> bool:
        """Where lengths are protected, codes are declared public, or drawn; otherwise R and X hide them."""
        return self.protected.lines == "length"

    @property
    def neighbours(self) -> Neighbours:
        """Whom the twin hides the difference of."""
        return twin_neighbours(self.design.protected, self.change)

    def paid_by(self, release_id: str) -> str:
        """A twin is charged once, under its own id, whatever releases are made on it."""
        return self.twin

    def is_paid_by(self, charged_as: str, release_id: str) -> bool:
        """Also under the id of a later version of the network."""
        return version_of(charged_as, self.twin) is not None

    @property
    def warnings(self) -> tuple[form.WarningCode, ...]:
        """By ε of one element changed by 5 % and by δ; and that coordinates are published."""
        weak: tuple[form.WarningCode, ...] = ("network",) if self.weak else ()
        return (*weak, "coordinates") if self.coordinates == "public" else weak

    @property
    def shown_changes(self) -> list[Changed]:
        """The rows of the certificate: the change that the policy names, and those that are always stated."""
        own = Changed(change=self.change, elements=1, epsilon=self.epsilon, advantage=self.advantage)
        rows = {row.change: row for row in (own, *self.changes)}
        return [rows[change] for change in sorted(rows)]

    def scale_of(self, part: str) -> float | None:
        """Scale of the noise in the logarithm of a figure; None where it has no noise."""
        scale = self.scales.get(part)  # type: ignore[call-overload]
        return None if scale is None else scale * LOG_GRID

    def contradictions(self, facts: Facts) -> Iterator[str]:
        account, promised = facts.network, twin_guarantee(self.design)
        if not isinstance(account, form.TwinAccount):
            yield "The account of the network is not that of twins."
            return
        law, composed = account.law, account.amounts
        yield from self._wrong_files(facts)
        places = None if facts.connections is None else facts.connections.coordinates
        if (self.coordinates == "public") != (places is not None):
            yield "Coordinates of the buses are released though they are private, or the other way round."
        if promised.epsilon > self.epsilon_granted * (1 + form.RELATIVE):
            yield "The twin costs more than the epsilon that was granted."
        if law.unit != self.neighbours:
            yield "The account of the network is about other neighbours than the twin."
        if law.delta != self.delta and promised.mu is not None:
            yield "The account of the network is stated at another delta than the twin."
        if max(law.delta, self.delta) >= DELTA_LIMIT:
            yield "The account of the network is stated at a delta that no twin may have."
        own = max(composed.pure, default=0.0) if promised.mu is None else float(composed.mu_squared)
        if own < (promised.epsilon if promised.mu is None else promised.mu**2) * (1 - form.RELATIVE):
            yield "The account of the network does not hold this twin's cost."

    def _wrong_files(self, facts: Facts) -> Iterator[str]:
        days = 0 if facts.tables is None else facts.tables.days
        if (facts.tables is None) != (self.published == VOLTAGES):
            yield "The tables of the twin do not go with what is published of it."
        if days > facts.layout.days:
            yield "The tables of the twin hold more days than the corpus."
        if (days > 0) != (self.published == WITH_LOADS):
            yield "The days of the tables do not go with what is published of the twin."
        frozen = self.controls == "frozen"
        if frozen and facts.extras.states:
            yield "Taps or states of capacitors are released, which frozen controls do not have."
        if not frozen and self.published != VOLTAGES:
            yield "One network is published, which controls that act change from step to step."
        declared = declared_figures(self.design.protected)
        if [figure for figure in declared if figure in self.absent] != self.absent:
            yield "The network is said to lack figures that the twin does not protect."
        joined = () if facts.connections is None else facts.connections.kinds
        if "transformers" in self.absent and TRANSFORMER in joined:
            yield "The network is said to have no transformer, and one of its connections is a transformer."
        if "capacitors" in self.absent and facts.extras.capacitors:
            yield "The network is said to have no capacitor, and states of capacitors are released."


def changed(design: TwinDesign, change: float, elements: int) -> dict[str, Any]:
    """One row of figures; none where the noise says nothing any more."""
    try:
        found = twin_guarantee(design, change, elements=elements)
        figures: tuple[float | None, float | None] = found.epsilon, found.advantage
    except PrivacyError:
        figures = None, None
    return {"change": change, "elements": elements, "epsilon": figures[0], "advantage": figures[1]}


def charged_as(twin_id: str, version: int) -> str:
    """What the charge of a twin is recorded under: its id, with a number from the second version on."""
    return twin_id if version == 1 else f"{twin_id}{_VERSION}{version}"


def version_of(charged: str, twin_id: str) -> int | None:
    """Which version of a network a charge was for; None if it was for something else."""
    if charged == twin_id:
        return 1
    stem, _, number = charged.rpartition(_VERSION)
    return int(number) if stem == twin_id and number.isascii() and number.isdigit() else None
