"""Mode 'twin-network': voltages solved on a twin of the network. Differential privacy of its elements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dp_powerflow.corpus.gridfm.schema import GridfmStyle
from dp_powerflow.corpus.storage import Location
from dp_powerflow.grid.feeder import TRANSFORMER, Figure, Protected, declared_figures
from dp_powerflow.manifest import policy as text
from dp_powerflow.manifest.build import Facts
from dp_powerflow.manifest.connected import COORDINATES_PUBLISHED
from dp_powerflow.manifest.model import (
    RELATIVE,
    Check,
    NetworkSection,
    Statement,
    Tables,
    at_most,
    check,
    differences,
    in_digits,
)
from dp_powerflow.manifest.policy import NetworkPolicy, NetworkWords
from dp_powerflow.manifest.twin import sentences
from dp_powerflow.manifest.twin.figures import CHANGES, GROUPS, changed, version_of
from dp_powerflow.manifest.twin.section import PresenceSection, TwinSection
from dp_powerflow.manifest.twin.tables import (
    AS_PHASORS,
    TURNED,
    VOLTAGES,
    WITH_LOADS,
    check_of_tables,
    described_tables,
    style_of,
    wrong_days,
)
from dp_powerflow.privacy.budget import Neighbours
from dp_powerflow.privacy.ledger.accounts import AccountKind, TwinCap
from dp_powerflow.twin.design import DELTA_LIMIT, TwinDesign, TwinGuarantee, twin_guarantee, twin_neighbours

if TYPE_CHECKING:
    from dp_powerflow.config import Config


@dataclass(frozen=True)
class TwinPolicy(NetworkPolicy):
    """The policy of a release on a twin.

    Attributes
    ----------
    twin_id : public name of the twin, the same in every release made on it.
    design : its public constants.
    published : what is released of the twin: `voltages`, `network`, or `network and loads`.
    all_nodes : whether every node is released, or those with a load of their own.
    table_days : days whose loads are published beside the voltages, in the tables of the twin.
    controls : whether taps and capacitors act, and what they start from; "frozen" is the fixed frame.
    coordinates : whether those of the buses are declared public and released.
    absent : figures that are protected if present, and that the network has none of; None where the network
        has all that is protected.
    table_style : frame of the voltages in the tables of the twin, and whether switches are merged there.
    """

    mode: ClassVar[str] = "twin-network"
    section: ClassVar[type[NetworkSection]] = TwinSection
    account_kind: ClassVar[AccountKind] = AccountKind.NETWORK_TWIN
    template: ClassVar[str] = "twin.html"
    dated: ClassVar[bool] = True
    derivable: ClassVar[bool] = True
    extras_follow_from: ClassVar[str | None] = (
        "functions of the twin, the drawn loads and the public generation; nothing else of the true network "
        "or of the meter data"
    )
    connections_follow_from: ClassVar[str | None] = (
        "the structure of the twin, which is that of the network and declared public; no figure of an element"
    )

    twin_id: str
    design: TwinDesign
    published: str
    all_nodes: bool
    table_days: int
    controls: str = "frozen"
    coordinates: bool = False
    table_style: GridfmStyle = AS_PHASORS
    absent: tuple[Figure, ...] | None = None

    @classmethod
    def of(cls, config: Config) -> Self:
        twin, days = config.network, config.release.days
        assert twin.mode == "twin-network"
        return cls(
            twin_id=twin.id,
            design=replace(twin.design, delta=twin_guarantee(twin.design).delta),  # Laplace noise needs none
            published=twin.publish,
            all_nodes=twin.released == "all",
            table_days=min(twin.graph_days or days, days) if twin.publish == WITH_LOADS else 0,
            controls=twin.controls,
            coordinates=twin.coordinates == "public",
            table_style=AS_PHASORS
            if twin.publish == VOLTAGES
            else GridfmStyle(twin.graph_frame == TURNED, twin.graph_merges_switches),
        )

    @classmethod
    def read(cls, statement: Statement[Any]) -> Self:
        stated, tables = statement.guarantee.network, statement.data.network_tables
        design = TwinDesign(
            epsilon=stated.epsilon_granted,
            change=stated.change,
            protected=Protected(**stated.protected.model_dump()),
            noise=stated.noise,
            delta=stated.delta,
            charging_epsilon=stated.charging_epsilon,
            code_epsilon=stated.code_epsilon,
        )
        return cls(
            twin_id=stated.twin,
            design=design,
            published=stated.published,
            all_nodes=stated.all_nodes,
            table_days=0 if tables is None else tables.days,
            controls=stated.controls,
            coordinates=stated.coordinates == "public",
            table_style=style_of(tables),
            absent=None if stated.presence is None else tuple(stated.presence.absent),
        )

    def on_network(self, absent: tuple[Figure, ...] | None) -> Self:
        """States which of the protected figures the network has."""
        return replace(self, absent=absent)

    @property
    def presence(self) -> PresenceSection | None:
        """Which of the figures that are protected if present are there, and which are not."""
        if self.absent is None:
            return None
        declared = declared_figures(self.design.protected)
        present = [figure for figure in declared if figure not in self.absent]
        return PresenceSection(present=present, absent=list(self.absent))

    @property
    def codes_known(self) -> bool:
        """Where lengths are protected, codes are declared public, or drawn; otherwise R and X hide them."""
        return self.design.protected.lines == "length"

    @property
    def full_support(self) -> bool:
        """Reactive load is drawn at random: the loads of a twin are those of the full-support bound."""
        return True

    @property
    def neighbours(self) -> Neighbours:
        """Whom the twin hides the difference of."""
        return twin_neighbours(self.design.protected, self.design.change)

    @cached_property
    def guarantee(self) -> TwinGuarantee:
        """The guarantee for one element, recomputed from the constants."""
        return twin_guarantee(self.design)

    def figures(self) -> dict[str, Any]:
        """Every figure that follows from the public constants; `verify` makes them again."""
        design, promised = self.design, self.guarantee
        return {
            "noise": design.noise,
            "change": design.change,
            "protected": asdict(design.protected),
            "charging_epsilon": design.charging_epsilon,
            "code_epsilon": design.code_epsilon,
            "scales": {name: part.scale for name, part in design.parts.items()},
            "epsilon": promised.epsilon,
            "delta": promised.delta,
            "advantage": promised.advantage,
            "mu": promised.mu,
            "epsilon_by_element": dict(promised.epsilon_of),
            "epsilon_granted": design.epsilon,
            "changes": [changed(design, change, 1) for change in CHANGES],
            "groups": [changed(design, design.change, elements) for elements in GROUPS],
        }

    def paid_by(self, release_id: str) -> str:
        """A twin is charged once, under its own id, whatever releases are made on it."""
        return self.twin_id

    def is_paid_by(self, charged_as: str, release_id: str) -> bool:
        """Also under the id of a later version of the network."""
        return version_of(charged_as, self.twin_id) is not None

    @property
    def weaknesses(self) -> tuple[str, ...]:
        """By ε of one element changed by 5 % and by δ, whatever change the policy names."""
        found, small = [], changed(self.design, CHANGES[0], 1)["epsilon"]
        if small is None:
            found.append(f"no epsilon can be stated for one element changed by {CHANGES[0]:.0%}.")
        elif small > text.LARGEST_EPSILON * (1 + RELATIVE):
            found.append(
                f"epsilon = {at_most(small)} for one element changed by {CHANGES[0]:.0%} is above "
                f"{text.LARGEST_EPSILON:g}."
            )
        if self.design.delta > text.LARGEST_DELTA:
            limit = in_digits(text.LARGEST_DELTA)
            found.append(f"delta = {text.all_digits(self.design.delta)} is above {limit}.")
        if self.coordinates and self.design.protected.lines == "length" and not self.design.protected.codes:
            found.append(
                "coordinates give the lengths of the lines, and public conductor codes all else: nothing of "
                "a line with a code is left protected."
            )
        return tuple(found)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Also that coordinates are published, which an owner may not take for a loss."""
        return (*super().warnings, *self._warned_of_coordinates)

    @property
    def _warned_of_coordinates(self) -> tuple[str, ...]:
        if not self.coordinates:
            return ()
        codes = (
            ""
            if self.design.protected.codes
            else " With its length, who knows the conductor code of a line, which is declared public, knows "
            "its resistance and reactance, whatever the noise."
        )
        return (
            f"{COORDINATES_PUBLISHED}: who has the coordinates of two buses computes the length of the line "
            f"between them.{codes}",
        )

    def words(self, facts: Facts) -> NetworkWords:
        weak = super().warnings or text.composed_weakness(facts)
        warnings = [*weak, *self._warned_of_coordinates, *text.warnings(facts)]
        return NetworkWords(
            section=_section(self, facts),
            composition=sentences.COMPOSITION,
            declared=sentences.declared_network(self),
            after_noise=sentences.after_noise(self, facts),
            unprotected=sentences.unprotected(facts, self),
            not_claimed=warnings + sentences.not_claimed(self),
            warnings=warnings,
            bound_to=(
                "the draws: release id, load model and hash of the twin; the noise of the load model: "
                "release id and keyed hash of the meter data; the noise of an element of the twin: twin id "
                "and constants, account of the network, name of the element and keyed hash of its figures"
            ),
            commitment=sentences.COMMITMENT,
            attested=sentences.attested(facts, self),
            taps=sentences.TAPS[self.controls],
            noise=f"exact discrete Gaussian (loads) and {self.design.noise.capitalize()} (twin) on integers, "
            "in integer arithmetic",
        )

    def contradictions(self, facts: Facts) -> Iterator[str]:
        law, promised, composed = facts.network.law, self.guarantee, facts.network.composed
        if not isinstance(law, TwinCap) or composed is None:
            yield "The account of the network is not that of twins."
            return
        yield from wrong_days(self.published, self.table_days, facts)
        yield from self._wrong_controls(facts)
        yield from self._wrong_presence(facts)
        places = None if facts.connections is None else facts.connections.coordinates
        if self.coordinates != (places is not None):
            yield "Coordinates of the buses are released though they are private, or the other way round."
        if promised.epsilon > self.design.epsilon * (1 + RELATIVE):
            yield "The twin costs more than the epsilon that was granted."
        if law.unit != self.neighbours:
            yield "The account of the network is about other neighbours than the twin."
        if law.delta != self.design.delta and promised.mu is not None:
            yield "The account of the network is stated at another delta than the twin."
        if max(law.delta, self.design.delta) >= DELTA_LIMIT:
            yield "The account of the network is stated at a delta that no twin may have."
        own = max(composed.pure, default=0.0) if promised.mu is None else float(composed.mu_squared)
        if own < (promised.epsilon if promised.mu is None else promised.mu**2) * (1 - RELATIVE):
            yield "The account of the network does not hold this twin's cost."

    def _wrong_controls(self, facts: Facts) -> Iterator[str]:
        frozen = self.controls == "frozen"
        if frozen and facts.extras.states:
            yield "Taps or states of capacitors are released, which frozen controls do not have."
        if not frozen and self.published != VOLTAGES:
            yield "One network is published, which controls that act change from step to step."
        if not frozen and facts.declared.solver != "batch":
            yield "The power flow was solved with fixed taps, and controls are said to act."

    def _wrong_presence(self, facts: Facts) -> Iterator[str]:
        absent = self.absent or ()
        declared = declared_figures(self.design.protected)
        if tuple(figure for figure in declared if figure in absent) != absent:
            yield "The network is said to lack figures that the twin does not protect."
        joined = () if facts.connections is None else facts.connections.kinds
        if "transformers" in absent and TRANSFORMER in joined:
            yield "The network is said to have no transformer, and one of its connections is a transformer."
        if "capacitors" in absent and facts.extras.capacitors:
            yield "The network is said to have no capacitor, and states of capacitors are released."

    def tables(self, facts: Facts) -> Tables | None:
        """Where the published twin is; None if only voltages are released."""
        return described_tables(self.published, self.table_days, facts, self.table_style)

    def checks(
        self, statement: Statement[Any], facts: Facts, directory: Location, files: Iterable[str]
    ) -> Iterator[Check]:
        """Every figure from the public constants; the tables are there if and only if they are published."""
        figures, section = self.figures(), statement.guarantee.network
        promised = sentences.changes_in_words(figures["changes"])
        stated = section.model_dump()
        wrong = differences({key: stated[key] for key in figures}, figures)
        yield check(
            "network privacy",
            (f"The stated {where} of the network does not follow from the noise and x." for where in wrong),
            f"The twin costs epsilon at most {at_most(figures['epsilon'])} at delta "
            f"{in_digits(figures['delta'])}, for {self.neighbours}; {promised}. "
            f"Recomputed from the {self.design.noise} noise and x. Not protected: {section.not_protected()}.",
        )
        yield from check_of_tables(self.tables(facts), directory, files)


def _section(policy: TwinPolicy, facts: Facts) -> TwinSection:
    presence = {} if policy.presence is None else {"presence": policy.presence.model_dump()}
    return TwinSection.model_validate(
        policy.figures()
        | presence
        | {
            "mode": policy.mode,
            "kind": "differential privacy",
            "definition": text.DEFINITION,
            "neighbours": str(policy.neighbours),
            "change_in_words": sentences.change_in_words(policy),
            "group_in_words": sentences.group_in_words(policy),
            "days": "any number",
            "twin": policy.twin_id,
            "published": policy.published,
            "all_nodes": policy.all_nodes,
            "controls": policy.controls,
            "coordinates": "public" if policy.coordinates else "private",
            "scope": sentences.scope_of(policy, facts),
            "accounting": sentences.ACCOUNTING[policy.design.noise],
            "attestation": sentences.attestation_of(policy),
        }
    )
