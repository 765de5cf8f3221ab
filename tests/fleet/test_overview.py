"""fleet.html: one row per feeder, and a small file of thousands of feeders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dp_powerflow.fleet.manifest import fleet_page, read_entries
from dp_powerflow.page import Table
from support.fleet_entries import entry, fleet


def test_a_row_says_nodes_days_and_both_epsilons_and_leads_to_the_page_of_the_feeder() -> None:
    page = fleet_page("north", [entry(7, days=1461, nodes=1234)])
    [found] = [item for section in page.sections for item in section.items if isinstance(item, Table)]
    texts = [cell if isinstance(cell, str) else cell.text for cell in found.rows[0]]
    assert dict(zip(found.header, texts, strict=True)) == {
        "feeder": "feeder-0007",
        "days": "1,461",
        "nodes": "1,234",
        "ε, customers": "4",
        "ε, network": "4",
    }
    assert b'<a href="feeder=feeder-0007/quality.html">feeder-0007</a>' in page.to_html()
    assert "One feeder with 1,461 synthetic days" in page.lead[0]


@pytest.mark.slow
def test_five_thousand_feeders_make_less_than_two_megabytes() -> None:
    pages = {count: fleet_page("north", fleet(count)) for count in (2500, 5000)}
    sizes = {count: len(page.to_html()) for count, page in pages.items()}
    assert sizes[5000] < 2e6
    assert (sizes[5000] - sizes[2500]) / 2500 < 180  # bytes of a row


def test_a_warning_says_how_many_feeders_it_is_about() -> None:
    entries = [entry(1, warnings=("insecure-seed", "simulated-loads")), entry(2, warnings=("insecure-seed",))]
    text = fleet_page("north", entries).to_html().decode()
    assert "<p>The noise came from an insecure seed" in text
    assert "<p>1 of 2 feeders: The loads are simulated" in text


@pytest.mark.slow
def test_the_page_has_the_same_bytes_in_every_process() -> None:
    code = (
        "import sys; from dp_powerflow.fleet.manifest import fleet_page; "
        "from support.fleet_entries import entry; "
        "one = entry(1, warnings=('insecure-seed', 'simulated-loads')); "
        "sys.stdout.buffer.write(fleet_page('north', [one]).to_html())"
    )
    pages = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in range(2)
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
