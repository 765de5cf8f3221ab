"""The table of a fleet as a reader uses it, in a headless browser: sorted, filtered, silent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow.fleet.manifest import fleet_page
from support.browser import Opened
from support.fleet_entries import fleet

pytestmark = pytest.mark.slow
FEEDERS = 300
SHOWN = "[...document.querySelectorAll('.data tbody tr')].filter((row) => !row.hidden)"


def column(number: int) -> str:
    return f"{SHOWN}.map((row) => row.cells[{number}].textContent)"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("fleet") / "fleet.html"
    found.write_bytes(fleet_page("north", fleet(FEEDERS)).to_html())
    return found


@pytest.fixture(params=[1280, 420], ids=["wide", "narrow"])
def page(browser: Any, path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    opened = Opened(browser, path, request.param)
    opened.page.wait_for_selector(".data th button")
    yield opened.page
    opened.page.close()
    assert (opened.said, opened.asked) == ([], [path.as_uri()])


def test_a_click_sorts_by_number_and_another_one_turns_the_order(page: Any) -> None:
    nodes = page.locator(".data th").nth(2)
    nodes.locator("button").click()
    rising = [int(text) for text in page.evaluate(column(2))]
    assert len(rising) == FEEDERS
    assert rising == sorted(rising)
    assert nodes.get_attribute("aria-sort") == "ascending"
    nodes.locator("button").click()
    assert [int(text) for text in page.evaluate(column(2))] == rising[::-1]
    assert nodes.get_attribute("aria-sort") == "descending"


def test_words_leave_the_rows_that_have_them(page: Any) -> None:
    count = page.locator(".data output")
    assert count.inner_text() == f"{FEEDERS} rows"
    page.locator(".data input[type=search]").fill("FEEDER-004")
    assert page.evaluate(column(0)) == [f"feeder-004{k}" for k in range(10)]
    assert count.inner_text() == f"10 of {FEEDERS} rows"
    page.locator(".data input[type=search]").fill("no such feeder")
    assert count.inner_text() == f"0 of {FEEDERS} rows"
    page.locator(".data input[type=search]").fill("")
    assert len(page.evaluate(column(0))) == FEEDERS


def test_the_page_is_never_wider_than_the_window_and_the_table_scrolls_within(page: Any) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("document.querySelector('.data .scroll').clientHeight <= 0.8 * innerHeight")
