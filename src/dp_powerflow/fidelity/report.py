"""INTERNAL. `FidelityReport`: a release against the true meters and the true feeder, as a frozen result."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dp_powerflow.fidelity.attacks import (
    Allowed,
    Guesses,
    LineAttack,
    MembershipAttack,
    PlantedAttack,
    least_epsilon,
)
from dp_powerflow.fidelity.customers import BAND, CustomerComparison
from dp_powerflow.fidelity.network import SHARES, NetworkComparison
from dp_powerflow.fidelity.verdicts import DISTANCE, TOLD, USE, Effort, Finding, Verdict
from dp_powerflow.page import (
    Axis,
    Band,
    Bars,
    Callout,
    Card,
    Duration,
    Figure,
    Histogram,
    Item,
    Lines,
    Page,
    Quantiles,
    Section,
    Series,
    Table,
)
from dp_powerflow.page.charts import CLOCK
from dp_powerflow.page.document import framed
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
    def games(self) -> dict[str, tuple[Guesses, Allowed]]:
        """Name of an attack on customers → its guesses, and what the release allows."""
        return {
            **{f"planted: {name}": (own, self.allowed) for name, own in self.planted.guesses.items()},
            "planted: all kinds": (self.planted.together, self.allowed),
            "membership": (self.membership.guesses, self.membership.allowed),
        }

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
        return page_of(self).to_html()

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


def page_of(report: FidelityReport) -> Page:
    """INTERNAL. The page of a report."""
    facts = report.facts
    kind = "customers persist" if facts.is_history else "days are independent draws"
    lead = (
        f"Release {facts.release_id} against the true meters and the true feeder. INTERNAL: computed from "
        f"private data, for the owner alone. {LEAK}",
        f"Compared: {facts.customers} customers on {facts.days} days in steps of {facts.step_minutes} min; "
        f"load model '{facts.estimator}' ({kind})."
        + (" The customers are simulated: no meter ever read them." if facts.simulated else ""),
    )
    sections = (_in_words(report), *_of_customers(report), *_of_network(report), _attacks(report), _rule())
    return Page("Fidelity of a release", MARKING, lead, sections, tuple(_cards(report)), (MARKING,))


def shown(value: float | None, digits: int = 3) -> str:
    """A figure in a table."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "∞"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def in_table(findings: tuple[Finding, ...]) -> Table:
    """Every figure of a group, a row each."""
    rows = tuple(
        (
            one.title + (f" [{one.unit}]" if one.unit else ""),
            f"{SIGNS[one.verdict]} {one.verdict}",
            shown(one.drawn),
            shown(one.real),
            shown(one.floor),
            f"{shown(one.ratio)} ± {shown(one.error, 2)}",
        )
        for one in findings
    )
    header = ("figure", "verdict", "release", "real", "floor", "ratio to floor")
    return Table(header, rows, "", frozenset({2, 3, 4, 5}))


def _cards(report: FidelityReport) -> Iterator[Card]:
    findings = report.findings
    good = sum(one.verdict in (Verdict.SAME, Verdict.CLOSE) for one in findings)
    wrong = [one for one in findings if one.verdict is Verdict.WRONG]
    tone = "plain" if 2 * good < len(findings) else "good"
    yield Card("close to real", f"{good} of {len(findings)}", "figures", tone)
    yield Card("wrong", str(len(wrong)), wrong[0].title if wrong else "none", "warning" if wrong else "good")
    attacks = report.attacks
    planted, allowed = attacks.planted.together, attacks.allowed
    yield Card(
        "planted customers found",
        f"{planted.rate:.0%}",
        f"ε allows {allowed.success:.0%}",
        "warning" if allowed.exceeded_by(planted) else "good",
    )
    yield Card("members found", f"AUC {attacks.membership.area:.2f}", "0.5 is guessing")


def _in_words(report: FidelityReport) -> Section:
    items: list[Item] = [Callout("What to trust", (report.summary,))]
    alarms = report.attacks.alarms
    if alarms:
        items.append(Callout("More than ε allows", tuple(f"{alarm}." for alarm in alarms), "warning"))
    return Section("words", "In words", (), tuple(items))


def _group(report: FidelityReport, group: str) -> tuple[Finding, ...]:
    return tuple(one for one in report.findings if one.group == group)


def _ratios(name: str, findings: tuple[Finding, ...]) -> Figure:
    """Distances over their floors."""
    ratios = [round(min(one.ratio, TALLEST), 3) for one in findings]
    series = (Series("release", ratios), Series("real to real (floor)", [1.0] * len(ratios)))
    chart = Bars(Axis("distance over its floor"), tuple(one.title for one in findings), series)
    return Figure(
        f"{name}-ratios",
        "How far from real, in units of real to real",
        f"1 is the floor: real customers against other real customers. Bars end at {TALLEST:g}; the table "
        "has the ratios as they are.",
        chart,
    )


def _relative(name: str, findings: tuple[Finding, ...]) -> Figure:
    """Figures of the release and of real customers, and how much these differ among themselves."""
    kept = tuple(one for one in findings if one.real is not None and abs(one.real) > 1e-9)
    release, floor = [], []
    for one in kept:
        assert one.real is not None
        release.append(round(100 * one.drawn / one.real, 1))
        floor.append(round(100 * one.floor / abs(one.real), 1))
    series = (
        Series("release", release),
        Series("real", [100.0] * len(kept)),
        Series("real to real (floor)", floor),
    )
    chart = Bars(Axis("share of the real figure", "%", decimals=1), tuple(one.title for one in kept), series)
    caption = "Every figure over that of the real side. The floor is how much two real halves differ."
    return Figure(f"{name}-figures", "Figures beside real ones", caption, chart)


def _of_customers(report: FidelityReport) -> Iterator[Section]:
    curves, own = report.customers.curves, _group(report, "customers")
    levels = tuple(100 * level for level in BAND)
    bands = tuple(
        Quantiles(name, levels, np.round(values, 4))
        for name, values in (("release", curves.drawn_band), ("real", curves.real_band))
    )
    profile = Figure(
        "profile",
        "A customer's day",
        "Median and the middle 80 % of the loads of all customers and days, over the mean of the real ones.",
        Band(CLOCK, Axis("load over mean load"), np.round(curves.hours * 60, 3), bands),
        wide=False,
    )
    memory = Figure(
        "memory",
        "How long a customer remembers",
        "Autocorrelation of the log load, mean over customers.",
        Lines(
            Axis("lag", "h"),
            Axis("autocorrelation"),
            np.round(curves.lag_hours, 3),
            (
                Series("release", np.round(curves.drawn_memory, 4)),
                Series("real, half B", np.round(curves.real_memory, 4)),
                Series("real, half A (floor)", np.round(curves.floor_memory, 4)),
            ),
        ),
        wide=False,
    )
    yield Section(
        "customers",
        GROUPS["customers"],
        ("Customers drawn from the published load model, one for every meter, on the days of the meters.",),
        (in_table(own), profile, memory, _ratios("customers", own), _relative("customers", own)),
    )
    use = _group(report, "use")
    dither = report.facts.quantum_kw
    seen = "" if dither is None else f" Both sides are dithered over the meters' resolution, {dither:g} kW."
    yield Section(
        "use",
        GROUPS["use"],
        (
            "A classifier that tells drawn from real reaches an area under the curve of 0.5 if it cannot and "
            "1 if it always can. Forecasts and filled gaps are trained on drawn customers and tested on real "
            "ones; their floor is trained on other real ones." + seen,
        ),
        (in_table(use), _ratios("use", use)),
    )


def _of_network(report: FidelityReport) -> Iterator[Section]:
    network = report.network
    if isinstance(network, str):
        yield Section("voltages", GROUPS["voltages"], (f"{network[:1].upper()}{network[1:]}.",))
        return
    yield Section(
        "voltages",
        GROUPS["voltages"],
        (
            f"The meters themselves, solved on the true feeder as the release is, {network.days} days at a "
            f"time. Nodes are matched {network.matched}. The days of the release are other days than those "
            "of the meters, so a difference of season counts as a difference."
            + (f" {network.mended} snapshots of the meters were mended." if network.mended else ""),
        ),
        (
            in_table(_group(report, "voltages")),
            _voltages(network),
            _ratios("voltages", _group(report, "voltages")),
        ),
    )
    own = _group(report, "feeder")
    if own:
        heads = (_head(network),) if network.curves.drawn_head is not None else ()
        items = (in_table(own), *heads, _ratios("feeder", own), _relative("feeder", own))
        yield Section("feeder", GROUPS["feeder"], ("Published powers beside those of the meters.",), items)


def _voltages(network: NetworkComparison) -> Figure:
    curves = network.curves
    series = (
        Series("release", np.round(curves.drawn_share, 4)),
        Series("real", np.round(curves.real_share, 4)),
    )
    chart = Histogram(
        Axis("voltage", "p.u.", decimals=4), Axis("share", "%"), np.round(curves.edges, 6), series
    )
    return Figure("v-histogram", "Voltages of all nodes", "Share of all samples in a bin.", chart)


def _head(network: NetworkComparison) -> Figure:
    curves = network.curves
    assert curves.drawn_head is not None
    assert curves.real_head is not None
    series = (
        Series("release", np.round(curves.drawn_head, 2)),
        Series("real", np.round(curves.real_head, 2)),
    )
    chart = Duration(Axis("power of the sources", "kW", decimals=0), SHARES, series)
    return Figure("head", "Feeder head", "For which share of the time the power is at least so large.", chart)


def _attacks(report: FidelityReport) -> Section:
    attacks, allowed = report.attacks, report.attacks.allowed
    together = attacks.planted.together
    rows: tuple[tuple[str, ...], ...] = tuple(
        (
            name,
            "more than ε allows" if limit.exceeded_by(own) else "within what ε allows",
            f"{own.right} of {own.tried}",
            f"{own.rate:.3f}",
            f"{own.interval()[0]:.3f} to {own.interval()[1]:.3f}",
            f"{limit.success:.3f}",
            in_words(attacks.found_epsilon(own)),
        )
        for name, (own, limit) in attacks.games.items()
    )
    if attacks.line is not None:
        rows = (*rows, _line_row(attacks.line))
    header = ("attack", "verdict", "right", "rate", "95 % interval", "allowed", "ε at least")
    partly = (
        " Classes are private, so only the queries that find them are attacked."
        if attacks.planted.partly
        else ""
    )
    paragraphs = (
        "The design of the release, with its budget and options, is fitted again and again with fresh noise. "
        "Nothing of it is released and nothing is charged. An attacker then guesses between two neighbours, "
        f"so 0.5 is guessing. The release states ε = {allowed.epsilon:g} at δ = {allowed.delta:g}, which "
        f"allows {allowed.success:.3f}; its noise by itself allows {allowed.by_noise:.3f}.",
        "Planted customers: one customer is replaced by one that no household resembles. The attacker knows "
        "everything but which of the two was fitted, and takes the likelihood ratio of all published "
        f"integers: nothing that follows from them, such as draws, says more.{partly} If all were right, "
        f"any ε below {allowed.visible(together.tried):.2f} would be contradicted; a larger ε is out of "
        "reach of so few fits.",
        f"Membership: half of the customers are fitted, and every customer is scored by its "
        f"{attacks.membership.score}. Area under the curve {attacks.membership.area:.3f} ± "
        f"{attacks.membership.area_error:.3f}.{_all_days(attacks.membership.allowed, allowed)}",
        f"{attacks.network}."
        + (" The attack on a line sees its noisy record." if attacks.line is not None else ""),
    )
    table = Table(header, rows, "", frozenset({2, 3, 4, 5, 6}))
    return Section("attacks", "Attacks", paragraphs, (table, _curve(report), _successes(report)))


def _all_days(of_customer: Allowed, allowed: Allowed) -> str:
    """What is allowed of a whole customer, where a record is one day."""
    if of_customer == allowed:
        return ""
    return f" A record is one day, so of a whole customer the release allows ε = {of_customer.epsilon:g}."


def _line_row(line: LineAttack) -> tuple[str, ...]:
    own = line.guesses
    low, high = own.interval()
    return (
        f"a line of the twin, changed by {line.change:.0%}",
        "more than is allowed" if line.exceeded else "within what is allowed",
        f"{own.right} of {own.tried}",
        f"{own.rate:.3f}",
        f"{low:.3f} to {high:.3f}",
        f"{line.allowed:.3f}",
        in_words(line.found_epsilon),
    )


def _curve(report: FidelityReport) -> Figure:
    """The curve of the membership attack under the most that ε allows."""
    attack = report.attacks.membership
    allowed = attack.allowed
    found = np.interp(_GRID, attack.false_rate, attack.true_rate)
    series = (
        Series("most that ε allows", np.round(most_power(_GRID, allowed), 4)),
        Series("membership attack", np.round(found, 4)),
        Series("guessing", np.round(_GRID, 4)),
    )
    chart = Lines(
        Axis("others taken for members"), Axis("members found"), np.round(_GRID, 3), series, filled=True
    )
    caption = "Below the upper line lies what ε allows. An attack that finds nothing follows the diagonal."
    return Figure("membership", "Membership attack", caption, chart, wide=False)


def most_power(false_rate: FloatArray, allowed: Allowed) -> FloatArray:
    """The most members that can be found at a rate of false alarms, by (ε, δ)."""
    grow = math.exp(min(allowed.epsilon, 700.0))
    first = grow * false_rate + allowed.delta
    second = 1 - (1 - allowed.delta - false_rate) / grow
    return np.clip(np.minimum(first, second), 0.0, 1.0)


def _successes(report: FidelityReport) -> Figure:
    attacks = report.attacks
    kinds = {**attacks.planted.guesses, "all kinds": attacks.planted.together}
    low, high = zip(*(own.interval() for own in kinds.values()), strict=True)
    series = (
        Series("right guesses", [round(own.rate, 4) for own in kinds.values()]),
        Series("95 % interval, low", [round(value, 4) for value in low]),
        Series("95 % interval, high", [round(value, 4) for value in high]),
        Series("most that ε allows", [round(attacks.allowed.success, 4)] * len(kinds)),
    )
    caption = "Share of right guesses over fits with and without the planted customer; 0.5 is guessing."
    return Figure(
        "planted", "Planted customers", caption, Bars(Axis("right guesses"), tuple(kinds), series), wide=False
    )


def _rule() -> Section:
    scales = (
        (DISTANCE, "distances and figures"),
        (TOLD, "areas under the curve"),
        (USE, "forecasts and gaps"),
    )
    rows = tuple((words, *(f"{limit:g}" for limit in scale.limits)) for scale, words in scales)
    header = ("kind", *(f"{SIGNS[one]} {one}, to" for one in (Verdict.SAME, Verdict.CLOSE, Verdict.VISIBLE)))
    return Section(
        "rule",
        "How to read the verdicts",
        (
            "Real customers are split at random into halves A and B, several times. The floor is the "
            "distance of A from B, or the smallest difference that matters if that is larger. The release is "
            "compared with B in samples of the same size. Its ratio to the floor, less its standard "
            "deviation over the splits, decides. Beyond the last limit the figure is wrong.",
            "A large ratio that may be chance says nothing: too few customers. A ratio below 0.4, or a "
            "classifier below chance, is suspicious: only copies of real customers are that close.",
        ),
        (Table(header, rows, "", frozenset({1, 2, 3})),),
    )
