"""Mode 'twin-network': voltages solved on a twin of the network. Differential privacy of its elements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from decimal import ROUND_DOWN, Context
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from dp_powerflow.config import Config, TwinNetwork
from dp_powerflow.corpus.gridfm.reader import check_tables
from dp_powerflow.corpus.gridfm.schema import TABLES
from dp_powerflow.grid.feeder import Quantity
from dp_powerflow.pipeline.manifest import policy as text
from dp_powerflow.pipeline.manifest.facts import Facts
from dp_powerflow.pipeline.manifest.model import (
    RELATIVE,
    NetworkSection,
    NotNegative,
    Positive,
    Section,
    Sentence,
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
from dp_powerflow.privacy.budget import Neighbours, gdp_epsilon
from dp_powerflow.privacy.ledger.accounts import AccountKind, GdpCap
from dp_powerflow.twin import Spread, TwinGuarantee, largest_change, twin_guarantee, twin_neighbours

VOLTAGES, NETWORK, WITH_LOADS = "voltages", "network", "network and loads"
"""What of a twin can be released."""
TWIN = "twin"
"""Directory of the published twin."""
GROUPS = (2, 10)
"""Numbers of elements changed together that the guarantee of a twin is also stated for."""
_LARGEST_STATED_MU = 1e3
"""Where a guarantee says nothing at all any more, and the exact conversion ends."""
COMMITMENT = (
    "SHA-256 of a secret salt and the internal report, which stays with the data owner; he can open it to an "
    "auditor (dp-powerflow verify --private)"
)
ACCOUNTING = (
    "the logarithm of every figure with a spread is rounded to a multiple of g = 2^-40 and gets exact "
    "discrete Gaussian noise of scale sigma = ceil(spread / g), in units of g; one element whose figures "
    "change by factors up to 1 + x moves them by at most D = ceil(ln(1 + x) / g) + 2, hence mu^2 = sum of "
    "(D / sigma)^2 over its figures; a conductor code drawn by randomised response with epsilon_c adds the "
    "square of -2 Phi^-1(1 / (1 + exp(epsilon_c))); mu is that of the worst kind of element, stated as "
    "(epsilon, delta) by Corollary 2.13 of Dong, Roth and Su (arXiv 1905.02383v3)"
)
COMPOSITION = (
    f"{text.COMPOSITION} A twin is charged once, when it is drawn, and every release made on it is covered "
    "by that charge; the network's account is stated as of that draw, and a later twin of the same network "
    "adds its mu^2. Customers and network are two secrets with a guarantee each, and both hold at once: "
    "against a reader who compares worlds that differ in one record and in one element together, epsilons "
    "and deltas of the two add up. Releases made on the true network are in another account, which this "
    "one does not count."
)
_FIGURES = {
    Quantity.LENGTH: "Lengths of lines",
    Quantity.RESISTANCE: "Resistances of lines per length",
    Quantity.REACTANCE: "Reactances of lines per length",
    Quantity.TRANSFORMER: "Impedances of transformers",
    Quantity.CAPACITOR: "Sizes of capacitors",
    Quantity.PV: "Capacities of PV systems",
}
_ON_THE_PAGE = {
    Quantity.LENGTH: "Length of a line",
    Quantity.RESISTANCE: "Resistance of a line per length",
    Quantity.REACTANCE: "Reactance of a line per length",
    Quantity.TRANSFORMER: "Impedance of a transformer",
    Quantity.CAPACITOR: "Size of a capacitor",
    Quantity.PV: "Capacity of a PV system",
}

_Element = Literal["line", "transformer", "capacitor", "pv"]
_Spread = Annotated[float, Field(ge=1e-4, le=4.0)] | None


class SpreadSection(Section):
    """η of each quantity; null is no noise, declared public."""

    length: _Spread
    resistance: _Spread
    reactance: _Spread
    transformer: _Spread
    capacitor: _Spread
    pv: _Spread


class Group(Section):
    """What a twin promises if several elements change together; no ε where none can be stated."""

    elements: Literal[2, 10]
    mu: Positive
    epsilon: NotNegative | None


class TwinSection(NetworkSection):
    """`guarantee.network` of a release on a twin."""

    mode: Literal["twin-network"]
    kind: Literal["differential privacy"]
    definition: Literal["(epsilon, delta)-differential privacy"]
    change: Positive
    change_in_words: Sentence
    spread: SpreadSection
    code_epsilon: Annotated[float, Field(gt=0.0, le=20.0)] | None
    mu: Positive
    mu_by_element: Annotated[dict[_Element, Positive], Field(min_length=1)]
    epsilon_granted: Positive
    largest_change_at_epsilon_granted: NotNegative | None
    groups: Annotated[list[Group], Field(min_length=2, max_length=2)]
    group_in_words: Sentence
    days: Literal["any number"]
    twin: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
    published: Literal["voltages", "network", "network and loads"]
    all_nodes: bool
    accounting: Sentence

    def in_one_sentence(self) -> str:
        return (
            f"They were solved on a twin of the network, with epsilon at most {at_most(self.epsilon)} at "
            f"delta {in_digits(self.delta)} of differential privacy for {self.neighbours}."
        )

    def in_full(self) -> str:
        return (
            "A second guarantee of differential privacy covers the network, whose twin all was solved on. "
            f"Unit: {self.neighbours}. mu = {at_most(self.mu)} of Gaussian differential privacy, "
            f"epsilon at most {at_most(self.epsilon)} at delta {in_digits(self.delta)}, for "
            f"{self.days} of days: {self.accounting}. {self.group_in_words} {self.scope}"
        )

    def spreads(self) -> list[tuple[str, float | None]]:
        """The spreads under the names that the certificate shows."""
        return [(words, getattr(self.spread, quantity)) for quantity, words in _ON_THE_PAGE.items()]


@dataclass(frozen=True)
class TwinPolicy(NetworkPolicy):
    """The policy of a release on a twin.

    Attributes
    ----------
    twin_id : public name of the twin, the same in every release made on it.
    spread : public noise of the twin.
    change : x: figures change by factors up to 1 + x.
    epsilon : ε*, the most that the twin was allowed to cost at δ.
    delta : where the guarantee is stated.
    published : what is released of the twin: `voltages`, `network`, or `network and loads`.
    all_nodes : whether every node is released, or those with a load of their own.
    table_days : days whose loads are published beside the voltages, in the tables of the twin.
    """

    mode: ClassVar[str] = "twin-network"
    section: ClassVar[type[NetworkSection]] = TwinSection
    account_kind: ClassVar[AccountKind] = AccountKind.NETWORK_GDP
    template: ClassVar[str] = "twin.html"

    twin_id: str
    spread: Spread
    change: float
    epsilon: float
    delta: float
    published: str
    all_nodes: bool
    table_days: int

    @classmethod
    def of(cls, config: Config) -> Self:
        twin, days = config.network, config.release.days
        assert isinstance(twin, TwinNetwork)
        return cls(
            twin_id=twin.id,
            spread=twin.spread,
            change=twin.change,
            epsilon=twin.epsilon,
            delta=twin.delta,
            published=twin.publish,
            all_nodes=twin.released == "all",
            table_days=min(twin.graph_days or days, days) if twin.publish == WITH_LOADS else 0,
        )

    @classmethod
    def read(cls, statement: Statement[Any]) -> Self:
        stated, tables = statement.guarantee.network, statement.data.network_tables
        return cls(
            twin_id=stated.twin,
            spread=Spread(code_epsilon=stated.code_epsilon, **stated.spread.model_dump()),
            change=stated.change,
            epsilon=stated.epsilon_granted,
            delta=stated.delta,
            published=stated.published,
            all_nodes=stated.all_nodes,
            table_days=0 if tables is None else tables.days,
        )

    @property
    def full_support(self) -> bool:
        """Reactive load is drawn at random: the loads of a twin are those of the full-support bound."""
        return True

    @property
    def neighbours(self) -> Neighbours:
        """Whom the twin hides the difference of."""
        return twin_neighbours(self.spread, self.change)

    @cached_property
    def guarantee(self) -> TwinGuarantee:
        """The guarantee for one element, recomputed from the constants."""
        return twin_guarantee(self.spread, self.change, self.delta)

    @cached_property
    def groups(self) -> list[dict[str, Any]]:
        """The guarantee for several elements changed together."""
        by_elements = {elements: self.guarantee.mu * math.sqrt(elements) for elements in GROUPS}
        return [
            {
                "elements": elements,
                "mu": mu,
                "epsilon": gdp_epsilon(mu, self.delta) if mu <= _LARGEST_STATED_MU else None,
            }
            for elements, mu in by_elements.items()
        ]

    def figures(self) -> dict[str, Any]:
        """Every figure that follows from spreads, x and δ; `verify` makes them again."""
        promised = self.guarantee
        spread = asdict(self.spread)
        return {
            "change": self.change,
            "code_epsilon": spread.pop("code_epsilon"),
            "spread": spread,
            "mu": promised.mu,
            "mu_by_element": dict(promised.mu_of),
            "epsilon": promised.epsilon,
            "delta": self.delta,
            "epsilon_granted": self.epsilon,
            "largest_change_at_epsilon_granted": self._largest_change,
            "groups": self.groups,
        }

    @cached_property
    def _largest_change(self) -> float | None:
        """Largest x at ε*, rounded down; None if only codes are protected, which change in any way."""
        if not any(True for _ in self.spread.protected()):
            return None
        # A step function of the noise's grid: rounded, so that another scipy finds the same.
        found = largest_change(self.spread, self.epsilon, self.delta)
        return float(Context(prec=6, rounding=ROUND_DOWN).create_decimal(repr(found)))

    def paid_by(self, release_id: str) -> str:
        """A twin is charged once, under its own id, whatever releases are made on it."""
        return self.twin_id

    def words(self, facts: Facts) -> NetworkWords:
        warnings = text.warnings(facts)
        return NetworkWords(
            section=_section(self),
            composition=COMPOSITION,
            declared=_declared(self),
            after_noise=_after_noise(self),
            unprotected=_unprotected(facts, self),
            not_claimed=warnings + _not_claimed(self),
            warnings=warnings,
            bound_to=(
                "the draws: release id, load model and hash of the twin; the noise of the load model: "
                "release id and keyed hash of the meter data; the noise of the twin: twin id and keyed hash "
                "of the network"
            ),
            commitment=COMMITMENT,
            attested=_attested(facts, self),
        )

    def contradictions(self, facts: Facts) -> Iterator[str]:
        cap, promised = facts.network.cap, self.guarantee
        if not isinstance(cap, GdpCap):
            yield "The account of the network is not that of twins."
            return
        if not 0 <= self.table_days <= facts.layout.days:
            yield "The tables of the twin hold more days than the corpus."
        if (self.table_days > 0) != (self.published == WITH_LOADS):
            yield "The days of the tables do not go with what is published of the twin."
        if promised.epsilon > self.epsilon * (1 + RELATIVE):
            yield "The twin costs more than the epsilon that was granted."
        if cap.unit != self.neighbours:
            yield "The account of the network is about other neighbours than the twin."
        if cap.delta != self.delta:
            yield "The account of the network is stated at another delta than the twin."
        if not facts.network.holds("mu_squared", promised.mu**2):
            yield "The account of the network does not hold this twin's mu."

    def tables(self, facts: Facts) -> Tables | None:
        """Where the published twin is; None if only voltages are released."""
        if self.published == VOLTAGES:
            return None
        scenarios = self.table_days * facts.layout.steps
        return Tables(
            directory=TWIN,
            layout="gridfm-datakit: Parquet tables, one directory per table and partition of scenarios",
            tables=sorted(TABLES),
            holds=self.published,
            days=self.table_days,
            scenarios=max(scenarios, 1),
            order="bus k is node k of the corpus, further buses follow; "
            + ("scenario = day * steps_per_day + step" if scenarios else "one scenario without load"),
        )

    def checks(
        self, statement: Statement[Any], facts: Facts, directory: Path, files: Iterable[str]
    ) -> Iterator[Check]:
        """Every μ and ε from spreads and x alone; the tables are there if and only if they are published."""
        figures, stated = self.figures(), statement.guarantee.network.model_dump()
        wrong = differences({key: stated[key] for key in figures}, figures)
        yield check(
            "network privacy",
            (f"The stated {where} of the network does not follow from spreads and x." for where in wrong),
            f"The twin costs mu = {at_most(figures['mu'])}, epsilon at most {at_most(figures['epsilon'])} at "
            f"delta {in_digits(self.delta)}, for {self.neighbours}; recomputed from the spreads and x.",
        )
        name, tables = "twin tables", self.tables(facts)
        if tables is not None:
            count = tables.scenarios
            good = (
                f"The twin's tables hold {count:,} scenario{'s' * (count > 1)} of power flow on their own "
                f"network{', with the voltages of the corpus' * (tables.days > 0)}."
            )
            problems = check_tables(directory, TWIN, count, same_voltages=tables.days > 0)
            yield check(name, problems, good)
        elif any(file.startswith(f"{TWIN}/") for file in files):
            yield Check(name, False, f"There are files in {TWIN}/ though no twin is published.")


def _section(policy: TwinPolicy) -> TwinSection:
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
            "scope": _scope(policy),
            "accounting": ACCOUNTING,
            "attestation": _attestation(policy),
        }
    )


def _change_in_words(policy: TwinPolicy) -> str:
    """x, and what it means of one element; the true network is not looked at."""
    if not any(True for _ in policy.spread.protected()):
        return "The conductor code of one line is protected, whatever it is changed to; no other figure is."
    both_ways = policy.change, policy.change / (1.0 + policy.change)
    up, down = (in_digits(round(100.0 * share, 2)) for share in both_ways)
    return (
        "Compared are networks in which the protected figures of one element differ by factors up to "
        f"{in_digits(1.0 + policy.change)} (about {up} % upwards, {down} % downwards), all else equal."
    )


def _group_in_words(policy: TwinPolicy) -> str:
    """Several elements at once."""
    stated = [
        f"at most {at_most(group['epsilon'])} for {group['elements']}"
        for group in policy.groups
        if group["epsilon"] is not None
    ]
    figures = f", epsilon is then {' and '.join(stated)} elements" if stated else ""
    return (
        "The guarantee is for one element. If k elements change together mu grows to mu times the square "
        f"root of k{figures}. A factor of (1 + x)^m of one element costs at most m times mu."
    )


def _scope(policy: TwinPolicy) -> str:
    """What is covered by the guarantee."""
    covered = {
        VOLTAGES: "the voltages",
        NETWORK: "the voltages and the published network",
        WITH_LOADS: "the voltages, the published network and the loads",
    }[policy.published]
    return (
        "The guarantee holds for every pair of networks that differ in one element as said, whatever else a "
        f"reader knows. It covers {covered} of this and of every other release made on twin "
        f"'{policy.twin_id}', and everything that anybody computes from them."
    )


def _attestation(policy: TwinPolicy) -> str:
    """What the data owner says of the twin, beyond what everybody can recompute."""
    return (
        "Anybody can recompute mu and epsilon from the spreads and x. The data owner attests that twin "
        f"'{policy.twin_id}' was drawn once, as said, from the network that this release is about, that "
        "the spreads were chosen without looking at that network, and that the key is kept secret."
    )


def _declared(policy: TwinPolicy) -> list[str]:
    """What of the network every neighbour has in common."""
    known = [
        "Connectivity: which elements there are and which nodes they join; names, coordinates and grouping.",
        "Switch states and all figures of switches, regulator taps, base voltages and phases.",
        "Shapes of elements, rounded to 2^-7: ratios between the phases of R and of X, R/X and ratios of "
        "windings of transformers; and which figures are zero.",
        "Charging and conductance of lines per length, numbers of parallel circuits; ratings, no-load losses "
        "and magnetising currents of transformers; states of capacitors.",
        "Reactors, autotransformers, impedance elements and sources.",
        "Nominal loads, as scales of the nodes.",
    ]
    if policy.spread.code_epsilon is None:
        known.append(
            "Conductor codes of lines: who knows the code of a line and its catalogue knows resistance and "
            "reactance per length, whatever the noise on them."
        )
    else:
        known.append("The catalogue of conductor codes, and which lines have a code of it.")
    public = [quantity for quantity in _FIGURES if policy.spread.of(quantity) is None]
    return known + [_without_spread(policy, quantity) for quantity in public]


def _without_spread(policy: TwinPolicy, quantity: Quantity) -> str:
    of_code = policy.spread.code_epsilon is not None and quantity in (Quantity.RESISTANCE, Quantity.REACTANCE)
    relative = ", relative to those of the line's conductor code" if of_code else ""
    return f"{_FIGURES[quantity]}{relative}: no spread."


def _after_noise(policy: TwinPolicy) -> list[str]:
    codes = (
        ""
        if policy.spread.code_epsilon is None
        else " Conductor codes are replaced by randomised response over the public catalogue."
    )
    return [
        text.SHRUNK,
        "Days of active and reactive load are drawn independently for every node with a load from the load "
        "model, untruncated; reactive load has randomness of its own.",
        f"The twin '{policy.twin_id}' is drawn once per network: the logarithm of every figure with a spread "
        "is rounded to a public grid and gets exact discrete Gaussian noise, whose standard deviation is the "
        f"spread; nothing else of the figure enters.{codes} The same twin serves every release under its id.",
        "AC power flow is solved on the twin, not on the true network, with regulator taps fixed to declared "
        "positions; a snapshot without a solution aborts the release.",
        "All energised nodes but those of the source are released."
        if policy.all_nodes
        else "Only nodes with a random load of their own are released.",
        _published(policy),
        text.HIDDEN_ORDER,
        text.ROUNDED,
    ]


def _published(policy: TwinPolicy) -> str:
    if policy.published == VOLTAGES:
        return "Neither the twin nor the loads behind the voltages are released."
    if policy.published == NETWORK:
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
        "That this release was made: it is refused if a draw has no power-flow solution. That outcome "
        "depends on the twin, not on the true network, so the network's guarantee covers it.",
        nodes,
        "Everything of the network that is declared public.",
        *text.public_sizes(facts),
    ]


def _not_claimed(policy: TwinPolicy) -> list[str]:
    groups = " and ".join(str(elements) for elements in GROUPS)
    return [
        "Nothing is claimed about connectivity, switch states, regulator taps, phases, base voltages or "
        "anything else of the network that is declared public, nor about elements added or removed.",
        "This is not power flow on the true network. It is power flow on a network whose protected figures "
        "differ from the true ones by noise of the stated spreads.",
        "The guarantee hides one element at a time. It weakens for figures that are known to go together, "
        "such as two circuits in one trench, which are two elements, or one rule that set many lengths: k "
        f"elements count as mu times the square root of k (stated for {groups}). It does not hide what is "
        "common to many elements.",
        f"A change of one element by more than a factor of {in_digits(1.0 + policy.change)} is covered less: "
        "mu grows in proportion to its logarithm.",
        "What releases on the true network, or anything else published of it, tell is not covered and adds "
        "to what is known.",
        "The secret order and the names of the nodes are no protection of the network: who knows its "
        "connectivity may find out which node is which.",
        text.ABOUT_RECORDS,
        text.ABOUT_QUALITY,
        text.ABOUT_OTHERS,
    ]


def _attested(facts: Facts, policy: TwinPolicy) -> tuple[str, ...]:
    return (
        f"Network: twin '{policy.twin_id}' was drawn once, with the stated spreads, from the network that "
        "this release is about, and all was solved on it. Its epsilon is recomputed, not attested.",
        text.attested_composition(facts, f"epsilon at delta {in_digits(policy.delta)} at most"),
        "Declared-public inputs are what the data owner says they are, and the key was kept secret.",
    )
