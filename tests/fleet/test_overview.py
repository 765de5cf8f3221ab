"""fleet.html: one row per feeder, figures over all of them, and a small file of thousands of feeders."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow.fleet.manifest import read_entries
from dp_powerflow.fleet.publishing import fleet_page
from dp_powerflow.page import Page, Table, read_summary
from support.fleet_entries import entry, fleet, summary


def table(page: Page) -> Table:
    [found] = [item for section in page.sections for item in section.items if isinstance(item, Table)]
    return found


def cells(page: Page, row: int = 0) -> dict[str, str]:
    found = table(page)
    texts = [cell if isinstance(cell, str) else cell.text for cell in found.rows[row]]
    return dict(zip(found.header, texts, strict=True))


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
        "snapshots scaled down": "3",
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


@pytest.mark.slow
def test_five_thousand_feeders_make_less_than_two_megabytes_and_hold_nothing_that_is_not_shown() -> None:
    pages = {count: fleet_page("north", *fleet(count)) for count in (2500, 5000)}
    sizes = {count: len(page.to_html()) for count, page in pages.items()}
    assert sizes[5000] < 2e6
    assert (sizes[5000] - sizes[2500]) / 2500 < 180  # bytes of a row
    found = read_summary(pages[5000].to_html())
    assert found is not None
    assert found == {"fleet": "north", "feeders": 5000, "feeder_days": 5000 * 365}


def test_a_warning_says_how_many_feeders_it_is_about() -> None:
    entries = [entry(1, warnings=("insecure-seed", "simulated-loads")), entry(2, warnings=("insecure-seed",))]
    text = fleet_page("north", entries, {}).to_html().decode()
    assert "<p>The noise came from an insecure seed" in text
    assert "<p>1 of 2 feeders: The loads are simulated" in text


@pytest.mark.slow
def test_the_page_has_the_same_bytes_in_every_process() -> None:
    code = (
        "import sys; from dp_powerflow.fleet.publishing import fleet_page; "
        "from support.fleet_entries import entry; "
        "one = entry(1, warnings=('insecure-seed', 'simulated-loads')); "
        "sys.stdout.buffer.write(fleet_page('north', [one], {}).to_html())"
    )
    pages = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in range(6)
    }
    assert len(pages) == 1


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
