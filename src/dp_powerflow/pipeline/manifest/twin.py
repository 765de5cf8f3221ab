"""Mode 'twin-network': voltages solved on a twin of the network. Differential privacy of its elements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from dp_powerflow.config import Config, TwinNetwork
from dp_powerflow.corpus.gridfm.check import CLOSE_PU, MERGED_CLOSE_PU, check_tables
from dp_powerflow.corpus.gridfm.network import GridfmStyle
from dp_powerflow.corpus.gridfm.schema import ROWS_FILE, TABLES
from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.feeder import Protected
from dp_powerflow.pipeline.manifest import policy as text
from dp_powerflow.pipeline.manifest.beside import SHOWS_NODES, released_beside
from dp_powerflow.pipeline.manifest.connected import (
    COORDINATES_PUBLISHED,
    released_connections,
    shown_by_connections,
)
from dp_powerflow.pipeline.manifest.facts import Facts
from dp_powerflow.pipeline.manifest.histories import drawn_loads
from dp_powerflow.pipeline.manifest.model import (
    RELATIVE,
    Chance,
    Count,
    InWords,
    NetworkSection,
    NotNegative,
    Positive,
    Section,
    Sentence,
    Share,
    Statement,
    Tables,
    differences,
)
from dp_powerflow.pipeline.manifest.policy import (
    Check,
    NetworkPolicy,
    NetworkWords,
    at_most,
    check,
    in_digits,
)
from dp_powerflow.privacy.budget import Neighbours
from dp_powerflow.privacy.ledger.accounts import AccountKind, TwinCap
from dp_powerflow.twin.design import LOG_GRID, TwinDesign, TwinGuarantee, twin_guarantee, twin_neighbours

VOLTAGES, NETWORK, WITH_LOADS = "voltages", "network", "network and loads"
"""What of a twin can be released."""
TWIN = "twin"
"""Directory of the published twin."""
TURNED: Literal["rotated"] = "rotated"
PHASORS: Literal["phasors"] = "phasors"
"""Frames of the voltages in its tables."""
AS_PHASORS = GridfmStyle(turned=False, merged=False)
"""How tables were written before there was a choice."""
CHANGES = (0.05, 0.5)
"""Changes of one element that a guarantee is always stated for, beside its own."""
_VERSION = "_version-"
GROUPS = (2, 10)
"""Numbers of elements changed together that the guarantee of a twin is also stated for."""
COMMITMENT = (
    "SHA-256 of a secret salt and the internal report, which stays with the data owner; he can open it to an "
    "auditor (dp-powerflow verify --private)"
)
ACCOUNTING = {
    "laplace": (
        "the logarithm of every protected figure is rounded to a multiple of g = 2^-40; one element whose "
        "figures change by factors up to 1 + x moves each by at most D = ceil(ln(1 + x) / g) + 2 units; one "
        "figure gets exact discrete Laplace noise of scale t, the pair of a line's R and X exact discrete "
        "noise with probability proportional to exp(-max(|n1|, |n2|) / t), in units of g, so that "
        "epsilon = D / t and delta = 0; what is added to a line, its charging or its conductor code, adds "
        "its epsilon; the advantage is 1 - exp(-D / 2t)"
    ),
    "gaussian": (
        "the logarithm of every protected figure is rounded to a multiple of g = 2^-40 and gets exact "
        "discrete Gaussian noise of scale sigma, in units of g; one element whose figures change by "
        "factors up to 1 + x moves each by at most D = ceil(ln(1 + x) / g) + 2, hence mu^2 = sum of (D / "
        "sigma)^2 over its figures; a conductor code drawn by randomised response with epsilon_c adds the "
        "square of -2 Phi^-1(1 / (1 + exp(epsilon_c))); mu is stated as (epsilon, delta) by Corollary 2.13 "
        "of Dong, Roth and Su (arXiv 1905.02383v3); the advantage is 2 Phi(mu / 2) - 1"
    ),
}
COMPOSITION = (
    f"{text.COMPOSITION} A twin is charged once, when it is drawn, and every release made on it is covered "
    "by that charge; the network's account is stated as of that draw, for the element that was touched most. "
    "A later twin of the same network adds to it, and an element that is replaced or added gets fresh noise, "
    "charged to that element alone. Pure epsilons add up, mu^2 of Gaussian noise adds up, and both together "
    "compose by their privacy-loss distributions. Customers and network are two secrets with a guarantee "
    "each, and both hold at once: against a reader who compares worlds that differ in one record and in one "
    "element together, epsilons and deltas of the two add up. Releases made on the true network are in "
    "another account, which this one does not count."
)

_Element = Literal["line", "transformer", "capacitor", "pv"]
_Part = Literal["impedance", "length", "charging", "transformer", "capacitor", "pv"]


TAPS: Mapping[str, str] = {
    "frozen": "declared, or solved once on the twin; then frozen",
    "snapshot": "as operated: regulators and capacitors act on the twin, every snapshot for itself",
    "day": "as operated: regulators and capacitors act on the twin, step after step through a day",
}
"""What the manifest says of taps, by `network.controls`."""
_OPERATED = (
    "AC power flow is solved on the twin as operated, not on the true network: loads answer to their voltage "
    "as the feeder's file says, regulators and switched capacitors act by its settings. "
)
_HUNTING = (
    " A control that changes its direction six times within a snapshot is locked, and the snapshot is marked."
)
_MENDED = (
    "The power of a load is the sum of the customers drawn for it, each cut to the declared bounds at every "
    "step. A snapshot without a solution has loads and PV multiplied by 0.95 until it has one, and is "
    "marked: the rule reads the twin, the drawn loads and the controls, nothing else. The twin is never "
    "drawn again."
)
_SOLVED: Mapping[str, str] = {
    "frozen": "AC power flow is solved on the twin, not on the true network; regulator taps are declared, or "
    "solved once on the twin at nominal load.",
    "snapshot": _OPERATED
    + "Every snapshot starts from taps that were solved on the twin at the nearest of 25 levels of the "
    "nominal load." + _HUNTING,
    "day": _OPERATED
    + "Every day starts from taps that were solved on the twin at the nearest of 25 levels of the nominal "
    "load, and keeps its taps from step to step." + _HUNTING,
}


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


class Changed(Section):
    """What a twin promises if elements change; no figures where none can be stated."""

    change: Positive
    elements: Count
    epsilon: NotNegative | None
    advantage: Chance | None


class TwinSection(NetworkSection):
    """`guarantee.network` of a release on a twin."""

    mode: Literal["twin-network"]
    kind: Literal["differential privacy"]
    definition: Literal["(epsilon, delta)-differential privacy"]
    noise: Literal["laplace", "gaussian"]
    delta: Share
    change: Positive
    change_in_words: Sentence
    protected: ProtectedSection
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
            f"Protected, at {delta}: {self.neighbours}. {changes} A coin is right half of the time.",
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
            own = self._noise("charging")
        rows.append(("Charging of a line", own))
        others = {"transformer": "Impedance of a transformer", "capacitor": "Size of a capacitor"}
        others["pv"] = "Capacity of a PV system"
        rows += [(words, self._noise(part)) for part, words in others.items()]
        code = "NOT PROTECTED: declared public"
        if self.code_epsilon is not None:
            code = f"randomised response, epsilon = {in_digits(self.code_epsilon)}"
        return [*rows, ("Conductor code of a line", code)]

    def _noise(self, part: str) -> str:
        scale = self.scales.get(part)  # type: ignore[call-overload]
        if scale is None:
            return "NOT PROTECTED: declared public"
        named = "Laplace" if self.noise == "laplace" else "Gaussian"
        return f"{named} noise, scale {at_most(scale * LOG_GRID)} of the logarithm"


def _percent(change: float) -> str:
    """A declared share, with the digits that it has."""
    return f"{in_digits(round(100 * change, 10))} %"


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
    table_style : frame of the voltages in the tables of the twin, and whether switches are merged there.
    """

    mode: ClassVar[str] = "twin-network"
    section: ClassVar[type[NetworkSection]] = TwinSection
    account_kind: ClassVar[AccountKind] = AccountKind.NETWORK_TWIN
    template: ClassVar[str] = "twin.html"
    dated: ClassVar[bool] = True
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

    @classmethod
    def of(cls, config: Config) -> Self:
        twin, days = config.network, config.release.days
        assert isinstance(twin, TwinNetwork)
        return cls(
            twin_id=twin.id,
            design=twin.design,
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
        )

    @classmethod
    def unknown_to_version_4(cls) -> dict[str, Any]:
        """Every twin of version 4 was solved with fixed taps."""
        return {"controls": "frozen"}

    @classmethod
    def unknown_to_version_5(cls) -> dict[str, Any]:
        """No twin of version 5 published coordinates."""
        return {"coordinates": "private"}

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
            "delta": design.delta,
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
            composition=COMPOSITION,
            declared=_declared(self),
            after_noise=_after_noise(self, facts),
            unprotected=_unprotected(facts, self),
            not_claimed=warnings + _not_claimed(self),
            warnings=warnings,
            bound_to=(
                "the draws: release id, load model and hash of the twin; the noise of the load model: "
                "release id and keyed hash of the meter data; the noise of an element of the twin: twin id "
                "and constants, account of the network, name of the element and keyed hash of its figures"
            ),
            commitment=COMMITMENT,
            attested=_attested(facts, self),
            taps=TAPS[self.controls],
            noise=f"exact discrete Gaussian (loads) and {self.design.noise.capitalize()} (twin) on integers, "
            "in integer arithmetic",
        )

    def contradictions(self, facts: Facts) -> Iterator[str]:
        cap, promised, composed = facts.network.cap, self.guarantee, facts.network.composed
        if not isinstance(cap, TwinCap) or composed is None:
            yield "The account of the network is not that of twins."
            return
        yield from wrong_days(self.published, self.table_days, facts)
        yield from self._wrong_controls(facts)
        places = None if facts.connections is None else facts.connections.coordinates
        if self.coordinates != (places is not None):
            yield "Coordinates of the buses are released though they are private, or the other way round."
        if promised.epsilon > self.design.epsilon * (1 + RELATIVE):
            yield "The twin costs more than the epsilon that was granted."
        if cap.unit != self.neighbours:
            yield "The account of the network is about other neighbours than the twin."
        if cap.delta != self.design.delta and promised.mu is not None:
            yield "The account of the network is stated at another delta than the twin."
        own = max(composed.pure, default=0.0) if promised.mu is None else float(composed.mu_squared)
        if own < (promised.epsilon if promised.mu is None else promised.mu**2) * (1 - RELATIVE):
            yield "The account of the network does not hold this twin's cost."
        if len(composed.pure) + (composed.mu_squared > 0) > facts.network.charges:
            yield "The account of the network holds more costs than charges."

    def _wrong_controls(self, facts: Facts) -> Iterator[str]:
        frozen = self.controls == "frozen"
        if frozen and facts.extras.states:
            yield "Taps or states of capacitors are released, which frozen controls do not have."
        if not frozen and self.published != VOLTAGES:
            yield "One network is published, which controls that act change from step to step."
        if not frozen and facts.declared.solver != "batch":
            yield "The power flow was solved with fixed taps, and controls are said to act."

    def tables(self, facts: Facts) -> Tables | None:
        """Where the published twin is; None if only voltages are released."""
        return described_tables(self.published, self.table_days, facts, self.table_style)

    def checks(
        self, statement: Statement[Any], facts: Facts, directory: Path, files: Iterable[str]
    ) -> Iterator[Check]:
        """Every figure from the public constants; the tables are there if and only if they are published."""
        figures, section = self.figures(), statement.guarantee.network
        stated = section.model_dump()
        wrong = differences({key: stated[key] for key in figures}, figures)
        yield check(
            "network privacy",
            (f"The stated {where} of the network does not follow from the noise and x." for where in wrong),
            f"The twin costs epsilon at most {at_most(figures['epsilon'])} at delta "
            f"{in_digits(self.design.delta)}, for {self.neighbours}; {_stated_changes(figures['changes'])}. "
            f"Recomputed from the {self.design.noise} noise and x. Not protected: {section.not_protected()}.",
        )
        yield from check_of_tables(self.tables(facts), directory, files)


def style_of(tables: Tables | None) -> GridfmStyle:
    """How tables are written, as a manifest states it."""
    return AS_PHASORS if tables is None else GridfmStyle(tables.frame == TURNED, tables.switches_merged)


def described_tables(published: str, days: int, facts: Facts, style: GridfmStyle) -> Tables | None:
    """Where the published twin is; None if only voltages are released."""
    if published == VOLTAGES:
        return None
    scenarios = days * facts.layout.steps
    numbered = "scenario = day * steps_per_day + step, load_scenario_idx = day"
    return Tables(
        directory=TWIN,
        layout="gridfm-datakit: Parquet tables, one directory per table and partition of scenarios",
        tables=sorted(TABLES),
        holds=published,
        days=days,
        scenarios=max(scenarios, 1),
        order=f"{ROWS_FILE} has the bus of every node of the corpus, further buses follow; "
        + (numbered if scenarios else "one scenario without load"),
        frame=TURNED if style.turned else PHASORS,
        switches_merged=style.merged,
    )


def check_of_tables(tables: Tables | None, directory: Path, files: Iterable[str]) -> Iterator[Check]:
    """The tables are there, and in order, if and only if they are published."""
    name = "twin tables"
    if tables is not None:
        count, style = tables.scenarios, style_of(tables)
        good = (
            f"The twin's tables hold {count:,} scenario{'s' * (count > 1)} of power flow on their own "
            f"network{', with the voltages of the corpus' * (tables.days > 0)}."
        )
        close = MERGED_CLOSE_PU if style.merged else CLOSE_PU
        problems = check_tables(directory, TWIN, count, style, close_pu=close if tables.days > 0 else None)
        yield check(name, problems, good)
    elif any(file.startswith(f"{TWIN}/") for file in files):
        yield Check(name, False, f"There are files in {TWIN}/ though no twin is published.")


def wrong_days(published: str, days: int, facts: Facts) -> Iterator[str]:
    """What cannot be true of the days in the tables."""
    if not 0 <= days <= facts.layout.days:
        yield "The tables of the twin hold more days than the corpus."
    if (days > 0) != (published == WITH_LOADS):
        yield "The days of the tables do not go with what is published of the twin."


def charged_as(twin_id: str, version: int) -> str:
    """What the charge of a twin is recorded under: its id, with a number from the second version on."""
    return twin_id if version == 1 else f"{twin_id}{_VERSION}{version}"


def version_of(charged: str, twin_id: str) -> int | None:
    """Which version of a network a charge was for; None if it was for something else."""
    if charged == twin_id:
        return 1
    stem, _, number = charged.rpartition(_VERSION)
    return int(number) if stem == twin_id and number.isascii() and number.isdigit() else None


def _section(policy: TwinPolicy, facts: Facts) -> TwinSection:
    return TwinSection.model_validate(
        policy.figures()
        | {
            "mode": policy.mode,
            "kind": "differential privacy",
            "definition": text.DEFINITION,
            "neighbours": str(policy.neighbours),
            "change_in_words": _change_in_words(policy),
            "group_in_words": _group_in_words(policy),
            "days": "any number",
            "twin": policy.twin_id,
            "published": policy.published,
            "all_nodes": policy.all_nodes,
            "controls": policy.controls,
            "coordinates": "public" if policy.coordinates else "private",
            "scope": _scope(policy, facts),
            "accounting": ACCOUNTING[policy.design.noise],
            "attestation": _attestation(policy),
        }
    )


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


def _stated_changes(rows: list[dict[str, Any]]) -> str:
    """Changes and what is promised of them, in one phrase."""
    parts = [
        f"one element changed by {100.0 * row['change']:.3g} %: epsilon at most {at_most(row['epsilon'])}, "
        f"advantage of the best test at most {at_most(row['advantage'])}"
        for row in rows
        if row["epsilon"] is not None
    ]
    return "; ".join(parts) or "no figure for larger changes"


def _change_in_words(policy: TwinPolicy) -> str:
    """x, and what it means of one element; the true network is not looked at."""
    change = policy.design.change
    both_ways = change, change / (1.0 + change)
    up, down = (in_digits(round(100.0 * share, 2)) for share in both_ways)
    return (
        "Compared are networks in which the protected figures of one element differ by factors up to "
        f"{in_digits(1.0 + change)} (about {up} % upwards, {down} % downwards), all else equal."
    )


def _group_in_words(policy: TwinPolicy) -> str:
    """Several elements at once."""
    stated = [
        f"at most {at_most(group['epsilon'])} for {group['elements']}"
        for group in policy.figures()["groups"]
        if group["epsilon"] is not None
    ]
    figures = f" Epsilon is then {' and '.join(stated)} elements." if stated else ""
    if policy.design.noise == "laplace":
        grows = "If k elements change together epsilon is k times as large."
    else:
        grows = "If k elements change together mu is larger by the square root of k."
    return (
        f"The guarantee is for one element. {grows}{figures} A factor of (1 + x)^m of one element costs at "
        f"most m times {'epsilon' if policy.design.noise == 'laplace' else 'mu'}."
    )


def _scope(policy: TwinPolicy, facts: Facts) -> str:
    """What is covered by the guarantee."""
    voltages = "the voltages, the powers and states beside them" if facts.extras.holds else "the voltages"
    covered = {
        VOLTAGES: voltages,
        NETWORK: f"{voltages} and the published network",
        WITH_LOADS: f"{voltages}, the published network and the loads",
    }[policy.published]
    return (
        "The guarantee holds for every pair of networks that differ in one element as said, whatever else a "
        f"reader knows. It covers {covered} of this and of every other release made on twin "
        f"'{policy.twin_id}', and everything that anybody computes from them.{_but_coordinates(policy)}"
    )


def _but_coordinates(policy: TwinPolicy) -> str:
    return (
        " It does not cover the published coordinates and the lengths that follow from them."
        if policy.coordinates
        else ""
    )


def _attestation(policy: TwinPolicy) -> str:
    """What the data owner says of the twin, beyond what everybody can recompute."""
    return (
        "Anybody can recompute epsilon and advantage from the noise and x. The data owner attests that twin "
        f"'{policy.twin_id}' was drawn once, as said, from the network that this release is about, that "
        "the noise was chosen without looking at that network, and that the key is kept secret."
    )


def _declared(policy: TwinPolicy) -> list[str]:
    """What of the network every neighbour has in common."""
    chosen = policy.design.protected
    known = [
        "Connectivity: which elements there are, which nodes and phases they join, and their names.",
        "Switch states and all figures of switches, base voltages and phases; settings of the controls of "
        "regulators, capacitors and inverters, line drop compensation rounded to whole volts; taps that the "
        "data owner declared. All other taps are found on the twin, and so are the states of switched "
        "capacitors where controls act.",
        "Shapes of elements, rounded to 2^-7: ratios between the phases of R and of X, ratios of windings of "
        "transformers; and which figures are zero.",
        "Numbers of parallel circuits; ratings, no-load losses and magnetising currents of transformers; "
        "states of capacitors as the feeder's file has them; reactors, autotransformers, impedance elements "
        "and sources; each rounded.",
        "Nominal loads, rounded to three digits, as scales of the loads; how a load follows its voltage; "
        "generators that run as the feeder's file states them. Loads, set points or settings that were "
        "fitted to the network before they were declared carry what they were fitted to.",
    ]
    if chosen.codes:
        known.append("The catalogue of conductor codes, and which lines have a code of it.")
    else:
        known.append(
            "Conductor codes of lines and their catalogue: who knows the code of a line knows its resistance "
            "and reactance per length, whatever the noise."
        )
    if not chosen.charging:
        known.append(
            "Charging of lines per km: of the conductor code, or "
            f"{in_digits(chosen.c_nf_per_km)} nF per km and {in_digits(chosen.x_ohm_per_km)} ohm of "
            "reactance per km for lines without one."
        )
    if policy.coordinates:
        known.append("Coordinates of all buses, and with them the lengths of the lines.")
    public = {
        "Impedances of transformers: no noise.": chosen.transformers,
        "Sizes of capacitors: no noise.": chosen.capacitors,
        "Capacities of PV systems: no noise.": chosen.pv,
    }
    return known + [words for words, covered in public.items() if not covered]


def _after_noise(policy: TwinPolicy, facts: Facts) -> list[str]:
    codes = (
        ""
        if policy.design.code_epsilon is None
        else " Conductor codes are replaced by randomised response over the public catalogue."
    )
    return [
        *drawn_loads(facts.model),
        f"The twin '{policy.twin_id}' is drawn once per network: the logarithm of every protected figure is "
        f"rounded to a public grid and gets exact discrete {policy.design.noise.capitalize()} noise; nothing "
        f"else of the figure enters.{codes} The same twin serves every release under its id; an element that "
        "is replaced gets fresh noise.",
        _SOLVED[policy.controls],
        _MENDED,
        "All energised nodes but those of the source are released."
        if policy.all_nodes
        else "Only nodes with a random load of their own are released.",
        _published(policy, facts),
        *released_connections(facts.connections),
        text.HIDDEN_ORDER,
        text.ROUNDED,
        *released_beside(facts.extras),
    ]


def _published(policy: TwinPolicy, facts: Facts) -> str:
    extras, connected = facts.extras, facts.connections is not None
    if policy.published == VOLTAGES:
        if extras.loads:
            twin = "Of the twin itself only its connections are" if connected else "The twin itself is not"
            return f"{twin} released."
        twin = "figures of the twin" if connected else "the twin"
        return f"Neither {twin} nor the loads behind the voltages are released."
    if policy.published == NETWORK:
        if extras.loads:
            return "The twin's branches and admittances are released beside the voltages."
        return (
            "The twin's branches and admittances are released beside the voltages. The loads behind the "
            "voltages are not, but they follow from both up to rounding."
        )
    return (
        "The twin's branches and admittances, and the loads behind the voltages of "
        f"{policy.table_days} days, are released beside the voltages; the tables below twin/ are not rounded."
    )


def _unprotected(facts: Facts, policy: TwinPolicy) -> list[str]:
    nodes = (
        f"That the feeder has {facts.layout.nodes} energised nodes beside its source, all of them released."
        if policy.all_nodes
        else f"That {facts.layout.nodes} nodes of the feeder carry a load of their own and are released."
    )
    return [
        "That this release was made: the network passed the checks before anything was spent. Its file can "
        "be read, what of it is not modelled is known, and without load its power flow has a solution.",
        nodes,
        "Everything of the network that is declared public.",
        *shown_by_connections(facts),
        *([SHOWS_NODES] if facts.extras.loads else []),
        *text.public_sizes(facts),
    ]


def _about_coordinates(policy: TwinPolicy) -> str:
    """That lengths are not protected from whom has the coordinates."""
    if policy.coordinates:
        return (
            "Coordinates are published, and the lengths of the lines follow from them: lengths are NOT "
            "PROTECTED from anybody."
        )
    return (
        "Coordinates are not published. Who has them from elsewhere, as from a map, knows the lengths of the "
        "lines: lengths are NOT PROTECTED from him."
    )


def _not_claimed(policy: TwinPolicy) -> list[str]:
    change = in_digits(1.0 + policy.design.change)
    return [
        "Nothing is claimed about connectivity, switches, settings of controls, phases, base voltages or "
        "anything else of the network that is declared public, nor about elements added or removed. The "
        "phase of a node can be read from the angles of its voltages.",
        _about_coordinates(policy),
        "This is not power flow on the true network. It is power flow on a network whose protected figures "
        "differ from the true ones by noise of the stated scales.",
        "The guarantee hides one element at a time. It weakens for figures that are known to go together, "
        "such as two circuits in one trench, which are two elements, or one rule that set many lengths. It "
        "does not hide what is common to many elements.",
        f"A change of one element by more than a factor of {change} is covered less: "
        f"{_stated_changes(policy.figures()['changes'])}.",
        "What releases on the true network, or anything else published of it, tell is not covered and adds "
        "to what is known. That an element was replaced between two releases on one twin can be seen.",
        "The secret order and the names of the nodes are no protection of the network: who knows its "
        "connectivity may find out which node is which.",
        text.ABOUT_RECORDS,
        text.ABOUT_QUALITY,
        text.ABOUT_OTHERS,
    ]


def _attested(facts: Facts, policy: TwinPolicy) -> tuple[str, ...]:
    return (
        f"Network: twin '{policy.twin_id}' was drawn once, with the stated noise, from the network that "
        "this release is about, and all was solved on it. Its epsilon is recomputed, not attested.",
        text.attested_composition(facts, f"epsilon at delta {in_digits(facts.network.cap.delta)} at most"),
        "Declared-public inputs are what the data owner says they are, and the key was kept secret.",
    )
