"""INTERNAL. `FidelityReport`: a release against the true meters and the true feeder, as a frozen result."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from dp_powerflow.fidelity.attacks.lines import LineAttack
from dp_powerflow.fidelity.attacks.membership import (
    Allowed,
    Guesses,
    MembershipAttack,
    PlantedAttack,
    least_epsilon,
)
from dp_powerflow.fidelity.effort import Effort
from dp_powerflow.fidelity.network import NetworkComparison
from dp_powerflow.fidelity.splits import CustomerComparison
from dp_powerflow.fidelity.verdicts import Finding, Verdict

FORMAT = "dp-powerflow fidelity, format 1"
MARKING = "INTERNAL: computed from private data; not for publication"
LEAK = (
    "It may not steer the release: choosing settings by what private data show is a leak that no epsilon "
    "covers."
)
GROUPS = {
    "customers": "Customers",
    "use": "Use and classifier",
    "feeder": "Feeder head and node loads",
    "voltages": "Voltages",
}
"""Group of a figure → its title."""
_GOOD = (Verdict.SAME, Verdict.CLOSE)
_BAD = (Verdict.VISIBLE, Verdict.WRONG)


@dataclass(frozen=True)
class Facts:
    """INTERNAL. What was compared.

    Attributes
    ----------
    release_id : of the release.
    estimator : of its load model.
    is_history : whether customers persist; otherwise days are independent draws.
    customers, days, step_minutes : of the meters that were looked at.
    quantum_kw : resolution of the meters that the classifier is kept from seeing [kW]; None for none.
    simulated : whether no meter ever read them.
    """

    release_id: str
    estimator: str
    is_history: bool
    customers: int
    days: int
    step_minutes: int
    quantum_kw: float | None
    simulated: bool


@dataclass(frozen=True, eq=False)
class Attacks:
    """INTERNAL. The attack panel.

    Attributes
    ----------
    allowed : what the release states of its customers' privacy.
    membership, planted : what attackers got.
    line : what an attacker got of one line of the twin; None on the true network.
    network : what the release promises of the network, in words.
    """

    allowed: Allowed
    membership: MembershipAttack
    planted: PlantedAttack
    line: LineAttack | None
    network: str

    @property
    def alarms(self) -> tuple[str, ...]:
        """Sentences to be shown in red: attacks that got more than the release allows."""
        return tuple(self._alarms())

    def _alarms(self) -> Iterator[str]:
        games = {
            "with planted customers": (self.planted.together, self.allowed),
            "for members": (self.membership.guesses, self.membership.allowed),
        }
        for name, (guesses, allowed) in games.items():
            if allowed.exceeded_by(guesses):
                yield (
                    f"The attack {name} was right {guesses.right} times of {guesses.tried}: with 95 % "
                    f"confidence epsilon is at least {in_words(self.found_epsilon(guesses))}, and the "
                    f"release states {allowed.epsilon:g}. The stated guarantee does not hold: withdraw "
                    "the release and report this"
                )
        if self.line is not None and self.line.exceeded:
            own = self.line.guesses
            yield (
                f"The attack on a line of the twin was right {own.right} times of {own.tried}, and the "
                f"release allows {self.line.allowed:.3f} of them. The stated guarantee of the network does "
                "not hold: withdraw the release and report this"
            )

    def found_epsilon(self, guesses: Guesses) -> float:
        """Lower bound on ε, with 95 % confidence."""
        return least_epsilon(guesses.lower(), self.allowed.delta)


@dataclass(frozen=True, eq=False, repr=False)
class FidelityReport:
    """INTERNAL. A release against the true meters and the true feeder; not for publication.

    Attributes
    ----------
    facts : what was compared.
    customers : drawn customers against real ones.
    network : voltages and loads against the meters on the true feeder; words why not, where there is none.
    attacks : what an attacker gets of the load model.
    effort : sizes of the comparison.
    """

    facts: Facts
    customers: CustomerComparison
    network: NetworkComparison | str
    attacks: Attacks
    effort: Effort

    def __repr__(self) -> str:
        return f"FidelityReport({self.facts.release_id!r}, {len(self.findings)} figures, INTERNAL)"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every figure with its floor and its verdict, group by group."""
        of_network = () if isinstance(self.network, str) else self.network.findings
        every = (*self.customers.findings, *of_network)
        return tuple(one for group in GROUPS for one in every if one.group == group)

    @property
    def summary(self) -> str:
        """What to trust and what not, in one paragraph."""
        by = {kind: [one for one in self.findings if one.verdict in kind] for kind in (_GOOD, _BAD)}
        total = len(self.findings)
        parts = [f"{len(by[_GOOD])} of {total} figures are close to the real ones, or as close as can be."]
        for group, title in GROUPS.items():
            own = [one for one in self.findings if one.group == group]
            good, bad = ([one for one in by[kind] if one.group == group] for kind in (_GOOD, _BAD))
            if not own:
                continue
            if not bad:
                parts.append(
                    f"{title}: nothing speaks against them." if good else f"{title}: no figure is sure."
                )
            else:
                worst = sorted(bad, key=lambda one: -one.ratio)[:3]
                named = "; ".join(f"{one.title} ({one.verdict})" for one in worst)
                parts.append(f"{title}: do not rely on {named}.")
        unsure = [one.title for one in self.findings if one.verdict is Verdict.UNSURE]
        copies = [one.title for one in self.findings if one.verdict is Verdict.COPIES]
        if unsure:
            parts.append(f"Too few customers to tell: {', '.join(unsure)}.")
        if copies:
            parts.append(f"Suspiciously close, look for copies of real customers: {', '.join(copies)}.")
        alarms = self.attacks.alarms
        parts.append(
            "An attack got more than epsilon allows." if alarms else "No attack got more than epsilon allows."
        )
        return " ".join(parts)

    def to_json(self) -> str:
        """INTERNAL. Every figure as JSON; infinite ones are null."""
        return json.dumps(_finite(self._content()), indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    def to_html(self) -> bytes:
        """INTERNAL. A self-contained page."""
        from dp_powerflow.fidelity.page import page_of

        return page_of(self).to_html()

    def _repr_html_(self) -> str:
        """The page within a notebook."""
        from dp_powerflow.page.document import framed

        return framed(self.to_html())

    def _content(self) -> dict[str, Any]:
        attacks = self.attacks
        network: Any = {"not compared": self.network}
        if not isinstance(self.network, str):
            found = self.network
            network = {"nodes matched": found.matched, "mended": found.mended, "days": found.days}
        return {
            "format": FORMAT,
            "marking": MARKING,
            "leak": LEAK,
            "facts": asdict(self.facts),
            "effort": asdict(self.effort),
            "summary": self.summary,
            "figures": [asdict(one) for one in self.findings],
            "network": network,
            "attacks": {
                "alarms": list(attacks.alarms),
                "allowed": asdict(attacks.allowed)
                | {"success": attacks.allowed.success, "success by noise": attacks.allowed.by_noise},
                "planted": {
                    "partly": attacks.planted.partly,
                    "kinds": {name: _guesses(own, attacks) for name, own in attacks.planted.guesses.items()},
                    "together": _guesses(attacks.planted.together, attacks),
                    "largest epsilon that could be contradicted": attacks.allowed.visible(
                        attacks.planted.together.tried
                    ),
                },
                "membership": {
                    "score": attacks.membership.score,
                    "allowed": asdict(attacks.membership.allowed),
                    "area": attacks.membership.area,
                    "area error": attacks.membership.area_error,
                    "guesses": _guesses(attacks.membership.guesses, attacks),
                },
                "line": None
                if attacks.line is None
                else asdict(attacks.line) | {"success": attacks.line.allowed},
                "network": attacks.network,
            },
        }


def in_words(epsilon: float) -> str:
    """A lower bound on ε for a reader."""
    return "any number" if math.isinf(epsilon) else f"{epsilon:.2f}"


def _guesses(own: Guesses, attacks: Attacks) -> dict[str, Any]:
    return {
        "right": own.right,
        "tried": own.tried,
        "rate": own.rate,
        "interval": list(own.interval()),
        "epsilon at least": attacks.found_epsilon(own),
    }


def _finite(value: Any) -> Any:
    """The same with None for every number that JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
