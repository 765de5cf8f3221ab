"""`fidelity.html` in a browser: wide and narrow, dark and light, every chart drawn, nothing asked for."""

from __future__ import annotations

import html
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow.cli.checks import render_fidelity
from dp_powerflow.fidelity.attacks import KINDS, Allowed, Guesses, MembershipAttack, PlantedAttack
from dp_powerflow.fidelity.comparison import Curves, CustomerComparison, NetworkComparison, NetworkCurves
from dp_powerflow.fidelity.report import GROUPS, MARKING, Attacks, Facts, FidelityReport, most_power, shown
from dp_powerflow.fidelity.verdicts import QUICK, Finding, Verdict
from support.browser import Opened

VERDICTS = list(Verdict)


def finding(group: str, number: int) -> Finding:
    verdict = VERDICTS[number % len(VERDICTS)]
    real = None if number % 2 else 1.0 + number
    ratio = math.inf if number == 3 else 0.5 + number
    return Finding(
        group, f"{group}-{number}", f"{group} figure {number}", "kW", 1.1, real, 0.1, 0.1, ratio, 0.2, verdict
    )


def report(right: int = 20) -> FidelityReport:
    """A report of made-up figures."""
    line = np.linspace(0.0, 1.0, 5)
    band = np.sort(np.random.default_rng(0).random((3, 24)), axis=0)
    memory = 1 - np.arange(9) / 9
    curves = Curves({"release": band, "real": band + 0.1}, {f"side {k}": memory**k for k in (1, 2, 3)})
    customers = CustomerComparison(
        tuple(finding(group, k) for group in ("customers", "use") for k in range(6)), curves
    )
    shares = np.full(4, 25.0)
    head = np.linspace(3000.0, 1000.0, 101)
    of_network = NetworkComparison(
        tuple(finding(group, k) for group in ("feeder", "voltages") for k in range(4)),
        NetworkCurves(
            np.linspace(0.95, 1.05, 5),
            {"release": shares, "real": shares[::-1]},
            {"release": head, "real": head + 50},
        ),
        3,
        4,
    )
    planted = PlantedAttack({kind: Guesses(right, 40) for kind in KINDS}, partly=False)
    allowed = Allowed(1.0, 1e-5, 0.02)
    score = "distance to drawn customers"
    members = MembershipAttack(0.51, 0.01, Guesses(52, 100), score, line, line, allowed)
    attacks = Attacks(allowed, members, planted)
    facts = Facts("demo", "history", True, 96, 28, 15, 0.004, False)
    return FidelityReport(facts, customers, of_network, attacks, QUICK)


def test_the_page_says_what_it_is_before_anything_else() -> None:
    page = report().to_html().decode()
    first = (MARKING, "<h1>", "for the owner alone", "It may not steer the release", "<h2")
    places = [page.index(words) for words in first]
    assert places == sorted(places)
    titles = [html.unescape(title) for title in re.findall("<h2[^>]*>(.*?)</h2>", page)]
    assert titles[1:5] == [GROUPS[group] for group in ("customers", "use", "voltages", "feeder")]


def test_members_of_a_release_by_day_are_compared_with_all_their_days() -> None:
    found = report()
    members = replace(found.attacks.membership, allowed=found.attacks.allowed.of_group(14))
    attacks = replace(found.attacks, membership=replace(members, guesses=Guesses(90, 100)))
    by_day = replace(found, attacks=attacks)
    assert not attacks.alarms
    assert "of a whole customer the release allows ε = 14" in by_day.to_html().decode()
    assert "| membership | 90 of 100 | 0.82 to 0.95 | 1.000 |" in "\n".join(render_fidelity(by_day).lines)


def test_an_alarm_is_on_the_page_and_in_the_summary_only_where_there_is_one() -> None:
    quiet, loud = report(20), report(40)
    assert not quiet.attacks.alarms
    assert "More than ε allows" not in quiet.to_html().decode()
    assert "No attack got more" in quiet.summary
    assert "withdraw the release" in loud.attacks.alarms[0]
    assert "More than ε allows" in loud.to_html().decode()
    assert "An attack got more than epsilon allows" in loud.summary


def test_the_terminal_shows_every_figure_and_every_attack() -> None:
    own = report()
    text = "\n".join(render_fidelity(own).lines)
    assert [shown(value) for value in (None, math.inf, 12345.6, 0.12345, 2.0)] == [
        "–",
        "∞",
        "12,346",
        "0.123",
        "2",
    ]
    assert MARKING in render_fidelity(own).lines[0]  # what is redirected to a file is marked too
    assert all(one.title in text and str(one.verdict) in text for one in own.findings)
    assert "planted: all kinds | 60 of 120" in text


def test_the_region_that_epsilon_allows_is_that_of_its_two_inequalities() -> None:
    allowed = Allowed(1.0, 0.01, 0.02)
    rates = np.linspace(0.0, 1.0, 11)
    power = most_power(rates, allowed)
    assert np.all(power <= np.exp(1.0) * rates + 0.01 + 1e-12)
    assert np.all(1 - rates <= np.exp(1.0) * (1 - power) + 0.01 + 1e-9)
    assert np.max((power + 1 - rates) / 2) <= allowed.success + 1e-12
    assert np.all(most_power(rates, Allowed(1e6, 0.0, 1.0))[1:] == 1.0)


# ------------------------------------------------------------------------------------------ in a browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 400])
def test_every_chart_is_drawn_and_nothing_is_asked_for(browser: Any, tmp_path: Path, width: int) -> None:
    path = tmp_path / "fidelity.html"
    path.write_bytes(report(40).to_html())
    opened = Opened(browser, path, width)
    assert opened.charts >= 8
    assert opened.said == []
    assert opened.asked == [path.as_uri()]
    assert opened.see("document.documentElement.scrollWidth") <= width
    assert opened.page.locator(".marking").is_visible()
    assert "does not hold" in opened.page.locator(".callout.warning").inner_text()
    opened.page.close()
