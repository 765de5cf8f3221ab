"""fleet.html: one row per feeder, figures over all of them, and a small file of thousands of feeders."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow.fleet.manifest import FeederEntry, read_entries
from dp_powerflow.fleet.overview import MOST_BARS, MOST_BINS, fleet_page
from dp_powerflow.page import Bars, Figure, Histogram, Page, Table, read_summary
from support.fleet_entries import entry, fleet, summary


def figures(page: Page) -> dict[str, Figure]:
    return {item.id: item for section in page.sections for item in section.items if isinstance(item, Figure)}


def table(page: Page) -> Table:
    [found] = [item for section in page.sections for item in section.items if isinstance(item, Table)]
    return found


def cells(page: Page, row: int = 0) -> dict[str, str]:
    found = table(page)
    texts = [cell if isinstance(cell, str) else cell.text for cell in found.rows[row]]
    return dict(zip(found.header, texts, strict=True))


def same(count: int, **figures: Any) -> tuple[list[FeederEntry], dict[str, dict[str, Any]]]:
    entries = [entry(number) for number in range(1, count + 1)]
    return entries, {each.name: summary(**figures) for each in entries}


def test_a_row_says_nodes_days_voltages_and_both_epsilons() -> None:
    page = fleet_page("north", [entry(7, days=1461, nodes=1234)], {"feeder-0007": summary(inside_a=0.98765)})
    assert cells(page) == {
        "feeder": "feeder-0007",
        "days": "1,461",
        "nodes": "1,234",
        "lowest voltage [p.u.]": "0.9700",
        "highest voltage [p.u.]": "1.0200",
        "within range A [%]": "98.77",
        "peak [kW]": "812",
        "snapshots mended": "3",
        "ε, customers": "4",
        "ε, network": "4",
    }
    assert b'<a href="feeder=feeder-0007/quality.html">feeder-0007</a>' in page.to_html()
    assert "One feeder with 1,461 synthetic days" in page.lead[0]


def test_a_figure_beside_the_voltages_that_no_page_can_have_is_not_shown() -> None:
    """Before: 10⁴⁰⁰ kW ended in a traceback."""
    shown = cells(fleet_page("north", [entry(1)], {"feeder-0001": summary() | {"peak_kw": 10**400}}))
    assert (shown["peak [kW]"], shown["lowest voltage [p.u.]"]) == ("–", "0.9700")


@pytest.mark.parametrize(
    "changed",
    [{"lowest_pu": math.inf}, {"lowest_pu": "1"}, {"highest_pu": -1.0}, {"inside_a": 1.5}, {"phasors": True}],
)
def test_figures_that_no_page_can_have_are_not_shown(changed: dict[str, Any]) -> None:
    page = fleet_page("north", [entry(1)], {"feeder-0001": summary() | changed})
    assert cells(page)["lowest voltage [p.u.]"] == "–"
    assert b"feeder=feeder-0001" not in page.to_html()
    assert not figures(page)


@pytest.mark.slow
def test_five_thousand_feeders_make_less_than_two_megabytes_and_hold_nothing_that_is_not_shown() -> None:
    pages = {count: fleet_page("north", *fleet(count)) for count in (2500, 5000)}
    sizes = {count: len(page.to_html()) for count, page in pages.items()}
    assert sizes[5000] < 2e6
    assert (sizes[5000] - sizes[2500]) / 2500 < 180  # bytes of a row
    found = read_summary(pages[5000].to_html())
    assert found is not None
    assert found.keys() == {"fleet", "feeders", "feeder_days", "inside_a", "lowest_pu", "highest_pu"}
    assert (found["fleet"], found["feeders"]) == ("north", 5000)
    drawn = len(json.dumps([str(each.chart) for each in figures(pages[5000]).values()]))
    assert drawn < 10_000  # figures grow with nothing


@pytest.mark.parametrize("extremes", [None, (1.0, 1.0), (0.0, 2.0), (0.9999, 1.0001)])
def test_the_distribution_counts_every_feeder_once(extremes: tuple[float, float] | None) -> None:
    """Also where all voltages are the same, and where they are far apart."""
    entries, summaries = fleet(1000)
    if extremes is not None:
        entries, summaries = same(20, lowest=extremes[0], highest=extremes[1])
    chart = figures(fleet_page("north", entries, summaries))["voltages"].chart
    assert isinstance(chart, Histogram)
    assert len(chart.edges) <= MOST_BINS + 1
    if extremes is not None:
        assert [sum(each.values) for each in chart.series] == [20, 20]
        return
    for series, key in zip(chart.series, ("lowest_pu", "highest_pu"), strict=True):
        values = [each[key] for each in summaries.values()]
        counts = [
            sum(low <= value < high for value in values)
            for low, high in zip(chart.edges[:-1], chart.edges[1:], strict=True)
        ]
        assert list(series.values) == counts
        assert sum(counts) == 1000
    assert [limit.value for limit in chart.limits] == [0.95, 1.05]


def test_the_feeders_farthest_outside_range_a_are_shown_worst_first() -> None:
    entries, summaries = fleet(300)
    chart = figures(fleet_page("north", entries, summaries))["outside"].chart
    assert isinstance(chart, Bars)
    worst = sorted(summaries, key=lambda name: (summaries[name]["inside_a"], name))[:MOST_BARS]
    assert list(chart.groups) == worst
    # Of many feeders that are all within, bars of nothing but zeros say nothing.
    assert "outside" not in figures(fleet_page("north", *same(300)))


def test_a_warning_says_how_many_feeders_it_is_about() -> None:
    entries = [entry(1, warnings=("insecure-seed", "simulated-loads")), entry(2, warnings=("insecure-seed",))]
    text = fleet_page("north", entries, {}).to_html().decode()
    assert "<p>The noise came from an insecure seed" in text
    assert "<p>1 of 2 feeders: The loads are simulated" in text


def test_manifests_of_a_fleet_share_what_they_say_alike(tmp_path: Path) -> None:
    """So thousands of them fit into memory; what each says does not change."""
    stated = [entry(number, nodes=100 + number) for number in (1, 2)]
    for each in stated:
        folder = tmp_path / f"feeder={each.name}"
        folder.mkdir()
        (folder / "manifest.json").write_bytes(each.manifest.to_bytes())
    first, second = read_entries(tmp_path)
    assert [each.manifest for each in (first, second)] == [each.manifest for each in stated]
    assert second.manifest.load_queries is first.manifest.load_queries
    assert second.manifest.data.nodes == 102
