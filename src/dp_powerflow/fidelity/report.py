"""INTERNAL. `FidelityReport`: a release against the true meters and the true feeder, as a frozen result."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dp_powerflow.fidelity.attacks import Allowed, Guesses, MembershipAttack, PlantedAttack, least_epsilon
from dp_powerflow.fidelity.comparison import (
    BAND,
    SHARES,
    Curves,
    CustomerComparison,
    NetworkComparison,
    NetworkCurves,
)
from dp_powerflow.fidelity.metrics import lags
from dp_powerflow.fidelity.verdicts import DISTANCE, TOLD, USE, Effort, Finding, Verdict
from dp_powerflow.page import (
    CLOCK,
    Axis,
    Band,
    Bars,
    Chart,
    Duration,
    Histogram,
    Lines,
    Quantiles,
    Series,
    environment,
    framed,
    page_from,
)
from dp_powerflow.units import FloatArray

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


@dataclass(frozen=True)
class Facts:
    """INTERNAL. What was compared.

    Attributes
    ----------
    release_id : of the release.
    estimator : of its load model.
    is_history : whether customers persist; otherwise days are independent draws.
    customers, days, step_minutes : of the meters that were compared.
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


@dataclass(frozen=True)
class Game:
    """INTERNAL. What an attack got, and the highest rate of right guesses that the release allows."""

    name: str
    guesses: Guesses
    allowed: float
    exceeded: bool
    epsilon: float


@dataclass(frozen=True, eq=False)
class Attacks:
    """INTERNAL. The attack panel.

    Attributes
    ----------
    allowed : what the release states of its customers' privacy.
    membership, planted : what attackers got.
    """

    allowed: Allowed
    membership: MembershipAttack
    planted: PlantedAttack

    @property
    def games(self) -> tuple[Game, ...]:
        """Every attack."""
        members = self.membership
        games = {
            f"planted: {name}": (guesses, self.allowed) for name, guesses in self.planted.guesses.items()
        }
        games |= {"planted: all kinds": (self.planted.together, self.allowed)}
        games |= {"membership": (members.guesses, members.allowed)}
        return tuple(
            Game(name, guesses, limit.success, limit.exceeded_by(guesses), self.found_epsilon(guesses))
            for name, (guesses, limit) in games.items()
        )

    @property
    def alarms(self) -> tuple[str, ...]:
        """Sentences to be shown in red: attacks that got more than the release allows."""
        of_customers = {
            "with planted customers": (self.planted.together, self.allowed),
            "for members": (self.membership.guesses, self.membership.allowed),
        }
        return tuple(
            f"The attack {name} was right {guesses.right} times of {guesses.tried}: with 95 % confidence "
            f"epsilon is at least {in_words(self.found_epsilon(guesses))}, and the release states "
            f"{allowed.epsilon:g}. The stated guarantee does not hold: withdraw the release and report this"
            for name, (guesses, allowed) in of_customers.items()
            if allowed.exceeded_by(guesses)
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
    network : voltages and loads against the meters on the true feeder.
    attacks : what an attacker gets of the load model.
    effort : sizes of the comparison.
    """

    facts: Facts
    customers: CustomerComparison
    network: NetworkComparison
    attacks: Attacks
    effort: Effort

    def __repr__(self) -> str:
        return f"FidelityReport({self.facts.release_id!r}, {len(self.findings)} figures, INTERNAL)"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every figure with its floor and its verdict, group by group."""
        every = (*self.customers.findings, *self.network.findings)
        return tuple(one for group in GROUPS for one in every if one.group == group)

    @property
    def summary(self) -> str:
        """What to trust and what not, in one paragraph."""
        text = environment(__package__, "templates", html=False, filters={}).get_template("summary.txt")
        words: str = text.render(_NAMES, findings=self.findings, alarms=self.attacks.alarms)
        return " ".join(words.split())

    def to_json(self) -> str:
        """INTERNAL. Every figure as JSON; infinite ones are null."""
        content = json.loads(json.dumps(self._content()), parse_constant=lambda _: None)
        return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    def to_html(self) -> bytes:
        """INTERNAL. A self-contained page."""
        return page_of(self)

    def _repr_html_(self) -> str:
        """The page within a notebook."""
        return framed(self.to_html())

    def _content(self) -> dict[str, Any]:
        attacks, allowed, members = self.attacks, self.attacks.allowed, self.attacks.membership
        return {
            "format": FORMAT,
            "marking": MARKING,
            "leak": LEAK,
            "facts": asdict(self.facts),
            "effort": asdict(self.effort),
            "summary": self.summary,
            "figures": [asdict(one) for one in self.findings],
            "network": {"scaled_down": self.network.scaled_down, "days": self.network.days},
            "attacks": {
                "alarms": list(attacks.alarms),
                "allowed": asdict(allowed)
                | {"success": allowed.success, "success by noise": allowed.by_noise},
                "games": [asdict(game) | {"interval": game.guesses.interval()} for game in attacks.games],
                "members": {"score": members.score, "area": members.area, "area error": members.area_error},
            },
        }


def in_words(epsilon: float) -> str:
    """A lower bound on ε for a reader."""
    return "any number" if math.isinf(epsilon) else f"{epsilon:.2f}"


# --- fidelity.html ----------------------------------------------------------------------------------------


SIGNS = {
    Verdict.SAME: "●",
    Verdict.CLOSE: "◕",
    Verdict.VISIBLE: "◔",
    Verdict.WRONG: "○",
    Verdict.UNSURE: "?",
    Verdict.COPIES: "!",
}
"""Before the words of a verdict: the fuller the better."""
TALLEST = 20.0
"""Ratios are drawn up to here; the table has them as they are."""
FLOOR = "real to real (floor)"
_GRID = np.linspace(0.0, 1.0, 51)
_NAMES = {
    "GROUPS": GROUPS,
    "GOOD": (Verdict.SAME, Verdict.CLOSE),
    "BAD": (Verdict.VISIBLE, Verdict.WRONG),
    "LEAK": LEAK,
    "TALLEST": TALLEST,
    "Verdict": Verdict,
}
"""What the templates call by its name."""


def page_of(report: FidelityReport) -> bytes:
    """INTERNAL. The page of a report."""
    attacks, charts = report.attacks, charts_of(report)
    scales = {"distances and figures": DISTANCE, "areas under the curve": TOLD, "forecasts": USE}
    facts = {
        "marking": MARKING,
        "report": report,
        "findings": report.findings,
        "charts": charts,
        "attacks": attacks,
        "allowed": attacks.allowed,
        "alarms": [f"{alarm}." for alarm in attacks.alarms],
        "rows": lambda group: [_row(one) for one in report.findings if one.group == group],
        "games": [_game_row(game) for game in attacks.games],
        "rule_header": ("kind", *(f"{SIGNS[one]} {one}, to" for one in list(Verdict)[:3])),
        "rule": [(name, *(f"{limit:g}" for limit in scale.limits)) for name, scale in scales.items()],
    }
    return page_from((__package__, "fidelity.html"), charts, _NAMES | facts)


def shown(value: float | None, digits: int = 3) -> str:
    """A figure in a table."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "∞"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def _row(one: Finding) -> tuple[str, ...]:
    return (
        one.title + (f" [{one.unit}]" if one.unit else ""),
        f"{SIGNS[one.verdict]} {one.verdict}",
        shown(one.drawn),
        shown(one.real),
        shown(one.floor),
        f"{shown(one.ratio)} ± {shown(one.error, 2)}",
    )


def _game_row(game: Game) -> tuple[str, ...]:
    own, (low, high) = game.guesses, game.guesses.interval()
    return (
        game.name,
        "more than ε allows" if game.exceeded else "within what ε allows",
        f"{own.right} of {own.tried}",
        f"{own.rate:.3f}",
        f"{low:.3f} to {high:.3f}",
        f"{game.allowed:.3f}",
        in_words(game.epsilon),
    )


def charts_of(report: FidelityReport) -> dict[str, Chart]:
    """Every chart of the page, by the id of its figure."""
    charts: dict[str, Chart] = {}
    for group in dict.fromkeys(one.group for one in report.findings):
        own = tuple(one for one in report.findings if one.group == group)
        ratios = {"release": [round(min(one.ratio, TALLEST), 3) for one in own], FLOOR: [1.0] * len(own)}
        titles = tuple(one.title for one in own)
        charts[f"{group}-ratios"] = Bars(Axis("distance over its floor"), titles, _series(ratios))
    of_network = _network_charts(report.network.curves)
    return charts | _customer_charts(report.customers.curves) | of_network | _attack_charts(report.attacks)


def _series(values: Mapping[str, Any], digits: int = 4) -> tuple[Series, ...]:
    """A series for every name."""
    return tuple(Series(name, np.round(own, digits)) for name, own in values.items())


def _customer_charts(curves: Curves) -> dict[str, Chart]:
    levels, steps = tuple(100 * level for level in BAND), next(iter(curves.bands.values())).shape[1]
    bands = tuple(Quantiles(name, levels, np.round(values, 4)) for name, values in curves.bands.items())
    axes, minutes = (Axis("lag", "h"), Axis("autocorrelation")), np.arange(steps) * 1440.0 / steps
    hours = np.round(lags(steps) * 24.0 / steps, 3)
    return {
        "profile": Band(CLOCK, Axis("load over mean load"), np.round(minutes, 3), bands),
        "memory": Lines(*axes, hours, _series(curves.memories)),
    }


def _network_charts(curves: NetworkCurves) -> dict[str, Chart]:
    axes = Axis("voltage", "p.u.", decimals=4), Axis("share", "%")
    shares = _series(curves.shares)
    charts: dict[str, Chart] = {"v-histogram": Histogram(*axes, np.round(curves.edges, 6), shares)}
    if curves.heads:
        power = Axis("power of the sources", "kW", decimals=0)
        charts["head"] = Duration(power, SHARES, _series(curves.heads, 2))
    return charts


def _attack_charts(attacks: Attacks) -> dict[str, Chart]:
    members = attacks.membership
    curves = {
        "most that ε allows": most_power(_GRID, members.allowed),
        "membership attack": np.interp(_GRID, members.false_rate, members.true_rate),
        "guessing": _GRID,
    }
    axes = Axis("others taken for members"), Axis("members found")
    return {"membership": Lines(*axes, np.round(_GRID, 3), _series(curves), filled=True)}


def most_power(false_rate: FloatArray, allowed: Allowed) -> FloatArray:
    """The most members that can be found at a rate of false alarms, by (ε, δ)."""
    grow = math.exp(min(allowed.epsilon, 700.0))
    first = grow * false_rate + allowed.delta
    second = 1 - (1 - allowed.delta - false_rate) / grow
    return np.clip(np.minimum(first, second), 0.0, 1.0)
