"""Twins of versions 0.1 and 0.2, whose noise was a Gaussian spread per quantity: what `verify` recomputes.

Nothing makes such a twin any more. Releases that were made on one stay what they are, and their figures are
still checked; their sentences belong to the program that made them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from decimal import ROUND_DOWN, Context
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from dp_powerflow._bits.roots import root_between
from dp_powerflow.corpus.storage import Location
from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.quantities import LINE_QUANTITIES, Quantity
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
from dp_powerflow.pipeline.manifest.twin.figures import GROUPS
from dp_powerflow.pipeline.manifest.twin.tables import (
    AS_PHASORS,
    check_of_tables,
    described_tables,
    wrong_days,
)
from dp_powerflow.privacy.budget import Neighbours, gdp_epsilon, gdp_mu
from dp_powerflow.privacy.ledger.accounts import AccountKind, GdpCap
from dp_powerflow.twin.design import LINE, LOG_GRID, code_mu, shift_of

if TYPE_CHECKING:
    from dp_powerflow.config import Config

MODE, CALLED = "twin-network-with-spreads", "twin-network"
"""How `verify` calls the mode of these releases, and how they call it."""
_LARGEST_STATED_MU = 1e3
_WORDS = "as the program that made it says"
_Element = Literal["line", "transformer", "capacitor", "pv"]
_Spread = Annotated[float, Field(ge=1e-4, le=4.0)] | None


@dataclass(frozen=True)
class Spread:
    """η of every quantity: standard deviation of the log of its level in the twin.

    None leaves a quantity as it is: it is then declared public, and no change of it is covered.

    Attributes
    ----------
    code_epsilon : ε of the randomised response by which a line's conductor code is replaced by one of the
        file's catalogue; None keeps the codes, which are then declared public.
    """

    length: float | None = None
    resistance: float | None = None
    reactance: float | None = None
    transformer: float | None = None
    capacitor: float | None = None
    pv: float | None = None
    code_epsilon: float | None = None

    def of(self, quantity: Quantity) -> float | None:
        """η as asked for."""
        eta: float | None = getattr(self, quantity.value, None)
        return eta

    def protected(self) -> Iterator[tuple[Quantity, float]]:
        """Quantities that get noise, with their η."""
        for quantity in Quantity:
            eta = self.of(quantity)
            if eta is not None:
                yield quantity, eta

    def sigmas(self) -> dict[Quantity, int]:
        """Scale of the noise on every protected quantity, in grid units, rounded up."""
        return {quantity: math.ceil(eta / LOG_GRID) for quantity, eta in self.protected()}


def element_mu(spread: Spread, change: float) -> dict[str, float]:
    """μ of one changed element, by kind."""
    shift = shift_of(change)
    squared: dict[str, float] = {}
    for quantity, sigma in spread.sigmas().items():
        kind = LINE if quantity in LINE_QUANTITIES else quantity.value
        squared[kind] = squared.get(kind, 0.0) + (shift / sigma) ** 2
    if spread.code_epsilon is not None:
        squared[LINE] = squared.get(LINE, 0.0) + code_mu(spread.code_epsilon) ** 2
    return {kind: math.sqrt(value) for kind, value in squared.items()}


def largest_change(spread: Spread, epsilon: float, delta: float, *, elements: int = 1) -> float:
    """The largest x that this twin covers at (ε, δ), rounded down; 0 if there is none.

    Only kinds with noise count; `elements` of them may change at once.
    """
    allowed = gdp_mu(epsilon, delta) / math.sqrt(elements)

    def excess(log_change: float) -> float:
        return max(element_mu(spread, math.expm1(log_change)).values()) - allowed

    low, high = 1e-9, 50.0
    if excess(low) > 0.0:
        return 0.0
    if excess(high) < 0.0:
        return math.expm1(high)
    # μ goes up in steps of the grid, so the root is found to a step and the answer lies two below.
    root = root_between(excess, low, high, close=LOG_GRID)
    return max(0.0, math.expm1(root * (1.0 - 1e-9) - 2.0 * LOG_GRID))


def spread_neighbours(spread: Spread, change: float) -> Neighbours:
    """The neighbours, from public constants only."""
    lines = [quantity.value for quantity in LINE_QUANTITIES if spread.of(quantity) is not None]
    kinds = [f"line ({', '.join(lines)})"] if lines else []
    named = {Quantity.TRANSFORMER: "transformer (impedance)", Quantity.CAPACITOR: "capacitor (size)"}
    named[Quantity.PV] = "PV system (capacity)"
    kinds += [words for quantity, words in named.items() if spread.of(quantity) is not None]
    code = "; the conductor code of a line in any way" * (spread.code_epsilon is not None)
    listed = " or ".join([", ".join(kinds[:-1]), kinds[-1]]) if len(kinds) > 1 else "".join(kinds) or "line"
    return Neighbours(f"one {listed}: each figure named changed by a factor up to {1.0 + change:.12g}{code}")


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


class OldTwinSection(NetworkSection):
    """`guarantee.network` of such a release."""

    mode: Literal["twin-network-with-spreads"]
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


@dataclass(frozen=True)
class OldTwinPolicy(NetworkPolicy):
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

    mode: ClassVar[str] = MODE
    section: ClassVar[type[NetworkSection]] = OldTwinSection
    account_kind: ClassVar[AccountKind] = AccountKind.NETWORK_GDP
    of_earlier_versions: ClassVar[bool] = True

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
        raise PrivacyError("twins with a spread per quantity are not made any more")

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
        return spread_neighbours(self.spread, self.change)

    @cached_property
    def mu_of(self) -> dict[str, float]:
        """μ by kind of element."""
        return element_mu(self.spread, self.change)

    @cached_property
    def mu(self) -> float:
        """Of the worst kind."""
        return max(self.mu_of.values())

    @cached_property
    def groups(self) -> list[dict[str, Any]]:
        """The guarantee for several elements changed together."""
        by_elements = {elements: self.mu * math.sqrt(elements) for elements in GROUPS}
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
        spread = asdict(self.spread)
        return {
            "change": self.change,
            "code_epsilon": spread.pop("code_epsilon"),
            "spread": spread,
            "mu": self.mu,
            "mu_by_element": dict(self.mu_of),
            "epsilon": gdp_epsilon(self.mu, self.delta),
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
        """Only figures are compared; every sentence stands for one of the program that made the release."""
        sentences = ("change_in_words", "group_in_words", "scope", "accounting", "attestation")
        section = OldTwinSection.model_validate(
            self.figures()
            | dict.fromkeys(sentences, _WORDS)
            | {
                "mode": MODE,
                "kind": "differential privacy",
                "definition": text.DEFINITION,
                "neighbours": str(self.neighbours),
                "days": "any number",
                "twin": self.twin_id,
                "published": self.published,
                "all_nodes": self.all_nodes,
            }
        )
        return NetworkWords(
            section=section,
            composition=_WORDS,
            declared=[_WORDS],
            after_noise=[_WORDS],
            unprotected=[_WORDS],
            not_claimed=[_WORDS],
            warnings=text.warnings(facts),
            bound_to=_WORDS,
            commitment=_WORDS,
            attested=(
                f"Network: twin '{self.twin_id}' was drawn once, with the stated spreads, from the network "
                "that this release is about, and all was solved on it. Its epsilon is recomputed.",
                "This twin is of version 0.2 or earlier: regulator taps, charging of lines and allocated "
                "loads may carry figures of the true network that its epsilon does not cover.",
                text.attested_composition(facts, f"epsilon at delta {in_digits(self.delta)} at most"),
            ),
        )

    def contradictions(self, facts: Facts) -> Iterator[str]:
        cap = facts.network.cap
        if not isinstance(cap, GdpCap):
            yield "The account of the network is not that of twins."
            return
        yield from wrong_days(self.published, self.table_days, facts)
        if gdp_epsilon(self.mu, self.delta) > self.epsilon * (1 + RELATIVE):
            yield "The twin costs more than the epsilon that was granted."
        if cap.unit != self.neighbours:
            yield "The account of the network is about other neighbours than the twin."
        if cap.delta != self.delta:
            yield "The account of the network is stated at another delta than the twin."
        if not facts.network.holds("mu_squared", self.mu**2):
            yield "The account of the network does not hold this twin's mu."

    def tables(self, facts: Facts) -> Tables | None:
        """Where the published twin is; None if only voltages are released."""
        return described_tables(self.published, self.table_days, facts, AS_PHASORS)

    def checks(
        self, statement: Statement[Any], facts: Facts, directory: Location, files: Iterable[str]
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
        yield from check_of_tables(self.tables(facts), directory, files)
