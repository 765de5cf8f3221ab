"""fleet-internal.html: marked; names feeders as their owner does, says what failed, was charged, is left."""

from __future__ import annotations

from typing import Any

import pytest

from dp_powerflow.fleet.internal_page import INTERNAL_PAGE, AccountRecord, FleetRecord, internal_page
from dp_powerflow.page import Page, Table
from support.fleet_entries import record, released


def tables(page: Page) -> dict[str, list[dict[str, Any]]]:
    return {
        section.id: [dict(zip(item.header, row, strict=True)) for row in item.rows]
        for section in page.sections
        for item in section.items
        if isinstance(item, Table)
    }


def cards(of: FleetRecord) -> dict[str, tuple[str, str]]:
    return {card.label: (card.value, card.note) for card in internal_page(of).cards}


def test_it_is_marked_internal_before_anything_else() -> None:
    page = internal_page(record(released(1)))
    assert INTERNAL_PAGE == "fleet-internal.html"
    body = page.to_html().decode().split("<body>")[1]
    marking = '<div class="marking" role="note">INTERNAL: computed from private data; not for publication'
    assert body.index(marking) < body.index("<h1>")


def test_a_feeder_has_its_key_its_state_its_account_and_the_distance_of_its_twin() -> None:
    [row] = tables(internal_page(record(released(7))))["feeders"]
    assert row == {
        "feeder": "oak street 7",
        "public name": "feeder-0007",
        "state": "released",
        "time [s]": "1.6",
        "nodes": "142",
        "days": "365",
        "corpus [MB]": "1.23",
        "account of the network": "network-twin-7",
        "ε charged": "4",
        "ε left": "6",
        "twin's distance [p.u.]": "0.00045",
        "worst node [p.u.]": "0.00306",
    }


def test_what_is_not_known_is_a_dash() -> None:
    nothing = dict.fromkeys(("seconds", "network", "nodes", "days", "corpus_bytes", "owner"))
    [row] = tables(internal_page(record(released(1, state="waiting", **nothing))))["feeders"]
    assert list(row.values()) == ["oak street 1", "feeder-0001", "waiting", *["–"] * 9]


@pytest.mark.parametrize(
    "owner",
    [
        b"",
        b"{}",
        b"not JSON",
        b'{"distance to the true network [p.u.]": "none: the network has other loads or generators"}',
        b'{"distance to the true network [p.u.]": {"pooled": "near"}}',
    ],
)
def test_a_twin_without_a_distance_has_a_dash(owner: bytes) -> None:
    [row] = tables(internal_page(record(released(1, owner=owner))))["feeders"]
    assert row["twin's distance [p.u.]"] == row["worst node [p.u.]"] == "–"


def test_failed_feeders_come_first_with_their_sentences() -> None:
    failed = released(2, state="failed", problem="OpenDSS rejects the file; correct it.")
    page = internal_page(record(released(1), failed))
    assert page.sections[0].id == "failed"
    assert tables(page)["failed"] == [
        {
            "feeder": "oak street 2",
            "public name": "feeder-0002",
            "why": "OpenDSS rejects the file; correct it.",
        }
    ]
    assert "failed" not in tables(internal_page(record(released(1))))


def test_cards_count_states_and_say_what_is_left() -> None:
    found = cards(
        record(
            released(1),
            released(2, network=AccountRecord("network-twin-2", left_epsilon=1.25)),
            released(3, state="failed", problem="No.", network=None),
            released(4, state="waiting", seconds=None, network=None),
            customers=AccountRecord("loads-1", 4.0, 1e-5, 2.0),
        )
    )
    assert found["Released"] == ("2 of 4", "1 waiting")
    assert found["Failed"] == ("1", "")
    assert found["Customers"] == ("ε 2 left", "loads-1, ε 4 charged")
    assert found["Networks"] == ("ε 1.25 left", "of the account with least")


def test_warnings_say_how_many_feeders_they_are_about() -> None:
    text = (
        internal_page(record(released(1, warnings=("One.",)), released(2), warnings=("Of the whole.",)))
        .to_html()
        .decode()
    )
    assert "<p>Of the whole.</p>" in text
    assert "<p>One. (1 of 2 feeders)</p>" in text


def test_names_that_look_like_markup_stay_names() -> None:
    hostile = "<script>alert(1)</script>"
    page = internal_page(record(released(1, state="failed", problem=hostile))).to_html()
    assert hostile.encode() not in page


def test_thousands_of_feeders_stay_small() -> None:
    few, many = (len(internal_page(record(*map(released, range(n)))).to_html()) for n in (10, 3000))
    assert (many - few) / 2990 < 260  # bytes of a row
