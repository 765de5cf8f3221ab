"""The page as a reader sees it, in a headless browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow.quality import Guarantee, Promise, measure
from support.browser import Opened
from support.quality_corpora import Feeder3

pytestmark = pytest.mark.slow
FILLS = "[...document.querySelectorAll('#network-map .buses circle')].map((dot) => dot.getAttribute('fill'))"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    words = Guarantee("The customers", "ε ≤ 1", "per load point", ("It holds.",), True)
    found = measure(Feeder3().write(folder / "corpus"), Promise(words, words))
    (folder / "quality.html").write_bytes(found.to_html())
    return folder / "quality.html"


@pytest.fixture
def opened(browser: Any, path: Path) -> Iterator[Opened]:
    found = Opened(browser, path)
    yield found
    # Whatever a test does, the page stays silent and asks nobody.
    found.page.close()
    assert found.said == []
    assert found.asked == [path.as_uri()]


def test_the_map_moves_with_the_slider_plays_and_shows_one_phase_or_one_bus(opened: Opened) -> None:
    assert opened.charts >= 10
    page, before = opened.page, opened.see(FILLS)
    slider = page.locator("#network-map input[type=range]")
    slider.focus()
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    moved = opened.see(FILLS)
    assert len(before) == len(moved) == Feeder3().buses
    assert before != moved
    assert page.locator("#network-map output").inner_text() == "18:00"
    assert slider.get_attribute("aria-valuetext") == "18:00"
    page.locator("#network-map").get_by_text("phase 3", exact=True).click()
    assert opened.see(FILLS) != moved
    page.locator("#network-map .buses circle").nth(2).hover()
    hint = page.locator("#network-map .hint").inner_text()
    assert hint.splitlines()[0] == "b2"
    assert "phase 2: 1.0" in hint
    page.get_by_label("Play the day").click()
    opened.wait_until("document.querySelector('#network-map output').textContent !== '18:00'")
    page.get_by_label("Pause").click()
    assert page.get_by_label("Play the day").count() == 1


def test_a_pointer_on_a_chart_shows_a_tooltip(opened: Opened) -> None:
    chart = opened.page.locator("#voltage-day svg").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    opened.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tip = opened.page.locator("#voltage-day [aria-label=tip] text")
    tip.wait_for(state="attached", timeout=5000)
    assert "50 %:" in tip.text_content()
    assert "p.u." in tip.text_content()


def test_a_series_can_be_hidden_and_figures_fit_a_window_that_changes(opened: Opened) -> None:
    paths = "document.querySelectorAll('#every-node [aria-label=line] path').length"
    before = opened.see(paths)
    button = opened.page.locator("#every-node .legend button").first
    button.click()
    assert opened.see(paths) == before - 1
    assert button.get_attribute("aria-pressed") == "false"
    width = "document.querySelector('#voltage-day svg').getBoundingClientRect().width"
    wide = opened.see(width)
    opened.page.set_viewport_size({"width": 500, "height": 900})
    opened.wait_until(f"{width} < {wide / 2}")


def test_dark_and_light_are_toggled_and_remembered(opened: Opened) -> None:
    light, fills = opened.see(BACKGROUND), opened.see(FILLS)
    opened.page.locator("#theme").click()
    opened.wait_until(f"{BACKGROUND} !== {light!r}")
    assert opened.see(FILLS) != fills
    opened.page.reload()
    opened.page.wait_for_selector("#network-map .buses circle")
    assert opened.see("document.documentElement.dataset.theme") == "dark"
    opened.page.locator("#theme").click()
    assert opened.see(BACKGROUND) == light
    opened.asked.pop()  # the reloaded page itself


@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_needs_a_horizontal_scroll(browser: Any, path: Path, width: int) -> None:
    opened = Opened(browser, path, width)
    assert opened.see("document.documentElement.scrollWidth") <= width
    charts = "[...document.querySelectorAll('.chart > svg')]"
    widest = f"Math.max(...{charts}.map((chart) => chart.getBoundingClientRect().right))"
    assert opened.see(widest) <= width
    assert opened.said == []
    opened.page.close()


def test_without_scripts_texts_and_tables_are_there(browser: Any, path: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.locator("noscript").is_visible()
    assert page.locator("table").first.is_visible()
    context.close()
