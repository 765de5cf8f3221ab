"""Pages in a headless Chromium: what a reader sees, what the browser says, and whom it asks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking")


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; the test is skipped where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no chromium on this machine: install it")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield opened
        opened.close()


class Opened:
    """A page that is open."""

    def __init__(self, browser: Any, path: Path, width: int = 1400) -> None:
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="light")
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())
        charts = self.page.locator("figure .chart")
        self.charts = charts.count()
        for k in range(self.charts):
            charts.nth(k).scroll_into_view_if_needed()
            charts.nth(k).locator("svg").first.wait_for()

    def see(self, script: str) -> Any:
        return self.page.evaluate(script)

    def wait_until(self, script: str) -> None:
        """By asking: the page's policy lets nobody install a script that waits."""
        for _ in range(100):
            if self.see(script):
                return
            self.page.wait_for_timeout(50)
        pytest.fail(f"never came true: {script}")
