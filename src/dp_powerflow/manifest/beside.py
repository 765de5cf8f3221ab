"""What a manifest says of what a release holds beside its voltages: powers, states, and dates of its days."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dp_powerflow.corpus.grid import POWER_MAX_KW
from dp_powerflow.corpus.schema import DAYS_FILE, POWER_GRID, ExtrasLayout
from dp_powerflow.corpus.tables import DayTable
from dp_powerflow.manifest.model import (
    BY_CUSTOMERS,
    Extras,
    NodeCustomers,
    NodeScales,
)

if TYPE_CHECKING:
    from dp_powerflow.manifest.build import Facts


@dataclass(frozen=True)
class ScaledNodes:
    """A node is one draw times its nominal load and a public factor."""

    factor: float

    def entries(self) -> dict[str, Any]:
        """The section of the manifest."""
        return {"rule": "nominal load of the node's loads", "factor": self.factor}


@dataclass(frozen=True)
class SummedCustomers:
    """A load is a sum of customers.

    Attributes
    ----------
    kw_per_customer, of_class : nominal kW that stand for one customer, and of classes with another figure.
    """

    kw_per_customer: float
    of_class: Mapping[str, float]

    def entries(self) -> dict[str, Any]:
        """The section of the manifest."""
        return {
            "rule": BY_CUSTOMERS,
            "kw_per_customer": self.kw_per_customer,
            "kw_per_customer_of_class": dict(self.of_class),
        }


def drawn_nodes(section: NodeScales | NodeCustomers) -> ScaledNodes | SummedCustomers:
    """What a manifest states of the loads that are drawn."""
    if isinstance(section, NodeScales):
        return ScaledNodes(section.factor)
    return SummedCustomers(section.kw_per_customer, section.kw_per_customer_of_class)


IN_WORDS = {
    "loads": "active and reactive load of every released node",
    "generation": "power injected at every released node",
    "head": "power that the sources feed into the feeder",
    "taps": "taps of the regulators",
    "capacitors": "states of the switched capacitors",
    "locked": "steps at which a control was locked because it hunted",
    "mended": "how often loads and PV of every snapshot were lowered until it had a solution",
}
ROUNDED = "Active and reactive powers are rounded to their public grid."
SHOWS_NODES = (
    "Which node of the feeder a released node is: its loads show its nominal load, which is declared public."
)


def described_extras(facts: Facts) -> Extras | None:
    """The entry `data.extras`; None if only voltages are released."""
    extras, follow_from = facts.extras, facts.policy.extras_follow_from
    if not extras.holds:
        return None
    return Extras.model_validate(
        {
            "holds": list(extras.holds),
            "source_phases": extras.sources,
            "regulators": extras.regulators,
            "capacitors": extras.capacitors,
            "mended_snapshots": facts.mended if extras.mended else None,
            "grid": POWER_GRID,
            "range_kw": [-POWER_MAX_KW, POWER_MAX_KW],
            "follows_from": follow_from or "unknown",
        }
    )


def described_days(days: DayTable | None) -> dict[str, Any] | None:
    """The entry `data.calendar`; None if the days have no dates."""
    if days is None:
        return None
    return {
        "file": DAYS_FILE,
        "first_day": days.calendar.first_day.isoformat(),
        "holidays": [day.isoformat() for day in days.calendar.holidays_within],
        "weather": list(days.names),
    }


def public_days(days: DayTable | None) -> list[str]:
    """What every reader learns of the days, in a sentence; none if they have no dates."""
    if days is None:
        return []
    weather = " and their weather, which may tell where the feeder is" if days.names else ""
    return [f"The dates of the released days, the holidays among them{weather}: declared public."]


def wrong_days(facts: Facts) -> Iterator[str]:
    """What cannot be true of the days of a release."""
    if facts.days is not None and not facts.policy.dated:
        yield "The release states dates of its days, and its mode draws days that have none."
    if facts.days is not None and facts.days.calendar.n_days != facts.layout.days:
        yield "The release states dates of another number of days than it has."


def released_beside(extras: ExtrasLayout) -> list[str]:
    """A sentence on what is released beside the voltages, and one on its rounding; none if nothing is."""
    if not extras.holds:
        return []
    said = "; ".join(IN_WORDS[name] for name in extras.holds)
    return [
        f"Beside the voltages of all days are released: {said}. They follow from the twin, the drawn loads "
        "and the public generation alone.",
        *([ROUNDED] if extras.loads or extras.sources else []),
    ]


def wrong_extras(facts: Facts) -> Iterator[str]:
    """What cannot be true of the files beside the voltages."""
    if facts.extras.holds and facts.policy.extras_follow_from is None:
        yield "The release holds more than voltages, which its mode does not publish."
    if facts.extras.mended != isinstance(facts.declared.drawn, SummedCustomers):
        yield "Sums of customers, and snapshots that are mended, go together; the release has one of the two."
