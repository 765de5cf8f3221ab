"""INTERNAL. `FidelityReport`: a release against the true meters and the true feeder, as a frozen result."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from dp_powerflow.fidelity.attacks import (
    Allowed,
    Guesses,
    LineAttack,
    MembershipAttack,
    PlantedAttack,
    least_epsilon,
)
from dp_powerflow.fidelity.comparison import (
    BAND,
    SHARES,
    Curves,
    CustomerComparison,
    NetworkComparison,
    NetworkCurves,
)
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


class Game(NamedTuple):
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
    line : what an attacker got of one line of the twin; None on the true network.
    network : what the release promises of the network, in words.
    """

    allowed: Allowed
    membership: MembershipAttack
    planted: PlantedAttack
    line: LineAttack | None
    network: str

    @property
    def games(self) -> tuple[Game, ...]:
        """Every attack."""
        own, members, line = self.allowed, self.membership, self.line
        games = {f"planted: {name}": (guesses, own) for name, guesses in self.planted.guesses.items()}
        games |= {"planted: all kinds": (self.planted.together, own)}
        games |= {"membership": (members.guesses, members.allowed)}
        found = [
            Game(name, guesses, limit.success, limit.exceeded_by(guesses), self.found_epsilon(guesses))
            for name, (guesses, limit) in games.items()
        ]
        if line is not None:
            name = f"a line of the twin, changed by {line.change:.0%}"
            found.append(Game(name, line.guesses, line.allowed, line.exceeded, line.found_epsilon))
        return tuple(found)

    @property
    def alarms(self) -> tuple[str, ...]:
        """Sentences to be shown in red: attacks that got more than the release allows."""
        found = []
        for name, guesses, allowed in (
            ("with planted customers", self.planted.together, self.allowed),
            ("for members", self.membership.guesses, self.membership.allowed),
        ):
            if allowed.exceeded_by(guesses):
                found.append(
                    f"The attack {name} was right {guesses.right} times of {guesses.tried}: with 95 % "
                    f"confidence epsilon is at least {in_words(self.found_epsilon(guesses))}, and the "
                    f"release states {allowed.epsilon:g}. The stated guarantee does not hold: withdraw "
                    "the release and report this"
                )
        if self.line is not None and self.line.exceeded:
            own = self.line.guesses
            found.append(
                f"The attack on a line of the twin was right {own.right} times of {own.tried}, and the "
                f"release allows {self.line.allowed:.3f} of them. The stated guarantee of the network does "
                "not hold: withdraw the release and report this"
            )
        return tuple(found)

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
        text = environment(__package__, "templates", html=False, filters={}).get_template("summary.txt")
        words: str = text.render(_NAMES, findings=self.findings, alarms=self.attacks.alarms)
        return " ".join(words.split())

    def to_json(self) -> str:
        """INTERNAL. Every figure as JSON; infinite ones are null."""
        return json.dumps(_finite(self._content()), indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    def to_html(self) -> bytes:
        """INTERNAL. A self-contained page."""
        return page_of(self)

    def _repr_html_(self) -> str:
        """The page within a notebook."""
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
    scales = {"distances and figures": DISTANCE, "areas under the curve": TOLD, "forecasts and gaps": USE}
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
    allows = "is allowed" if game.name.startswith("a line") else "ε allows"
    return (
        game.name,
        f"more than {allows}" if game.exceeded else f"within what {allows}",
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
        ratios = [round(min(one.ratio, TALLEST), 3) for one in own]
        series = (Series("release", ratios), Series("real to real (floor)", [1.0] * len(own)))
        charts[f"{group}-ratios"] = Bars(
            Axis("distance over its floor"), tuple(one.title for one in own), series
        )
        if group in ("customers", "feeder"):
            charts[f"{group}-figures"] = _beside_real(own)
    charts |= _customer_charts(report.customers.curves) | _attack_charts(report.attacks)
    if not isinstance(report.network, str):
        charts |= _network_charts(report.network.curves)
    return charts


def _beside_real(findings: tuple[Finding, ...]) -> Bars:
    """Figures of the release and of real customers, and how much these differ among themselves."""
    kept = [(one, one.real) for one in findings if one.real is not None and abs(one.real) > 1e-9]
    series = (
        Series("release", [round(100 * one.drawn / real, 1) for one, real in kept]),
        Series("real", [100.0] * len(kept)),
        Series("real to real (floor)", [round(100 * one.floor / abs(real), 1) for one, real in kept]),
    )
    axis = Axis("share of the real figure", "%", decimals=1)
    return Bars(axis, tuple(one.title for one, _ in kept), series)


def _customer_charts(curves: Curves) -> dict[str, Chart]:
    levels = tuple(100 * level for level in BAND)
    bands = tuple(
        Quantiles(name, levels, np.round(values, 4))
        for name, values in (("release", curves.drawn_band), ("real", curves.real_band))
    )
    memory = (
        Series("release", np.round(curves.drawn_memory, 4)),
        Series("real, half B", np.round(curves.real_memory, 4)),
        Series("real, half A (floor)", np.round(curves.floor_memory, 4)),
    )
    lags = np.round(curves.lag_hours, 3)
    return {
        "profile": Band(CLOCK, Axis("load over mean load"), np.round(curves.hours * 60, 3), bands),
        "memory": Lines(Axis("lag", "h"), Axis("autocorrelation"), lags, memory),
    }


def _network_charts(curves: NetworkCurves) -> dict[str, Chart]:
    shares = (
        Series("release", np.round(curves.drawn_share, 4)),
        Series("real", np.round(curves.real_share, 4)),
    )
    axes = Axis("voltage", "p.u.", decimals=4), Axis("share", "%")
    charts: dict[str, Chart] = {"v-histogram": Histogram(*axes, np.round(curves.edges, 6), shares)}
    if curves.drawn_head is not None and curves.real_head is not None:
        heads = (
            Series("release", np.round(curves.drawn_head, 2)),
            Series("real", np.round(curves.real_head, 2)),
        )
        charts["head"] = Duration(Axis("power of the sources", "kW", decimals=0), SHARES, heads)
    return charts


def _attack_charts(attacks: Attacks) -> dict[str, Chart]:
    members = attacks.membership
    curves = (
        Series("most that ε allows", np.round(most_power(_GRID, members.allowed), 4)),
        Series("membership attack", np.round(np.interp(_GRID, members.false_rate, members.true_rate), 4)),
        Series("guessing", np.round(_GRID, 4)),
    )
    axes = Axis("others taken for members"), Axis("members found")
    kinds = {**attacks.planted.guesses, "all kinds": attacks.planted.together}
    low, high = zip(*(own.interval() for own in kinds.values()), strict=True)
    bars = (
        Series("right guesses", [round(own.rate, 4) for own in kinds.values()]),
        Series("95 % interval, low", [round(value, 4) for value in low]),
        Series("95 % interval, high", [round(value, 4) for value in high]),
        Series("most that ε allows", [round(attacks.allowed.success, 4)] * len(kinds)),
    )
    return {
        "membership": Lines(*axes, np.round(_GRID, 3), curves, filled=True),
        "planted": Bars(Axis("right guesses"), tuple(kinds), bars),
    }


def most_power(false_rate: FloatArray, allowed: Allowed) -> FloatArray:
    """The most members that can be found at a rate of false alarms, by (ε, δ)."""
    grow = math.exp(min(allowed.epsilon, 700.0))
    first = grow * false_rate + allowed.delta
    second = 1 - (1 - allowed.delta - false_rate) / grow
    return np.clip(np.minimum(first, second), 0.0, 1.0)
